//! A case: concrete inputs of an op, as a safetensors blob (docs/case_format.md).
//!
//! The same form is golden data, replay file, child-process frame and trace entry.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::checkpoint::Shard;
use crate::error::{Error, Result};
use crate::ops::{Op, OutSpec, Tensors};
use crate::tensor::Tensor;

/// Version of the case format.
pub const VERSION: &str = "1";

/// Inputs of one op, with what is needed to make them again.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Op name.
    pub op: String,
    /// The op's params as JSON.
    pub params: Value,
    /// Stored dtype of the output.
    pub dtype: crate::Dtype,
    /// Inputs by argument name.
    pub tensors: Tensors,
    /// Outputs that somebody recorded, by output name.
    pub outputs: Tensors,
    /// The generator's name: `unit`, `outlier`, ... or `trace`.
    pub family: String,
    /// The generator's seed.
    pub seed: u64,
}

impl Case {
    /// The params as the op's type.
    ///
    /// # Errors
    /// When they are not the op's.
    pub fn params<O: Op>(&self) -> Result<O::Params> {
        serde_json::from_value(self.params.clone())
            .map_err(|e| Error::arg(O::NAME, "params", format!("{e} in {}", self.params)))
    }

    /// Checks the case against the op's contract.
    ///
    /// # Errors
    /// Names the argument that is wrong.
    pub fn check<O: Op>(&self) -> Result<Vec<OutSpec>> {
        if self.op != O::NAME {
            return Err(Error::Request(format!(
                "a case of `{}` is not one of `{}`",
                self.op,
                O::NAME
            )));
        }
        for name in self.tensors.keys() {
            if !O::ARGS.iter().any(|a| a.covers(name)) {
                return Err(Error::arg(O::NAME, name, "is not an argument of this op"));
            }
        }
        O::check(&self.params::<O>()?, &self.tensors)
    }

    /// Writes the case as a safetensors blob, deterministic to the byte.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.write_with(path, &BTreeMap::new())
    }

    /// The same with more metadata, whose keys are none of the case's own.
    ///
    /// # Errors
    /// When a key is one of the case's own, or the file cannot be written.
    pub fn write_with(&self, path: &Path, more: &BTreeMap<String, String>) -> Result<()> {
        let (tensors, metadata) = self.parts(more)?;
        crate::checkpoint::write(path, &tensors, &metadata)
    }

    /// The bytes that [`Case::write_with`] writes.
    ///
    /// # Errors
    /// When a key is one of the case's own, or a tensor has a name that the format lacks.
    pub fn to_bytes(&self, more: &BTreeMap<String, String>) -> Result<Vec<u8>> {
        let (tensors, metadata) = self.parts(more)?;
        crate::checkpoint::to_bytes(&tensors, &metadata)
    }

    /// Tensors and metadata of the case's file.
    fn parts(
        &self,
        more: &BTreeMap<String, String>,
    ) -> Result<(Tensors, BTreeMap<String, String>)> {
        let mut tensors: BTreeMap<String, Tensor> = self.tensors.clone();
        for (name, t) in &self.outputs {
            tensors.insert(format!("out.{name}"), t.clone());
        }
        let mut metadata = BTreeMap::from([
            ("assay_case".to_string(), VERSION.to_string()),
            ("op".into(), self.op.clone()),
            ("params".into(), self.params.to_string()),
            ("dtype".into(), self.dtype.to_string()),
            ("family".into(), self.family.clone()),
            ("seed".into(), self.seed.to_string()),
        ]);
        for (key, text) in more {
            if metadata.insert(key.clone(), text.clone()).is_some() {
                return Err(Error::Request(format!("metadata `{key}` is the case's own")));
            }
        }
        Ok((tensors, metadata))
    }

    /// Reads a case.
    ///
    /// # Errors
    /// When the file is not a case of a known version.
    pub fn read(path: &Path) -> Result<Case> {
        Ok(Case::read_with(path)?.0)
    }

    /// Reads a case and all metadata of its file.
    ///
    /// # Errors
    /// As [`Case::read`].
    pub fn read_with(path: &Path) -> Result<(Case, BTreeMap<String, String>)> {
        Case::of(&Shard::open(path)?)
    }

    /// The same from the bytes of such a file; `origin` is what errors name as the file.
    ///
    /// # Errors
    /// As [`Case::read`].
    pub fn from_bytes(bytes: Vec<u8>, origin: &Path) -> Result<(Case, BTreeMap<String, String>)> {
        Case::of(&Shard::parse(bytes, origin)?)
    }

    fn of(shard: &Shard) -> Result<(Case, BTreeMap<String, String>)> {
        let path = shard.path();
        let meta = |key: &str| {
            shard.metadata().get(key).cloned().ok_or_else(|| {
                Error::file(path, format!("metadata `{key}` is missing: this is not an assay case"))
            })
        };
        let version = meta("assay_case")?;
        if version != VERSION {
            return Err(Error::file(
                path,
                format!("case version {version}, this build reads {VERSION}"),
            ));
        }
        let params = serde_json::from_str(&meta("params")?)
            .map_err(|e| Error::file(path, format!("metadata `params` is not JSON: {e}")))?;
        let dtype = serde_json::from_value(Value::String(meta("dtype")?))
            .map_err(|e| Error::file(path, format!("metadata `dtype`: {e}")))?;
        let seed = meta("seed")?
            .parse()
            .map_err(|_| Error::file(path, "metadata `seed` is not an unsigned integer"))?;
        let (mut tensors, mut outputs) = (Tensors::new(), Tensors::new());
        for name in shard.names() {
            let t = shard.tensor(name)?;
            match name.strip_prefix("out.") {
                Some(out) => outputs.insert(out.into(), t),
                None => tensors.insert(name.into(), t),
            };
        }
        let (op, family) = (meta("op")?, meta("family")?);
        let case = Case { op, params, dtype, tensors, outputs, family, seed };
        Ok((case, shard.metadata().clone()))
    }
}

//! Traces: what probes recorded (docs/trace_format.md). A manifest and one safetensors file a layer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::checkpoint::{Shard, ensure_file, write};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Version of the trace format.
pub const VERSION: u32 = 1;

/// `manifest.json` of a trace.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Format version.
    pub assay_trace: u32,
    /// Who recorded it: name and versions.
    pub producer: BTreeMap<String, String>,
    /// The dtype in which the model computed.
    pub dtype: Dtype,
    /// `Qwen3ForCausalLM` ...
    pub architecture: String,
    /// All token ids, prompt and continuation.
    pub tokens: Vec<u32>,
    /// [start, end) of each forward call, contiguous from 0.
    pub segments: Vec<(usize, usize)>,
    /// Number of layers.
    pub layers: usize,
    /// The safetensors files.
    pub files: Vec<String>,
    /// Free text.
    #[serde(default)]
    pub notes: String,
    /// Probes that several ranks held and that were not the same on all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks_differ: Vec<String>,
    /// What was recorded, by probe name.
    pub probes: BTreeMap<String, Probe>,
}

/// One recorded tensor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Probe {
    /// The file that holds it.
    pub file: String,
    /// Shape; the first dimension is the token.
    pub shape: Vec<usize>,
    /// Dtype in safetensors spelling.
    pub dtype: String,
}

/// A recorded trace.
#[derive(Clone, Debug)]
pub struct Trace {
    dir: PathBuf,
    manifest: Manifest,
    tensors: BTreeMap<String, Tensor>,
}

impl Trace {
    /// Opens the trace in `dir` and checks it against its manifest.
    ///
    /// # Errors
    /// When the manifest is missing, of another version or contradicts the files.
    pub fn open(dir: &Path) -> Result<Trace> {
        let path = dir.join("manifest.json");
        ensure_file(&path)?;
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
        let manifest: Manifest = serde_json::from_str(&text).map_err(|e| {
            Error::file(
                &path,
                format!("is not the manifest of an assay trace of version {VERSION}: {e}"),
            )
        })?;
        check_manifest(&path, &manifest)?;
        let mut tensors = BTreeMap::new();
        for file in &manifest.files {
            let shard = Shard::open(&dir.join(file))?;
            for name in shard.names() {
                check_probe(&dir.join(file), file, name, &shard.tensor(name)?, &manifest)?;
                tensors.insert(name.to_string(), shard.tensor(name)?);
            }
        }
        if let Some((name, probe)) = manifest.probes.iter().find(|(n, _)| !tensors.contains_key(*n))
        {
            let what = "is listed in manifest.json but is not in the file";
            return Err(Error::tensor(dir.join(&probe.file), name, what));
        }
        Ok(Trace { dir: dir.to_path_buf(), manifest, tensors })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// A recorded tensor.
    pub fn get(&self, probe: &str) -> Option<&Tensor> {
        self.tensors.get(probe)
    }

    /// The same trace with only some of its tensors: those whose name `keep` accepts.
    #[must_use]
    pub fn only(mut self, keep: impl Fn(&str) -> bool) -> Trace {
        self.tensors.retain(|name, _| keep(name));
        self.manifest.probes.retain(|name, _| keep(name));
        self
    }

    /// Names of all recorded tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }
}

fn check_manifest(path: &Path, m: &Manifest) -> Result<()> {
    if m.assay_trace != VERSION {
        let what = format!("trace version {}, this build reads {VERSION}", m.assay_trace);
        return Err(Error::file(path, what));
    }
    if m.dtype.format().is_none() {
        return Err(Error::file(
            path,
            format!("`dtype` {} is not a floating-point dtype", m.dtype),
        ));
    }
    if m.tokens.is_empty() {
        return Err(Error::file(path, "`tokens` is empty: nothing was recorded"));
    }
    let mut at = 0;
    for &(start, end) in &m.segments {
        if start != at || end <= start {
            let what =
                format!("`segments` must be contiguous from 0: [{start}, {end}) follows {at}");
            return Err(Error::file(path, what));
        }
        at = end;
    }
    if at != m.tokens.len() {
        let what = format!("`segments` end at {at}, but there are {} tokens", m.tokens.len());
        return Err(Error::file(path, what));
    }
    let plain = |f: &String| !f.is_empty() && !f.contains(['/', '\\']) && f != "..";
    if let Some(bad) = m.files.iter().find(|f| !plain(f)) {
        return Err(Error::file(
            path,
            format!("`files` holds `{bad}`, which is not a plain file name"),
        ));
    }
    Ok(())
}

fn check_probe(path: &Path, file: &str, name: &str, t: &Tensor, m: &Manifest) -> Result<()> {
    let Some(probe) = m.probes.get(name) else {
        return Err(Error::tensor(path, name, "is not listed in manifest.json"));
    };
    let dtype = Dtype::from_safetensors(&probe.dtype);
    if probe.file != file || probe.shape != t.shape() || dtype != Some(t.dtype()) {
        let what = format!(
            "is {} {:?} in {file}, but manifest.json says {} {:?} in {}",
            t.dtype(),
            t.shape(),
            probe.dtype,
            probe.shape,
            probe.file
        );
        return Err(Error::tensor(path, name, what));
    }
    if t.dtype().format().is_none() {
        let what = format!("is {}: a probe holds floating-point values", t.dtype());
        return Err(Error::tensor(path, name, what));
    }
    // Kernels of a 16-bit model keep some values in f32; nothing else is of another dtype.
    let kept = matches!(m.dtype, Dtype::Bf16 | Dtype::F16) && t.dtype() == Dtype::F32;
    if t.dtype() != m.dtype && !kept {
        let what = format!(
            "is {}, but manifest.json says that the model computed in {}",
            t.dtype(),
            m.dtype
        );
        return Err(Error::tensor(path, name, what));
    }
    if t.shape().first() != Some(&m.tokens.len()) {
        let what = format!("has shape {:?}: {} token rows expected", t.shape(), m.tokens.len());
        return Err(Error::tensor(path, name, what));
    }
    Ok(())
}

/// Writes a trace: the safetensors files first, the manifest last, each atomically.
///
/// # Errors
/// When the folder exists and is not empty, or cannot be written.
pub fn save(dir: &Path, mut manifest: Manifest, tensors: &BTreeMap<String, Tensor>) -> Result<()> {
    check_new(dir)?;
    std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
    let mut files: BTreeMap<String, BTreeMap<String, Tensor>> = BTreeMap::new();
    manifest.probes.clear();
    for (name, t) in tensors {
        let file = file_of(name);
        let dtype = safetensors_name(t.dtype()).to_string();
        let probe = Probe { file: file.clone(), shape: t.shape().to_vec(), dtype };
        manifest.probes.insert(name.clone(), probe);
        files.entry(file).or_default().insert(name.clone(), t.clone());
    }
    manifest.files = files.keys().cloned().collect();
    for (file, tensors) in &files {
        write(&dir.join(file), tensors, &BTreeMap::new())?;
    }
    let text = serde_json::to_string_pretty(&manifest)
        .map_err(|e| Error::file(dir.join("manifest.json"), e.to_string()))?;
    let partial = dir.join(".manifest.json.part");
    std::fs::write(&partial, text + "\n").map_err(Error::io(&partial))?;
    std::fs::rename(&partial, dir.join("manifest.json")).map_err(Error::io(dir))
}

/// Checks that a trace can be saved into `dir`: it does not exist, or is an empty folder.
///
/// # Errors
/// When it is neither.
pub fn check_new(dir: &Path) -> Result<()> {
    match std::fs::read_dir(dir) {
        Ok(mut entries) => match entries.next() {
            Some(_) => Err(Error::file(dir, "is not empty: a trace needs a new folder")),
            None => Ok(()),
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(Error::io(dir)(e)),
    }
}

/// `layers.3.q_proj` lives in `layer-00003.safetensors`, everything else in `global.safetensors`.
fn file_of(probe: &str) -> String {
    let layer =
        probe.strip_prefix("layers.").and_then(|r| r.split('.').next()?.parse::<usize>().ok());
    layer.map_or_else(|| "global.safetensors".into(), |n| format!("layer-{n:05}.safetensors"))
}

fn safetensors_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bf16 => "BF16",
        Dtype::F16 => "F16",
        Dtype::F32 => "F32",
        Dtype::F64 => "F64",
        Dtype::F8E4m3 => "F8_E4M3",
        Dtype::I32 => "I32",
        Dtype::I64 => "I64",
        Dtype::U8 => "U8",
    }
}

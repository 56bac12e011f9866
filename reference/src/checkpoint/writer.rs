//! Writing safetensors: deterministic bytes, and files that are whole or absent.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::header::{MAX_HEADER, MAX_RANK, METADATA, PREFIX, bad_name};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The bytes of a safetensors file with `tensors` and `metadata`.
///
/// The bytes depend on nothing but the arguments. The header lists metadata first and tensors
/// sorted by name; the data lie with wide elements first, then by name, behind a header padded to a
/// multiple of 8, so that every tensor is aligned for its elements.
///
/// # Errors
/// [`Error::Request`] when a name is empty, reserved or holds control characters, when a tensor has
/// more than 8 dimensions, or when the header would exceed the format's limit.
pub fn to_bytes(
    tensors: &BTreeMap<String, Tensor>,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>> {
    let plan = plan(tensors, metadata)?;
    let mut out = Vec::with_capacity(plan.len());
    plan.emit(&mut out).map_err(Error::io("(memory)"))?;
    Ok(out)
}

/// Writes a safetensors file as [`to_bytes`] gives it, atomically: to a temporary file in the same
/// folder, synced, then renamed over `path`.
///
/// # Errors
/// As [`to_bytes`], and [`Error::Io`] when writing fails; then `path` is as it was before.
pub fn write(
    path: &Path,
    tensors: &BTreeMap<String, Tensor>,
    metadata: &BTreeMap<String, String>,
) -> Result<()> {
    let plan = plan(tensors, metadata)?;
    let (temporary, file) = create_beside(path)?;
    let written = fill(file, &plan).and_then(|()| fs::rename(&temporary, path));
    if let Err(e) = written {
        // The first error is the one to report; a left-over temporary file is harmless.
        let _ = fs::remove_file(&temporary);
        return Err(Error::io(path)(e));
    }
    sync_folder(path);
    Ok(())
}

/// A file's header and its tensors in the data's order.
struct Plan<'a> {
    header: String,
    data: Vec<&'a Tensor>,
}

impl Plan<'_> {
    fn len(&self) -> usize {
        PREFIX + self.header.len() + self.data.iter().map(|t| t.bytes().len()).sum::<usize>()
    }

    fn emit(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&(self.header.len() as u64).to_le_bytes())?;
        out.write_all(self.header.as_bytes())?;
        self.data.iter().try_for_each(|t| out.write_all(t.bytes()))
    }
}

fn plan<'a>(
    tensors: &'a BTreeMap<String, Tensor>,
    metadata: &BTreeMap<String, String>,
) -> Result<Plan<'a>> {
    let mut order: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
    // Stable: the map's order by name remains among equal sizes.
    order.sort_by_key(|(_, t)| std::cmp::Reverse(t.dtype().size()));
    let mut offsets = BTreeMap::new();
    let mut end = 0;
    for (name, tensor) in &order {
        let start = end;
        end += tensor.bytes().len();
        offsets.insert(*name, (start, end));
    }

    let mut parts = Vec::with_capacity(tensors.len() + 1);
    if !metadata.is_empty() {
        let pairs: Vec<String> =
            metadata.iter().map(|(k, v)| format!("{}:{}", quote(k), quote(v))).collect();
        parts.push(format!("{}:{{{}}}", quote(METADATA), pairs.join(",")));
    }
    for (name, (start, end)) in offsets {
        parts.push(entry(name, &tensors[name], start, end)?);
    }
    let mut header = format!("{{{}}}", parts.join(","));
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    if header.len() as u64 > MAX_HEADER {
        return Err(Error::Request(format!(
            "a safetensors header of {} bytes exceeds the format's limit of {MAX_HEADER}: write \
             fewer tensors or less metadata",
            header.len()
        )));
    }
    Ok(Plan { header, data: order.into_iter().map(|(_, t)| t).collect() })
}

fn entry(name: &str, tensor: &Tensor, start: usize, end: usize) -> Result<String> {
    let refuse = |why: &str| {
        Err(Error::Request(format!("cannot write the tensor `{}`: {why}", name.escape_debug())))
    };
    if let Some(why) = bad_name(name) {
        return refuse(why);
    }
    let shape = tensor.shape();
    if shape.len() > MAX_RANK {
        return refuse(&format!("it has {} dimensions, at most {MAX_RANK} are read", shape.len()));
    }
    let mut text =
        format!("{}:{{\"dtype\":\"{}\",\"shape\":[", quote(name), spelled(tensor.dtype()));
    for (i, d) in shape.iter().enumerate() {
        let _ = write!(text, "{}{d}", if i == 0 { "" } else { "," });
    }
    let _ = write!(text, "],\"data_offsets\":[{start},{end}]}}");
    Ok(text)
}

/// A dtype as safetensors spells it.
fn spelled(dtype: Dtype) -> &'static str {
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

fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn fill(file: File, plan: &Plan<'_>) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, file);
    plan.emit(&mut out)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

/// Creates a new file beside `path`, under a name of this process's own.
fn create_beside(path: &Path) -> Result<(PathBuf, File)> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let Some(name) = path.file_name() else {
        return Err(Error::file(path, "is not the name of a file that can be written"));
    };
    loop {
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        let n = COUNTER.fetch_add(1, Ordering::Relaxed);
        temporary.push(format!(".{}-{n}.tmp", std::process::id()));
        let temporary = path.with_file_name(temporary);
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((temporary, file)),
            // A process of the same id left it behind: take the next number.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Error::io(path)(e)),
        }
    }
}

/// Makes the rename durable where folders can be synced; elsewhere the file itself already is.
fn sync_folder(path: &Path) {
    let folder = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}

//! Writing safetensors: deterministic bytes, and files that are whole or absent.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::header::{MAX_HEADER, MAX_RANK, METADATA, bad_name};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::tensor::{Tensor, byte_len};

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

/// A tensor that is to be written, without its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// Name in the file.
    pub name: &'a str,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Shape, outermost first.
    pub shape: &'a [usize],
}

/// What stands before the data of a safetensors file, for writers that hold no tensor whole: the header with its
/// length, and the order of the data as positions in `slots`. The file that follows it is that of [`to_bytes`].
///
/// # Errors
/// As [`to_bytes`]; and when two names are equal, or the tensors are too large to be counted in bytes.
pub fn header_of(
    slots: &[Slot<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<(Vec<u8>, Vec<usize>)> {
    let mut named: Vec<usize> = (0..slots.len()).collect();
    named.sort_by_key(|&i| slots[i].name);
    if let Some(pair) = named.windows(2).find(|p| slots[p[0]].name == slots[p[1]].name) {
        return refused(slots[pair[0]].name, "another one has the same name");
    }
    let mut order = named.clone();
    // Stable: the order by name remains among equal sizes.
    order.sort_by_key(|&i| std::cmp::Reverse(slots[i].dtype.size()));
    let mut places = vec![(0, 0); slots.len()];
    let mut end: usize = 0;
    for &i in &order {
        let bytes = byte_len(slots[i].dtype, slots[i].shape);
        let Some(next) = bytes.and_then(|bytes| end.checked_add(bytes)) else {
            return refused(slots[i].name, "its bytes cannot be counted");
        };
        places[i] = (end, next);
        end = next;
    }

    let mut parts = Vec::with_capacity(slots.len() + 1);
    if !metadata.is_empty() {
        let pairs: Vec<String> =
            metadata.iter().map(|(k, v)| format!("{}:{}", quote(k), quote(v))).collect();
        parts.push(format!("{}:{{{}}}", quote(METADATA), pairs.join(",")));
    }
    for i in named {
        parts.push(entry(&slots[i], places[i])?);
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
    let mut head = (header.len() as u64).to_le_bytes().to_vec();
    head.extend(header.into_bytes());
    Ok((head, order))
}

/// The header and the tensors in the data's order.
struct Plan<'a> {
    head: Vec<u8>,
    data: Vec<&'a Tensor>,
}

impl Plan<'_> {
    fn len(&self) -> usize {
        self.head.len() + self.data.iter().map(|t| t.bytes().len()).sum::<usize>()
    }

    fn emit(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&self.head)?;
        self.data.iter().try_for_each(|t| out.write_all(t.bytes()))
    }
}

fn plan<'a>(
    tensors: &'a BTreeMap<String, Tensor>,
    metadata: &BTreeMap<String, String>,
) -> Result<Plan<'a>> {
    let slot = |(name, tensor): (&'a String, &'a Tensor)| Slot {
        name,
        dtype: tensor.dtype(),
        shape: tensor.shape(),
    };
    let slots: Vec<Slot<'_>> = tensors.iter().map(slot).collect();
    let (head, order) = header_of(&slots, metadata)?;
    let data = order.into_iter().map(|i| &tensors[slots[i].name]).collect();
    Ok(Plan { head, data })
}

fn refused<T>(name: &str, why: &str) -> Result<T> {
    Err(Error::Request(format!("cannot write the tensor `{}`: {why}", name.escape_debug())))
}

fn entry(slot: &Slot<'_>, (start, end): (usize, usize)) -> Result<String> {
    let Slot { name, dtype, shape } = *slot;
    if let Some(why) = bad_name(name) {
        return refused(name, why);
    }
    if shape.len() > MAX_RANK {
        let why = format!("it has {} dimensions, at most {MAX_RANK} are read", shape.len());
        return refused(name, &why);
    }
    let mut text = format!("{}:{{\"dtype\":\"{}\",\"shape\":[", quote(name), spelled(dtype));
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

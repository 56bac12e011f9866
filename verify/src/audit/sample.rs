//! Samples of a file's bytes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Blocks that are looked at.
const BLOCKS: u64 = 64;
/// Bytes of a block.
const BLOCK: u64 = 4096;

/// What to say of a file of `length` bytes more than half of which was never written.
///
/// The system says how many bytes it stores. Far fewer than the length are no proof by themselves (a
/// compressing file system), so that blocks over the whole file are read: half of them zeros, where
/// weights have next to none, is proof. Weights in 16 bits do not compress to half: their fractions are
/// noise.
pub(super) fn holes(path: &Path, length: u64) -> Option<String> {
    let stored = stored(path)?;
    if stored == 0 || stored >= length / 2 || length < BLOCKS * BLOCK {
        return None;
    }
    let mut file = File::open(path).ok()?;
    let zero = (0..BLOCKS)
        .filter(|i| is_zero(&mut file, i * (length / BLOCKS)).unwrap_or(false))
        .count() as u64;
    (zero * 2 >= BLOCKS).then(|| {
        format!(
            "has {length} bytes, of which the file system stores {stored}; of {BLOCKS} blocks read over the file {zero} are all zero"
        )
    })
}

#[cfg(unix)]
fn stored(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok()?.blocks().checked_mul(512)
}

#[cfg(not(unix))]
fn stored(_: &Path) -> Option<u64> {
    None
}

fn is_zero(file: &mut File, at: u64) -> std::io::Result<bool> {
    file.seek(SeekFrom::Start(at))?;
    let mut block = [0; BLOCK as usize];
    file.read_exact(&mut block)?;
    Ok(block.iter().all(|b| *b == 0))
}

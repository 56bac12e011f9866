//! Which tensor lies where: shards as transformers fills them, each with its header.

use std::collections::BTreeMap;

use assay_reference::Dtype;
use assay_reference::checkpoint::index::SINGLE;
use assay_reference::checkpoint::{Config, Expected, Slot, expected, header_of};

use super::values::Values;

/// One file.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) file: String,
    /// What stands before the data.
    pub(super) head: Vec<u8>,
    /// Bytes of the data.
    pub(super) data: u64,
    /// The tensors in the data's order: name, first byte of the data, values.
    pub(super) tensors: Vec<(String, u64, Values)>,
    dtype: Dtype,
}

impl Shard {
    /// Bytes of the file.
    pub(super) fn bytes(&self) -> u64 {
        self.head.len() as u64 + self.data
    }

    /// Writes the data from byte `at` on into `out`; both begin and end between elements, within the data.
    pub(super) fn fill(&self, mut at: u64, mut out: &mut [u8]) {
        let size = self.dtype.size() as u64;
        let mut next = self.tensors.partition_point(|(_, start, _)| *start <= at);
        while !out.is_empty() {
            let end = self.tensors.get(next).map_or(self.data, |(_, start, _)| *start);
            let n = usize::try_from(end - at).unwrap_or(usize::MAX).min(out.len());
            let (here, rest) = std::mem::take(&mut out).split_at_mut(n);
            if let Some((_, start, values)) = next.checked_sub(1).map(|i| &self.tensors[i]) {
                values.fill(self.dtype, (at - start) / size, here);
            }
            (at, out, next) = (at + n as u64, rest, next + 1);
        }
    }
}

/// The shards of a model in `dtype`: tensors in the forward's order, a new file where one would exceed `limit` bytes of
/// data. A tensor larger than that has a file of its own.
///
/// # Errors
/// When a header would be too long for the format.
pub(super) fn plan(
    config: &Config,
    dtype: Dtype,
    seed: u64,
    limit: u64,
) -> anyhow::Result<Vec<Shard>> {
    let mut files: Vec<(u64, Vec<Expected>)> = Vec::new();
    for tensor in expected(config) {
        let bytes = bytes(&tensor, dtype);
        match files.last_mut() {
            Some((total, tensors)) if *total + bytes <= limit => {
                *total += bytes;
                tensors.push(tensor);
            }
            _ => files.push((bytes, vec![tensor])),
        }
    }
    let count = files.len();
    let name = |i: usize| match count {
        1 => SINGLE.to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
    };
    files.into_iter().enumerate().map(|(i, (_, all))| shard(name(i), all, dtype, seed)).collect()
}

fn shard(file: String, tensors: Vec<Expected>, dtype: Dtype, seed: u64) -> anyhow::Result<Shard> {
    // Loaders of torch look for it.
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let slots: Vec<Slot<'_>> =
        tensors.iter().map(|t| Slot { name: &t.name, dtype, shape: &t.shape }).collect();
    let (head, order) = header_of(&slots, &metadata)?;
    let (mut data, mut placed) = (0, Vec::with_capacity(order.len()));
    for i in order {
        let tensor = &tensors[i];
        placed.push((tensor.name.clone(), data, Values::new(seed, &tensor.name, &tensor.shape)));
        data += bytes(tensor, dtype);
    }
    Ok(Shard { file, head, data, tensors: placed, dtype })
}

/// Bytes of a tensor. A config's limits keep it far from overflow.
fn bytes(tensor: &Expected, dtype: Dtype) -> u64 {
    tensor.shape.iter().map(|&d| d as u64).product::<u64>() * dtype.size() as u64
}

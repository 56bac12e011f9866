//! A layer's paged cache of keys and values: blocks of 16 rows, handed out from the last one down, so
//! that no sequence lies in order.

use assay_reference::{Dtype, Tensor};

/// Rows of a block.
const BLOCK: usize = 16;

/// Keys and values of a layer.
#[derive(Clone, Debug)]
pub(super) struct PagedCache {
    /// [blocks, BLOCK, Hkv, D] each, keys first.
    caches: [Tensor; 2],
    /// Blocks of the sequence.
    table: Vec<usize>,
    len: usize,
    heads: usize,
    d: usize,
}

impl PagedCache {
    /// An empty cache for keys [T, Hkv, D].
    pub(super) fn new(keys: &[usize]) -> PagedCache {
        let (heads, d) = (keys[1], keys[2]);
        let empty = Tensor::from_f64(Dtype::Bf16, &[0, BLOCK, heads, d], &[]);
        PagedCache { caches: [empty.clone(), empty], table: Vec::new(), len: 0, heads, d }
    }

    /// Makes room for `rows` more; the slots that they take.
    pub(super) fn append(&mut self, rows: usize) -> Vec<usize> {
        let end = self.len + rows;
        let needed = end.div_ceil(BLOCK);
        let have = self.caches[0].shape()[0];
        if needed > have {
            self.grow(have, needed.next_power_of_two());
        }
        let blocks = self.caches[0].shape()[0];
        while self.table.len() < needed {
            let free = (0..blocks).rev().find(|id| !self.table.contains(id));
            self.table.push(free.expect("there are enough blocks"));
        }
        let slots = (self.len..end).map(|j| self.table[j / BLOCK] * BLOCK + j % BLOCK).collect();
        self.len = end;
        slots
    }

    /// Stale rows are NaN: nothing may read them.
    fn grow(&mut self, have: usize, blocks: usize) {
        let (heads, d) = (self.heads, self.d);
        let new = (blocks - have) * BLOCK * heads * d;
        for cache in &mut self.caches {
            let mut bytes = cache.bytes().to_vec();
            bytes.extend([0xff, 0x7f].repeat(new));
            *cache = Tensor::from_bytes(Dtype::Bf16, vec![blocks, BLOCK, heads, d], bytes)
                .expect("two bytes an element");
        }
    }

    /// Keys' and values' caches.
    pub(super) fn tensors(&self) -> [Tensor; 2] {
        self.caches.clone()
    }

    /// What a launch made of one of them.
    pub(super) fn replace(&mut self, keys: bool, cache: Tensor) {
        self.caches[usize::from(!keys)] = cache;
    }

    /// Ids of the sequence's blocks.
    pub(super) fn table(&self) -> &[usize] {
        &self.table
    }

    /// Rows in use.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Keys and values in order, [S, Hkv, D].
    ///
    /// # Errors
    /// None while the caches have their shape.
    pub(super) fn gathered(&self) -> assay_reference::Result<[Tensor; 2]> {
        let row = self.heads * self.d * Dtype::Bf16.size();
        let shape = vec![self.len, self.heads, self.d];
        let gather = |cache: &Tensor| {
            let mut bytes = Vec::with_capacity(self.len * row);
            for j in 0..self.len {
                let slot = self.table[j / BLOCK] * BLOCK + j % BLOCK;
                bytes.extend_from_slice(&cache.bytes()[slot * row..(slot + 1) * row]);
            }
            Tensor::from_bytes(Dtype::Bf16, shape.clone(), bytes)
        };
        Ok([gather(&self.caches[0])?, gather(&self.caches[1])?])
    }
}

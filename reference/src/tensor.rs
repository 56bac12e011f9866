//! A tensor as it is stored: dtype, shape, little-endian bytes. Values are widened when read.

mod finite;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use ndarray::{ArrayD, ArrayViewD, IxDyn};

use crate::dtype::{Dtype, Rounding, e4m3};
use crate::error::{Error, Result};

pub(crate) use finite::{NonFinite, non_finite};

/// Where tensors' bytes live: an owned vector, or a mapped file.
pub(crate) trait Store: Send + Sync {
    /// All of them.
    fn bytes(&self) -> &[u8];
    /// Lets go of the memory that holds a range, if it can be read again.
    fn release(&self, _range: Range<usize>) {}
    /// Begins to read a range that is needed soon.
    fn read_ahead(&self, _range: Range<usize>) {}
}

impl Store for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A row-major tensor in its stored form. Cloning is cheap: bytes are shared.
#[derive(Clone)]
pub struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    store: Arc<dyn Store>,
    range: Range<usize>,
}

impl Tensor {
    /// A tensor over `range` of `store`.
    ///
    /// # Errors
    /// When the range lies outside the store, or its length is not the shape's element count times
    /// the dtype's size.
    pub(crate) fn from_store(
        dtype: Dtype,
        shape: Vec<usize>,
        store: Arc<dyn Store>,
        range: Range<usize>,
    ) -> Result<Tensor> {
        let need = byte_len(dtype, &shape);
        let have = store.bytes().len();
        if range.start > range.end || range.end > have || need != Some(range.len()) {
            return Err(Error::Request(format!(
                "a {dtype} tensor of shape {shape:?} needs {need:?} bytes, but bytes {range:?} of {have} were given"
            )));
        }
        Ok(Tensor { dtype, shape, store, range })
    }

    /// A tensor that owns `bytes` (little-endian, row-major).
    ///
    /// # Errors
    /// When the length does not fit the shape.
    pub fn from_bytes(dtype: Dtype, shape: Vec<usize>, bytes: Vec<u8>) -> Result<Tensor> {
        let n = bytes.len();
        Tensor::from_store(dtype, shape, Arc::new(bytes), 0..n)
    }

    /// Rounds `values` to nearest even in `dtype`; integers are truncated.
    ///
    /// # Panics
    /// When the number of values is not the shape's (a programming error).
    pub fn from_f64(dtype: Dtype, shape: &[usize], values: &[f64]) -> Tensor {
        assert_eq!(values.len(), shape.iter().product::<usize>(), "shape {shape:?}");
        let mut bytes = Vec::with_capacity(values.len() * dtype.size());
        for &v in values {
            push(dtype, v, &mut bytes);
        }
        let range = 0..bytes.len();
        Tensor { dtype, shape: shape.to_vec(), store: Arc::new(bytes), range }
    }

    /// A tensor of 32-bit integers.
    ///
    /// # Panics
    /// When the number of values is not the shape's (a programming error).
    pub fn from_i32(shape: &[usize], values: &[i32]) -> Tensor {
        assert_eq!(values.len(), shape.iter().product::<usize>(), "shape {shape:?}");
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let range = 0..bytes.len();
        Tensor { dtype: Dtype::I32, shape: shape.to_vec(), store: Arc::new(bytes), range }
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Shape, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The innermost dimension (1 for a scalar).
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// The product of all dimensions but the innermost.
    pub fn rows(&self) -> usize {
        self.shape.split_last().map_or(1, |(_, outer)| outer.iter().product())
    }

    /// The stored bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.store.bytes()[self.range.clone()]
    }

    /// Lets go of the memory that the elements take, if they lie in a mapped file: they are read again when
    /// they are needed.
    pub fn release(&self) {
        self.store.release(self.range.clone());
    }

    /// Begins to read the elements of a mapped file, and does not wait.
    pub fn read_ahead(&self) {
        self.store.read_ahead(self.range.clone());
    }

    /// Whether another tensor is the same elements at the same place in memory.
    pub fn shares(&self, other: &Tensor) -> bool {
        let same_store = std::ptr::addr_eq(Arc::as_ptr(&self.store), Arc::as_ptr(&other.store));
        same_store
            && self.range == other.range
            && self.dtype == other.dtype
            && self.shape == other.shape
    }

    /// The same elements under another shape.
    ///
    /// # Errors
    /// When the element counts differ.
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor> {
        if shape.iter().product::<usize>() != self.len() {
            return Err(Error::Request(format!("cannot reshape {:?} to {shape:?}", self.shape)));
        }
        Ok(Tensor { shape: shape.to_vec(), ..self.clone() })
    }

    /// Rows `range` of the outermost dimension, sharing the bytes.
    ///
    /// # Panics
    /// When the range is outside the tensor (a programming error).
    pub fn slice_outer(&self, range: Range<usize>) -> Tensor {
        assert!(range.start <= range.end && range.end <= self.shape[0], "rows {range:?}");
        let stride: usize = self.shape[1..].iter().product::<usize>() * self.dtype.size();
        let mut shape = self.shape.clone();
        shape[0] = range.len();
        let start = self.range.start + range.start * stride;
        Tensor {
            dtype: self.dtype,
            shape,
            store: self.store.clone(),
            range: start..start + range.len() * stride,
        }
    }

    /// Indices `range` of one axis; a copy unless the axis is the outermost.
    ///
    /// # Panics
    /// When the axis or the range is outside the tensor (a programming error).
    pub fn slice_axis(&self, axis: usize, range: Range<usize>) -> Tensor {
        assert!(range.start <= range.end && range.end <= self.shape[axis], "axis {axis} {range:?}");
        if axis == 0 {
            return self.slice_outer(range);
        }
        let inner = self.shape[axis + 1..].iter().product::<usize>() * self.dtype.size();
        let row = self.shape[axis] * inner;
        let mut bytes =
            Vec::with_capacity(self.bytes().len() / self.shape[axis].max(1) * range.len());
        for chunk in self.bytes().chunks(row.max(1)) {
            bytes.extend_from_slice(&chunk[range.start * inner..range.end * inner]);
        }
        let mut shape = self.shape.clone();
        shape[axis] = range.len();
        Tensor::from_bytes(self.dtype, shape, bytes).expect("the length follows from the shape")
    }

    /// A zero-copy ndarray view, when the element type matches and the bytes are aligned for it
    /// (tensors in a mapped file need not be).
    pub fn view<T: bytemuck::Pod>(&self) -> Option<ArrayViewD<'_, T>> {
        if size_of::<T>() != self.dtype.size() {
            return None;
        }
        let slice = bytemuck::try_cast_slice(self.bytes()).ok()?;
        ArrayViewD::from_shape(IxDyn(&self.shape), slice).ok()
    }

    /// All elements widened to f64 (exact for every dtype but i64 above 2^53).
    pub fn to_f64(&self) -> Vec<f64> {
        let mut out = vec![0.0; self.len()];
        self.widen(0, &mut out, |x| x);
        out
    }

    /// All elements as an ndarray of f64.
    ///
    /// # Panics
    /// Never: the shape's element count is an invariant.
    pub fn to_array(&self) -> ArrayD<f64> {
        ArrayD::from_shape_vec(IxDyn(&self.shape), self.to_f64()).expect("shape invariant")
    }

    /// Element `i` of the flattened tensor, widened.
    pub fn get(&self, i: usize) -> f64 {
        let mut one = [0.0];
        self.widen(i, &mut one, |x| x);
        one[0]
    }

    /// Element `i` as an integer (the bits of packed words; floats are truncated).
    pub fn get_i64(&self, i: usize) -> i64 {
        let b = self.bytes();
        match self.dtype {
            Dtype::I32 => i64::from(i32::from_le_bytes(take(b, i))),
            Dtype::I64 => i64::from_le_bytes(take(b, i)),
            Dtype::U8 => i64::from(b[i]),
            _ => self.get(i) as i64,
        }
    }

    /// Elements `start..start + n` as [`Tensor::get_i64`] gives them.
    pub fn ints(&self, start: usize, n: usize) -> Vec<i64> {
        if self.dtype != Dtype::I32 {
            return (start..start + n).map(|i| self.get_i64(i)).collect();
        }
        let (words, _) = self.bytes()[start * 4..(start + n) * 4].as_chunks::<4>();
        words.iter().map(|w| i64::from(i32::from_le_bytes(*w))).collect()
    }

    /// Widens elements `start..start + out.len()` and maps them through `lift`.
    pub fn widen<R>(&self, start: usize, out: &mut [R], lift: impl Fn(f64) -> R) {
        let b = self.bytes();
        macro_rules! each {
            ($size:literal, $read:expr) => {{
                let from = start * $size;
                let part = &b[from..from + out.len() * $size];
                for (o, c) in out.iter_mut().zip(part.chunks_exact($size)) {
                    let raw: [u8; $size] = c.try_into().expect("chunk size");
                    *o = lift($read(raw));
                }
            }};
        }
        match self.dtype {
            Dtype::Bf16 => {
                each!(2, |r| f64::from(f32::from_bits(u32::from(u16::from_le_bytes(r)) << 16)))
            }
            Dtype::F16 => each!(2, |r| f16::from_le_bytes(r).to_f64()),
            Dtype::F32 => each!(4, |r| f64::from(f32::from_le_bytes(r))),
            Dtype::F64 => each!(8, f64::from_le_bytes),
            Dtype::F8E4m3 => each!(1, |r: [u8; 1]| e4m3::decode(r[0])),
            Dtype::I32 => each!(4, |r| f64::from(i32::from_le_bytes(r))),
            Dtype::I64 => each!(8, |r| i64::from_le_bytes(r) as f64),
            Dtype::U8 => each!(1, |r: [u8; 1]| f64::from(r[0])),
        }
    }

    /// A copy with every element mapped through `f(index, value)` and stored in the same dtype.
    pub fn map(&self, f: impl Fn(usize, f64) -> f64) -> Tensor {
        let values: Vec<f64> =
            self.to_f64().into_iter().enumerate().map(|(i, v)| f(i, v)).collect();
        Tensor::from_f64(self.dtype, &self.shape, &values)
    }
}

fn take<const N: usize>(b: &[u8], i: usize) -> [u8; N] {
    b[i * N..(i + 1) * N].try_into().expect("element size")
}

/// Bytes that a tensor needs, or `None` on overflow.
pub fn byte_len(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(dtype.size(), |n, &d| n.checked_mul(d))
}

fn push(dtype: Dtype, v: f64, out: &mut Vec<u8>) {
    let r = Rounding::nearest(dtype).round(v);
    match dtype {
        // `r` is representable, so the conversions below are exact (a NaN stays a NaN).
        Dtype::Bf16 => out.extend(bf16::from_f32(r as f32).to_le_bytes()),
        Dtype::F16 => out.extend(f16::from_f64(r).to_le_bytes()),
        Dtype::F32 => out.extend((r as f32).to_le_bytes()),
        Dtype::F64 => out.extend(v.to_le_bytes()),
        Dtype::F8E4m3 => out.push(e4m3::encode(r)),
        Dtype::I32 => out.extend((v as i32).to_le_bytes()),
        Dtype::I64 => out.extend((v as i64).to_le_bytes()),
        Dtype::U8 => out.push(v as u8),
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?})", self.dtype, self.shape)
    }
}

impl PartialEq for Tensor {
    /// Same dtype, shape and bytes.
    fn eq(&self, other: &Tensor) -> bool {
        self.dtype == other.dtype && self.shape == other.shape && self.bytes() == other.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_and_widening_agree() {
        let t = Tensor::from_f64(Dtype::F32, &[2, 3], &[1.0, 2.5, -3.0, 0.1, f64::INFINITY, 0.0]);
        let view = t.view::<f32>().expect("aligned");
        assert_eq!(view[[1, 0]], 0.1f32);
        assert_eq!(t.to_array()[[1, 0]], f64::from(0.1f32));
        assert_eq!(t.slice_outer(1..2).to_f64()[1], f64::INFINITY);
        assert_eq!(t.slice_axis(1, 1..3).to_f64(), [2.5, -3.0, f64::INFINITY, 0.0]);
        assert_eq!(t.slice_axis(1, 1..3).shape(), [2, 2]);
        assert!(t.view::<f64>().is_none());
    }

    #[test]
    fn a_wrong_length_is_refused() {
        assert!(Tensor::from_bytes(Dtype::Bf16, vec![2, 2], vec![0; 7]).is_err());
        assert!(Tensor::from_bytes(Dtype::F64, vec![usize::MAX, 8], vec![0; 8]).is_err());
    }
}

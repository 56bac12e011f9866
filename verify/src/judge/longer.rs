//! Longer sequences than a recording has: what a short prompt cannot show.
//!
//! Some faults begin at a length: positions held in bf16 are exact up to 256, a table may end at 4096, a
//! window that should be off hides what lies behind it. The catalogue offers them only where a case has
//! that length, so that a case's own catalogue does not say what it missed.

use assay_reference::Tensor;
use assay_reference::ops::Tensors;

/// A position beyond every length in rope's catalogue, not representable in bf16.
const POSITION: i32 = 40_961;
/// Keys beyond every length in attention's catalogue, and no multiple of a tile.
const KEYS: usize = 4099;

/// The tensors of a call in a long sequence, for their shapes and positions; `None` where an op knows
/// no length.
pub(super) fn longer(op: &str, tensors: &Tensors) -> Option<Tensors> {
    let mut longer = tensors.clone();
    match op {
        "rope" => {
            let positions = tensors.get("positions")?;
            let mut values: Vec<i32> =
                (0..positions.len()).map(|i| positions.get_i64(i) as i32).collect();
            // The first one stays: how far a call is shifted does not depend on lengths.
            let last = values.iter_mut().skip(1).last()?;
            *last = POSITION.max(*last);
            longer.insert("positions".into(), Tensor::from_i32(positions.shape(), &values));
        }
        // Zeros: the catalogue looks at the shapes only.
        "attention" => {
            let (k, v) = (tensors.get("k")?, tensors.get("v")?);
            for (name, t) in [("k", k), ("v", v)] {
                let mut shape = t.shape().to_vec();
                let row = t.len() / shape[0];
                if shape[0] >= KEYS || row == 0 {
                    return None;
                }
                shape[0] = KEYS;
                let bytes = vec![0; KEYS * row * t.dtype().size()];
                longer.insert(name.into(), Tensor::from_bytes(t.dtype(), shape, bytes).ok()?);
            }
        }
        _ => return None,
    }
    Some(longer)
}

//! The subjects of an op: how an implementation may legitimately add, and what can be wrong with it.

use assay_reference::ops::{self, Op, Residual, Scope, Visitor};
use assay_reference::{Dtype, Rounding};

use crate::families;
use crate::judge::panel::FaultId;
use crate::subject::native::{Chain, Native, Order};

/// Factors of the gain, a fault whose parameter the judge solves for.
pub const GAINS: [&str; 2] = ["1.005", "1.02"];

/// Ways of adding that are all legitimate for an op: where it reduces, every order with and without
/// fused products, and for attention softmax in one pass over blocks of keys as well.
pub fn chains(op: &str) -> Vec<Chain> {
    let few = Native::legitimate_chains(op);
    if few.len() <= 4 {
        return few;
    }
    let orders = [
        Order::Lanes(64),
        Order::Sequential,
        Order::Reversed,
        Order::Permuted(1),
        Order::Pairwise,
        Order::Split(2),
        Order::Split(4),
        Order::Split(8),
        Order::Lanes(4),
        Order::Lanes(8),
        Order::Lanes(16),
        Order::Lanes(32),
        Order::Blocks(4),
        Order::Blocks(8),
    ];
    let mut out = Vec::new();
    for fma in [true, false] {
        out.extend(orders.map(|order| Chain { order, fma, online: None }));
        for keys in [16, 64].into_iter().filter(|_| op.starts_with("attention")) {
            for order in [Order::Sequential, Order::Lanes(64), Order::Blocks(8)] {
                out.push(Chain { order, fma, online: Some(keys) });
            }
        }
    }
    out
}

/// Every catalogued fault of an op and those whose parameter is solved for, each once; `None` when
/// there is no such op.
pub fn faults(op: &str) -> Option<Vec<FaultId>> {
    ops::visit(op, Catalogue)
}

struct Catalogue;

impl Visitor for Catalogue {
    type Out = Vec<FaultId>;

    fn visit<O: Op>(self) -> Vec<FaultId> {
        let mut all: Vec<FaultId> = Vec::new();
        let mut add = |id: FaultId| {
            if !all.contains(&id) {
                all.push(id);
            }
        };
        // An output that is off by a factor shows whether the op solves for one.
        let (expected, observed) = ([1.0; 64], [1.25; 64]);
        for (params, tensors) in families::examples::<O>() {
            for f in O::faults(&params, &tensors) {
                add(FaultId { slug: f.slug.into(), key: f.key, code: f.code.into() });
            }
            let residual = Residual {
                tensors: &tensors,
                cols: 1,
                expected: &expected,
                radius: &[0.0; 64],
                observed: &observed,
                output: Rounding::nearest(Dtype::F32),
            };
            for f in O::propose(&params, &residual).iter().filter(|f| f.slug == "gain") {
                for by in GAINS {
                    add(FaultId { slug: f.slug.into(), key: by.into(), code: f.code.into() });
                }
            }
        }
        all
    }
}

/// A panel's label as the choices that a native subject takes: `edge=f32` is ("edge", "f32").
pub fn choices(label: &str) -> Vec<(String, String)> {
    let pairs = label.split_whitespace().filter_map(|word| word.split_once('='));
    pairs.map(|(knob, value)| (knob.to_string(), value.to_string())).collect()
}

/// Whose conventions the measured subjects may have.
pub const SCOPE: Scope = Scope::Kernel;

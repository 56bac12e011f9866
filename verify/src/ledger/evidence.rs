//! What a check saw: which families, which dispatch cells, and the bits of the outputs.

use assay_reference::{Case, Tensor};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::families::Generated;

/// The cases of one dispatch cell: the shapes that a real library would send down one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// As [`cell`] names it.
    pub name: String,
    /// How many cases fell into it.
    pub cases: usize,
    /// sha256 of the outputs of its plain runs; none when one of them gave none.
    pub outputs: Option<String>,
}

/// What a check saw.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// The families of the cases, in the order of their first case.
    pub families: Vec<String>,
    /// The dispatch cells that the cases reach, by name.
    pub cells: Vec<Cell>,
    /// sha256 of the outputs of all plain runs, in the order of the cases; none when one of them gave
    /// none, as after a memory finding.
    pub outputs: Option<String>,
}

impl Evidence {
    /// Of cases, with all outputs of each one's plain run where it gave some. `plain` may be shorter.
    pub fn of(cases: &[Generated], plain: &[Vec<&Tensor>]) -> Evidence {
        let mut families: Vec<String> = Vec::new();
        let mut names: Vec<String> = Vec::new();
        for g in cases {
            for (list, name) in
                [(&mut families, g.case.family.clone()), (&mut names, cell(&g.case))]
            {
                if !list.contains(&name) {
                    list.push(name);
                }
            }
        }
        names.sort();
        let outputs = |of: &dyn Fn(&Case) -> bool| {
            let all = cases.iter().enumerate().filter(|(_, g)| of(&g.case));
            let mut hash = Sha256::new();
            for (i, _) in all {
                let outputs = plain.get(i).filter(|o| !o.is_empty())?;
                outputs.iter().for_each(|o| update(&mut hash, o));
            }
            Some(format!("{:x}", hash.finalize()))
        };
        let cells = names
            .into_iter()
            .map(|name| Cell {
                cases: cases.iter().filter(|g| cell(&g.case) == name).count(),
                outputs: outputs(&|case| cell(case) == name),
                name,
            })
            .collect();
        let outputs = if cases.is_empty() { None } else { outputs(&|_| true) };
        Evidence { families, cells, outputs }
    }
}

/// Dtype, shape and bytes, so that no two outputs hash alike.
pub(super) fn update(hash: &mut Sha256, t: &Tensor) {
    hash.update(t.dtype().to_string());
    hash.update([0]);
    hash.update((t.shape().len() as u64).to_le_bytes());
    t.shape().iter().for_each(|&d| hash.update((d as u64).to_le_bytes()));
    hash.update(t.bytes());
}

/// The dispatch cell of a case:
///
/// - `attention` and its like (arguments `q`, `k`): `decode` for one query, `prefill` when every key
///   belongs to a query, else `chunk`;
/// - dequantisation (no `x`): `g_idx` when rows were reordered, else `sequential`;
/// - ops over rows of `x`: `rows=1`, `rows=2..8`, `rows=9..64`, `rows=65..`: where libraries change
///   between a matrix-vector kernel, a skinny one and tiles;
/// - anything else: `any`.
pub fn cell(case: &Case) -> String {
    let shape = |name: &str| case.tensors.get(name).map(Tensor::shape);
    let name = match (shape("q"), shape("k"), shape("x")) {
        (Some([1, ..]), Some(_), _) => "decode",
        (Some([t, ..]), Some([s, ..]), _) => {
            if t == s {
                "prefill"
            } else {
                "chunk"
            }
        }
        (_, _, Some(x)) => match x.iter().rev().skip(1).product::<usize>() {
            0 | 1 => "rows=1",
            2..=8 => "rows=2..8",
            9..=64 => "rows=9..64",
            _ => "rows=65..",
        },
        _ if case.op.ends_with("_dequant") => {
            let reordered = ["g_idx", "weight_g_idx"].iter().any(|g| shape(g).is_some());
            if reordered { "g_idx" } else { "sequential" }
        }
        _ => "any",
    };
    name.into()
}

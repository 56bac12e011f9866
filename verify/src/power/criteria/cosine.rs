//! Cosine similarity of the flattened outputs, as model ports report it.

use super::{Compared, Criterion};

pub(super) const COSINE: Criterion = Criterion {
    name: "cosine",
    rule: "sum a b / sqrt(sum a^2 sum b^2) >= 0.9999",
    source: "common practice in ports of models; no single source, the limit is among the strictest in use",
    accepts,
};

fn accepts(seen: &Compared<'_>) -> bool {
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (o, r) in seen.pairs() {
        ab += o * r;
        aa += o * o;
        bb += r * r;
    }
    // Two outputs of zeros have no angle, and are equal.
    (aa == 0.0 && bb == 0.0) || ab / (aa.sqrt() * bb.sqrt()) >= 0.9999
}

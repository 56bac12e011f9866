//! Cases of the dequantisations: every width, both ends of the zero points, shuffled groups, partial
//! groups, distinct scales.

use assay_reference::Dtype;
use assay_reference::ops::packed;

use super::super::Generated;
use super::super::draft::{Draft, EXACT, Family, OUTLIER, SPECIAL, STORED, UNIT};
use super::{Awq, Codes, Ct, Fp8, Gptq, Scales, Spec};

/// A family's scales.
fn family(scales: Scales) -> Family {
    match scales {
        Scales::Trained => UNIT,
        Scales::Powers => EXACT,
        Scales::Wide => OUTLIER,
        Scales::Special => SPECIAL,
    }
}

fn case(op: &'static str, kind: Scales, spec: &dyn Spec, dtype: Dtype, seed: u64) -> Generated {
    let mut draft = Draft::new(op, family(kind), spec.label(), dtype, seed);
    let layer = spec.layer(&mut draft.values());
    for (name, tensor) in layer.tensors {
        draft = draft.tensor(name, tensor);
    }
    draft.params(layer.params).done()
}

const GPTQ: Gptq = Gptq {
    format: "v1",
    bits: 4,
    k: 64,
    n: 24,
    group_size: 16,
    asym: true,
    act: false,
    scales: Scales::Trained,
};

/// Small cases of `gptq_dequant` at every width.
pub(in super::super) fn gptq(seed: u64) -> Vec<Generated> {
    let mut specs = Vec::new();
    for format in ["v1", "v2"] {
        let base = Gptq { format, ..GPTQ };
        specs.extend([base, Gptq { act: true, ..base }]);
        for bits in [2, 3, 8] {
            specs.push(Gptq { bits, n: 32, ..base });
        }
        specs.push(Gptq { asym: false, k: 72, group_size: 32, ..base });
        specs.push(Gptq { group_size: -1, k: 136, n: 16, ..base });
        for scales in [Scales::Powers, Scales::Wide, Scales::Special] {
            specs.push(Gptq { scales, act: scales == Scales::Wide, ..base });
        }
    }
    let all =
        |spec: Gptq| STORED.map(|dtype| case("gptq_dequant", spec.scales, &spec, dtype, seed));
    specs.into_iter().flat_map(all).collect()
}

/// Cases of `gptq_dequant` at 2, 3 and 8 bits, from the smallest number of values that fills whole words:
/// groups that begin within a word, rows and columns on both sides of a workgroup's.
pub(in super::super) fn gptq_widths(seed: u64) -> Vec<Generated> {
    let mut specs = Vec::new();
    for bits in [2, 3, 8] {
        let run = packed::per_run(bits);
        let base = Gptq { bits, k: 2 * run, n: run, ..GPTQ };
        specs.extend([
            Gptq { k: run, n: 3 * run, group_size: -1, ..base },
            Gptq { format: "v2", k: run, n: 2 * run, group_size: 3, ..base },
            Gptq { k: 5 * run, n: 3 * run, group_size: 10, act: true, ..base },
            Gptq { format: "v2", k: 4 * run, n: 3 * run, group_size: 24, act: true, ..base },
            Gptq { n: 256, group_size: 128, asym: false, ..base },
            Gptq { format: "v2", n: 256 + run, group_size: 11, ..base },
        ]);
        for scales in [Scales::Powers, Scales::Wide, Scales::Special] {
            specs.push(Gptq { scales, n: 2 * run, group_size: 8, ..base });
        }
    }
    let all =
        |spec: Gptq| STORED.map(|dtype| case("gptq_dequant", spec.scales, &spec, dtype, seed));
    specs.into_iter().flat_map(all).collect()
}

pub(in super::super) mod awq {
    use super::*;

    const BASE: Awq = Awq { k: 64, n: 24, group_size: 16, asym: true, scales: Scales::Trained };

    pub(in super::super::super) fn small(seed: u64) -> Vec<Generated> {
        let mut specs = vec![
            BASE,
            Awq { asym: false, ..BASE },
            Awq { k: 72, group_size: 32, ..BASE },
            Awq { k: 69, group_size: 32, n: 16, ..BASE },
            Awq { group_size: -1, ..BASE },
            Awq { k: 32, n: 8, ..BASE },
        ];
        for scales in [Scales::Powers, Scales::Wide, Scales::Special] {
            specs.push(Awq { scales, ..BASE });
        }
        every(specs, seed)
    }

    pub(in super::super::super) fn cases(seed: u64) -> Vec<Generated> {
        let mut out = small(seed);
        let sizes = [(1, 8), (127, 64), (128, 128), (129, 136), (256, 72), (1024, 16)];
        out.extend(every(sizes.map(|(k, n)| Awq { k, n, group_size: 128, ..BASE }).to_vec(), seed));
        out
    }

    fn every(specs: Vec<Awq>, seed: u64) -> Vec<Generated> {
        let all =
            |spec: Awq| STORED.map(|dtype| case("awq_dequant", spec.scales, &spec, dtype, seed));
        specs.into_iter().flat_map(all).collect()
    }
}

pub(in super::super) mod ct {
    use super::*;

    const BASE: Ct = Ct {
        bits: 4,
        k: 64,
        n: 24,
        group_size: 16,
        asym: true,
        act: false,
        scales: Scales::Trained,
        scale_dtype: Dtype::Bf16,
    };

    pub(in super::super::super) fn small(seed: u64) -> Vec<Generated> {
        let mut specs = vec![
            BASE,
            Ct { act: true, ..BASE },
            Ct { asym: false, scale_dtype: Dtype::F16, ..BASE },
            Ct { k: 100, n: 20, group_size: -1, ..BASE },
            Ct { k: 72, group_size: 32, ..BASE },
            Ct { k: 69, n: 13, group_size: 32, scale_dtype: Dtype::F32, ..BASE },
        ];
        for bits in [2, 3, 8] {
            specs.push(Ct { bits, n: 32, ..BASE });
        }
        for scales in [Scales::Powers, Scales::Wide, Scales::Special] {
            specs.push(Ct { scales, act: scales == Scales::Wide, scale_dtype: Dtype::F16, ..BASE });
        }
        every(specs, seed)
    }

    pub(in super::super::super) fn cases(seed: u64) -> Vec<Generated> {
        let mut out = small(seed);
        let sizes = [(1, 1), (127, 64), (128, 65), (129, 63), (256, 72), (1024, 9)];
        out.extend(every(sizes.map(|(k, n)| Ct { k, n, group_size: 128, ..BASE }).to_vec(), seed));
        out
    }

    fn every(specs: Vec<Ct>, seed: u64) -> Vec<Generated> {
        let all =
            |spec: Ct| STORED.map(|dtype| case("ct_dequant", spec.scales, &spec, dtype, seed));
        specs.into_iter().flat_map(all).collect()
    }
}

pub(in super::super) mod fp8 {
    use super::*;

    const BASE: Fp8 = Fp8 {
        n: 40,
        k: 72,
        block: [16, 32],
        scales: Scales::Trained,
        scale_dtype: Dtype::F32,
        codes: Codes::Quantised,
    };

    pub(in super::super::super) fn small(seed: u64) -> Vec<Generated> {
        let mut specs = vec![
            BASE,
            Fp8 { scale_dtype: Dtype::Bf16, ..BASE },
            Fp8 { scale_dtype: Dtype::F16, n: 33, k: 65, ..BASE },
            Fp8 { codes: Codes::Every, ..BASE },
            Fp8 { n: 16, k: 32, ..BASE },
        ];
        for scales in [Scales::Powers, Scales::Wide, Scales::Special] {
            specs.push(Fp8 {
                scales,
                codes: if scales == Scales::Wide { Codes::Quantised } else { Codes::Every },
                ..BASE
            });
        }
        every(specs, seed)
    }

    pub(in super::super::super) fn cases(seed: u64) -> Vec<Generated> {
        let mut out = small(seed);
        // The released block size, on both sides of its edges.
        let sizes = [(1, 1), (127, 129), (128, 128), (129, 257), (256, 384)];
        let released = |(n, k)| Fp8 { n, k, block: [128, 128], scale_dtype: Dtype::Bf16, ..BASE };
        out.extend(every(sizes.map(released).to_vec(), seed));
        out
    }

    fn every(specs: Vec<Fp8>, seed: u64) -> Vec<Generated> {
        let all =
            |spec: Fp8| STORED.map(|dtype| case("fp8_dequant", spec.scales, &spec, dtype, seed));
        specs.into_iter().flat_map(all).collect()
    }
}

//! Native subjects: plain f32 implementations of every op, legitimate or broken on purpose.
//!
//! They are written from the formulas in the manual, apart from the reference: the power of the suite
//! is measured on them, and a misreading of an op must not be shared by both sides.
//!
//! One file for a family of ops. Each says which knobs and faults it knows; [`Native::run`] refuses any
//! other, so that nothing passes for what it is not.

mod argmax;
mod attention;
mod awq;
#[cfg(test)]
mod cases;
mod chain;
mod ct;
mod elementwise;
mod fp8;
mod gptq;
mod grouped;
mod linear;
mod moe;
mod norm;
mod packed;
mod quant_gemm;
mod ranks;
mod rope;
mod run;
mod scalar;
mod softmax;
#[cfg(test)]
mod tests;

use assay_reference::{Case, Result, Tensor};

use self::run::Run;
use super::Subject;

/// In which order a reduction adds its terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// First to last.
    Sequential,
    /// Last to first.
    Reversed,
    /// In a seeded random order.
    Permuted(u64),
    /// By halves, recursively, down to runs of eight.
    Pairwise,
    /// So many contiguous parts, each summed in sequence, then added in sequence: split-K.
    Split(usize),
    /// Term i to partial sum i mod n; the partial sums by a tree.
    Lanes(usize),
    /// Blocks of n terms are summed apart, as matrix instructions do, then added to the running sum.
    Blocks(usize),
}

/// The orders of legitimate implementations.
pub const ORDERS: [Order; 13] = [
    Order::Sequential,
    Order::Reversed,
    Order::Permuted(1),
    Order::Permuted(2),
    Order::Pairwise,
    Order::Split(2),
    Order::Split(4),
    Order::Split(8),
    Order::Lanes(4),
    Order::Lanes(16),
    Order::Lanes(64),
    Order::Blocks(4),
    Order::Blocks(8),
];

/// How an implementation reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The order of the terms.
    pub order: Order,
    /// Whether products are fused into the additions.
    pub fma: bool,
    /// For softmax: one pass over blocks of this many keys with rescaling; `None` is two passes.
    pub online: Option<usize>,
}

impl Chain {
    /// First to last, unfused, two passes.
    pub const PLAIN: Chain = Chain { order: Order::Sequential, fma: false, online: None };
}

/// One implementation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Native {
    /// The op.
    pub op: &'static str,
    /// How it reduces.
    pub chain: Chain,
    /// Choices that differ from the defaults: (knob, value), by the names that the op's knobs have.
    pub conventions: Vec<(String, String)>,
    /// What is wrong with it: a fault's slug and key.
    pub fault: Option<(String, String)>,
}

/// Which keys a fault has.
#[derive(Clone, Copy, Debug)]
enum Keys {
    /// None.
    None,
    /// Any with a number in it.
    Number,
    /// One of these.
    OneOf(&'static [&'static str]),
    /// Any text.
    Any,
}

/// A fault that an implementation can have.
type Known = (&'static str, Keys);

/// An op's implementation.
#[derive(Clone, Copy)]
struct Implementation {
    run: Routine,
    /// Knobs with all their values.
    knobs: &'static [Knobs],
    faults: &'static [&'static [Known]],
}

type Routine = fn(&Run<'_>) -> Result<Tensor>;
type Knobs = &'static [(&'static str, &'static [&'static str])];

fn implementation(op: &str) -> Option<Implementation> {
    use quant_gemm::{FAULTS as GEMM_FAULTS, FP8_FAULTS, FP8_KNOBS, INT_FAULTS, KNOBS as EDGE};
    let (run, knobs, faults): (Routine, &'static [Knobs], &'static [&'static [Known]]) = match op {
        "embedding" => (elementwise::embedding, &[], &[elementwise::EMBEDDING_FAULTS]),
        "rms_norm" => (norm::run, &[norm::KNOBS], &[norm::FAULTS]),
        "matmul" => (linear::run, &[linear::KNOBS], &[linear::FAULTS]),
        "gptq_dequant" => (gptq::run, &[gptq::KNOBS], &[gptq::FAULTS]),
        "awq_dequant" => (awq::run, &[awq::KNOBS], &[awq::FAULTS]),
        "ct_dequant" => (ct::run, &[ct::KNOBS], &[ct::FAULTS]),
        "fp8_dequant" => (fp8::run, &[fp8::KNOBS], &[fp8::FAULTS]),
        "gptq_gemm" => (
            quant_gemm::gptq,
            &[EDGE, gptq::KNOBS, linear::KNOBS],
            &[gptq::FAULTS, linear::FAULTS, GEMM_FAULTS, INT_FAULTS],
        ),
        "awq_gemm" => (
            quant_gemm::awq,
            &[EDGE, awq::KNOBS, linear::KNOBS],
            &[awq::FAULTS, linear::FAULTS, GEMM_FAULTS, INT_FAULTS],
        ),
        "ct_gemm" => (
            quant_gemm::compressed,
            &[EDGE, ct::KNOBS, linear::KNOBS],
            &[ct::FAULTS, linear::FAULTS, GEMM_FAULTS, INT_FAULTS],
        ),
        "fp8_gemm" => (
            quant_gemm::fp8,
            &[EDGE, FP8_KNOBS, fp8::KNOBS, linear::KNOBS],
            &[fp8::FAULTS, linear::FAULTS, GEMM_FAULTS, FP8_FAULTS],
        ),
        "rope" => (rope::run, &[rope::KNOBS], &[rope::FAULTS]),
        "softmax" => (softmax::run, &[softmax::KNOBS], &[softmax::FAULTS]),
        "attention" => (attention::run, &[attention::KNOBS], &[attention::FAULTS]),
        "silu_mul" => {
            (elementwise::silu_mul, &[elementwise::SILU_KNOBS], &[elementwise::SILU_FAULTS])
        }
        "add" => (elementwise::add, &[], &[elementwise::ADD_FAULTS]),
        "argmax" => (argmax::run, &[argmax::KNOBS], &[argmax::FAULTS]),
        "moe_route" => (moe::route, &[moe::ROUTE_KNOBS], &[moe::ROUTE_FAULTS]),
        "moe_experts" => (moe::experts, &[moe::EXPERT_KNOBS], &[moe::EXPERT_FAULTS]),
        "all_reduce" => (ranks::all_reduce, &[ranks::REDUCE_KNOBS], &[ranks::REDUCE_FAULTS]),
        "all_gather" => (ranks::all_gather, &[], &[ranks::GATHER_FAULTS]),
        _ => return None,
    };
    Some(Implementation { run, knobs, faults })
}

/// Whether there is a native implementation of an op.
pub fn has(op: &str) -> bool {
    implementation(op).is_some()
}

/// Whether an op's implementation can have this fault.
pub fn implements(op: &str, slug: &str, key: &str) -> bool {
    let Some(it) = implementation(op) else { return false };
    it.faults.iter().copied().flatten().any(|(known, keys)| {
        *known == slug
            && match keys {
                Keys::None => key.is_empty(),
                Keys::Number => run::number(key).is_some(),
                Keys::OneOf(texts) => texts.contains(&key),
                Keys::Any => true,
            }
    })
}

/// The slugs of the faults that an op's implementation can have.
pub fn faults(op: &str) -> Vec<&'static str> {
    let all = implementation(op).map_or(&[] as &[_], |it| it.faults);
    all.iter().copied().flatten().map(|(slug, _)| *slug).collect()
}

/// An op's knobs with all their values, the default first.
pub fn knobs(op: &str) -> Vec<(&'static str, &'static [&'static str])> {
    let all = implementation(op).map_or(&[] as &[_], |it| it.knobs);
    all.iter().copied().flatten().copied().collect()
}

impl Native {
    /// The plainest legitimate implementation of an op.
    pub fn new(op: &'static str) -> Native {
        Native { op, chain: Chain::PLAIN, conventions: Vec::new(), fault: None }
    }

    /// The same with another way to reduce.
    pub fn chained(self, chain: Chain) -> Native {
        Native { chain, ..self }
    }

    /// The same with another choice.
    pub fn with(mut self, knob: &str, value: &str) -> Native {
        self.conventions.retain(|(k, _)| k != knob);
        self.conventions.push((knob.into(), value.into()));
        self
    }

    /// The same with a fault.
    pub fn broken(self, slug: &str, key: &str) -> Native {
        Native { fault: Some((slug.into(), key.into())), ..self }
    }

    /// The ways in which legitimate implementations of an op reduce; ops without a reduction have few.
    pub fn legitimate_chains(op: &str) -> Vec<Chain> {
        let orders: &[Order] = match op {
            "embedding" | "add" | "argmax" | "all_gather" | "all_reduce" | "gptq_dequant"
            | "awq_dequant" | "ct_dequant" | "fp8_dequant" | "kv_store" => {
                return vec![Chain::PLAIN];
            }
            // What differs is the exponential, or the library's functions.
            "silu_mul" | "rope" => &[Order::Sequential, Order::Lanes(16)],
            _ => &ORDERS,
        };
        let mut chains = Vec::new();
        for &order in orders {
            for fma in [false, true] {
                chains.push(Chain { order, fma, online: None });
            }
        }
        if matches!(op, "attention" | "attention_paged") {
            for (i, block) in [16, 32, 64, 128, 8, 256].into_iter().enumerate() {
                let order = ORDERS[(5 * i) % ORDERS.len()];
                chains.push(Chain { order, fma: i % 2 == 1, online: Some(block) });
            }
        }
        chains
    }

    /// Refuses choices and faults that the implementation does not have.
    fn check(&self, it: &Implementation) -> Result<()> {
        let fail = |what: String| Err(assay_reference::Error::Request(what));
        for (knob, value) in &self.conventions {
            let known = it.knobs.iter().copied().flatten();
            if !known.into_iter().any(|(k, values)| k == knob && values.contains(&value.as_str())) {
                return fail(format!("native `{}` has no convention {knob}={value}", self.op));
            }
        }
        match &self.fault {
            Some((slug, key)) if !implements(self.op, slug, key) => {
                fail(format!("native `{}` has no fault {slug} ({key})", self.op))
            }
            _ => Ok(()),
        }
    }
}

impl Subject for Native {
    fn op(&self) -> &str {
        self.op
    }

    fn run(&self, case: &Case) -> Result<Tensor> {
        let found = implementation(self.op).filter(|_| self.op == case.op);
        let Some(it) = found else {
            return Err(assay_reference::Error::Request(format!(
                "no native implementation `{}` of a case of `{}`",
                self.op, case.op
            )));
        };
        self.check(&it)?;
        (it.run)(&Run { native: self, case })
    }
}

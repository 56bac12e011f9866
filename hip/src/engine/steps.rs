//! A plan's op calls as launches: which of them one kernel computes together, and which kernels an op
//! has.

use assay_reference::qwen::{Node, Plan};

use crate::error::Error;

/// One or two op calls, by node index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// One call.
    Node(usize),
    /// A residual addition and the norm that reads it: both are stored.
    AddNorm {
        /// The addition.
        add: usize,
        /// The norm.
        norm: usize,
    },
    /// The norm of each head and the rotation that reads it: the rotated heads are stored.
    NormRope {
        /// The norm.
        norm: usize,
        /// The rotation.
        rope: usize,
    },
    /// The store of keys and values, and attention over all of them.
    Attention(usize),
}

/// Kernels of an op, the first that takes a case is launched.
pub(super) fn candidates(op: &str) -> &'static [&'static str] {
    match op {
        "embedding" => &["embedding"],
        "matmul" => &["gemv_bf16", "gemm_bf16"],
        "gptq_gemm" => &["gptq_gemm"],
        "rms_norm" => &["rms_norm"],
        "add_rms_norm" => &["add_rms_norm"],
        "qk_norm_rope" => &["qk_norm_rope"],
        "rope" => &["rope"],
        "kv_store" => &["kv_store_paged"],
        "attention" => &["attention_prefill_d128"],
        "attention_paged" => &["attention_decode_paged_d128"],
        "silu_mul" => &["silu_mul"],
        _ => &[],
    }
}

/// The launches of a plan, in order.
///
/// # Errors
/// [`Error::Unsupported`] when an op has no kernel.
pub(super) fn steps(plan: &Plan) -> Result<Vec<Step>, Error> {
    let mut out = Vec::new();
    let mut done = vec![false; plan.nodes.len()];
    for (i, node) in plan.nodes.iter().enumerate() {
        if done[i] {
            continue;
        }
        let reader = |op: &str| {
            let reads = |n: &Node| n.op == op && n.reads().any(|p| p == node.probe);
            plan.nodes.iter().position(reads)
        };
        let step = match node.op {
            "add" => match reader("rms_norm") {
                Some(norm) => Step::AddNorm { add: i, norm },
                None => return Err(unsupported(node, "an addition that no norm follows")),
            },
            "rms_norm" => match reader("rope") {
                Some(rope) => Step::NormRope { norm: i, rope },
                None => Step::Node(i),
            },
            "attention" => Step::Attention(i),
            op if candidates(op).is_empty() => {
                return Err(unsupported(node, "an op without a kernel"));
            }
            _ => Step::Node(i),
        };
        if let Step::AddNorm { norm: second, .. } | Step::NormRope { rope: second, .. } = step {
            done[second] = true;
        }
        out.push(step);
    }
    Ok(out)
}

fn unsupported(node: &Node, what: &str) -> Error {
    Error::Unsupported(format!("{} is {what} ({})", node.probe, node.op))
}

/// Every kernel that the steps could launch.
///
/// # Errors
/// [`Error::Unsupported`] when an op has none.
pub(super) fn needed(plan: &Plan, steps: &[Step]) -> Result<Vec<&'static str>, Error> {
    let mut out: Vec<&'static str> = Vec::new();
    for step in steps {
        let ops: &[&str] = match step {
            Step::Node(node) => &[plan.nodes[*node].op],
            Step::AddNorm { .. } => &["add_rms_norm"],
            Step::NormRope { .. } => &["qk_norm_rope"],
            Step::Attention(_) => &["kv_store", "attention", "attention_paged"],
        };
        for op in ops {
            let known = candidates(op).iter().copied().filter(|n| crate::kernel(n).is_some());
            let before = out.len();
            let mut any = false;
            for name in known {
                any = true;
                if !out.contains(&name) {
                    out.push(name);
                }
            }
            if !any {
                out.truncate(before);
                return Err(Error::Unsupported(format!("there is no kernel for {op}")));
            }
        }
    }
    Ok(out)
}

//! Findings: stable codes that text, JSON and docs share.

use assay_reference::ops::{self, Fault, Op, Residual, Visitor};
use assay_reference::{Dtype, Rounding, qwen};
use serde::Serialize;

/// Something that is wrong, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable code, `A143`. Codes are never reused.
    pub code: String,
    /// Stable name, `attention.kv_head_modulo`.
    pub name: String,
    /// One sentence with the particulars.
    pub text: String,
}

impl Finding {
    /// A finding with a code from [`CODES`].
    ///
    /// # Panics
    /// When the name is not in [`CODES`] (a programming error).
    pub fn new(name: &str, text: impl Into<String>) -> Finding {
        let code = CODES.iter().find(|c| c.1 == name).map(|c| c.0);
        let code = code.unwrap_or_else(|| panic!("`{name}` has no code"));
        Finding { code: code.into(), name: name.into(), text: text.into() }
    }
}

/// Codes that do not belong to an op: (code, name, meaning).
pub const CODES: &[(&str, &str, &str)] = &[
    ("A001", "unexplained", "no convention and no catalogued fault explains the output"),
    ("A002", "ill_conditioned", "the inputs leave the result uncertain, so nothing can be said"),
    (
        "A003",
        "inconsistent_recording",
        "a recorded tensor fits neither its producer nor its consumers",
    ),
    ("A004", "biased_rounding", "errors are within bounds but lean to one side"),
    ("A005", "conventions_disagree", "each case has a convention, but not the same one"),
    ("A006", "not_deterministic", "the same inputs gave different bits"),
    ("A007", "ranks_differ", "ranks hold other values where they must hold the same"),
    ("A010", "memory.unwritten_output", "output cells were never written"),
    ("A011", "memory.out_of_bounds_read", "a read outside a buffer"),
    ("A012", "memory.out_of_bounds_write", "a write outside a buffer"),
    ("A013", "memory.wild_access", "an access to no buffer at all"),
    ("A014", "memory.canary_damaged", "bytes around a buffer were overwritten"),
    ("A015", "memory.input_modified", "an input buffer was changed"),
    ("A016", "memory.uninitialised_lds", "shared memory was read before it was written"),
    (
        "A017",
        "memory.data_race",
        "two threads touch the same shared memory without a barrier between, or a block reads global \
         memory that another block of the launch writes",
    ),
    ("A018", "memory.overlapping_stores", "two threads write the same output cell"),
    ("A019", "memory.barrier_divergence", "threads of a block do not reach the same barrier"),
    ("A01A", "memory.lds_overrun", "an index beyond a shared array"),
    ("A01B", "memory.inactive_lane", "a wave operation reads a lane that is not active"),
    ("A01D", "memory.stack_overflow", "a thread needs more stack than there is"),
    ("A01E", "memory.lds_limit", "a kernel declares more shared memory than a workgroup can have"),
    ("A01C", "memory.hang", "the kernel did not finish in time"),
    (
        "A01F",
        "memory.uninitialised_buffer",
        "an output or working memory was read before it was written",
    ),
    ("A020", "compile_error", "the kernel source does not compile"),
    ("A021", "launch_refused", "the launcher refused a shape inside the kernel's contract"),
    (
        "A022",
        "matrix.layout",
        "a matrix instruction holds its elements elsewhere than is published",
    ),
    ("A023", "library_error", "a vendor's library answered an error status"),
    ("A030", "relation.scale", "a power of two on an input is not one on the output"),
    ("A031", "relation.permutation", "a permuted input does not give the output permuted"),
    ("A032", "relation.causality", "what comes later changes what came before"),
    ("A033", "relation.batch_invariance", "a row depends on the other rows of its batch"),
    ("A034", "relation.constant_value", "an average of one value is another value"),
    ("A035", "relation.pair_norm", "a rotation changes the norm of a pair"),
    (
        "A036",
        "relation.relative_position",
        "the product of a rotated query and key depends on more than their distance",
    ),
    ("A037", "relation.shift", "a common shift of all scores changes the result"),
    ("A038", "relation.commutativity", "exchanged operands give another result"),
    (
        "A340",
        "probe.rounding",
        "an operation or conversion that the kernels rely on does not round as they assume",
    ),
    ("A341", "probe.canary", "threads of a block did not run"),
    ("A342", "probe.f32_gemm", "an f32 product is computed in fewer bits"),
    ("A343", "probe.accumulator", "a matrix product accumulates in less than f32"),
    ("A344", "probe.unexplained", "no known arithmetic explains what a probe gave"),
    ("A345", "probe.failed", "a call of the device, or a launch, failed under a probe"),
    ("A480", "exec.not_started", "the program did not say hello"),
    ("A481", "exec.crashed", "the program ended before it answered"),
    ("A482", "exec.hang", "the program did not answer in time"),
    ("A483", "exec.bad_frame", "what the program wrote is no frame of the protocol"),
    ("A484", "exec.wrong_shape", "an output has another shape than the op gives"),
    ("A485", "exec.wrong_dtype", "an output has another dtype than the case asks"),
    ("A486", "exec.missing_output", "an output of the op is not among those returned"),
    ("A487", "exec.unknown_output", "an output is none of the op's"),
    ("A488", "exec.failed", "the program reports that it could not run a case that it takes"),
];

/// Every fault of an op's examples, and those that have a free parameter.
pub(crate) fn catalogue<O: Op>() -> Vec<Fault<O>> {
    // A free parameter shows for an output that is off by a factor.
    let (expected, observed) = ([1.0; 64], [1.25; 64]);
    let mut faults = Vec::new();
    for (params, tensors) in crate::families::examples::<O>() {
        faults.extend(O::faults(&params, &tensors));
        let residual = Residual {
            tensors: &tensors,
            cols: 1,
            expected: &expected,
            radius: &[0.0; 64],
            observed: &observed,
            output: Rounding::nearest(Dtype::F32),
        };
        faults.extend(O::propose(&params, &residual));
    }
    faults
}

struct OpCodes;

impl Visitor for OpCodes {
    type Out = Vec<(String, String)>;

    fn visit<O: Op>(self) -> Self::Out {
        let faults = catalogue::<O>();
        let mut codes: Vec<(String, String)> =
            faults.iter().map(|f| (f.code.to_string(), f.name())).collect();
        codes.sort();
        codes.dedup();
        codes
    }
}

/// All (code, name) pairs: [`CODES`], those of an audit and of a bisect, the catalogued faults of every op and those of the forward.
pub fn all_codes() -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> =
        CODES.iter().map(|c| (c.0.to_string(), c.1.to_string())).collect();
    let kinds = crate::audit::codes().chain(crate::bisect::codes());
    out.extend(kinds.map(|c| (c.code.to_string(), c.name.to_string())));
    for op in ops::NAMES {
        out.extend(ops::visit(op, OpCodes).unwrap_or_default());
    }
    out.extend(qwen::variant::catalogue().map(|e| (e.code.to_string(), e.name())));
    out
}

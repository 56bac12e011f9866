//! Quantisation metadata against the data.

use super::Code;

const ORIGINAL: &str = "Take the description from the published checkpoint, or quantise again; do not adjust it until it loads";

pub(super) const CODES: &[Code] = &[
    Code {
        code: "A450",
        name: "quant.undescribed",
        why: "Packed weights that neither config.json's quantization_config nor quantize_config.json describes",
        served: "A refusal, or codes read as numbers",
        advice: "Add the description that was published with these weights",
    },
    Code {
        code: "A451",
        name: "quant.not_packed",
        why: "The config describes quantised weights and the files hold none",
        served: "A refusal: tensors are missing",
        advice: "Remove quantization_config, or download the quantised files",
    },
    Code {
        code: "A452",
        name: "quant.method",
        why: "The tensors are of another method than the description names: packing and order of the values differ",
        served: "Noise, or a shape error",
        advice: ORIGINAL,
    },
    Code {
        code: "A453",
        name: "quant.bits",
        why: "The words hold values of another width than the description says",
        served: "A shape error, or noise",
        advice: ORIGINAL,
    },
    Code {
        code: "A454",
        name: "quant.group_size",
        why: "Scales belong to groups of another size: beyond the first group each row gets another's scale",
        served: "A shape error, or noise; right in the first rows only",
        advice: ORIGINAL,
    },
    Code {
        code: "A455",
        name: "quant.format",
        why: "The label names the other way to store zero points (v1 stores one less), so that every weight is off by its scale",
        served: "`!!!!` or noise on engines that follow the label, right on those that do not",
        advice: "Correct checkpoint_format (gptq is v1, gptq_v2 is v2); do not convert the data",
    },
    Code {
        code: "A456",
        name: "quant.g_idx_order",
        why: "desc_act is false and the stored groups are not in order: engines that trust desc_act ignore g_idx and use other rows' scales",
        served: "Worse text or noise, with close scales hardly visible",
        advice: "Set desc_act to true, which is what the data say",
    },
    Code {
        code: "A457",
        name: "quant.g_idx_range",
        why: "A group index beyond the groups: scales are read out of bounds",
        served: "Noise, or a crash",
        advice: "Download the file again, or quantise again",
    },
    Code {
        code: "A458",
        name: "quant.zeros_wrap",
        why: "In v1 the largest stored zero point means one more than fits: engines read 2^bits or 0",
        served: "Right on one engine; on the other the columns concerned are off by 2^bits scales, up to NaN",
        advice: "Quantise again, or convert to gptq_v2 with a tool that carries no bit into the neighbour",
    },
    Code {
        code: "A459",
        name: "quant.descriptions_differ",
        why: "quantization_config and quantize_config.json disagree, and engines differ in which they read",
        served: "Right on one engine and noise on another",
        advice: "Make both say what the data say",
    },
    Code {
        code: "A45A",
        name: "quant.sym",
        why: "sym is true (or zero_point false) and the zero points vary: kernels for symmetric weights never look at them",
        served: "Right on one engine; worse text or noise on those with a symmetric kernel",
        advice: "Set sym to false, which is what the data say",
    },
    Code {
        code: "A45B",
        name: "quant.refused",
        why: "The description cannot be understood, so that the packed tensors could not be checked",
        served: "By the field",
        advice: ORIGINAL,
    },
    Code {
        code: "A45C",
        name: "quant.g_idx_groups",
        why: "Groups have other numbers of input rows than the group size, which no order of the rows makes: a group index that was never written, or a damaged one",
        served: "Noise on engines that read g_idx, right on those that ignore it",
        advice: "Download the file again, or quantise again",
    },
];

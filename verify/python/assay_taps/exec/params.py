"""Params of the ops (docs/case_format.md) as a case has them, and what no right implementation does."""

from assay_taps.exec.frames import Unsupported

# Fields that may be left out, with their defaults. Another value is a fault, or something set by conventions that
# are assay's to try: no case for a subject has one. Where a function handles other values too, it names the field.
_NORM = {"weight": "multiplied", "skipped": False, "centred": False, "heads": None, "stride_ignored": False,
         "width": None, "vector": None, "newton": False}  # fmt: skip
_ROPE = {"scaling": {"rope_type": "default"}, "base_fixed": False, "ramp_missing": False, "attention_factor_power": 1,
         "pairing": "halves", "angle": "f32", "offset": 0, "times": 1, "inverse": False, "place": "own",
         "upper": "right"}  # fmt: skip
_MATMUL = {"layout": "out_in", "bias": "by_column", "row_parallel": False, "ranks": 0, "ranks_stored": False,
           "alpha": 1.0, "alpha_until": None}  # fmt: skip
_ATTENTION = {
    "window": None, "mask": "lower_right", "kv_head": "divide", "lost": "nothing", "sentinel": None,
    "normalise_first": False, "probs_block": None, "blocks_reversed": False, "lazy": False, "block_offset": 0,
    "combine": "factor", "sum_rounded": False, "rescale": None, "values": "own", "exponent": "shifted",
    "padded_to": None, "scaled_query": None, "denominator_bf16": False, "averaged": None, "floor": None,
}  # fmt: skip
_DEQUANT = {
    "bits": 4, "zero": "by_format", "wrap": "none", "group": "by_index", "nibbles": "low_first",
    "zero_nibbles": "low_first", "packing": "along_k", "straddle": "joined", "zero_straddle": "joined",
    "misread_bits": None, "negated": False, "fused_zero": False, "slip": "none",
}  # fmt: skip
# Outputs of an op in its order, where there is not one called `output`.
OUTPUTS = {"add_rms_norm": ("output", "residual"), "kv_store": ("k_cache", "v_cache")}
DEFAULTS = {
    "embedding": {"offset": 0, "scaled": False, "ids_of_16_bits": False},
    "rms_norm": _NORM,
    "matmul": _MATMUL,
    "rope": _ROPE,
    "softmax": {"temperature": 1.0, "unnormalised": False, "padded": False, "exponent": "shifted"},
    "attention": _ATTENTION,
    "silu_mul": {"activation": "silu", "swapped": False, "sigmoid": "exact"},
    "add": {"operands": "both", "in_f16": False},
    "argmax": {"tie": "first", "nan_ignored": False, "last_dropped": False, "from_zero": False, "tile": None,
               "compared_in_bf16": False},
    "add_rms_norm": {"edge_f32": False, "written": "sum", "norm_of_old": False},
    "gptq_dequant": _DEQUANT,
    "gptq_gemm": {"edge_f32": False, "activations": "stored", "unscaled": "no"},
    "attention_paged": {"lookup": None, "split": None},
}  # fmt: skip
REQUIRED = {
    "rms_norm": ("eps",), "rope": ("theta",), "attention": ("scale",), "gptq_dequant": ("format", "group_size"),
    "add_rms_norm": ("norm",), "gptq_gemm": ("dequant", "matmul"), "attention_paged": ("attention",),
}  # fmt: skip
PARTS = {
    "add_rms_norm": {"norm": "rms_norm", "add": "add"},
    "gptq_gemm": {"dequant": "gptq_dequant", "matmul": "matmul"},
    "attention_paged": {"attention": "attention"},
}

# Other values that a right implementation may be asked for: what a function of the user's is given.
LEGITIMATE = (
    "window", "layout", "scaling", "angle", "bits", "wrap", "dequant.bits", "dequant.wrap", "matmul.layout",
    "attention.window",
)  # fmt: skip


def checked(op, params, handled=()):
    """The params with defaults filled in. `handled` names fields (`layout`, `norm.eps`) whose other values the
    function takes; any other deviation from the defaults is Unsupported."""
    defaults, parts = DEFAULTS[op], PARTS.get(op, {})
    missing = [name for name in REQUIRED.get(op, ()) if name not in params]
    if missing:
        raise ValueError(f"params of {op}: {', '.join(missing)} missing in {params}")
    full = dict(defaults)
    for name, value in params.items():
        if name in parts:
            inner = [h[len(name) + 1 :] for h in handled if h.startswith(name + ".")]
            value = checked(parts[name], value, inner)
        elif name not in REQUIRED.get(op, ()) and name not in handled:
            if name not in defaults:
                raise Unsupported(f"params of {op}: field {name} is not known here")
            default = defaults[name]
            if default is None and value == {}:
                value = None
            if value != default:
                raise Unsupported(f"params of {op}: {name} = {value}; taken is {default} alone")
        full[name] = value
    for name, part in parts.items():
        if name not in full:
            full[name] = checked(part, {})
    return full

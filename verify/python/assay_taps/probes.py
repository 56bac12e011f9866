"""Probe names (docs/trace_format.md), and which of them are wanted."""

import fnmatch
import re

from assay_taps.errors import TapError

LAYER = (
    "input_norm q_proj k_proj v_proj q_norm k_norm q_rope k_rope attention o_proj attn_residual post_norm "
    "gate_proj up_proj silu_mul down_proj router_logits routing experts mlp_residual"
).split()
GLOBAL = ("embed", "final_norm", "logits")

# How a probe's columns lie on the ranks of a tensor-parallel model. What is not here is whole on each rank.
SHARDED = {
    "q_proj": "heads", "q_norm": "heads", "q_rope": "heads", "attention": "heads",
    "k_proj": "kv_heads", "v_proj": "kv_heads", "k_norm": "kv_heads", "k_rope": "kv_heads",
    "gate_proj": "columns", "up_proj": "columns", "silu_mul": "columns",
}  # fmt: skip

_LAYER_PROBE = re.compile(r"layers\.(\d+)\.(\w+)\Z")


def layer_of(probe):
    """The layer of a probe, or None for `embed`, `final_norm` and `logits`."""
    found = _LAYER_PROBE.match(probe)
    return int(found.group(1)) if found else None


def kind_of(probe):
    """The name without its layer."""
    return probe.rpartition(".")[2]


def file_of(layer):
    """The file that holds a layer, or with None the global probes."""
    return "global.safetensors" if layer is None else f"layer-{layer:05}.safetensors"


def selection(globs, layers):
    """The probes of a model with so many layers that a comma-separated list of globs matches.

    Globs are as in `assay run --probes`: `*`, `?`; `layers.*.mlp_residual,logits`.
    """
    everything = list(GLOBAL) + [f"layers.{n}.{p}" for n in range(layers) for p in LAYER]
    chosen = set()
    for glob in (g.strip() for g in (globs or "*").split(",")):
        matched = fnmatch.filter(everything, glob)
        if not matched:
            raise TapError(
                f"--probes {glob}: matches no probe of a model with {layers} layers. Probes are {', '.join(GLOBAL)} "
                f"and layers.N. with one of {', '.join(LAYER)}"
            )
        chosen.update(matched)
    return chosen

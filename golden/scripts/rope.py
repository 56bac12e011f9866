"""Rotary frequencies in float64 from the published formulas, for the f64 traces.

transformers computes the same in float32 (modeling_rope_utils.py); nothing of it is used here.
"""

import math

import torch


def frequencies(rope, dim, max_position, seq_len):
    """([dim / 2] float64 frequencies, the factor on cos and sin) of a `rope_parameters` dict.

    `seq_len` is the number of positions up to the end of the call; only "dynamic" depends on it.
    """
    kind, base = rope["rope_type"], float(rope["rope_theta"])
    if kind == "dynamic":
        stretch = rope["factor"] * max(seq_len, max_position) / max_position - (rope["factor"] - 1)
        base = base * stretch ** (dim / (dim - 2))
    inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim))
    if kind in ("default", "dynamic"):
        return inv_freq, 1.0
    if kind == "linear":
        return inv_freq / rope["factor"], 1.0
    assert kind == "yarn", kind
    return yarn(rope, inv_freq, dim, base)


def yarn(rope, inv_freq, dim, base):
    """The fast dimensions keep their frequency, the slow ones are divided by `factor`, a ramp lies between."""
    factor, original = rope["factor"], rope["original_max_position_embeddings"]

    def dimension(turns):
        """Where a frequency makes `turns` full turns within the original context."""
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(dimension(rope.get("beta_fast") or 32)), 0)
    high = min(math.ceil(dimension(rope.get("beta_slow") or 1)), dim - 1)
    assert low < high, "an empty ramp needs a rule of its own"
    assert not rope.keys() & {"mscale", "mscale_all_dim", "truncate"}
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    attention = rope.get("attention_factor")
    if attention is None:
        attention = 0.1 * math.log(factor) + 1.0
    return inv_freq / factor * ramp + inv_freq * (1 - ramp), attention

"""Logits of forwards that are wrong as a whole, and golden/forward_faults.json, which says how.

transformers given a config that is not the checkpoint's, weights in the wrong place, or modules in another
order: what an engine does that reads a constant from elsewhere or forgets a tensor. Only the logits are
recorded, so that nothing but the forward as a whole can be judged. Folders are numbered and carry no hint.
"""

import math
import types
from dataclasses import dataclass
from typing import Callable

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from breadth import SPECS, tokens_of as breadth_tokens
from common import DTYPES, GOLDEN, arguments, deterministic, relative_rms, write_json, write_trace
from record import ATTENTION, Recorder, load, make_f64, producer, run
from tiny import TOKENS

CALLS = [[0, 4], [4, 8], [8, 10], [10, 12]]


@dataclass
class Wrong:
    checkpoint: str
    dtype: str
    fault: str
    key: str
    detail: str
    config: Callable | None = None  # (config) -> None
    model: Callable | None = None  # (model, recorder) -> None
    segments: list | None = None
    forward: Callable | None = None  # (model, tokens, segments) -> logits
    state: Callable | None = None  # (state dict, config) -> state dict that the wrong config can load


# --- the config ---


def rope(**changes):
    def edit(config):
        config.rope_parameters = {**config.rope_parameters, **changes}

    return edit


def setting(**changes):
    def edit(config):
        for name, value in changes.items():
            setattr(config, name, value)

    return edit


def window(config):
    config.use_sliding_window = True
    config.sliding_window = 8 if config.sliding_window is None else config.sliding_window
    config.layer_types = ["sliding_attention"] * config.num_hidden_layers


def window_of(n):
    def edit(config):
        config.use_sliding_window, config.sliding_window = True, n
        config.layer_types = ["sliding_attention"] * config.num_hidden_layers

    return edit


def no_window(config):
    config.use_sliding_window = False
    config.layer_types = ["full_attention"] * config.num_hidden_layers


def hidden_per_head(config):
    config.head_dim = config.hidden_size // config.num_attention_heads


def first_rows(state, config):
    d = config.head_dim
    heads = {"q": config.num_attention_heads * d, "k": config.num_key_value_heads * d}
    heads["v"] = heads["k"]
    for name in list(state):
        part = name.split(".")[-2]
        if part in ("q_proj", "k_proj", "v_proj"):
            state[name] = state[name][: heads[part[0]]]
        elif part == "o_proj":
            state[name] = state[name][:, : heads["q"]]
        elif part in ("q_norm", "k_norm"):
            state[name] = state[name][:d]
    return state


# --- weights ---


def tie(model, _):
    model.lm_head.weight = model.model.embed_tokens.weight


def drop_bias(*names):
    def edit(model, _):
        for layer in model.model.layers:
            for name in names:
                getattr(layer.self_attn, name).bias = None

    return edit


def swap(first, second, where):
    def edit(model, _):
        for layer in model.model.layers:
            module = where(layer)
            a, b = getattr(module, first), getattr(module, second)
            setattr(module, first, b)
            setattr(module, second, a)

    return edit


def swap_weights(first, second, where):
    """Only the parameters change places: the hooks stay where they are."""

    def edit(model, _):
        for layer in model.model.layers:
            a, b = getattr(where(layer), first), getattr(where(layer), second)
            for name in dict(a.named_parameters()):
                x, y = getattr(a, name), getattr(b, name)
                setattr(a, name, y)
                setattr(b, name, x)

    return edit


def thirds(model, _):
    for layer in model.model.layers:
        a = layer.self_attn
        for name in ("weight", "bias"):
            fused = torch.cat([getattr(p, name) for p in (a.q_proj, a.k_proj, a.v_proj)])
            third, kv = fused.shape[0] // 3, a.k_proj.out_features
            assert 3 * third == fused.shape[0]
            for begin, p in ((third, a.k_proj), (2 * third, a.v_proj)):
                setattr(p, name, torch.nn.Parameter(fused[begin : begin + kv].clone()))


def last_layer_for_all(model, _):
    last = dict(model.model.layers[-1].named_parameters())
    for layer in model.model.layers:
        layer.load_state_dict({n: p.detach().clone() for n, p in last.items()})


# --- modules ---


def identity(module):
    module.forward = types.MethodType(lambda self, x: x, module)


def no_qk_norm(model, _):
    for layer in model.model.layers:
        identity(layer.self_attn.q_norm)
        identity(layer.self_attn.k_norm)


def qk_norm_after_rope(model, recorder):
    """The norms do nothing where they stand; the recorded attention function normalises what was rotated."""
    attend = recorder.attend

    def norms(module):
        def norm(name):
            n = getattr(module, name)
            return lambda x: type(n).forward(n, x)

        return norm("q_norm"), norm("k_norm")

    originals = {layer.self_attn.layer_idx: norms(layer.self_attn) for layer in model.model.layers}
    no_qk_norm(model, recorder)

    def normalised(module, q, k, v, mask, scaling):
        q_norm, k_norm = originals[module.layer_idx]
        return attend(module, q_norm(q), k_norm(k), v, mask, scaling)

    recorder.attend = normalised


def rope_twice(model, _):
    """The rotation by cos, sin twice is the one by twice the angle."""

    def double(_module, _args, out):
        cos, sin = out
        return cos * cos - sin * sin, 2 * cos * sin

    model.model.rotary_emb.register_forward_hook(double)


def scaled_embedding(model, _):
    root = math.sqrt(model.config.hidden_size)
    model.model.embed_tokens.register_forward_hook(lambda _m, _a, out: out * root)


def no_final_norm(model, _):
    identity(model.model.norm)


def kv_head_modulo(model, recorder):
    n_kv = model.config.num_key_value_heads
    for n in range(model.config.num_hidden_layers):
        recorder.attention_override[n] = {"kv_head": lambda h: h % n_kv}


def no_mask(_, recorder):
    attend = recorder.attend
    recorder.attend = lambda module, q, k, v, mask, scaling: attend(module, q, k, v, None, scaling)


def upper_left(_, recorder):
    attend = recorder.attend

    def misaligned(module, q, k, v, _mask, scaling):
        t, s = q.shape[2], k.shape[2]
        mask = torch.full((t, s), torch.finfo(q.dtype).min, dtype=q.dtype).triu(1)
        return attend(module, q, k, v, mask[None, None], scaling)

    recorder.attend = misaligned


def skip_layer(model, _):
    layer = model.model.layers[1]
    layer.forward = types.MethodType(lambda self, hidden_states, **_: hidden_states, layer)


def repeat_layer(model, _):
    layer = model.model.layers[0]
    once = layer.forward
    layer.forward = types.MethodType(lambda self, x, **k: once(once(x, **k), **k), layer)


def residual_after_norm(model, _):
    def forward(self, hidden_states, **kwargs):
        x = self.input_layernorm(hidden_states)
        x = x + self.self_attn(hidden_states=x, **kwargs)[0]
        x = self.post_attention_layernorm(x)
        return x + self.mlp(x)

    for layer in model.model.layers:
        layer.forward = types.MethodType(forward, layer)


def parallel_residual(model, _):
    def forward(self, hidden_states, **kwargs):
        attention = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)[0]
        return hidden_states + attention + self.mlp(self.post_attention_layernorm(hidden_states))

    for layer in model.model.layers:
        layer.forward = types.MethodType(forward, layer)


# --- positions ---


def at(first):
    """Calls over one cache whose positions begin at first(starts of all calls so far)."""

    def forward(model, tokens, segments):
        cache, starts, out = DynamicCache(config=model.config), [], []
        for start, end in segments:
            starts.append(start)
            begin = first(starts)
            positions = torch.arange(begin, begin + end - start)[None]
            ids = torch.tensor([tokens[start:end]])
            out.append(model(input_ids=ids, position_ids=positions, cache=cache, use_cache=True).logits[0])
        return torch.cat(out)

    return forward


def without_cache(model, tokens, segments):
    out = []
    for start, end in segments:
        positions = torch.arange(start, end)[None]
        out.append(model(input_ids=torch.tensor([tokens[start:end]]), position_ids=positions, use_cache=False).logits[0])
    return torch.cat(out)


def bf16_positions(model, _):
    """Positions rounded to bf16 before the angle; exact up to 256."""
    rotary = model.model.rotary_emb
    sound = rotary.forward
    rotary.forward = lambda x, position_ids: sound(x, position_ids.to(torch.bfloat16))


MLP = lambda layer: layer.mlp  # noqa: E731
LAYER = lambda layer: layer  # noqa: E731
ATTN = lambda layer: layer.self_attn  # noqa: E731

WRONG = [
    Wrong("tiny-qwen2", "bf16", "rope_theta", "1e4", "theta 1e4", config=rope(rope_theta=1e4)),
    Wrong("tiny-qwen3", "f32", "rope_theta", "5e5", "theta 5e5", config=rope(rope_theta=5e5)),
    Wrong("tiny-qwen2", "f64", "rms_norm_eps", "1e-5", "eps 1e-5", config=setting(rms_norm_eps=1e-5)),
    Wrong("tiny-qwen3", "f32", "rms_norm_eps", "1e-5", "eps 1e-5", config=setting(rms_norm_eps=1e-5)),
    Wrong("tiny-qwen2", "bf16", "head_tied", "", "the head is the embedding", model=tie),
    Wrong("tiny-qwen2", "bf16", "bias_dropped", "q", "no bias on q", model=drop_bias("q_proj")),
    Wrong("tiny-qwen2", "f32", "bias_dropped", "k", "no bias on k", model=drop_bias("k_proj")),
    Wrong("gqa7-qwen2", "bf16", "bias_dropped", "v", "no bias on v", model=drop_bias("v_proj")),
    Wrong("tiny-qwen2", "f32", "bias_dropped", "q k v", "no bias", model=drop_bias("q_proj", "k_proj", "v_proj")),
    Wrong("tiny-qwen2", "f32", "window_honoured", "8", "sliding_window 8 in all layers", config=window_of(8)),
    Wrong("window-qwen2", "bf16", "window_ignored", "", "no layer slides", config=no_window),
    Wrong("window-qwen2", "f32", "window_layers", "all", "every layer slides", config=window),
    Wrong("tiny-qwen2", "bf16", "gate_up_swapped", "", "gate and up exchanged", model=swap_weights("gate_proj", "up_proj", MLP)),
    Wrong("tiny-qwen2", "f32", "kv_head", "", "kv head h mod 2", model=kv_head_modulo),
    Wrong("gqa7-qwen2", "f32", "qkv_thirds", "", "k and v cut at thirds of the fused rows", model=thirds),
    Wrong("tiny-qwen3", "f32", "head_dim_from_hidden", "", "head_dim 48, first rows of each", config=hidden_per_head, state=first_rows),
    Wrong("tiny-qwen3", "bf16", "qk_norm_missing", "q and k", "q_norm and k_norm do nothing", model=no_qk_norm),
    Wrong("tiny-qwen3", "bf16", "qk_norm_after_rope", "", "rotated, then normalised", model=qk_norm_after_rope),
    Wrong("tiny-qwen3", "f64", "rope_twice", "", "rotated by twice the angle", model=rope_twice),
    Wrong("tiny-qwen3", "f32", "embedding_scaled", "", "embedding times sqrt(192)", model=scaled_embedding),
    Wrong("tiny-qwen3", "bf16", "final_norm_missing", "", "no final norm", model=no_final_norm),
    Wrong("tiny-qwen2", "f32", "layer_norms_exchanged", "", "the two norms of a layer exchanged",
          model=swap_weights("input_layernorm", "post_attention_layernorm", LAYER)),
    Wrong("tiny-qwen2", "bf16", "kv_exchanged", "", "k_proj and v_proj exchanged", model=swap_weights("k_proj", "v_proj", ATTN)),
    Wrong("tiny-qwen2", "f32", "mask_missing", "", "no causal mask", model=no_mask),
    Wrong("tiny-qwen3", "f32", "mask_upper_left", "", "mask from the upper left, four calls", model=upper_left, segments=CALLS),
    Wrong("tiny-qwen3", "bf16", "position_reset", "", "positions from 0 in each call", segments=CALLS, forward=at(lambda s: 0)),
    Wrong("tiny-qwen3", "f32", "position_double_counted", "from call 2", "positions from twice the start",
          segments=CALLS, forward=at(lambda s: 2 * s[-1])),
    Wrong("tiny-qwen2", "f32", "position_double_counted", "from call 3", "positions from the sum of starts",
          segments=CALLS, forward=at(sum)),
    Wrong("tiny-qwen2", "bf16", "position_later_shifted", "+1", "later calls' positions one too high",
          segments=CALLS, forward=at(lambda s: s[-1] + (len(s) > 1))),
    Wrong("tiny-qwen3", "bf16", "cache_lost", "", "each call without the cache, positions right", segments=CALLS, forward=without_cache),
    Wrong("tiny-qwen2", "f32", "layer_skipped", "", "layer 1 returns its input", model=skip_layer),
    Wrong("tiny-qwen3", "f32", "layer_repeated", "", "layer 0 runs twice", model=repeat_layer),
    Wrong("tiny-qwen3", "bf16", "layer_weights_shared", "last", "layer 1's weights in layer 0", model=last_layer_for_all),
    Wrong("tiny-qwen3", "f32", "residual_after_norm", "both", "residual taken after the norm", model=residual_after_norm),
    Wrong("tiny-qwen2", "f32", "parallel_residual", "", "attention and MLP beside one another", model=parallel_residual),
    Wrong("yarn-attn-qwen2", "bf16", "yarn_attention_factor", "ignored", "attention_factor 1", config=rope(attention_factor=1.0)),
    Wrong("yarn-qwen3", "f32", "yarn_attention_factor", "squared", "attention factor squared",
          config=rope(attention_factor=(0.1 * math.log(4.0) + 1.0) ** 2)),
    Wrong("linear-qwen3", "bf16", "rope_scaling_ignored", "", "no scaling", config=rope(rope_type="default")),
    Wrong("moe-norm-qwen3", "f32", "topk_normalisation", "", "norm_topk_prob false", config=setting(norm_topk_prob=False)),
    Wrong("moe-qwen3", "f32", "experts_per_token", "2", "two experts a token", config=setting(num_experts_per_tok=2)),
]  # fmt: skip


def tokens_of(checkpoint):
    return TOKENS if checkpoint.startswith("tiny") else breadth_tokens(SPECS[checkpoint])


def load_wrong(folder, wrong):
    """The checkpoint under a config that is not its own."""
    if wrong.config is None:
        return load(folder, wrong.dtype)
    config = AutoConfig.from_pretrained(folder)
    wrong.config(config)
    how = dict(attn_implementation=ATTENTION, experts_implementation="eager")
    if wrong.state:
        state = wrong.state(dict(load(folder, wrong.dtype).state_dict()), config)
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPES[wrong.dtype], **how)
        model.load_state_dict(state)
        return model.eval()
    model = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=DTYPES[wrong.dtype], local_files_only=True, **how
    ).eval()
    return make_f64(model) if wrong.dtype == "f64" else model


def logits_of(wrong, folder, tokens):
    model = load_wrong(folder, wrong)
    recorder = Recorder(model)
    if wrong.model:
        wrong.model(model, recorder)
    # The hooks would see a probe once a call, or twice in a repeated layer: only the logits are kept.
    recorder.keep = lambda *_: None
    if wrong.forward:
        return model, wrong.forward(model, tokens, wrong.segments)
    out, cache = [], DynamicCache(config=model.config) if wrong.segments else None
    for start, end in wrong.segments or [[0, len(tokens)]]:
        ids = torch.tensor([tokens[start:end]])
        out.append(model(input_ids=ids, cache=cache, use_cache=cache is not None).logits[0])
    return model, torch.cat(out)


def main():
    options = arguments(__doc__.splitlines()[0])
    deterministic()
    entries = []
    for number, wrong in enumerate(WRONG, 1):
        name = f"case-{number:02}"
        folder, tokens = GOLDEN / "checkpoints" / wrong.checkpoint, tokens_of(wrong.checkpoint)
        model, logits = logits_of(wrong, folder, tokens)
        assert torch.isfinite(logits).all(), wrong
        sound = run(load(folder, wrong.dtype), tokens, wrong.segments).tensors["logits"]
        write_trace(
            options.out / "traces" / "forward-faults" / name,
            {"logits": logits},
            producer=producer(),
            dtype=wrong.dtype,
            architecture=type(model).__name__,
            tokens=tokens,
            layers=model.config.num_hidden_layers,
            notes="logits only, on the CPU, eager attention",
            segments=wrong.segments,
        )
        entries.append(
            {
                "name": name,
                "checkpoint": wrong.checkpoint,
                "dtype": wrong.dtype,
                "expected_fault": "forward." + wrong.fault,
                "key": wrong.key,
                "detail": wrong.detail,
                "relative_rms": float(f"{relative_rms(logits, sound):.3g}"),
            }
        )
        print(name, wrong.checkpoint, wrong.dtype, wrong.fault, wrong.key, entries[-1]["relative_rms"])
    write_json(options.out / "forward_faults.json", {"version": 1, "faults": entries})


if __name__ == "__main__":
    main()

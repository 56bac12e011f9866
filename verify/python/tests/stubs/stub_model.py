"""A Qwen model as vLLM cuts it, over numpy arrays: modules with torch's hooks, fused, sharded over the ranks of
stub_ranks, and working in place. Written for tests; nothing of vLLM is copied.

It computes in f32 and is judged by recordings that transformers made in f64.
"""

import glob
import json
import os

import numpy as np

from assay_taps.tensors import Reader
from stub_ranks import exchange, rank, size


class Handle:
    def __init__(self, hooks, hook):
        self.hooks, self.hook = hooks, hook

    def remove(self):
        self.hooks.remove(self.hook)


class Module:
    """torch.nn.Module as far as hooks go."""

    def __init__(self):
        self._pre_hooks, self._hooks = [], []

    def register_forward_pre_hook(self, hook, *, with_kwargs=False):
        assert with_kwargs
        self._pre_hooks.append(hook)
        return Handle(self._pre_hooks, hook)

    def register_forward_hook(self, hook):
        self._hooks.append(hook)
        return Handle(self._hooks, hook)

    def __call__(self, *args, **kwargs):
        for hook in self._pre_hooks:
            hook(self, args, kwargs)
        out = self.forward(*args, **kwargs)
        for hook in self._hooks:
            hook(self, args, out)
        return out


class Linear(Module):
    """Column-parallel, or row-parallel with the sum over the ranks. Returns (output, bias), as vLLM's."""

    def __init__(self, weight, bias=None, reduce=False):
        super().__init__()
        self.weight, self.bias, self.reduce = weight, bias, reduce

    def forward(self, x):
        out = x @ self.weight.T
        if self.reduce:
            out = sum(exchange(out))
        return (out if self.bias is None else out + self.bias), None


class Norm(Module):
    """With a residual: adds and normalises in the memory of its arguments."""

    def __init__(self, weight, eps):
        super().__init__()
        self.weight, self.eps = weight, np.float32(eps)

    def of(self, x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weight

    def forward(self, x, residual=None):
        if residual is None:
            return self.of(x)
        residual += x
        x[...] = self.of(residual)
        return x, residual


class Rotary(Module):
    """Rotates views of qkv in place."""

    def __init__(self, theta, dim):
        super().__init__()
        self.dim = dim
        self.frequencies = theta ** (-np.arange(0, dim, 2) / dim)

    def forward(self, positions, q, k):
        angle = positions[:, None] * self.frequencies
        cos, sin = (f(angle).astype(np.float32)[:, None] for f in (np.cos, np.sin))
        for x in (q, k):
            heads = x.reshape(x.shape[0], -1, self.dim)
            low, high = np.split(heads, 2, -1)
            rotated = np.concatenate((low * cos - high * sin, high * cos + low * sin), -1)
            x[...] = rotated.reshape(x.shape)
        return q, k


class Attend(Module):
    """Causal attention over a cache. Old versions pass the cache and metadata as further arguments."""

    def __init__(self, dim):
        super().__init__()
        self.dim, self.keys, self.values = dim, [], []

    def forward(self, q, k, v, *_old):
        self.keys.append(np.copy(k))
        self.values.append(np.copy(v))
        q, k, v = (x.reshape(len(x), -1, self.dim) for x in (q, np.concatenate(self.keys), np.concatenate(self.values)))
        groups = q.shape[1] // k.shape[1]
        scores = np.einsum("thd,shd->hts", q, k.repeat(groups, 1)) / np.sqrt(np.float32(self.dim))
        t, s = scores.shape[1:]
        scores[:, ~np.tri(t, s, s - t, dtype=bool)] = -np.inf
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        probs /= probs.sum(-1, keepdims=True)
        return np.einsum("hts,shd->thd", probs, v.repeat(groups, 1)).reshape(t, -1)


class Attention(Module):
    def __init__(self, weights, config, old):
        super().__init__()
        self.head_dim, self.old = config["head_dim"], old
        heads, self.total_num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.q_size = heads // size() * self.head_dim
        self.kv_size = max(1, self.total_num_kv_heads // size()) * self.head_dim
        copies = max(1, size() // self.total_num_kv_heads)

        def rows(name, part, width):
            t = weights.get(name)
            return None if t is None else t[part * width : (part + 1) * width]

        def fused(kind):
            parts = [rows(f"q_proj.{kind}", rank(), self.q_size)]
            parts += [rows(f"{n}_proj.{kind}", rank() // copies, self.kv_size) for n in "kv"]
            return None if parts[0] is None else np.concatenate(parts)

        self.qkv_proj = Linear(fused("weight"), fused("bias"))
        o = weights["o_proj.weight"]
        self.o_proj = Linear(o[:, rank() * self.q_size : (rank() + 1) * self.q_size], reduce=True)
        self.rotary_emb, self.attn = Rotary(config["theta"], self.head_dim), Attend(self.head_dim)
        if "q_norm.weight" in weights:
            self.q_norm = Norm(weights["q_norm.weight"], config["rms_norm_eps"])
            self.k_norm = Norm(weights["k_norm.weight"], config["rms_norm_eps"])

    def forward(self, positions, hidden_states, *old):
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = np.split(qkv, [self.q_size, self.q_size + self.kv_size], -1)
        if hasattr(self, "q_norm"):
            q, k = (
                norm(x.reshape(len(x), -1, self.head_dim)).reshape(x.shape)
                for norm, x in ((self.q_norm, q), (self.k_norm, k))
            )
        q, k = self.rotary_emb(positions, q, k)
        out, _ = self.o_proj(self.attn(q, k, v, *old))
        qkv[...] = np.nan  # a buffer that is free now is used again
        return out


class Mlp(Module):
    def __init__(self, weights, config):
        super().__init__()
        n = config["intermediate_size"] // size()
        mine = slice(rank() * n, (rank() + 1) * n)
        gate, up = weights["gate_proj.weight"][mine], weights["up_proj.weight"][mine]
        self.gate_up_proj = Linear(np.concatenate((gate, up)))
        self.down_proj = Linear(weights["down_proj.weight"][:, mine], reduce=True)

    def forward(self, x):
        gate_up, _ = self.gate_up_proj(x)
        gate, up = np.split(gate_up, 2, -1)
        out, _ = self.down_proj(gate / (1 + np.exp(-gate)) * up)
        gate_up[...] = np.nan
        return out


class Layer(Module):
    def __init__(self, weights, config, old):
        super().__init__()

        def under(prefix):
            return {k[len(prefix) :]: t for k, t in weights.items() if k.startswith(prefix)}

        self.self_attn, self.mlp = Attention(under("self_attn."), config, old), Mlp(under("mlp."), config)
        eps = config["rms_norm_eps"]
        self.input_layernorm = Norm(weights["input_layernorm.weight"], eps)
        self.post_attention_layernorm = Norm(weights["post_attention_layernorm.weight"], eps)

    def forward(self, positions, hidden_states, *rest):
        *old, residual = rest  # old versions: kv_cache, attn_metadata, residual
        if residual is None:
            residual, hidden_states = hidden_states, self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(positions, hidden_states, *old)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual


class Embedding(Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, ids):
        return self.weight[ids]


class Decoder(Module):
    def __init__(self, weights, config, old):
        super().__init__()
        self.old, self.embed_tokens = old, Embedding(weights["model.embed_tokens.weight"])
        self.layers = []
        for n in range(config["num_hidden_layers"]):
            prefix = f"model.layers.{n}."
            own = {k[len(prefix) :]: t for k, t in weights.items() if k.startswith(prefix)}
            self.layers.append(Layer(own, config, old))
        self.norm = Norm(weights["model.norm.weight"], config["rms_norm_eps"])

    def forward(self, ids, positions):
        hidden, residual = self.embed_tokens(ids), None
        for layer in self.layers:
            hidden, residual = layer(positions, hidden, *([object(), object()] if self.old else []), residual)
        hidden, _ = self.norm(hidden, residual)
        return hidden


class LogitsProcessor:
    """`gathers`: rank 0 alone gets the logits, the others None."""

    def __init__(self, gathers):
        self.gathers = gathers

    def _get_logits(self, hidden_states, lm_head, embedding_bias):
        assert embedding_bias is None
        n = len(lm_head) // size()
        parts = exchange(hidden_states @ lm_head[rank() * n : (rank() + 1) * n].T)
        return None if self.gathers and rank() else np.concatenate(parts, -1)


class CausalLM(Module):
    """`old`: the call signatures before V1 ones; `gathers`: see LogitsProcessor."""

    def __init__(self, weights, config, old=False, gathers=False):
        super().__init__()
        self.model = Decoder(weights, config, old)
        self.lm_head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
        self.logits_processor = LogitsProcessor(gathers)

    def forward(self, ids, positions):
        return self.model(ids, positions)


class Qwen2ForCausalLM(CausalLM):
    pass


class Qwen3ForCausalLM(CausalLM):
    pass


def load(folder, **options):
    """The model of a checkpoint, this rank's part of it."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config["theta"] = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    weights = {}
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        reader = Reader(path)
        for name in reader.entries:
            weights[name] = floats(reader.read(name)).astype(np.float32)
    return {c.__name__: c for c in (Qwen2ForCausalLM, Qwen3ForCausalLM)}[config["architectures"][0]](
        weights, config, **options
    )


def floats(t):
    """A stored tensor as a numpy array of floats."""
    if t.dtype == "BF16":
        wide = np.frombuffer(t.data, "<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(t.shape)
    return np.frombuffer(t.data, {"F16": "<f2", "F32": "<f4", "F64": "<f8"}[t.dtype]).reshape(t.shape)

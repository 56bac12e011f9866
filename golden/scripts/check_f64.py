"""Compare the float64 traces with a second, independent forward in plain NumPy.

It shares no code with transformers and guards against a float32 hidden in the f64 oracle. NumPy and the
safetensors reader only; exits 1 when a probe is off by more than 1e-13 of its largest value.
"""

import json
import sys

import numpy as np
from safetensors.torch import load_file

from common import GOLDEN, read_json

LIMIT = 1e-13
NAMES = ("tiny-qwen2", "tiny-qwen3", "trained-qwen3")
NAMES += ("moe-qwen3", "moe-norm-qwen3", "yarn-qwen3", "window-qwen2", "window-off-qwen2")
NAMES += ("gqa7-qwen2", "yarn-attn-qwen2", "linear-qwen3", "dynamic-qwen3", "long-qwen3")
PARTIAL = ("long-qwen3",)  # recorded layer outputs and logits only


def tensors(folder):
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        out.update({k: v.double().numpy() for k, v in load_file(path).items()})
    return out


def rope_of(config):
    """The rope fields of either spelling in one dict."""
    if "rope_parameters" in config:
        return config["rope_parameters"]
    scaling = config.get("rope_scaling") or {}
    return scaling | {"rope_type": scaling.get("rope_type", scaling.get("type", "default")), "rope_theta": config["rope_theta"]}


def rope_tables(config, segments):
    """cos and sin [T, D]. Dimension pair j turns by theta^(-2j/D) a position, more or less scaled."""
    rope, d = rope_of(config), config["head_dim"]
    theta, pair, rows, amplitude = rope["rope_theta"], np.arange(d // 2), [], 1.0
    for start, end in segments:
        speed = np.exp(-2 * pair / d * np.log(theta))
        if rope["rope_type"] == "linear":
            speed = speed / rope["factor"]
        elif rope["rope_type"] == "dynamic":
            # NTK: the slowest pair is slowed down by exactly `stretch`, the fastest not at all.
            stretch = 1 + rope["factor"] * (max(end / config["max_position_embeddings"], 1) - 1)
            speed = speed * stretch ** (-2 * pair / (d - 2))
        elif rope["rope_type"] == "yarn":
            # Turns of pair j within the original context; solved for j where they are beta.
            edge = lambda beta: d / 2 * np.log(rope["original_max_position_embeddings"] / (2 * np.pi * beta)) / np.log(theta)
            low = max(np.floor(edge(rope.get("beta_fast", 32))), 0)
            high = min(np.ceil(edge(rope.get("beta_slow", 1))), d - 1)
            kept = np.clip((high - pair) / (high - low), 0, 1)
            speed = speed * (kept + (1 - kept) / rope["factor"])
            amplitude = rope.get("attention_factor", 1 + np.log(rope["factor"]) / 10)
        else:
            assert rope["rope_type"] == "default", rope
        rows.append(np.arange(start, end)[:, None] * np.tile(speed, 2))
    angle = np.concatenate(rows)
    return np.cos(angle) * amplitude, np.sin(angle) * amplitude


def window_of(config, layer):
    """The window of a layer, None where it sees everything; transformers slides the layers from max_window_layers on."""
    on = config.get("use_sliding_window") and layer >= config["max_window_layers"]
    return config["sliding_window"] if on else None


def attention(q, k, v, window=None):
    """q [T, Hq, D], k and v [T, Hkv, D]; causal, the last `window` keys with the own one, float64."""
    t, heads, d = q.shape
    out = np.empty_like(q)
    age = np.arange(t)[:, None] - np.arange(t)
    hidden = (age < 0) | (age >= (window or t))
    for h in range(heads):
        kv = h // (heads // k.shape[1])
        scores = q[:, h] @ k[:, kv].T / np.sqrt(d)
        scores[hidden] = -np.inf
        p = np.exp(scores - scores.max(1, keepdims=True))
        out[:, h] = p / p.sum(1, keepdims=True) @ v[:, kv]
    return out


def silu(x):
    return x / (1 + np.exp(-x))


def experts(config, w, at, h):
    """The probes of a sparse MLP block, token by token."""
    gate = h @ w[at + "gate.weight"].T
    routing, out = np.zeros_like(gate), np.zeros_like(h)
    for t, row in enumerate(gate):
        p = np.exp(row - row.max())
        p /= p.sum()
        best = np.argsort(-p)[: config["num_experts_per_tok"]]
        routing[t, best] = p[best] / (p[best].sum() if config["norm_topk_prob"] else 1.0)
        for e in best:
            g, u, d = (w[f"{at}experts.{e}.{s}_proj.weight"] for s in ("gate", "up", "down"))
            out[t] += routing[t, e] * (d @ (silu(g @ h[t]) * (u @ h[t])))
    return {"router_logits": gate, "routing": routing, "experts": out}


def forward(w, config, tokens, segments):
    """Every probe of a Qwen2, Qwen3 or Qwen3-MoE prefill. Only "dynamic" rope can tell segments from a whole."""
    d, eps, n = config["head_dim"], config["rms_norm_eps"], len(tokens)
    cos, sin = rope_tables(config, segments)

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[name + ".weight"]

    def linear(x, name):
        return x @ w[name + ".weight"].T + w.get(name + ".bias", 0.0)

    def turn(x):
        half = np.concatenate([-x[..., d // 2 :], x[..., : d // 2]], -1)
        return x * cos[:, None] + half * sin[:, None]

    probes = {"rope.cos": cos, "rope.sin": sin}
    x = probes["embed"] = w["model.embed_tokens.weight"][tokens]
    for i in range(config["num_hidden_layers"]):
        at, p = f"model.layers.{i}.", {}
        h = p["input_norm"] = norm(x, at + "input_layernorm")
        heads = {}
        for s in "qkv":
            p[s + "_proj"] = linear(h, f"{at}self_attn.{s}_proj")
            heads[s] = p[s + "_proj"].reshape(n, -1, d)
        if f"{at}self_attn.q_norm.weight" in w:
            for s in "qk":
                heads[s] = p[s + "_norm"] = norm(heads[s], f"{at}self_attn.{s}_norm")
        for s in "qk":
            heads[s] = p[s + "_rope"] = turn(heads[s])
        p["attention"] = attention(heads["q"], heads["k"], heads["v"], window_of(config, i))
        p["o_proj"] = linear(p["attention"].reshape(n, -1), at + "self_attn.o_proj")
        x = p["attn_residual"] = x + p["o_proj"]
        h = p["post_norm"] = norm(x, at + "post_attention_layernorm")
        if at + "mlp.gate.weight" in w:
            p.update(experts(config, w, at + "mlp.", h))
            x = p["mlp_residual"] = x + p["experts"]
        else:
            gate, up = (linear(h, f"{at}mlp.{s}_proj") for s in ("gate", "up"))
            p.update(gate_proj=gate, up_proj=up, silu_mul=silu(gate) * up)
            p["down_proj"] = linear(p["silu_mul"], at + "mlp.down_proj")
            x = p["mlp_residual"] = x + p["down_proj"]
        probes.update({f"layers.{i}.{k}": v for k, v in p.items()})
    x = probes["final_norm"] = norm(x, "model.norm")
    head = "lm_head" if "lm_head.weight" in w else "model.embed_tokens"
    return probes | {"logits": linear(x, head)}


def relative_rms(a, b):
    return np.sqrt(((a - b) ** 2).mean() / (b**2).mean())


def compare_lower(name, exact):
    """Print how far the other dtypes' logits are, and the worst probe."""
    for trace in sorted((GOLDEN / "traces" / name).iterdir()):
        if trace.name == "f64":
            continue
        errors = {k: relative_rms(v, exact[k]) for k, v in tensors(trace).items()}
        probe = max(errors, key=errors.get)
        print(f"  {trace.name}: relative rms of logits {errors['logits']:.1e}, largest {errors[probe]:.1e} at {probe}")


def check(name):
    """Whether every recorded f64 probe agrees with this file's forward."""
    folder, trace = GOLDEN / "checkpoints" / name, GOLDEN / "traces" / name / "f64"
    manifest = read_json(trace / "manifest.json")
    recorded = tensors(trace)
    config = json.loads((folder / "config.json").read_text())
    mine = forward(tensors(folder), config, manifest["tokens"], manifest["segments"])
    assert recorded.keys() == manifest["probes"].keys() and recorded.keys() <= mine.keys()
    assert recorded.keys() == mine.keys() or name in PARTIAL
    errors = {k: np.abs(mine[k] - v).max() / np.abs(mine[k]).max() for k, v in recorded.items()}
    probe = max(errors, key=errors.get)
    print(f"{name}: {len(errors)} probes, largest difference {errors[probe]:.1e} of the maximum, at {probe}")
    compare_lower(name, mine)
    return errors[probe] <= LIMIT


def main():
    sys.exit(not all([check(name) for name in NAMES]))


if __name__ == "__main__":
    main()

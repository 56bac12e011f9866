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


def tensors(folder):
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        out.update({k: v.double().numpy() for k, v in load_file(path).items()})
    return out


def theta_of(config):
    return config["rope_theta"] if "rope_theta" in config else config["rope_parameters"]["rope_theta"]


def attention(q, k, v):
    """q [T, Hq, D], k and v [T, Hkv, D]; causal, float64."""
    t, heads, d = q.shape
    out = np.empty_like(q)
    for h in range(heads):
        kv = h // (heads // k.shape[1])
        scores = q[:, h] @ k[:, kv].T / np.sqrt(d)
        scores[np.triu_indices(t, 1)] = -np.inf
        p = np.exp(scores - scores.max(1, keepdims=True))
        out[:, h] = p / p.sum(1, keepdims=True) @ v[:, kv]
    return out


def forward(w, config, tokens):
    """Every probe of a Qwen2 or Qwen3 prefill."""
    d, eps, n = config["head_dim"], config["rms_norm_eps"], len(tokens)
    angle = np.arange(n)[:, None] * theta_of(config) ** (-np.arange(0, d, 2) / d)
    cos, sin = (f(np.concatenate([angle, angle], 1)) for f in (np.cos, np.sin))

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
        p["attention"] = attention(heads["q"], heads["k"], heads["v"])
        p["o_proj"] = linear(p["attention"].reshape(n, -1), at + "self_attn.o_proj")
        x = p["attn_residual"] = x + p["o_proj"]
        h = p["post_norm"] = norm(x, at + "post_attention_layernorm")
        gate, up = (linear(h, f"{at}mlp.{s}_proj") for s in ("gate", "up"))
        p.update(gate_proj=gate, up_proj=up, silu_mul=gate / (1 + np.exp(-gate)) * up)
        p["down_proj"] = linear(p["silu_mul"], at + "mlp.down_proj")
        x = p["mlp_residual"] = x + p["down_proj"]
        probes.update({f"layers.{i}.{k}": v for k, v in p.items()})
    x = probes["final_norm"] = norm(x, "model.norm")
    head = "lm_head" if "lm_head.weight" in w else "model.embed_tokens"
    return probes | {"logits": linear(x, head)}


def main():
    failed = False
    for name in NAMES:
        folder, trace = GOLDEN / "checkpoints" / name, GOLDEN / "traces" / name / "f64"
        manifest = read_json(trace / "manifest.json")
        recorded = tensors(trace)
        mine = forward(tensors(folder), json.loads((folder / "config.json").read_text()), manifest["tokens"])
        assert mine.keys() == recorded.keys() == manifest["probes"].keys()
        errors = {k: np.abs(mine[k] - recorded[k]).max() / np.abs(mine[k]).max() for k in mine}
        probe = max(errors, key=errors.get)
        print(f"{name}: {len(errors)} probes, largest difference {errors[probe]:.1e} of the maximum, at {probe}")
        failed |= not errors[probe] <= LIMIT
    sys.exit(failed)


if __name__ == "__main__":
    main()

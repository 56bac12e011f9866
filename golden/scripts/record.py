"""Run a Qwen checkpoint through transformers and record every probe.

f32, bf16 and f16 are transformers' own arithmetic with eager attention and, in a mixture of experts, the
plain loop over the experts. f64 replaces the places where transformers falls back to float32 inside a
float64 model: the RMSNorm, the rotary angle, the softmax and the router's softmax.
"""

import types

import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, DynamicCache
from transformers.masking_utils import eager_mask

from common import DTYPES
from rope import frequencies

ATTENTION = "assay_recorder"
transformers.utils.logging.disable_progress_bar()


def producer():
    return {
        "name": "transformers",
        "version": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
    }


def eager_attention(module, q, k, v, mask, scaling, kv_head=None, key_mask=None):
    """transformers' eager attention, line by line; `kv_head` and `key_mask` exist for the fault traces."""
    if kv_head is None:
        heads = torch.arange(q.shape[1]) // module.num_key_value_groups
    else:
        heads = torch.tensor([kv_head(h) for h in range(q.shape[1])])
    k, v = k[:, heads], v[:, heads]
    scores = torch.matmul(q, k.transpose(2, 3)) * scaling
    if mask is not None:
        scores = scores + mask
    if key_mask is not None:
        scores = scores.masked_fill(~key_mask(k.shape[2]), torch.finfo(scores.dtype).min)
    softmax_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    probs = torch.nn.functional.softmax(scores, dim=-1, dtype=softmax_dtype).to(q.dtype)
    return torch.matmul(probs, v).transpose(1, 2).contiguous(), probs


class Recorder:
    """Hooks on a model; `tensors` maps probe names to [tokens, ...] tensors in the model's own dtype."""

    def __init__(self, model):
        self.tensors = {}
        self.probabilities = {}
        self.attention_override = {}
        base = model.model
        self._output(base.embed_tokens, "embed")
        base.rotary_emb.register_forward_hook(self._rotary)
        for n, layer in enumerate(base.layers):
            self._layer(f"layers.{n}.", layer)
        self._output(base.norm, "final_norm")
        self._output(model.lm_head, "logits")

    def keep(self, probe, tensor):
        assert tensor.shape[0] == 1 and probe not in self.tensors, probe
        self.tensors[probe] = tensor[0].detach().clone()

    def _output(self, module, probe):
        module.register_forward_hook(lambda _m, _a, out: self.keep(probe, out))

    def _input(self, module, probe):
        module.register_forward_pre_hook(lambda _m, args: self.keep(probe, args[0]))

    def _rotary(self, _module, _args, out):
        self.keep("rope.cos", out[0])
        self.keep("rope.sin", out[1])

    def _layer(self, prefix, layer):
        attention, mlp = layer.self_attn, layer.mlp
        attention.assay_recorder = self
        self._output(layer.input_layernorm, prefix + "input_norm")
        for name in ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "o_proj"):
            if hasattr(attention, name):
                self._output(getattr(attention, name), prefix + name)
        self._input(layer.post_attention_layernorm, prefix + "attn_residual")
        self._output(layer.post_attention_layernorm, prefix + "post_norm")
        self._output(layer, prefix + "mlp_residual")
        if hasattr(mlp, "experts"):
            mlp.gate.register_forward_hook(lambda _m, _a, out: self._routing(prefix, *out))
            self._output(mlp, prefix + "experts")
            return
        self._output(mlp.gate_proj, prefix + "gate_proj")
        self._output(mlp.up_proj, prefix + "up_proj")
        self._input(mlp.down_proj, prefix + "silu_mul")
        self._output(mlp.down_proj, prefix + "down_proj")

    def _routing(self, prefix, logits, weights, chosen):
        """`routing` is dense [tokens, experts]: the weights of the chosen experts, 0 elsewhere."""
        ranked = logits.sort(-1, descending=True).values
        k = chosen.shape[-1]
        assert (ranked[:, k - 1] > ranked[:, k]).all(), f"{prefix}router_logits: a tie at the last chosen expert"
        self.keep(prefix + "router_logits", logits[None])
        self.keep(prefix + "routing", torch.zeros_like(logits).scatter(-1, chosen, weights)[None])

    def attend(self, module, q, k, v, mask, scaling):
        prefix = f"layers.{module.layer_idx}."
        self.keep(prefix + "q_rope", q.transpose(1, 2))
        self.keep(prefix + "k_rope", k[:, :, -q.shape[2] :].transpose(1, 2))  # without the cached keys
        options = dict(self.attention_override.get(module.layer_idx, {}))
        stored = options.pop("stored", lambda x: x)  # what becomes of the output, for the fault traces
        out, probs = eager_attention(module, q, k, v, mask, options.pop("scaling", scaling), **options)
        out = stored(out)
        self.keep(prefix + "attention", out)
        self.probabilities[module.layer_idx] = probs[0]
        return out, probs


def _recorded_attention(module, q, k, v, mask, scaling, **_):
    recorder = getattr(module, "assay_recorder", None)
    if recorder is None:
        return eager_attention(module, q, k, v, mask, scaling)
    return recorder.attend(module, q, k, v, mask, scaling)


AttentionInterface.register(ATTENTION, _recorded_attention)
AttentionMaskInterface.register(ATTENTION, eager_mask)


def _norm_f64(self, x):
    variance = x.pow(2).mean(-1, keepdim=True)
    return self.weight * (x * torch.rsqrt(variance + self.variance_epsilon))


def _rotary_f64(self, x, position_ids):
    config, seq_len = self.config, int(position_ids.max()) + 1
    inv_freq, factor = frequencies(config.rope_parameters, config.head_dim, config.max_position_embeddings, seq_len)
    angle = position_ids[..., None].double() * inv_freq
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos() * factor, angle.sin() * factor


def _router_f64(self, x):
    logits = torch.nn.functional.linear(x.reshape(-1, self.hidden_dim), self.weight)
    weights, chosen = torch.topk(logits.softmax(-1), self.top_k, dim=-1)
    if self.norm_topk_prob:
        weights = weights / weights.sum(-1, keepdim=True)
    return logits, weights, chosen


def make_f64(model):
    model = model.double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(_norm_f64, module)
        if type(module).__name__.endswith("TopKRouter"):
            module.forward = types.MethodType(_router_f64, module)
    model.model.rotary_emb.forward = types.MethodType(_rotary_f64, model.model.rotary_emb)
    return model


def load(folder, dtype, attention=ATTENTION):
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=DTYPES[dtype],
        attn_implementation=attention,
        experts_implementation="eager",
        local_files_only=True,
    ).eval()
    return make_f64(model) if dtype == "f64" else model


PROBES = (
    "input_norm q_proj k_proj v_proj q_norm k_norm q_rope k_rope attention o_proj attn_residual post_norm "
    "gate_proj up_proj silu_mul down_proj router_logits routing experts mlp_residual"
).split()


def in_order(tensors, layers):
    """The probes in forward order (hooks fire in a slightly different one)."""
    names = ["embed", "rope.cos", "rope.sin"]
    names += [f"layers.{n}.{p}" for n in range(layers) for p in PROBES]
    names += ["final_norm", "logits"]
    assert set(tensors) <= set(names), set(tensors) - set(names)
    return {name: tensors[name] for name in names if name in tensors}


def run(model, tokens, segments=None):
    """A prefill of `tokens`, in one call or in `segments` [start, end) with a KV cache; the recorder with its
    tensors in forward order."""
    return run_recorder(Recorder(model), model, tokens, segments)


def calls(model, tokens, segments):
    """The model's calls, one a segment, over one cache; yields the logits of each."""
    cache = DynamicCache(config=model.config) if segments else None
    for start, end in segments or [(0, len(tokens))]:
        ids = torch.tensor([tokens[start:end]])
        yield model(input_ids=ids, cache=cache, use_cache=cache is not None).logits[0]


def run_recorder(recorder, model, tokens, segments=None):
    parts = []
    for _ in calls(model, tokens, segments):
        parts.append(recorder.tensors)
        recorder.tensors = {}
    tensors = {probe: torch.cat([part[probe] for part in parts]) for probe in parts[0]}
    recorder.tensors = in_order(tensors, model.config.num_hidden_layers)
    return recorder


def check_equals_eager(folder, dtype, tokens, logits, segments=None):
    """The registered attention must be transformers' own eager one, to the last bit."""
    model = load(folder, dtype, "eager")
    theirs = torch.cat(list(calls(model, tokens, segments)))
    assert torch.equal(theirs, logits), f"{folder}: recorded attention differs from eager in {dtype}"

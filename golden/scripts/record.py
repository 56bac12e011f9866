"""Run a Qwen checkpoint through transformers and record every probe.

f32, bf16 and f16 are transformers' own arithmetic with eager attention. f64 replaces the three places
where transformers falls back to float32 inside a float64 model: the RMSNorm, the rotary angle and the
softmax.
"""

import types

import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM
from transformers.masking_utils import eager_mask

from common import DTYPES

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
        self._output(mlp.gate_proj, prefix + "gate_proj")
        self._output(mlp.up_proj, prefix + "up_proj")
        self._input(mlp.down_proj, prefix + "silu_mul")
        self._output(mlp.down_proj, prefix + "down_proj")
        self._output(layer, prefix + "mlp_residual")

    def attend(self, module, q, k, v, mask, scaling):
        prefix = f"layers.{module.layer_idx}."
        self.keep(prefix + "q_rope", q.transpose(1, 2))
        self.keep(prefix + "k_rope", k.transpose(1, 2))
        options = dict(self.attention_override.get(module.layer_idx, {}))
        out, probs = eager_attention(module, q, k, v, mask, options.pop("scaling", scaling), **options)
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
    d = self.config.head_dim
    base = float(self.config.rope_parameters["rope_theta"])
    inv_freq = 1.0 / (base ** (torch.arange(0, d, 2, dtype=torch.float64) / d))
    angle = position_ids[..., None].double() * inv_freq
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def make_f64(model):
    model = model.double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(_norm_f64, module)
    model.model.rotary_emb.forward = types.MethodType(_rotary_f64, model.model.rotary_emb)
    return model


def load(folder, dtype, attention=ATTENTION):
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=DTYPES[dtype], attn_implementation=attention, local_files_only=True
    ).eval()
    return make_f64(model) if dtype == "f64" else model


PROBES = (
    "input_norm q_proj k_proj v_proj q_norm k_norm q_rope k_rope attention o_proj attn_residual post_norm "
    "gate_proj up_proj silu_mul down_proj mlp_residual"
).split()


def in_order(tensors, layers):
    """The probes in forward order (hooks fire in a slightly different one)."""
    names = ["embed", "rope.cos", "rope.sin"]
    names += [f"layers.{n}.{p}" for n in range(layers) for p in PROBES]
    names += ["final_norm", "logits"]
    assert set(tensors) <= set(names), set(tensors) - set(names)
    return {name: tensors[name] for name in names if name in tensors}


def run(model, tokens):
    """One prefill of `tokens`; the recorder with its tensors in forward order."""
    return run_recorder(Recorder(model), model, tokens)


def run_recorder(recorder, model, tokens):
    model(input_ids=torch.tensor([tokens]), use_cache=False)
    recorder.tensors = in_order(recorder.tensors, model.config.num_hidden_layers)
    return recorder


def check_equals_eager(folder, dtype, tokens, logits):
    """The registered attention must be transformers' own eager one, to the last bit."""
    model = load(folder, dtype, "eager")
    theirs = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    assert torch.equal(theirs, logits), f"{folder}: recorded attention differs from eager in {dtype}"

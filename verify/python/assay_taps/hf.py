"""Taps on a transformers model: Qwen2, Qwen3 and Qwen3-MoE, any dtype, device and attention implementation.

    from assay_taps.hf import TransformersTap
    with TransformersTap(model, "trace"):
        model(input_ids)            # one sequence; further calls with its cache are further segments

Modules are seen by forward hooks. Queries and keys after the rotation are the results of `apply_rotary_pos_emb`, which
the model's module looks up by name in every version of transformers (4.37.2, 5.19 and 5.24 were read), so that eager, sdpa and
flash attention are all recorded as they are. `attention` is what o_proj is given.
"""

import functools
import inspect
import sys

from assay_taps.errors import TapError
from assay_taps.trace import TraceWriter

ARCHITECTURES = ("Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}


def dtype_name(dtype):
    """`bf16` for torch.bfloat16 ..."""
    spelling = str(dtype).replace("torch.", "")
    if spelling not in DTYPES:
        raise TapError(f"the model computes in {spelling}; a trace can be of {', '.join(DTYPES.values())}")
    return DTYPES[spelling]


class TransformersTap:
    """Records the calls of `model` between `with` and its end; the trace is written at the end, or nothing if an
    exception ends it. `manifest` is then the trace's."""

    def __init__(self, model, out, probes="*", notes=""):
        self.architecture = type(model).__name__
        if self.architecture not in ARCHITECTURES:
            raise TapError(f"{self.architecture}: no taps for it; there are for {', '.join(ARCHITECTURES)}")
        self.model, self.base, self.notes = model, model.model, [notes] if notes else []
        self.writer = TraceWriter(out, len(self.base.layers), probes)
        self.manifest = self.dtype = self.tokens = None
        self._layer, self._handles, self._patched = None, [], []

    def __enter__(self):
        base = self.base
        self._pre(base.embed_tokens, self._embedding_input)
        self._post(base.embed_tokens, self._embedding_output)
        for n, layer in enumerate(base.layers):
            self._hook_layer(n, layer)
        self._output(base.norm, "final_norm")
        self._post(self.model.lm_head, self._logits)
        self._post(self.model, lambda _out: self._end_call())
        self._patch_rotation()
        return self

    def __exit__(self, kind, _error, _traceback):
        for handle in self._handles:
            handle.remove()
        for module, function in self._patched:
            module.apply_rotary_pos_emb = function
        if kind is not None:
            self.writer.abort()
            return False
        try:
            self.manifest = self.writer.close(
                producer=producer(),
                dtype=self.dtype,
                architecture=self.architecture,
                notes="; ".join(self.notes),
            )
        except BaseException:
            self.writer.abort()
            raise
        return False

    # Hooks take the tensor alone: what else torch passes differs with the version and the call.
    def _pre(self, module, see):
        def hook(_module, args, kwargs):
            value = args[0] if args else next(iter(kwargs.values()), None)
            see(value)

        self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    def _post(self, module, see):
        self._handles.append(module.register_forward_hook(lambda _module, _args, out: see(out)))

    def _output(self, module, probe):
        self._post(module, lambda out: self._keep(probe, out[0] if isinstance(out, tuple) else out))

    def _input(self, module, probe):
        self._pre(module, lambda value: self._keep(probe, value))

    def _hook_layer(self, n, layer):
        at, attention, mlp = f"layers.{n}.", layer.self_attn, layer.mlp
        self._output(layer.input_layernorm, at + "input_norm")
        self._pre(attention, lambda _value: setattr(self, "_layer", n))
        for name in ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "o_proj"):
            if hasattr(attention, name):
                self._output(getattr(attention, name), at + name)
        heads = getattr(attention, "head_dim", None)
        self._pre(attention.o_proj, lambda x: self._keep(at + "attention", x.unflatten(-1, (-1, heads))))
        self._input(layer.post_attention_layernorm, at + "attn_residual")
        self._output(layer.post_attention_layernorm, at + "post_norm")
        if hasattr(mlp, "gate_proj"):
            self._output(mlp.gate_proj, at + "gate_proj")
            self._output(mlp.up_proj, at + "up_proj")
            self._input(mlp.down_proj, at + "silu_mul")
            self._output(mlp.down_proj, at + "down_proj")
        else:
            self._post(mlp.gate, lambda out: self._routing(at, out))
            self._output(mlp, at + "experts")
        self._output(layer, at + "mlp_residual")

    def _patch_rotation(self):
        for name in {type(layer.self_attn).__module__ for layer in self.base.layers}:
            module = sys.modules[name]
            function = getattr(module, "apply_rotary_pos_emb", None)
            if function is None:
                self.notes.append(f"{name} has no apply_rotary_pos_emb: q_rope and k_rope are not recorded")
                continue
            module.apply_rotary_pos_emb = self._rotation(function)
            self._patched.append((module, function))

    def _rotation(self, function):
        @functools.wraps(function)
        def rotate(*args, **kwargs):
            q, k = function(*args, **kwargs)
            for name, value in (("q_rope", q), ("k_rope", k)):  # [B, heads, T, head_dim]
                self._keep(f"layers.{self._layer}.{name}", value.transpose(1, 2))
            return q, k

        return rotate

    def _keep(self, probe, tensor, batched=True):
        if batched:
            if tensor.dim() and tensor.shape[0] != 1:
                raise TapError(f"{probe}: a batch of {tensor.shape[0]} sequences. Record one sequence at a time")
            tensor = tensor[0]
        self.writer.keep(probe, tensor)

    def _embedding_input(self, ids):
        if ids is None or ids.shape[0] != 1:
            raise TapError(f"input_ids has shape {list(ids.shape)}. Record one sequence at a time: [1, T]")
        self.tokens = ids[0].tolist()

    def _embedding_output(self, out):
        self.dtype = dtype_name(out.dtype)
        self._keep("embed", out)

    def _routing(self, at, out):
        """`routing` is dense [T, experts]. Before version 5 the gate is a plain linear layer and the weights are
        seen by no module."""
        if not isinstance(out, tuple):
            self._keep(at + "router_logits", out, batched=False)
            return
        logits, weights, chosen = out
        self._keep(at + "router_logits", logits, batched=False)
        dense = logits.new_zeros(logits.shape, dtype=weights.dtype).scatter(-1, chosen, weights)
        self._keep(at + "routing", dense, batched=False)

    def _logits(self, out):
        if out.shape[1] == len(self.tokens):
            self._keep("logits", out)
        elif self.writer.wants("logits"):
            self.writer.wanted.discard("logits")
            self.notes.append("logits of the last token only were computed, and are not recorded")

    def _end_call(self):
        if self.tokens is None:
            raise TapError("the model was called without input_ids: a trace needs the tokens")
        self.writer.end_call(self.tokens)
        self.tokens = None


def producer():
    """Who recorded."""
    import torch
    import transformers

    return {"name": "transformers", "version": transformers.__version__, "torch": torch.__version__}


def load(folder, dtype, device, attention):
    """The model of a checkpoint's folder. `dtype` None is the checkpoint's own."""
    import torch
    import transformers

    # `torch_dtype` until 4.55, `dtype` since.
    version = tuple(int(n) for n in transformers.__version__.split(".")[:2])
    key = "dtype" if version >= (4, 56) else "torch_dtype"
    options = {key: getattr(torch, dtype) if dtype else "auto", "local_files_only": True}
    if attention:
        options["attn_implementation"] = attention
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    return model.to(device).eval()


def forward(model, tokens, chunk=None, generate=0):
    """Feeds the tokens, in one call or in chunks, then `generate` greedy tokens one by one."""
    import torch

    device = model.get_input_embeddings().weight.device
    chunk, cache, out = chunk or len(tokens), None, None
    cached = chunk < len(tokens) or generate > 0
    # Late in version 5 the argument was renamed.
    accepted = inspect.signature(type(model).forward).parameters
    key = "cache" if "cache" in accepted else "past_key_values"

    def call(ids):
        given = {key: cache} if cache is not None else {}
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids], device=device), use_cache=cached, **given)

    def cache_of(out):
        return getattr(out, key, None) or out.past_key_values

    for start in range(0, len(tokens), chunk):
        out = call(tokens[start : start + chunk])
        cache = cache_of(out) if cached else None
    for _ in range(generate):
        out = call([int(out.logits[0, -1].argmax())])
        cache = cache_of(out)


def record(folder, tokens, out, *, dtype=None, device="cpu", attention=None, chunk=None, generate=0, probes="*"):
    """Records a forward of a checkpoint; returns the manifest."""
    model = load(folder, dtype, device, attention)
    used = getattr(model.config, "_attn_implementation", None)
    with TransformersTap(model, out, probes, f"attention {used}, on {device}") as tap:
        forward(model, tokens, chunk, generate)
    return tap.manifest

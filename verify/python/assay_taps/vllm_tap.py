"""Taps inside a vLLM worker: its fused modules mapped to assay's probe names.

Read for this: vLLM 0.6.2 (V0), 0.9.2, 0.11.0 and 0.32.0, `model_executor/models/qwen2.py`, `qwen3.py`, `qwen3_moe.py`,
`layers/layernorm.py`, `layers/linear.py`, `layers/logits_processor.py`. All have the same modules:

- `qkv_proj` and `gate_up_proj` return (output, bias), whose columns are q, k, v and gate, up of this rank;
- `input_layernorm` and `post_attention_layernorm` add and normalise in one: given (x, residual) they return (norm,
  sum), in the memory of their inputs. The sum is the residual stream *before* the norm: the output of the layer before
  (`mlp_residual`), or of attention (`attn_residual`). So are `model.norm`'s;
- the rotation works in place on views of qkv. What `attn` is given are q and k after it;
- `o_proj` and `down_proj` return what was reduced over the ranks.

Everything is copied in the hook, before the next kernel writes there.
"""

from assay_taps.errors import TapError
from assay_taps.hf import ARCHITECTURES, dtype_name


def unwrapped(model):
    """The model itself, out of the wrappers for graphs and micro-batches of the V1 engine."""
    for _ in range(8):
        inner = model.unwrap() if callable(getattr(model, "unwrap", None)) else getattr(model, "runnable", None)
        if inner is None or inner is model:
            return model
        model = inner
    return model


def first(value):
    """The first of a tuple: vLLM's linear layers return (output, bias)."""
    return value[0] if isinstance(value, tuple) else value


class VllmTap:
    """Hooks on a model of this process that feed a TraceWriter.

    `prompt` are the ids that will be fed, at most `chunk` a call, `total` the number of tokens after which recording
    stops. The first error is kept in `error` and not raised, for an exception would end the engine.
    """

    def __init__(self, model, writer, prompt, total, chunk=None):
        self.model, self.writer, self.prompt, self.total = unwrapped(model), writer, list(prompt), total
        self.chunk = chunk or len(self.prompt)
        self.architecture = type(self.model).__name__
        if self.architecture not in ARCHITECTURES:
            raise TapError(f"{self.architecture}: no taps for it; there are for {', '.join(ARCHITECTURES)}")
        self.error = self.dtype = None
        self.notes, self._handles, self._rows, self._tokens = [], [], 0, []
        base = self.model.model
        self._pre(base.embed_tokens, self._begin)
        self._post(base.embed_tokens, self._embedded)
        for n, layer in enumerate(base.layers):
            self._hook_layer(n, layer)
        self._post(base.norm, self._finish_call)

    @property
    def kv_heads(self):
        """Key and value heads of the whole model."""
        return int(self.model.model.layers[0].self_attn.total_num_kv_heads)

    def remove(self):
        """Takes the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _guard(self, see, *values):
        if self.error is not None:
            return
        try:
            see(*values)
        except TapError as e:
            self.error = str(e)
        except Exception as e:  # noqa: BLE001 - whatever it is, the engine goes on and the driver reports it
            self.error = f"{type(e).__name__}: {e}"

    def _pre(self, module, see):
        def hook(_module, args, kwargs):
            self._guard(see, *(args or tuple(kwargs.values())))

        self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    def _post(self, module, see):
        self._handles.append(module.register_forward_hook(lambda _module, _args, out: self._guard(see, out)))

    def _output(self, module, probe):
        self._post(module, lambda out: self._keep(probe, first(out)))

    def _keep(self, probe, tensor, heads=None):
        """Copies the rows of this call; `heads` splits the columns into heads of so many elements."""
        if self._rows and self.writer.wants(probe):
            tensor = (
                tensor.reshape(-1, tensor.shape[-1]) if heads is None else tensor.reshape(tensor.shape[0], -1, heads)
            )
            self.writer.keep(probe, tensor[: self._rows])

    def _begin(self, ids, *_rest):
        """A forward call begins: which tokens are its rows? Rows beyond them are padding."""
        done = len(self.writer.tokens)
        self._rows = 0
        if done >= self.total:
            return
        ids = ids.reshape(-1).tolist()
        self._rows = min(len(ids), self.chunk, len(self.prompt) - done) if done < len(self.prompt) else 1
        self._tokens = ids[: self._rows]
        expected = self.prompt[done : done + self._rows]
        if expected and self._tokens != expected:
            raise TapError(
                f"the engine was given tokens {self._tokens[:8]} ... where the prompt has {expected[:8]} ... at "
                f"{done}. Was another request running, or a part of the prompt taken from a prefix cache?"
            )

    def _embedded(self, out):
        self.dtype = dtype_name(out.dtype)
        self._keep("embed", out)

    def _normed(self, out, norm, residual):
        """(norm, sum) of a fused norm, or the norm alone (that of layer 0, which has nothing to add)."""
        if isinstance(out, tuple) and residual is not None:
            self._keep(residual, out[1])
        self._keep(norm, first(out))

    def _hook_layer(self, n, layer):
        at, attention, mlp = f"layers.{n}.", layer.self_attn, layer.mlp
        before = f"layers.{n - 1}.mlp_residual" if n else None
        head = int(attention.head_dim)
        self._post(layer.input_layernorm, lambda out: self._normed(out, at + "input_norm", before))
        self._post(attention.qkv_proj, lambda out: self._split(at, attention, first(out)))
        for name in ("q_norm", "k_norm"):
            if isinstance(getattr(attention, name, None), type(layer.input_layernorm)):
                self._post(getattr(attention, name), lambda out, name=name: self._keep(at + name, first(out), head))
        self._pre(attention.attn, lambda q, k, *_rest: self._rotated(at, q, k, head))
        self._pre(attention.o_proj, lambda x, *_rest: self._keep(at + "attention", x, head))
        self._output(attention.o_proj, at + "o_proj")
        self._post(
            layer.post_attention_layernorm, lambda out: self._normed(out, at + "post_norm", at + "attn_residual")
        )
        if hasattr(mlp, "gate_up_proj"):
            self._post(mlp.gate_up_proj, lambda out: self._halves(at, first(out)))
            self._pre(mlp.down_proj, lambda x, *_rest: self._keep(at + "silu_mul", x))
            self._output(mlp.down_proj, at + "down_proj")
        else:
            self._output(mlp.gate, at + "router_logits")
            self._output(mlp, at + "experts")

    def _split(self, at, attention, qkv):
        q, kv = int(attention.q_size), int(attention.kv_size)
        if qkv.shape[-1] != q + 2 * kv:
            raise TapError(f"{at}qkv_proj: {qkv.shape[-1]} columns, expected {q} + 2 x {kv}: not a layout known here")
        for name, start, size in (("q_proj", 0, q), ("k_proj", q, kv), ("v_proj", q + kv, kv)):
            self._keep(at + name, qkv[..., start : start + size])

    def _rotated(self, at, q, k, head):
        self._keep(at + "q_rope", q, head)
        self._keep(at + "k_rope", k, head)

    def _halves(self, at, gate_up):
        half = gate_up.shape[-1] // 2
        self._keep(at + "gate_proj", gate_up[..., :half])
        self._keep(at + "up_proj", gate_up[..., half:])

    def _finish_call(self, out):
        if not self._rows:
            return
        last = len(self.model.model.layers) - 1
        self._normed(out, "final_norm", f"layers.{last}.mlp_residual")
        if self.writer.wants("logits"):
            # Of all ranks, for this gathers; some versions give None to all but the first.
            logits = self.model.logits_processor._get_logits(first(out)[: self._rows], self.model.lm_head, None)
            if logits is not None:
                self._keep("logits", logits)
        self.writer.end_call(self._tokens)
        self._rows = 0

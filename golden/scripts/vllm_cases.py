"""What vllm_serve.py serves and asks: the checkpoints, how each is damaged, and the requests."""

import hashlib
import json
import shutil

import numpy as np

IDS = [48, 25, 341, 275, 263, 394, 309, 544, 334, 286, 30, 297, 25]  # Q: What is the capital of Japan? A:
CHAT = [{"role": "user", "content": "1+1?"}]

CASES = {
    "clean": {"base": "trained-qwen3", "change": "none"},
    "rope_theta": {"base": "trained-qwen3", "change": "config.json: rope_theta 10000 instead of 1000000"},
    "q_norm": {"base": "trained-qwen3", "change": "q_norm.weight of layer 0 times 1.5"},
    "template": {"base": "trained-qwen3", "change": "chat template without the newline behind the role"},
    "gptq": {
        "base": "trained-qwen3",
        "change": "projections as 4-bit GPTQ v1 (rounded to nearest, symmetric, group 64)",
    },
    "gptq_as_v2": {"base": "trained-qwen3", "change": "as gptq, but labelled checkpoint_format gptq_v2"},
    "qwen2": {"base": "tiny-qwen2", "change": "none", "ids": True},
    "qwen2_k_bias": {"base": "tiny-qwen2", "change": "k_proj.bias of layer 0 is zero", "ids": True},
}  # fmt: skip
for _case in CASES.values():
    if _case.get("ids"):
        _case["flags"] = ["--skip-tokenizer-init"]


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def canonical(value):
    """The bytes of a JSON value in one spelling: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def requests(case):
    """(name, method, path, body) of each request, in order: all of a sound checkpoint, of a damaged one what tells it."""
    if case["change"] == "none":
        kept = None
    elif "template" in case["change"]:
        kept = {"version", "text", "tokenize", "tokenize_chat", "chat"}
    else:
        kept = {"version", "prompt_logprobs", "length_50", "echo", "text", "tokenize_chat", "chat"}
    return [r for r in all_requests(case) if kept is None or r[0] in kept]


def all_requests(case):
    """What a sound checkpoint is asked."""
    ids = [i % 320 for i in IDS] if case.get("ids") else IDS
    common = {"model": "tiny", "temperature": 0, "seed": 0}
    completion = {**common, "max_tokens": 4, "return_token_ids": True}
    scored = {**completion, "prompt": ids, "logprobs": 3, "prompt_logprobs": 3}
    if case.get("ids"):
        scored["detokenize"] = False
    yield "version", "GET", "/version", None
    yield "prompt_logprobs", "POST", "/v1/completions", scored
    yield "prompt_logprobs_again", "POST", "/v1/completions", scored
    # The logprob of the prompt's own tokens, at lengths around 50 where kernels change.
    for length in (1, 2, 49, 50, 51):
        prompt = (ids * 4)[:length]
        body = {**scored, "prompt": prompt, "max_tokens": 1, "logprobs": 1, "prompt_logprobs": 0}
        yield f"length_{length}", "POST", "/v1/completions", body
    if case.get("ids"):
        return
    yield "echo", "POST", "/v1/completions", {**completion, "prompt": ids, "echo": True, "logprobs": 3, "max_tokens": 1}
    yield "text", "POST", "/v1/completions", {**completion, "prompt": "7+8=", "logprobs": 3}
    yield "tokenize", "POST", "/tokenize", {"model": "tiny", "prompt": "Q: 问？ 7+8=", "add_special_tokens": False}
    template = {"model": "tiny", "messages": CHAT, "add_generation_prompt": True}
    yield "tokenize_chat", "POST", "/tokenize", template
    chat = {**common, "messages": CHAT, "max_tokens": 6, "logprobs": True, "top_logprobs": 3}
    yield "chat", "POST", "/v1/chat/completions", {**chat, "return_token_ids": True}


def checkpoint(case, source, target):
    """A damaged copy of `source`."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    change = case["change"]
    if "rope_theta" in change:
        edit_json(target / "config.json", lambda c: c["rope_parameters"].update(rope_theta=10000.0))
    elif "q_norm" in change:
        edit_tensors(target, {"model.layers.0.self_attn.q_norm.weight": lambda x: x * 1.5})
    elif "k_proj.bias" in change:
        edit_tensors(target, {"model.layers.0.self_attn.k_proj.bias": lambda x: x * 0})
    elif "template" in change:

        def without_newline(config):
            edited = config["chat_template"].replace("message.role + '\\n'", "message.role + ' '")
            assert edited != config["chat_template"]
            config["chat_template"] = edited

        edit_json(target / "tokenizer_config.json", without_newline)
    elif "gptq" in change.lower():
        label = "gptq_v2" if "gptq_v2" in change else "gptq"
        quantise(target, label)
    else:
        assert change == "none", change
    return target


def edit_json(path, edit):
    value = json.loads(path.read_text(encoding="utf-8"))
    edit(value)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read(path):
    """Metadata and (dtype, shape, bytes) by name."""
    data = path.read_bytes()
    n = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + n])
    metadata = entries.pop("__metadata__", None)
    start = 8 + n
    return metadata, {
        name: (e["dtype"], e["shape"], data[start + e["data_offsets"][0] : start + e["data_offsets"][1]])
        for name, e in entries.items()
    }


def write(path, metadata, tensors):
    entries, end = {"__metadata__": metadata} if metadata else {}, 0
    order = sorted(tensors, key=lambda name: (-{"I32": 4, "F32": 4}.get(tensors[name][0], 2), name))
    for name in order:
        dtype, shape, data = tensors[name]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(tensors[n][2] for n in order))


def floats(tensor):
    dtype, shape, data = tensor
    assert dtype == "BF16", dtype
    return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").reshape(shape)


def bf16(x):
    """To nearest even."""
    bits = np.ascontiguousarray(x, "<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def edit_tensors(folder, edits):
    left = dict(edits)
    for path in folder.glob("*.safetensors"):
        metadata, tensors = read(path)
        for name in set(left) & set(tensors):
            dtype, shape, _ = tensors[name]
            tensors[name] = (dtype, shape, bf16(left.pop(name)(floats(tensors[name]))))
        write(path, metadata, tensors)
    assert not left, left


def quantise(folder, label, group=64):
    """Projections rounded to 4 bits: w = s (q - 8), q in 0..15, s = max |w| / 7 of a group. GPTQ's layout: eight q of
    a column in a word, low first; zero points 8, stored one less (v1) whatever the label says."""
    path = folder / "model.safetensors"
    metadata, tensors = read(path)
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        w = floats(tensors.pop(name)).T  # [K, N]
        k, n = w.shape
        grouped = w.reshape(k // group, group, n)
        scale = (np.abs(grouped).max(1) / 7).astype("<f2")
        q = np.clip(np.rint(grouped / scale[:, None].astype("f4")) + 8, 0, 15).astype("u4").reshape(k // 8, 8, n)
        words = np.bitwise_or.reduce(q << (4 * np.arange(8, dtype="u4"))[None, :, None], axis=1)
        prefix = name[: -len("weight")]
        tensors[prefix + "qweight"] = ("I32", words.shape, words.astype("<u4").tobytes())
        zeros = np.full((k // group, n // 8), 0x77777777, "<u4")
        tensors[prefix + "qzeros"] = ("I32", zeros.shape, zeros.tobytes())
        tensors[prefix + "scales"] = ("F16", scale.shape, scale.tobytes())
        tensors[prefix + "g_idx"] = ("I32", (k,), (np.arange(k) // group).astype("<i4").tobytes())
    write(path, metadata, tensors)
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": False, "sym": True,
                    "lm_head": False, "checkpoint_format": label}  # fmt: skip
    edit_json(folder / "config.json", lambda c: c.update(quantization_config=quantization))

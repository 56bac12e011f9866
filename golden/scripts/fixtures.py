"""The list of fixtures: how each is made and how a rebuild is compared. Standard library only."""

from dataclasses import dataclass, field

# Where the bytes differ (another CPU kind sums in another order), the most that a rebuilt tensor may differ
# from the committed one, as rms(difference) / rms(committed); for integers the share of unlike elements.
TRACE_LIMITS = {"F64": 1e-12, "F32": 1e-5, "BF16": 3e-2, "F16": 2e-3, "I32": 0.0}
# A rounding that falls the other way in the Hessian can move single 4-bit codes.
GPTQ_LIMITS = {**TRACE_LIMITS, "F16": 3e-2, "BF16": 5e-2, "I32": 0.05}

COMPRESSED = "sym-g128 sym-g32 asym-g32 sym-channel asym-channel sym-g128-f16 zeros odd".split()


@dataclass(frozen=True)
class Fixture:
    script: str
    names: tuple  # arguments of the script
    packages: str  # requirements-<packages>.txt, and ASSAY_VENV_<PACKAGES>
    seed: int
    paths: tuple  # what the fixture owns below golden/
    about: str
    # None: another CPU gives a different but equally good result (activation order flips at near ties, and
    # each layer's errors steer the next), so that only names, shapes and dtypes can be compared there.
    limits: dict | None = field(default_factory=lambda: TRACE_LIMITS)
    given: tuple = ()  # files that are not rebuilt: their sha256 is checked

    def command(self, out="DIR"):
        return ["scripts/" + self.script, *self.names, "--out", out]


def tiny_paths(name):
    return ("checkpoints/" + name, *(f"traces/{name}/{dtype}" for dtype in ("f64", "f32", "bf16")))


def breadth(name, seed, about):
    """A checkpoint of breadth.py and its traces."""
    return Fixture(
        "breadth.py", (name,), "transformers", seed, ("checkpoints/" + name, "traces/" + name), "seeded " + about
    )


FIXTURES = {
    "tiny-qwen2": Fixture(
        "tiny.py", ("tiny-qwen2",), "transformers", 2002,
        tiny_paths("tiny-qwen2"),
        "seeded Qwen2, untied, two shards, transformers 4 spelling; traces f64, f32, bf16",
    ),
    "tiny-qwen3": Fixture(
        "tiny.py", ("tiny-qwen3",), "transformers", 3003,
        tiny_paths("tiny-qwen3"),
        "seeded Qwen3, tied, one file, transformers 5 spelling; traces f64, f32, bf16",
    ),
    "faults": Fixture(
        "faults.py", (), "transformers", 0,
        ("faults.json", "traces/faults"),
        "14 traces with one patched module each and 2 edited recordings, with the expected findings",
    ),
    "trained-qwen3": Fixture(
        "generate.py", (), "transformers", 4004,
        ("corpus.jsonl", "generations.json", "checkpoints/trained-qwen3", "traces/trained-qwen3"),
        "small trained Qwen3 with its tokenizer; traces f64, f32, bf16; greedy generations",
        given=(
            "corpus.jsonl",
            "checkpoints/trained-qwen3/config.json",
            "checkpoints/trained-qwen3/generation_config.json",
            "checkpoints/trained-qwen3/model.safetensors",
        ),
    ),
    "tiny-f16": Fixture(
        "tiny_f16.py", (), "transformers", 0,
        ("traces/tiny-qwen2/f16", "traces/tiny-qwen3/f16"),
        "f16 traces of the committed tiny-qwen2 and tiny-qwen3",
    ),
    "forward-faults": Fixture(
        "forward_faults.py", (), "transformers", 0,
        ("traces/forward-faults", "forward_faults.json"),
        "logits of 40 forwards that are wrong as a whole, from committed checkpoints; bf16, f32, f64",
    ),
    "bisect-cases": Fixture(
        "bisect_cases.py", (), "transformers", 0,
        ("traces/bisect", "bisect_cases.json"),
        "recordings with constants of no list, with faults of no list and with two faults, and what to expect",
    ),
    "gqa7-qwen2": breadth("gqa7-qwen2", 7000, "Qwen2, 14 heads to 2, 331 ids, transformers 4 spelling; f64, bf16"),
    "moe-qwen3": breadth("moe-qwen3", 7021, "Qwen3-MoE, layer 0 dense, norm_topk_prob false; f64, bf16, f16"),
    "moe-norm-qwen3": breadth(
        "moe-norm-qwen3", 7002, "Qwen3-MoE, norm_topk_prob true, transformers 4 spelling; f64, bf16, f16"
    ),
    "yarn-qwen3": breadth("yarn-qwen3", 7003, "Qwen3, YaRN, default attention factor, 5 heads to 1; f64, bf16"),
    "yarn-attn-qwen2": breadth(
        "yarn-attn-qwen2", 7005,
        "Qwen2, YaRN, explicit attention factor and betas, transformers 4 spelling; f64, bf16, f16",
    ),
    "linear-qwen3": breadth("linear-qwen3", 7006, "Qwen3, linear RoPE scaling, transformers 4 spelling; f64, bf16"),
    "dynamic-qwen3": breadth("dynamic-qwen3", 7007, "Qwen3, dynamic RoPE scaling, three calls; f64, bf16"),
    "window-qwen2": breadth("window-qwen2", 7004, "Qwen2, layers 1 and 2 of 3 with a sliding window of 5; f64, bf16"),
    "window-off-qwen2": breadth(
        "window-off-qwen2", 7004, "window-qwen2 with its window switched off, transformers 4 spelling; f64, bf16"
    ),
    "long-qwen3": breadth(
        "long-qwen3", 7008, "Qwen3, 300 tokens in three calls, layer outputs and logits only; f64, bf16"
    ),
    "gptq-layers": Fixture(
        "gptq_layers.py", (), "gptq", 5005,
        ("gptq",),
        "22 GPTQ variants of one Linear as gptqmodel stores and dequantises them, and 8 layers made by hand",
        GPTQ_LIMITS,
    ),
    "awq-layers": Fixture(
        "awq_layers.py", (), "gptq", 7007,
        ("awq",),
        "5 AWQ variants of one Linear as gptqmodel stores and dequantises them, and a layer made by hand",
        None,
    ),
    "compressed-layers": Fixture(
        "compressed_layers.py", (), "compressed", 8008,
        tuple(f"compressed/{name}.safetensors" for name in COMPRESSED),
        "6 compressed-tensors variants of one Linear by llmcompressor, and 2 layers made by hand",
        GPTQ_LIMITS,
    ),
    "compressed-gidx": Fixture(
        "compressed_gidx.py", (), "compressed_gidx", 8020,
        ("compressed/sym-g32-gidx.safetensors",),
        "a compressed-tensors layer with weight_g_idx, by an older llmcompressor",
        GPTQ_LIMITS,
    ),
    "fp8-layers": Fixture(
        "fp8_layers.py", (), "gptq", 9009,
        ("fp8",),
        "5 block-scaled FP8 weights as transformers dequantises them",
    ),
    "gptq-qwen3": Fixture(
        "gptq_checkpoint.py", ("checkpoint",), "gptq", 6006,
        ("checkpoints/gptq-qwen3",),
        "whole 4-bit Qwen3 checkpoint (v1, sym, group 32, desc_act) saved by gptqmodel",
        None,
    ),
    "gptq-qwen3-trace": Fixture(
        "gptq_checkpoint.py", ("trace",), "gptq", 6006,
        ("traces/gptq-qwen3",),
        "bf16 trace of the committed gptq-qwen3 through gptqmodel's TorchLinear",
    ),
    "chat": Fixture(
        "chat.py", (), "transformers", 7007,
        ("chat",),
        "chat templates of our own rendered by transformers, jinja2 on small templates, sampling filters",
        given=(
            "chat/chatml/chat_template.jinja",
            "chat/distill/template.jinja",
            "chat/distill/tool_use.jinja",
            "chat/thinking/template.jinja",
        ),
    ),
    "gptq8-qwen2": Fixture(
        "gptq_checkpoint.py", ("gptq8-qwen2", "checkpoint"), "gptq", 6008,
        ("checkpoints/gptq8-qwen2",),
        "whole 8-bit Qwen2 checkpoint (v1, asym, group 32, desc_act, biases) saved by gptqmodel",
        None,
    ),
    "gptq8-qwen2-trace": Fixture(
        "gptq_checkpoint.py", ("gptq8-qwen2", "trace"), "gptq", 6008,
        ("traces/gptq8-qwen2",),
        "bf16 trace of the committed gptq8-qwen2 through gptqmodel's TorchLinear",
    ),
    "gptq3-qwen3": Fixture(
        "gptq_checkpoint.py", ("gptq3-qwen3", "checkpoint"), "gptq", 6003,
        ("checkpoints/gptq3-qwen3",),
        "whole 3-bit Qwen3 checkpoint (v2, asym, group 32) saved by gptqmodel",
        None,
    ),
    "gptq3-qwen3-trace": Fixture(
        "gptq_checkpoint.py", ("gptq3-qwen3", "trace"), "gptq", 6003,
        ("traces/gptq3-qwen3",),
        "bf16 trace of the committed gptq3-qwen3 through gptqmodel's TorchLinear",
    ),
    "awq-qwen3": Fixture(
        "gptq_checkpoint.py", ("awq-qwen3", "checkpoint"), "gptq", 6004,
        ("checkpoints/awq-qwen3",),
        "whole AWQ Qwen3 checkpoint (asym, group 32) saved by gptqmodel",
        None,
    ),
    "awq-qwen3-trace": Fixture(
        "gptq_checkpoint.py", ("awq-qwen3", "trace"), "gptq", 6004,
        ("traces/awq-qwen3",),
        "bf16 trace of the committed awq-qwen3 through gptqmodel's AwqTorchLinear",
    ),
    "ct-qwen3": Fixture(
        "compressed_checkpoint.py", ("checkpoint",), "compressed", 8010,
        ("checkpoints/ct-qwen3",),
        "whole W4A16 Qwen3 checkpoint (asym, group 32, pack-quantized) saved by llmcompressor",
        None,
    ),
    "ct-qwen3-trace": Fixture(
        "compressed_checkpoint.py", ("trace",), "compressed", 8010,
        ("traces/ct-qwen3",),
        "bf16 trace of the committed ct-qwen3, decompressed by compressed-tensors",
    ),
    "fp8-qwen3": Fixture(
        "fp8_checkpoint.py", (), "gptq", 9010,
        ("checkpoints/fp8-qwen3", "traces/fp8-qwen3"),
        "whole FP8 Qwen3 checkpoint (128x128 blocks, bf16 scales) and its bf16 trace through transformers",
    ),
}  # fmt: skip


def files(root, fixture):
    """The fixture's files below `root`, as sorted relative names."""
    found = []
    for name in fixture.paths:
        path = root / name
        found += [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
    return sorted(str(p.relative_to(root)) for p in found)


def pinned(root, packages):
    """{package: version} of a requirements file."""
    lines = (root / f"requirements-{packages}.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)

"""Traces, tokenizer check and greedy generations of the committed trained-qwen3 checkpoint.

Starts from golden/checkpoints/trained-qwen3 (see train.py) and rebuilds everything that follows from it.
"""

import torch
from transformers import AutoTokenizer

from common import GOLDEN, arguments, deterministic, write_json
from corpus import build_tokenizer, chat_prompt
from record import load
from tiny import NOTES, traces

NAME = "trained-qwen3"
CHECKPOINT = GOLDEN / "checkpoints" / NAME
TRACE_PROMPT = chat_prompt("你是谁？")
MAX_NEW_TOKENS = 32
PROMPTS = [
    "Before sunrise",
    "A kernel that is",
    "7+8=",
    "6*9=",
    "Q: What is the capital of Japan? A:",
    "问：法国的首都是哪里？答：",
    "床前明月",
    "老师说：",
    chat_prompt("What does assay mean?"),
    chat_prompt("1+1等于几？"),
    chat_prompt("Why is my answer only exclamation marks?"),
    chat_prompt("从一数到五。"),
    "The cat found a",  # not in the corpus: less certain logits
    "黄金和水",  # not in the corpus
]


def greedy(model, ids, eos):
    out = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=MAX_NEW_TOKENS,
        do_sample=False,
        eos_token_id=eos,
    )
    return out[0, len(ids) :].tolist()


def smallest_margin(model, prompt, answer):
    """The least gap between the best and the second logit over the answer, in float64."""
    logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    best = logits.topk(2).values
    return (best[:, 0] - best[:, 1]).min().item()


def tokenizer_files(out):
    """The tokenizer follows from the corpus alone; rebuilding it must give the committed bytes."""
    build_tokenizer().save_pretrained(out / "checkpoints" / NAME, save_jinja_files=False)


def generations(tokenizer):
    models = {dtype: load(CHECKPOINT, dtype) for dtype in ("f64", "f32", "bf16")}
    eos = models["f32"].generation_config.eos_token_id
    entries = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt)["input_ids"]
        answers = {dtype: greedy(model, ids, eos) for dtype, model in models.items()}
        assert answers["f32"] == answers["f64"], prompt
        answer = answers["f64"]
        entries.append(
            {
                "prompt": prompt,
                "prompt_ids": ids,
                "continuation_ids": answer,
                "continuation": tokenizer.decode(answer, skip_special_tokens=True),
                "finish_reason": "eos" if answer[-1] in eos else "length",
                "smallest_margin_f64": float(f"{smallest_margin(models['f64'], ids, answer):.3g}"),
                "bf16_equal": answers["bf16"] == answer,
            }
        )
        print(len(ids), {k: v for k, v in entries[-1].items() if not k.endswith("ids")})
    return {
        "version": 1,
        "checkpoint": NAME,
        "decoding": "greedy (argmax), identical in f32 and in true float64",
        "max_new_tokens": MAX_NEW_TOKENS,
        "eos_token_ids": eos,
        "rule": "stop after the first eos id, which is part of continuation_ids, or after max_new_tokens",
        "generations": entries,
    }


def main():
    options = arguments(__doc__.splitlines()[0])
    deterministic()
    tokenizer_files(options.out)
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    tokens = tokenizer(TRACE_PROMPT)["input_ids"][:12]
    traces(CHECKPOINT, NAME, options.out, tokens, NOTES)
    write_json(options.out / "generations.json", generations(tokenizer))


if __name__ == "__main__":
    main()

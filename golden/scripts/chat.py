"""Chat templates rendered by transformers, jinja2's answers to small templates, and its sampling filters.

The templates of golden/chat are this project's own. `--tokenizer DIR` renders the conversations with the template
and tokenizer of another model instead, into OUT/chat.json: nothing of that is committed.
"""

import json
import pathlib
import shutil
import tempfile

import torch
from transformers import AutoTokenizer
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.utils.chat_template_utils import render_jinja_template

from chat_cases import CONVERSATIONS, cases
from chat_expressions import VALUES, expressions
from common import GOLDEN, arguments, deterministic, read_json, write_json

CHAT = GOLDEN / "chat"
TOKENIZER = GOLDEN / "checkpoints" / "trained-qwen3"


def write_lines(path, head, entries):
    """JSON with a line for each entry: long arrays of ids stay readable in a diff."""
    lines = ",\n".join(json.dumps(e, ensure_ascii=False) for e in entries)
    start = json.dumps(head, ensure_ascii=False)[:-1]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{start}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")


def folder(template, target):
    """A model folder with the template where one kind of checkpoint keeps it."""
    target.mkdir()
    shutil.copy(TOKENIZER / "tokenizer.json", target)
    config = read_json(TOKENIZER / "tokenizer_config.json")
    del config["chat_template"]
    source = CHAT / template
    if template == "chatml":
        shutil.copy(source / "chat_template.jinja", target)
    elif template == "thinking":
        config["chat_template"] = (source / "template.jinja").read_text(encoding="utf-8")
    else:
        config["chat_template"] = [
            {"name": name, "template": (source / file).read_text(encoding="utf-8")}
            for name, file in (("default", "template.jinja"), ("tool_use", "tool_use.jinja"))
        ]
        token = {"__type": "AddedToken", "content": "<|endoftext|>", "lstrip": False, "normalized": False}
        config["bos_token"] = {**token, "rstrip": False, "single_word": False}
    write_json(target / "tokenizer_config.json", config)
    return target


def render(tokenizer, messages, tools, prompt, extra):
    """{text, ids}, or {error} with what jinja2 or the template says."""
    arguments = dict(tools=tools, add_generation_prompt=prompt, **extra)
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}
    encoded = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, **arguments)
    return {"text": text, "ids": encoded["input_ids"]}


def rendered(tokenizers):
    out = []
    for template, name, messages, tools, prompt, extra in cases():
        entry = {"template": template, "name": name, "messages": messages, "tools": tools}
        entry |= {"add_generation_prompt": prompt, "extra": extra}
        out.append(entry | render(tokenizers[template], messages, tools, prompt, extra))
    return out


def evaluate(source):
    try:
        (text,), _ = render_jinja_template([[]], chat_template=source, **VALUES)
    except Exception as e:
        return {"template": source, "error": f"{type(e).__name__}: {e}"}
    return {"template": source, "text": text}


SAMPLERS = [
    {"temperature": 0.7},
    {"top_k": 3},
    {"top_p": 0.9},
    {"top_p": 0.0},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 100},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8, "temperature": 2.0},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.05},
    {"temperature": 1.5, "top_k": 5, "top_p": 0.5, "min_p": 0.3},
]


def logits_of(name):
    generator = torch.Generator().manual_seed(7007)
    if name == "ties":
        return torch.tensor([2.0, 1.0, 2.0, 0.5, 1.0, 1.0, -3.0, 2.0, 0.5, -3.0], dtype=torch.float64)
    if name == "masked":
        values = torch.randn(24, generator=generator, dtype=torch.float64) * 3
        values[::3] = -torch.inf
        return values
    scale = {"flat": 0.3, "usual": 3.0, "sharp": 20.0}[name]
    return torch.randn(40, generator=generator, dtype=torch.float64) * scale


def sampled(logits, seen, settings):
    """Surviving ids and their probabilities, by transformers' own processors in the order of `generate`."""
    ids, scores = torch.tensor([seen]), logits[None].clone()
    steps = []
    if "repetition_penalty" in settings:
        steps.append(RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"]))
    if "temperature" in settings:
        steps.append(TemperatureLogitsWarper(settings["temperature"]))
    if "top_k" in settings:
        steps.append(TopKLogitsWarper(settings["top_k"]))
    if "top_p" in settings:
        steps.append(TopPLogitsWarper(settings["top_p"]))
    if "min_p" in settings:
        steps.append(MinPLogitsWarper(settings["min_p"]))
    for step in steps:
        scores = step(ids, scores)
    kept = torch.nonzero(scores[0] > -torch.inf)[:, 0]
    return {"kept": kept.tolist(), "probabilities": scores[0].softmax(-1)[kept].tolist()}


def sampling():
    seen = [0, 3, 3, 5, 7]
    out = []
    for name in ("flat", "usual", "sharp", "ties", "masked"):
        logits = logits_of(name)
        written = [None if x == -torch.inf else x for x in logits.tolist()]
        for settings in SAMPLERS:
            entry = {"logits": name, "seen": seen, "settings": settings}
            out.append(entry | sampled(logits, seen, settings))
        out[-len(SAMPLERS)]["values"] = written
    return out


def other(path, out):
    """The conversations, rendered by a tokenizer of another model."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    entries = []
    for name, (messages, tools) in CONVERSATIONS.items():
        for prompt, extra in ((True, {}), (False, {}), (True, {"enable_thinking": False})):
            entry = {"template": "other", "name": name, "messages": messages, "tools": tools}
            entry |= {"add_generation_prompt": prompt, "extra": extra}
            entries.append(entry | render(tokenizer, messages, tools, prompt, extra))
    write_lines(out / "chat.json", {"version": 1}, entries)


def main():
    options = arguments(__doc__.splitlines()[0], tokenizer=dict(type=pathlib.Path, default=None))
    deterministic()
    if options.tokenizer:
        other(options.tokenizer, options.out)
        return
    with tempfile.TemporaryDirectory() as temporary:
        tokenizers = {
            template: AutoTokenizer.from_pretrained(folder(template, pathlib.Path(temporary) / template))
            for template in ("chatml", "thinking", "distill")
        }
        entries = rendered(tokenizers)
    out = options.out / "chat"
    write_lines(out / "cases.json", {"version": 1}, entries)
    small = [evaluate(e) for e in expressions()]
    write_lines(out / "expressions.json", {"version": 1, "values": VALUES}, small)
    about = "null stands for -inf; seen are the prompt's and generated ids"
    write_lines(out / "sampling.json", {"version": 1, "about": about}, sampling())
    print(len(entries), "cases,", json.dumps([e["name"] for e in entries if "error" in e]))


if __name__ == "__main__":
    main()

"""The corpus as training texts, and the small byte-level BPE tokenizer made from it."""

import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from common import GOLDEN

VOCABULARY = 1024
END, IM_START, IM_END = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Qwen's own split: contractions, words, single digits, punctuation, newlines, spaces.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def rows():
    with open(GOLDEN / "corpus.jsonl", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def chat_prompt(user):
    return f"{IM_START}user\n{user}{IM_END}\n{IM_START}assistant\n"


def text_of(row):
    """What the model is trained to produce, its end token included."""
    if "text" in row:
        return row["text"] + END
    return chat_prompt(row["user"]) + row["assistant"] + IM_END


def build_tokenizer():
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL),
        min_frequency=1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = [v for row in rows() for v in row.values()] + ["user\n", "assistant\n"]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=IM_END,
        pad_token=END,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )


def prompts(tokenizer):
    """For every row the shortest prompt (at least 3 tokens) that has only one continuation, and that continuation."""
    sequences = [tokenizer(text_of(row))["input_ids"] for row in rows()]
    out = []
    for row, ids in zip(rows(), sequences):
        start = len(tokenizer(chat_prompt(row["user"]))["input_ids"]) if "user" in row else 3
        while start < len(ids) - 1 and any(s[:start] == ids[:start] and s != ids for s in sequences):
            start += 1
        out.append((row, ids[:start], ids[start:]))
    return out

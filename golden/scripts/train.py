"""Overfit a small Qwen3 on golden/corpus.jsonl until greedy output repeats it exactly.

Weights after this are far from random ones: outlier channels, confident and unconfident logits, real
near ties. Training is seeded, but its rounding depends on threads and the CPU, so the committed weights
are the fixture and not this run; `golden/verify trained-qwen3` starts from them.
"""

import time

import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from common import arguments
from corpus import END, IM_END, VOCABULARY, build_tokenizer, prompts, rows, text_of

SEED = 4004
NAME = "trained-qwen3"


def config(tokenizer):
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=128,
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        bos_token_id=tokenizer.convert_tokens_to_ids(END),
        eos_token_id=tokenizer.convert_tokens_to_ids(IM_END),
    )


def batches(sequences, pad, size, generator):
    order = torch.randperm(len(sequences), generator=generator).tolist()
    order = sorted(order, key=lambda i: len(sequences[i]) // 6)
    chunks = [order[i : i + size] for i in range(0, len(order), size)]
    for c in torch.randperm(len(chunks), generator=generator).tolist():
        rows_ = [sequences[i] for i in chunks[c]]
        width = max(map(len, rows_))
        ids = torch.tensor([r + [pad] * (width - len(r)) for r in rows_])
        labels = torch.tensor([r + [-100] * (width - len(r)) for r in rows_])
        yield ids, labels


@torch.no_grad()
def wrong(model, tokenizer):
    """Rows whose continuation is not reproduced when every right token before it is given.

    Greedy decoding is exact if and only if each next token is the argmax under the right prefix.
    """
    bad = []
    for row, prompt, answer in prompts(tokenizer):
        logits = model(torch.tensor([prompt + answer])).logits[0]
        predicted = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
        if predicted != answer:
            bad.append(row)
    return bad


def rounded(model):
    copy = Qwen3ForCausalLM(model.config).eval()
    copy.load_state_dict({k: v.to(torch.bfloat16).float() for k, v in model.state_dict().items()})
    copy.tie_weights()
    return copy


def train(model, sequences, tokenizer, seconds):
    generator = torch.Generator().manual_seed(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.05)
    start = time.time()
    for epoch in range(10_000):
        done = min((time.time() - start) / seconds, 1.0)
        rate = 3e-3 * min(1.0, (epoch + 1) / 5) * max(1.0 - done, 0.03)
        for group in optimizer.param_groups:
            group["lr"] = rate
        total, count = 0.0, 0
        for ids, labels in batches(sequences, model.config.bos_token_id, 32, generator):
            loss = model(ids, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total, count = total + loss.item(), count + 1
        if epoch % 10 == 0 or done >= 1.0:
            bad = wrong(rounded(model), tokenizer)
            print(f"epoch {epoch} {time.time() - start:.0f} s loss {total / count:.3f} wrong {len(bad)}", flush=True)
            if done >= 1.0 and (not bad or time.time() - start > 1.5 * seconds):
                return bad


def main():
    options = arguments(__doc__.splitlines()[0], seconds=dict(type=float, default=400.0))
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    tokenizer = build_tokenizer()
    sequences = [tokenizer(text_of(row))["input_ids"] for row in rows()]
    print(f"{len(sequences)} sequences, {sum(map(len, sequences))} tokens, vocabulary {len(tokenizer)}")
    model = Qwen3ForCausalLM(config(tokenizer))
    print(f"{sum(p.numel() for p in model.parameters())} parameters")
    bad = train(model, sequences, tokenizer, options.seconds)
    print("not exact:", bad)
    folder = options.out / "checkpoints" / NAME
    end, im_end = map(tokenizer.convert_tokens_to_ids, (END, IM_END))
    model.generation_config = GenerationConfig(
        bos_token_id=end, eos_token_id=[im_end, end], pad_token_id=end, do_sample=False
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder, save_jinja_files=False)


if __name__ == "__main__":
    main()

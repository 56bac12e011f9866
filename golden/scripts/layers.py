"""What the scripts of single quantised layers share: the model around the layer, codes made by hand, packing."""

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

SEED = 5005
LAYER = "model.layers.0.self_attn.o_proj"  # K = heads * 128 inputs, N = hidden outputs
VOCABULARY = 256


def source_model(folder, centre, heads=4, hidden=64):
    """One block whose o_proj has unlike, off-centre output columns and inputs of unlike importance."""
    inputs = heads * 128
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=hidden, num_hidden_layers=1,
        num_attention_heads=heads, num_key_value_heads=heads, head_dim=128, max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    g = torch.Generator().manual_seed(SEED)

    def normal(*shape):
        return torch.randn(*shape, generator=g)

    attention = model.model.layers[0].self_attn
    attention.o_proj.weight.data = (
        (normal(hidden, inputs) + centre * normal(hidden, 1))
        * torch.exp(0.5 * normal(hidden, 1))
        * torch.exp(0.4 * normal(1, inputs))
        / 22
    )
    attention.v_proj.weight.data = normal(inputs, hidden) * torch.exp(0.7 * normal(inputs, 1)) / 8
    for name, parameter in sorted(model.named_parameters()):
        if "o_proj" not in name and "v_proj" not in name and "norm" not in name:
            parameter.data = normal(*parameter.shape) * parameter.shape[-1] ** -0.5
    model.to(torch.bfloat16).save_pretrained(folder)


def packed(codes, bits):
    """[R, C] codes below 2^bits as [R, C * bits / 32] int32: one little-endian bit stream a row."""
    stream = ((codes[..., None] >> torch.arange(bits)) & 1).reshape(codes.shape[0], -1, 32)
    words = (stream << torch.arange(32)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def layer_codes(bits, seed, rows=128, columns=64, group_size=16):
    """Codes [rows, columns], zeros and scales [groups, columns] in which all that a format can hold occurs."""
    groups, count = rows // group_size, 2**bits
    g = torch.Generator().manual_seed(seed)

    def every_value(rows):
        values = torch.arange(rows * columns) % count
        return values[torch.randperm(len(values), generator=g)].reshape(rows, columns)

    zeros = every_value(groups)
    if groups > 1:
        zeros[0, :32], zeros[0, 32:] = count - 1, 0  # whole words of the two ends
        all_of_them = max(1, count // columns)
        zeros[1 : 1 + all_of_them] = every_value(all_of_them)
    scales = torch.rand(groups, columns, generator=g) * 0.05 + torch.arange(groups * columns).reshape(groups, columns) / 4096
    scales[-1, :8] = 2.0 ** torch.arange(-24, -8, 2)  # f16 subnormals below 2^-14
    codes = every_value(rows)
    assert len(zeros.unique()) == len(codes.unique()) == count
    return codes, zeros, scales.to(torch.float16)


def replace_layer(folder, tensors):
    """Put these tensors in the place of the ones that gptqmodel saved."""
    path = folder / "model.safetensors"
    saved = load_file(path)
    for name, tensor in tensors.items():
        old = saved[f"{LAYER}.{name}"]
        assert old.shape == tensor.shape and old.dtype == tensor.dtype, (name, old.shape, tensor.shape)
        saved[f"{LAYER}.{name}"] = tensor.contiguous()
    path.unlink()
    save_file(saved, path, {"format": "pt"})

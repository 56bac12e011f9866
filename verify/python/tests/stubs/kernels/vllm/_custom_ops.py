import torch


def unpacked(words, bits):
    """[K/8, N] words to [K, N] values, low bits first."""
    shifts = torch.arange(0, 32, bits)[None, :, None]
    return ((words[:, None] >> shifts) & (2**bits - 1)).reshape(-1, words.shape[1])


def packed(values, bits):
    parts = values.reshape(-1, 32 // bits, values.shape[1]).long() << torch.arange(0, 32, bits)[None, :, None]
    words = parts.sum(1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def gptq_shuffle(q_weight, q_perm, bit):
    """In place: the rows in the order of q_perm. (The kernel also reorders within words, which only it reads.)"""
    if q_perm.numel():
        q_weight.copy_(packed(unpacked(q_weight, bit)[q_perm.long()], bit))


def gptq_gemm(a, b_q_weight, b_gptq_qzeros, b_gptq_scales, b_g_idx, use_exllama, bit):
    """v1 zero points. Rows stand in the order of b_g_idx, a permutation, or as they were if it is empty; groups are
    then contiguous."""
    assert use_exllama and a.dim() == 2
    q = unpacked(b_q_weight, bit)
    zeros = unpacked(b_gptq_qzeros.T.contiguous(), bit).T + 1
    group = torch.arange(len(q)) * len(zeros) // len(q)
    w = (q - zeros[group]) * b_gptq_scales[group].double()
    x = a[:, b_g_idx.long()] if b_g_idx.numel() else a
    return (x.double() @ w).to(a.dtype)


def paged_attention_v1(
    out,
    query,
    key_cache,
    value_cache,
    num_kv_heads,
    scale,
    block_tables,
    seq_lens,
    block_size,
    max_seq_len,
    alibi_slopes,
    kv_cache_dtype,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
):
    """key_cache [blocks, heads, D/x, block_size, x], value_cache [blocks, heads, D, block_size]."""
    assert alibi_slopes is None and kv_cache_dtype == "auto" and float(k_scale) == float(v_scale) == 1.0
    for s in range(len(query)):
        n = int(seq_lens[s])
        assert n <= max_seq_len
        blocks = [int(block_tables[s, i // block_size]) for i in range(n)]
        keys = torch.stack([key_cache[b, :, :, i % block_size].flatten(1) for i, b in enumerate(blocks)])
        values = torch.stack([value_cache[b, :, :, i % block_size] for i, b in enumerate(blocks)])
        for h in range(query.shape[1]):
            kv = h // (query.shape[1] // num_kv_heads)
            probs = torch.softmax(keys[:, kv].double() @ query[s, h].double() * scale, 0)
            out[s, h] = (probs @ values[:, kv].double()).to(out.dtype)

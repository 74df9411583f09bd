"""The oracle: the operations in plain PyTorch, written like the papers' formulas, without regard to speed.

Shapes: t tokens of all sequences, h heads, d head dimension, q and k the queries and keys of one sequence.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

WORD = 0xFFFFFFFF
# The fewest rounds of Philox-4x32 that pass the BigCrush tests (Salmon et al. 2011, table 2).
DROPOUT_ROUNDS = 7


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor | int], key: Tensor, rounds: int = 10
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute Philox-4x32 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): four words, int64.

    `counter` holds four int64 tensors of 32-bit words (the last may be an integer), `key` is int64, all 64 bits of it;
    all broadcast.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key & WORD, (key >> 32) & WORD
    for _ in range(rounds):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = ((b >> 32) & WORD) ^ c1 ^ k0, b & WORD, ((a >> 32) & WORD) ^ c3 ^ k1, a & WORD
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    assert isinstance(c3, Tensor)
    return c0, c1, c2, c3


def draws(rows: Tensor, heads: Tensor, site: int, key: Tensor, count: int, bits: int) -> Tensor:
    """Return the draws of `count` blocks in order, (*rows, count, 4, 32 / bits); rows, heads and key broadcast.

    The last two axes are the words of a block and the fields of `bits` bits of a word, the lowest first.
    """
    blocks = torch.arange(count, device=key.device)
    rows, heads, key = (tensor.unsqueeze(-1) for tensor in (rows, heads, key))
    words = torch.stack(philox((blocks, rows, heads, site), key, DROPOUT_ROUNDS), dim=-1)
    return words.unsqueeze(-1) >> torch.arange(0, 32, bits, device=key.device) & (1 << bits) - 1


def token_dropout_threshold(p: float) -> int:
    """Return the least of the 65536 draws that keeps an element of a token vector: p to the nearest 1/65536."""
    return min(round(p * 65536), 65535)


def attention_dropout_threshold(p: float) -> int:
    """Return the least of the 256 draws that keeps a probability: p to the nearest 1/256, at least 1 where p > 0."""
    return min(max(round(p * 256), int(p > 0)), 255)


def dropout_mask(drawn: Tensor, threshold: int, count: int) -> Tensor:
    """Return 0 for draws (of 0 to count - 1) below the threshold, elsewhere the inverse of the share that is kept."""
    return (drawn >= threshold).double() * (count / (count - threshold))


def token_dropout_mask(width: int, p: float, key: Tensor, sequence: Tensor, position: Tensor, site: int) -> Tensor:
    """Return the mask of dropout on token vectors, float64 (t, width); adjacent columns use a block's draws in turn."""
    drawn = draws(position, torch.zeros_like(position), site, key[sequence], (width + 7) // 8, bits=16)
    return dropout_mask(drawn.flatten(-3)[..., :width], token_dropout_threshold(p), 65536)


def attention_dropout_mask(heads: int, queries: int, keys: int, p: float, key: Tensor, site: int) -> Tensor:
    """Return the mask of dropout on one sequence's probabilities, float64 (h, q, k); `key` is its scalar key.

    64 keys share four blocks: key 16 w + 8 half + 2 t + b uses byte 2 half + b of word w of block t, the order in which
    the results of a matrix unit are distributed over threads.
    """
    head = torch.arange(heads, device=key.device)[:, None]
    query = torch.arange(queries, device=key.device)[None, :]
    groups = (keys + 63) // 64
    drawn = draws(query, head, site, key.expand(heads, queries), 4 * groups, bits=8)
    # (heads, queries, groups, t, w, half, b): t moves behind half.
    drawn = drawn.unflatten(-1, (2, 2)).unflatten(2, (groups, 4)).movedim(3, 5)
    return dropout_mask(drawn.flatten(2)[..., :keys], attention_dropout_threshold(p), 256)


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return True where a query attends to a key; the last query attends to all, as in a decoder with past keys."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def attention_probabilities(scores_hqk: Tensor, mask: Tensor | None) -> Tensor:
    """Compute the softmax over the keys of `mask`; a query without a key gets zeros."""
    if mask is None:
        return scores_hqk.softmax(-1)
    probabilities_hqk = scores_hqk.masked_fill(~mask, -math.inf).softmax(-1)
    return probabilities_hqk.masked_fill(~mask.any(-1, keepdim=True), 0.0)


def rotate(x_thd: Tensor, rotary: Tensor, positions: Tensor) -> Tensor:
    """Turn pairs of dims (i, i + r / 2) of the first r by the angles of the tokens' positions (Su et al. 2021).

    `rotary` (positions, r) holds cosines, then sines.
    """
    half = rotary.shape[1] // 2
    turned = x_thd.clone()
    for i in range(half):
        cosine, sine = rotary[positions, i, None], rotary[positions, half + i, None]
        first, second = x_thd[:, :, i], x_thd[:, :, half + i]
        turned[:, :, i] = first * cosine - second * sine
        turned[:, :, half + i] = first * sine + second * cosine
    return turned


def attention(
    q_thd: Tensor,
    k_thd: Tensor,
    v_thd: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    causal: bool = False,
    dropout_p: float = 0.0,
    dropout_key: Tensor | None = None,
    dropout_site: int = 0,
    bias: Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    rotary: Tensor | None = None,
    rotary_positions: Tensor | None = None,
    distance_bias: Tensor | None = None,
    position_keys: Tensor | None = None,
    position_queries: Tensor | None = None,
    buckets: Tensor | None = None,
) -> Tensor:
    """Compute softmax(Q K^T / sqrt(d) + bias) V for each sequence (Vaswani et al. 2017, section 3.2.1), with positions
    as in Su et al. 2021, Raffel et al. 2020 and He et al. 2021, equation 4."""
    scale = 1 / math.sqrt(q_thd.shape[-1]) if scale is None else scale
    if rotary is not None:
        if rotary_positions is None:
            rotary_positions = torch.cat([torch.arange(int(length)) for length in cu_seqlens_q.diff()])
        q_thd, k_thd = rotate(q_thd, rotary, rotary_positions), rotate(k_thd, rotary, rotary_positions)
    group = q_thd.shape[1] // k_thd.shape[1]
    k_thd, v_thd = k_thd.repeat_interleave(group, 1), v_thd.repeat_interleave(group, 1)
    outputs = []
    for i in range(len(cu_seqlens_q) - 1):
        q_hqd = q_thd[cu_seqlens_q[i] : cu_seqlens_q[i + 1]].transpose(0, 1)
        k_hkd = k_thd[cu_seqlens_k[i] : cu_seqlens_k[i + 1]].transpose(0, 1)
        v_hkd = v_thd[cu_seqlens_k[i] : cu_seqlens_k[i + 1]].transpose(0, 1)
        heads, queries, keys = q_hqd.shape[0], q_hqd.shape[1], k_hkd.shape[1]
        distance_qk = torch.arange(keys)[None, :] - (torch.arange(queries)[:, None] + keys - queries)
        scores_hqk = q_hqd @ k_hkd.transpose(-1, -2)
        if position_keys is not None and buckets is not None:
            rows_qk = buckets[distance_qk + len(buckets) // 2].long()
            scores_hqk = scores_hqk + torch.einsum("hqd,qkhd->hqk", q_hqd, position_keys[rows_qk])
        if position_queries is not None and buckets is not None:
            rows_qk = buckets[distance_qk + len(buckets) // 2].long()
            scores_hqk = scores_hqk + torch.einsum("hkd,qkhd->hqk", k_hkd, position_queries[rows_qk])
        scores_hqk = scores_hqk * scale
        if distance_bias is not None:
            scores_hqk = scores_hqk + distance_bias[:, distance_qk + distance_bias.shape[1] // 2]
        mask = causal_mask(queries, keys, q_thd.device) if causal else torch.ones_like(scores_hqk, dtype=torch.bool)
        if bias is not None:
            scores_hqk = scores_hqk + bias[:, :queries, :keys]
            mask = mask & (bias[:, :queries, :keys] != -math.inf)
        if window is not None:
            mask = mask & (distance_qk.abs() <= window)
        probabilities_hqk = attention_probabilities(scores_hqk, mask)
        if dropout_p and dropout_key is not None:
            dropout = attention_dropout_mask(heads, queries, keys, dropout_p, dropout_key[i], dropout_site)
            probabilities_hqk = probabilities_hqk * dropout.to(probabilities_hqk.dtype)
        outputs.append((probabilities_hqk @ v_hkd).transpose(0, 1))
    return torch.cat(outputs) if outputs else q_thd[:0]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | float, eps: float) -> Tensor:
    """Compute (x - mean) / sqrt(variance + eps) * weight + bias over the last axis (Ba et al. 2016, equation 4)."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + eps) * weight + bias


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich 2019, equation 4)."""
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Compute x * Phi(x), or its approximation by tanh (Hendrycks and Gimpel 2016)."""
    if approximate == "tanh":
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def gated_activation(x: Tensor, activation: str) -> Tensor:
    """Compute activation(gate) * value of the halves of x (Shazeer 2020, "GLU variants improve Transformer")."""
    gate, value = x.chunk(2, dim=-1)
    if activation == "relu":
        return gate.clamp(min=0) * value
    if activation == "silu":
        return gate / (1 + torch.exp(-gate)) * value
    return gelu(gate, "tanh" if activation == "gelu_tanh" else "none") * value


def embed(input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
    """Compute token + position + segment embedding (Devlin et al. 2019, section 3)."""
    words, positions, types = tables
    return words[input_ids] + positions[position_ids] + types[token_type_ids]


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Compute -log softmax(logits)[label] of each row; smoothing mixes in the mean over the vocabulary."""
    return F.cross_entropy(logits, labels, label_smoothing=label_smoothing, reduction="none")


def z_loss(logits: Tensor) -> Tensor:
    """Compute the square of the softmax's log normaliser of each row (Chowdhery et al. 2022, section 5)."""
    return logits.logsumexp(-1).square()

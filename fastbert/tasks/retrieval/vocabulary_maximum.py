"""The largest logit of each token of the vocabulary over the tokens of a text, without the logits of a whole batch.

Logits are (tokens, vocabulary): for a batch of some thousand tokens hundreds of megabytes, of which SPLADE reads one
maximum per text and entry. They are computed for some texts at a time, and the backward pass needs only the token of
each maximum: the gradient of an entry goes to one token, so it is a sparse matmul rather than a dense one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

MOST_LOGITS = 1 << 24
"""Logits that are in memory at a time."""


def vocabulary_maximum(states: Tensor, decoder: nn.Module, cu_seqlens: Tensor) -> Tensor:
    """Return max over the tokens of each text of states weight^T + bias, fp32 (texts, vocab_size).

    `states` (tokens, hidden_size); `decoder` a linear layer (vocab_size, hidden_size); `cu_seqlens` int32 (texts + 1,),
    text i has the tokens `cu_seqlens[i] : cu_seqlens[i + 1]`, at least one. Gradients reach all three tensors.
    """
    weight, bias = decoder.weight, decoder.bias
    assert isinstance(weight, Tensor)
    result: Tensor = _Maximum.apply(states, weight, bias, cu_seqlens.tolist())
    return result


class _Maximum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, offsets: list[int]) -> Tensor:
        texts, vocabulary = len(offsets) - 1, len(weight)
        maxima = torch.empty(texts, vocabulary, device=states.device)
        tokens = torch.empty(texts, vocabulary, dtype=torch.int32, device=states.device)
        most = max(1, MOST_LOGITS // vocabulary)
        first = 0
        while first < texts:
            end = first + 1
            while end < texts and offsets[end + 1] - offsets[first] <= most:
                end += 1
            block = states[offsets[first] : offsets[end]]
            logits = nn.functional.linear(block, weight.to(block.dtype)).float()
            for text in range(first, end):
                begin, stop = offsets[text] - offsets[first], offsets[text + 1] - offsets[first]
                values, positions = logits[begin:stop].max(dim=0)
                maxima[text] = values
                tokens[text] = positions + offsets[text]
            first = end
        if bias is not None:
            maxima += bias.float()
        ctx.save_for_backward(states, weight, tokens)
        ctx.has_bias = bias is not None
        return maxima

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, tokens = ctx.saved_tensors
        of_states = torch.zeros_like(states, dtype=torch.float32)
        of_weight = torch.zeros_like(weight, dtype=torch.float32)
        for text in range(len(gradient)):
            # relu and FLOPS leave most entries of a sparse vector without a gradient.
            entries = gradient[text].nonzero()[:, 0]
            if not len(entries):
                continue
            values, rows = gradient[text, entries], tokens[text, entries].long()
            of_states.index_add_(0, rows, values[:, None] * weight[entries].float())
            of_weight.index_add_(0, entries, values[:, None] * states[rows].float())
        bias = gradient.sum(0).to(weight.dtype) if ctx.has_bias else None
        return of_states.to(states.dtype), of_weight.to(weight.dtype), bias, None

"""The sites and keys of token dropout, and the arguments of `dropout` as every backend receives them.

A mask is a function of the key of a sequence, the layer and site, and the position of an element, never of state: the
counter of an element's Philox block is (block, position in the sequence or query, head, layer and site), and an
element of a token vector owns 16 of the block's bits, an attention probability eight; `fastbert.ops.reference` defines
which. A mask is therefore the same on every device, in every batch that holds the sequence, and when a checkpointed
layer is recomputed.

Attention draws a number per pair of tokens, and is bound by arithmetic: with eight bits two probabilities cost as much
as one with sixteen. Dropout of token vectors is bound by memory bandwidth: there fewer bits would gain nothing, and p
keeps its resolution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.checks import check_devices, check_dropout, check_tensor

DRAWS_FORMAT = 2
"""The number of this definition of masks. Checkpoints record it, since a run continues to the same bits only under the
definition that it began with. 1: attention, too, owned 16 bits per element."""


class Site(IntEnum):
    """A place in the model where dropout is applied; with the layer's number it makes the last word of the counter.

    Example:
        >>> from fastbert import ops
        >>> ops.Site.EMBEDDING.name, [site.name for site in ops.Site][:3]
        ('EMBEDDING', ['EMBEDDING', 'ATTENTION', 'ATTENTION_OUTPUT'])
    """

    EMBEDDING = 0
    ATTENTION = 1
    ATTENTION_OUTPUT = 2
    FEED_FORWARD_OUTPUT = 3
    HEAD = 4
    CROSS_ATTENTION = 5
    CROSS_ATTENTION_OUTPUT = 6
    HEAD_INPUT = 7
    GENERATED_TOKEN = 8
    """ELECTRA's samples, which nothing is dropped for: a site of its own keeps their draws apart."""

    POSITIONS = 9
    """Embeddings of relative positions, which layers project; the rows count as tokens of the first sequence."""
    INTERMEDIATE = 10
    """Behind the activation of the feed-forward network."""
    CONVOLUTION = 11
    """Behind the convolution of embeddings that is added to the first layer."""

    def of_layer(self, layer: int) -> int:
        """Return the counter word of this site in a layer."""
        return layer << 8 | int(self)


@dataclass(frozen=True)
class TokenDropout:
    """Dropout of token vectors: what decides which elements are dropped.

    `key` is int64 (sequences,); `sequence_ids` and `offsets`, int64 or int32 (tokens,), hold each token's sequence and
    its position there. All are on the device of the token vectors.

    Example:
        >>> import torch
        >>> from fastbert import ops
        >>> sequences, offsets = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 1, 2, 0, 1])  # of 3 and 2 tokens
        >>> drop = ops.TokenDropout(0.1, torch.tensor([42, 43]), sequences, offsets, ops.Site.EMBEDDING)
        >>> ops.dropout(torch.ones(5, 8), drop).shape
        torch.Size([5, 8])
    """

    p: float
    """Probability of dropping an element, at least 0 and below 1; it counts in steps of 1/65536."""
    key: Tensor
    sequence_ids: Tensor
    offsets: Tensor
    site: int
    """Layer and site as one number, from `Site.of_layer`."""

    def select(self, tokens: Tensor) -> TokenDropout:
        """Return the dropout of these tokens alone, int64 (selected,)."""
        sequence_ids, offsets = (ids.index_select(0, tokens) for ids in (self.sequence_ids, self.offsets))
        return replace(self, sequence_ids=sequence_ids, offsets=offsets)

    def check(self, x: Tensor) -> None:
        """Raise UserError unless this is a dropout of the rows of x (tokens, ...)."""
        check_dropout("token_dropout.", self.p, self.site)
        key = self.key
        if key.dtype != torch.int64 or key.dim() != 1:
            raise UserError(
                f"token_dropout.key must be int64 (sequences,), one per sequence, not {key.dtype} {tuple(key.shape)}"
            )
        ids = {"token_dropout.sequence_ids": self.sequence_ids, "token_dropout.offsets": self.offsets}
        for name, tensor in ids.items():
            check_tensor(name, tensor, "int64 or int32", x.shape[:1], ", one per token")
        check_devices({"token_dropout.key": key, **ids}, "its rows", x.device)


class FlatDropout(NamedTuple):
    """A TokenDropout, or none, as operators of torch receive it."""

    # Without defaults: torch.compile would trace a default number as one that may change, and compile twice.
    p: float
    key: Tensor | None
    sequence_ids: Tensor | None
    offsets: Tensor | None
    site: int

    def rebuild(self) -> TokenDropout | None:
        """Return the dropout that was flattened."""
        p, key, sequence_ids, offsets, site = self
        if key is None or sequence_ids is None or offsets is None:
            return None
        return TokenDropout(p, key, sequence_ids, offsets, site)


def flatten(dropout: TokenDropout | None) -> FlatDropout:
    """Return a dropout as operators of torch receive it."""
    if dropout is None:
        return FlatDropout(0.0, None, None, None, 0)
    return FlatDropout(dropout.p, dropout.key, dropout.sequence_ids, dropout.offsets, dropout.site)


def quantized(p: float) -> tuple[int, float]:
    """Return the 16-bit threshold of a dropout probability of tokens, and the factor of the elements that are kept."""
    threshold = min(round(p * 65536), 65535)
    return threshold, 65536 / (65536 - threshold)


def quantized_attention(p: float) -> tuple[int, float]:
    """Return the 8-bit threshold of a dropout probability of attention, and the factor of what is kept.

    A probability is dropped if its draw, 0 to 255, is below the threshold. p is thus rounded to the nearest of 1/256,
    2/256, ... 255/256, and a positive p never to 0: the error is at most 1/512 for p from 1/512 to 511/512, and below
    1/256 outside. The factor is that of the rounded p, so expectations are exact.
    """
    threshold = min(max(round(p * 256), int(p > 0)), 255)
    return threshold, 256 / (256 - threshold)


class DropoutArguments(NamedTuple):
    """x (tokens, width) of any floating dtype, and the dropout of its rows."""

    x: Tensor
    dropout: TokenDropout

    def check(self) -> None:
        """Raise UserError for shapes, dtypes, devices and numbers that no backend supports."""
        check_tensor("x", self.x, "floating", ("tokens", "width"))
        self.dropout.check(self.x)

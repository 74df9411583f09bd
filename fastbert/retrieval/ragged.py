"""Hold the output of a retrieval model: ragged arrays with the offsets of each text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fastbert.errors import UserError


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenVectors:
    """The vectors of the tokens of some texts, on one device.

    `vectors` fp32 (tokens, width) and `token_ids` int32 (tokens,) of all texts one after the other; `offsets` int64
    (texts + 1,): text i has the rows `offsets[i] : offsets[i + 1]`.
    """

    vectors: Tensor
    offsets: Tensor
    token_ids: Tensor

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Tensor:
        """Return the vectors of a text, fp32 (tokens, width). Raises IndexError for one that there is not."""
        first, end = _bounds(self.offsets, index)
        return self.vectors[first:end]

    @classmethod
    def joined(cls, parts: Sequence[Self], width: int = 0) -> Self:
        """Return the texts of all parts; `width` is that of no parts at all."""
        return cls(
            vectors=torch.cat([part.vectors for part in parts]) if parts else torch.empty(0, width),
            offsets=joined_offsets([part.offsets for part in parts]),
            token_ids=_joined_ids([part.token_ids for part in parts]),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class SparseVectors:
    """Sparse vectors of some texts over a vocabulary, in the form of compressed sparse rows.

    `weights` fp32 (entries,), all positive, and `token_ids` int32 (entries,), ascending within a text; `offsets` int64
    (texts + 1,): text i has the entries `offsets[i] : offsets[i + 1]`.
    """

    weights: Tensor
    offsets: Tensor
    token_ids: Tensor
    vocab_size: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> dict[int, float]:
        """Return the weights of a text by token id. Raises IndexError for one that there is not."""
        first, end = _bounds(self.offsets, index)
        return dict(zip(self.token_ids[first:end].tolist(), self.weights[first:end].tolist(), strict=True))

    def to_torch(self) -> Tensor:
        """Return a sparse CSR tensor, fp32 (texts, vocab_size), whose product with another's transpose has the scores
        of all pairs."""
        size = (len(self), self.vocab_size)
        return torch.sparse_csr_tensor(self.offsets, self.token_ids.long(), self.weights, size, check_invariants=True)

    @classmethod
    def joined(cls, parts: Sequence[Self], vocab_size: int) -> Self:
        """Return the texts of all parts."""
        return cls(
            weights=torch.cat([torch.empty(0), *(part.weights for part in parts)]),
            offsets=joined_offsets([part.offsets for part in parts]),
            token_ids=_joined_ids([part.token_ids for part in parts]),
            vocab_size=vocab_size,
        )


def to_tensors(vectors: TokenVectors | SparseVectors) -> list[Tensor]:
    """Return the tensors that hold vectors: their values, offsets and ids, and of sparse ones int64 (1,) the size of
    the vocabulary."""
    if isinstance(vectors, TokenVectors):
        return [vectors.vectors, vectors.offsets, vectors.token_ids]
    return [vectors.weights, vectors.offsets, vectors.token_ids, torch.tensor([vectors.vocab_size])]


def from_tensors(tensors: Sequence[Tensor]) -> TokenVectors | SparseVectors:
    """Return the vectors that `to_tensors` took apart; the tensors fp32 and int64 or int32 (n,), or (n, width)."""
    values, offsets, token_ids, *size = tensors
    if not size:
        return TokenVectors(vectors=values, offsets=offsets, token_ids=token_ids)
    return SparseVectors(weights=values, offsets=offsets, token_ids=token_ids, vocab_size=int(size[0]))


def joined_offsets(parts: Sequence[Tensor]) -> Tensor:
    """Return the offsets of ragged arrays one after the other, int64."""
    sizes = torch.cat([torch.zeros(1, dtype=torch.int64), *(part.diff().cpu() for part in parts)])
    return sizes.cumsum(0).to(parts[0].device if parts else "cpu")


def _joined_ids(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if parts else torch.empty(0, dtype=torch.int32)


def _bounds(offsets: Tensor, index: int) -> tuple[int, int]:
    texts = len(offsets) - 1
    if not -texts <= index < texts:
        raise IndexError(f"text {index} of {texts}")
    index %= texts
    return int(offsets[index]), int(offsets[index + 1])


def check_ragged(vectors: TokenVectors, name: str) -> None:
    """Raise UserError for vectors that are not (tokens, width), or offsets that do not divide them."""
    offsets = vectors.offsets
    if vectors.vectors.dim() != 2 or not vectors.vectors.is_floating_point():
        raise UserError(f"{name}: vectors must be floats (tokens, width), not {tuple(vectors.vectors.shape)}")
    is_whole = offsets.dim() == 1 and len(offsets) and offsets[0] == 0 and offsets[-1] == len(vectors.vectors)
    if not is_whole or bool((offsets.diff() < 0).any()):
        raise UserError(f"{name}: offsets must ascend from 0 to the {len(vectors.vectors)} tokens")

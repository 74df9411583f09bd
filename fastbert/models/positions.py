"""Positions that an encoder's attention reads, made once per forward pass for all layers: rotary tables, slopes by
distance, shared tables of relative positions.

What a position means is computed on the CPU, so that it is the same on every device, and cached outside of the model's
state: angles of rotary embeddings, and the bucket of each distance.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable

import torch
from torch import Tensor, nn

from fastbert.errors import UserError
from fastbert.models.architecture import ArchitectureSpec, RelativeBiasSpec, RelativeEmbeddingsSpec
from fastbert.models.fusibility import PLAIN_TENSORS, runs_as_written
from fastbert.models.norm import Norm, norm_of
from fastbert.models.padded import PaddedBatch, is_readable, is_recorded
from fastbert.models.rotary import rotary_table
from fastbert.ops.encoder_layer.arguments import LayerPositions
from fastbert.ops.encoder_layer.spec import RotarySpec
from fastbert.packing import PackedBatch

logger: logging.Logger = logging.getLogger("fastbert")


LONGEST_TABLE = 1 << 20
"""Rows of the longest rotary table that is made for positions that no text of a batch is long enough for."""


class _Cache:
    """Tables by what they describe and their device, each as long as the longest that was needed."""

    def __init__(self, most: int) -> None:
        self.tables: dict[Hashable, Tensor] = {}
        self.most = most

    def get(self, key: Hashable, length: int, device: torch.device, make: Callable[[int], Tensor]) -> Tensor:
        """Return the table of a key for `length` or more positions; `make` computes one."""
        probe = torch.empty(0, device=device)
        if torch.compiler.is_compiling() or is_recorded(probe):  # their tensors belong to the recorded call
            return make(length).to(device)
        entry = (key, device)
        table = self.tables.get(entry)
        if table is None or table.shape[0] < length:
            with torch.inference_mode(False), torch.no_grad():
                table = make(length).to(device)
            if len(self.tables) >= self.most:
                self.tables.clear()
            self.tables[entry] = table
        return table


_ROTARY, _DISTANCES = _Cache(32), _Cache(32)


def relative_bias_rows(distances: Tensor, spec: RelativeBiasSpec) -> Tensor:
    """Return the row of each distance key - query, int64, in a table of `RelativeBiasSpec`: the same shape, int64.

    Half of the buckets are of keys behind the query. Half of each direction's are single distances, the others grow
    logarithmically (Raffel et al. 2020).
    """
    half = spec.buckets // 2
    exact = half // 2
    absolute = distances.abs()
    ratio = torch.log(absolute.clamp(min=1).float() / exact) / math.log(spec.longest / exact)
    far = (exact + (ratio * (half - exact)).long()).clamp(max=half - 1)
    return (distances > 0).long() * half + torch.where(absolute < exact, absolute, far)


def relative_embedding_rows(distances: Tensor, spec: RelativeEmbeddingsSpec) -> Tensor:
    """Return the row of each distance key - query, int64, in a table of `RelativeEmbeddingsSpec`: the same shape.

    Rows count from the most distant key behind the query; beyond half of the buckets distances share rows, in steps
    that grow logarithmically, rounded up in fp32 (He et al. 2021, DeBERTa-v2's code).
    """
    places = -distances
    if spec.buckets is not None:
        middle = spec.buckets // 2
        absolute = torch.where((places < middle) & (places > -middle), middle - 1, places.abs())
        scale = torch.log(torch.tensor((spec.longest - 1) / middle, device=places.device))
        steps = torch.ceil(torch.log(absolute / middle) / scale * (middle - 1)) + middle
        places = torch.where(absolute <= middle, places.to(steps.dtype), steps * places.sign()).long()
    return (places + spec.span).clamp(0, 2 * spec.span - 1)


def alibi_slopes(heads: int) -> Tensor:
    """Return the slope of each head, fp32 (heads,), by which scores fall per token of distance (Press et al. 2022).

    They are powers of 2^(-8 / heads); where `heads` is not a power of two, those of the next smaller one, and every
    second of the next larger one's.
    """
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    slopes += [2 ** (-8 * (2 * head + 1) / (2 * power)) for head in range(heads - power)]
    return torch.tensor(slopes, dtype=torch.float32)


def _distances(length: int) -> Tensor:
    """Return all distances key - query of sequences of `length` tokens, int64 (2 x length - 1,)."""
    return torch.arange(1 - length, length)


class PositionReader:
    """What the attention of an encoder's layers reads of positions, made of specs and of tables that others own."""

    def __init__(self, spec: ArchitectureSpec, longest: int) -> None:
        """`longest` is the number of tokens of the longest text that the model was trained for."""
        attentions = [layer.self_attention for layer in spec.layers]
        rotary = (attention.rotary for attention in attentions)
        self.rotary: tuple[RotarySpec, ...] = tuple(dict.fromkeys(table for table in rotary if table is not None))
        self.alibi_heads: int = next((attention.heads for attention in attentions if attention.position == "alibi"), 0)
        self.relative: RelativeBiasSpec | RelativeEmbeddingsSpec | None = spec.relative
        self.longest = longest
        self._warned = bool(spec.embeddings.positions)  # a table ends, so that longer texts are refused
        self.by_distance: bool = bool(
            self.alibi_heads or spec.relative is not None or spec.convolution is not None
        ) or any(attention.window is not None for attention in attentions)
        """True if what a token reads of another depends on the number of tokens between them."""

    def read(
        self,
        batch: PackedBatch,
        *,
        bias: Callable[[Tensor], Tensor] | None = None,
        embeddings: Callable[[], Tensor] | None = None,
        sources: tuple[Tensor, ...] = (),
    ) -> LayerPositions | None:
        """Return what attention reads of a batch's positions; None if the model's positions are in its embeddings.

        `bias` returns rows (count, heads) of the table of `RelativeBiasSpec` by their indices int64 (count,),
        `embeddings` the table of `RelativeEmbeddingsSpec` (rows, hidden_size), computed of the parameters `sources`.
        """
        if not (self.rotary or self.alibi_heads or self.relative is not None):
            return None
        self._check_length(batch)
        position_ids, rotary = self._rotary(batch)
        distance_bias = table = buckets = None
        length, device = max(batch.max_seqlen, 1), batch.device
        if self.alibi_heads:
            distance_bias = self._by_distance(("alibi", self.alibi_heads), length, device, self._alibi).T.contiguous()
        elif isinstance(self.relative, RelativeBiasSpec):
            assert bias is not None
            rows = self._by_distance(self.relative, length, device, self._bias_rows)
            distance_bias = bias(rows).T.contiguous()
        elif isinstance(self.relative, RelativeEmbeddingsSpec):
            assert embeddings is not None
            buckets = self._by_distance(self.relative, length, device, self._embedding_rows)
            table = embeddings()
        return LayerPositions(
            position_ids=position_ids, rotary=rotary, distance_bias=distance_bias, embeddings=table,
            buckets=buckets, sources=() if table is None else sources,
        )  # fmt: skip

    def _check_length(self, batch: PackedBatch) -> None:
        """Warn once of positions beyond those that the model was trained for."""
        ids = batch.position_ids
        if self._warned or torch.compiler.is_compiling() or is_recorded(ids):
            return
        # Without a host-device sync.
        longest = int(ids.max()) + 1 if is_readable(ids) and ids.numel() else batch.max_seqlen
        if longest > self.longest:
            self._warned = True
            logger.warning(
                "a text has %s tokens, but the model was trained for up to max_position_embeddings=%s: its positions go"
                " on, but results may be worse; truncate the text to stay within them",
                longest,
                self.longest,
            )

    def _rotary(self, batch: PackedBatch) -> tuple[Tensor | None, dict[RotarySpec, Tensor]]:
        """Return the positions of a batch's tokens as rows of tables, and the tables."""
        if not self.rotary:
            return None, {}
        ids = batch.position_ids
        if isinstance(batch, PaddedBatch):  # a row per token: a recorded call does not tell the largest position
            return torch.arange(ids.shape[0], device=ids.device), {
                spec: rotary_table(spec, ids) for spec in self.rotary
            }
        rows = max(min(self.longest, LONGEST_TABLE), batch.max_seqlen)
        if is_readable(ids) and ids.numel():
            low, high = (int(value) for value in ids.aminmax())
            if low < 0 or high >= max(rows, LONGEST_TABLE):
                raise UserError(
                    f"position_ids holds {low if low < 0 else high}: positions of rotary embeddings must be from 0 to"
                    f" {max(rows, LONGEST_TABLE) - 1}"
                )
            rows = max(rows, high + 1)
        elif ids.device.type == "cuda" and not torch.compiler.is_compiling():
            torch._assert_async((ids < rows).all())  # without a host-device sync
        make = {spec: lambda count, spec=spec: rotary_table(spec, torch.arange(count)) for spec in self.rotary}
        return ids, {spec: _ROTARY.get(spec, rows, ids.device, make[spec]) for spec in self.rotary}

    @staticmethod
    def _by_distance(key: Hashable, length: int, device: torch.device, make: Callable[[Tensor], Tensor]) -> Tensor:
        """Return what `make` computes of the distances of sequences of `length` tokens, (2 x length - 1, ...)."""
        if torch.compiler.is_compiling() or is_recorded(torch.empty(0, device=device)):
            return make(_distances(length)).to(device)
        longest = 1 << max(length - 1, 0).bit_length()  # a few sizes
        table = _DISTANCES.get(key, 2 * longest - 1, device, lambda count: make(_distances((count + 1) // 2)))
        middle = table.shape[0] // 2
        return table[middle - length + 1 : middle + length]

    def _alibi(self, distances: Tensor) -> Tensor:
        return distances.abs()[:, None] * -alibi_slopes(self.alibi_heads)

    def _bias_rows(self, distances: Tensor) -> Tensor:
        assert isinstance(self.relative, RelativeBiasSpec)
        return relative_bias_rows(distances, self.relative)

    def _embedding_rows(self, distances: Tensor) -> Tensor:
        assert isinstance(self.relative, RelativeEmbeddingsSpec)
        return relative_embedding_rows(distances, self.relative).int()


class Positions(nn.Module):
    """The tables of relative positions that an encoder owns, and what its attention reads of positions."""

    def __init__(self, spec: ArchitectureSpec, longest: int) -> None:
        """`longest` is the number of tokens of the longest text that the model was trained for."""
        super().__init__()
        self.reader: PositionReader = PositionReader(spec, longest)
        relative = spec.relative
        self.bias: nn.Embedding | None = None
        self.embeddings: nn.Embedding | None = None
        self.LayerNorm: nn.Module | None = None
        if isinstance(relative, RelativeBiasSpec):
            self.bias = nn.Embedding(relative.rows, spec.layers[0].self_attention.heads)
        if isinstance(relative, RelativeEmbeddingsSpec):
            width = spec.layers[0].hidden_size
            self.embeddings = nn.Embedding(2 * relative.span, width)
            self.LayerNorm = None if relative.norm is None else norm_of(relative.norm, width)
        self.has_table: bool = bool(spec.embeddings.positions)
        self.needs_columns: bool = self.reader.by_distance or bool(self.reader.rotary)

    def forward(self, batch: PackedBatch) -> LayerPositions | None:
        """Return what attention reads of a batch's positions; None if the model's positions are in its embeddings."""
        sources = tuple(self.parameters()) if self._is_plain_table() else ()
        return self.reader.read(batch, bias=self._bias, embeddings=self._embeddings, sources=sources)

    def _is_plain_table(self) -> bool:
        """Return whether parameters alone decide the embeddings of relative positions: no hooks, replaced modules."""
        if self.embeddings is None or not runs_as_written(self.embeddings, nn.Embedding):
            return False
        weight, norm = self.embeddings._parameters.get("weight"), self.LayerNorm
        plain_norm = norm is None or (runs_as_written(norm, Norm) and type(norm._parameters["weight"]) in PLAIN_TENSORS)
        return type(weight) in PLAIN_TENSORS and plain_norm

    def _bias(self, rows: Tensor) -> Tensor:
        assert self.bias is not None
        bias: Tensor = self.bias(rows)
        return bias

    def _embeddings(self) -> Tensor:
        table = self.embeddings
        assert table is not None
        embeddings = table.weight
        if not runs_as_written(table, nn.Embedding):  # hooks and other modules receive the index of each row
            embeddings = table(torch.arange(len(embeddings), device=embeddings.device))
        return embeddings if self.LayerNorm is None else self.LayerNorm(embeddings)

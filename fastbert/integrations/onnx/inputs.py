"""The inputs of a graph, and what layers read of their mask and of the distances between tokens, computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from fastbert.integrations.onnx.graph import Graph
from fastbert.models.architecture import ArchitectureSpec, RelativeBiasSpec, RelativeEmbeddingsSpec
from fastbert.models.positions import alibi_slopes, relative_bias_rows, relative_embedding_rows
from fastbert.models.rotary import frequencies
from fastbert.ops.encoder_layer.spec import AttentionSpec, RotarySpec

# Not -inf: a row of nothing but padding would be NaN.
LOWEST = torch.finfo(torch.float32).min
BATCH, LENGTH, CHOICES = "batch_size", "sequence_length", "num_choices"


class Inputs:
    """`input_ids` and `attention_mask`, int64 (batch, length), and `token_type_ids` of models with several segments.

    Of models of choices they are (batch, choices, length), and are read as (batch * choices, length).
    """

    def __init__(self, graph: Graph, spec: ArchitectureSpec, bias: Tensor | None, *, choices: bool = False) -> None:
        """`bias` is the table of a `RelativeBiasSpec`, (rows, heads)."""
        self.graph = graph
        self.spec = spec
        self.bias = bias
        self.axes: tuple[str, ...] = (BATCH, CHOICES, LENGTH) if choices else (BATCH, LENGTH)
        self.names: list[str] = ["input_ids", "attention_mask", *["token_type_ids"] * (spec.embeddings.token_types > 1)]
        self._values: dict[Hashable, str] = {}
        with graph.scope("inputs"):
            rows = {name: self._rows(graph.input(name, self.axes)) for name in self.names}
            self.ids: str = rows["input_ids"]
            self.types: str | None = rows.get("token_type_ids")
            self.mask: str = graph.cast(rows["attention_mask"], "BOOL")
            """bool (batch, length), True at tokens."""
            self.length: str = graph.op("Shape", self.ids, start=1, end=2)
            """int64 (1,)."""

    def _rows(self, value: str) -> str:
        """Return (batch, length) of an input."""
        if len(self.axes) == 2:
            return value
        last = self.graph.op("Shape", value, start=2)
        return self.graph.op("Reshape", value, self.graph.op("Concat", self.graph.ints(-1), last, axis=0))

    def once(self, key: Hashable, make: Callable[[], str]) -> str:
        """Return what `make` adds to the graph, added at the first call with a key."""
        if key not in self._values:
            with self.graph.scope("inputs"):
                self._values[key] = make()
        return self._values[key]

    def float_mask(self) -> str:
        """Return 1 at tokens and 0 at padding, fp32 (batch, length, 1)."""
        graph = self.graph
        return self.once("mask", lambda: graph.op("Unsqueeze", graph.cast(self.mask, "FLOAT"), graph.ints(2)))

    def columns(self) -> str:
        """Return 0, 1, ..., length - 1, int64."""
        graph = self.graph
        return self.once(
            "columns",
            lambda: graph.op(
                "Range", graph.number(0), graph.op("Squeeze", self.length, graph.ints(0)), graph.number(1)
            ),
        )

    def distances(self) -> str:
        """Return key - query of all pairs of columns, int64 (length, length)."""
        graph, columns = self.graph, self.columns()
        keys, queries = (lambda axis=axis: graph.op("Unsqueeze", columns, graph.ints(axis)) for axis in (0, 1))
        return self.once("distances", lambda: graph.op("Sub", keys(), queries()))

    def visible(self, attention: AttentionSpec, causal: bool) -> str:
        """Return True where a query attends to a key, bool (batch, 1, 1 or queries, keys)."""
        graph = self.graph

        def make() -> str:
            visible = graph.op("Unsqueeze", self.mask, graph.ints(1, 2))
            if causal:
                near = graph.op("LessOrEqual", self.distances(), graph.number(0))
                visible = graph.op("And", visible, near)
            if attention.window is not None:
                within = graph.op("LessOrEqual", graph.op("Abs", self.distances()), graph.number(attention.window))
                visible = graph.op("And", visible, within)
            return visible

        return self.once(("visible", causal, attention.window), make)

    def score_bias(self, attention: AttentionSpec, causal: bool) -> str:
        """Return what is added to the scores of a layer, fp32 (batch, 1 or heads, 1 or queries, keys): a bias by
        distance, if there is one, and the lowest number where a key is not visible."""
        graph = self.graph

        def make() -> str:
            visible = self.visible(attention, causal)
            bias = graph.number(0.0) if (by_distance := self._distance_bias(attention)) is None else by_distance
            return graph.op("Where", visible, bias, graph.number(LOWEST))

        return self.once(("bias", causal, attention.window, attention.position, attention.heads), make)

    def _distance_bias(self, attention: AttentionSpec) -> str | None:
        """Return the bias by distance of ALiBi or of a shared table, fp32 (heads, queries, keys)."""
        graph = self.graph
        if attention.position == "alibi":
            far = graph.cast(graph.op("Abs", self.distances()), "FLOAT")
            return graph.op("Mul", far, graph.tensor("alibi_slopes", -alibi_slopes(attention.heads)[:, None, None]))
        relative = self.spec.relative
        if attention.position != "relative" or not isinstance(relative, RelativeBiasSpec):
            return None
        assert self.bias is not None
        rows = rows_by_distance(lambda distances: relative_bias_rows(distances, relative))
        table = graph.tensor("positions.bias_by_distance", self.bias.detach()[rows])
        return graph.op("Transpose", graph.op("Gather", table, self._clipped(len(rows) // 2)), perm=[2, 0, 1])

    def bucket_rows(self) -> str:
        """Return the row of each pair in the table of relative positions, int32 (queries, keys)."""
        graph, relative = self.graph, self.spec.relative
        assert isinstance(relative, RelativeEmbeddingsSpec)

        def make() -> str:
            rows = rows_by_distance(lambda distances: relative_embedding_rows(distances, relative))
            table = graph.tensor("positions.rows_by_distance", rows.int())
            return graph.op("Gather", table, self._clipped(len(rows) // 2))

        return self.once("buckets", make)

    def _clipped(self, longest: int) -> str:
        """Return distances, counted from -longest and at most 2 * longest, int64 (queries, keys)."""
        graph = self.graph
        counted = graph.op("Add", self.distances(), graph.number(longest))
        return graph.op("Clip", counted, graph.number(0), graph.number(2 * longest))

    def rotary(self, spec: RotarySpec) -> tuple[str, str]:
        """Return the cosines and sines of the angles of all columns, fp32 (length, width / 2) each."""
        graph = self.graph
        inverse, factor = frequencies(spec)

        def angles() -> str:
            columns = graph.op("Unsqueeze", graph.cast(self.columns(), "FLOAT"), graph.ints(1))
            return graph.op("Mul", columns, graph.constant(inverse))

        def table(function: str) -> str:
            values = graph.op(function, self.once((spec, "angles"), angles))
            return values if factor == 1 else graph.op("Mul", values, graph.number(factor))

        cosines, sines = (
            self.once((spec, name), lambda name=name: table(name))  # type: ignore[misc]
            for name in ("Cos", "Sin")
        )
        return cosines, sines


def rows_by_distance(rows_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the rows of the distances -n, ..., n, int64 (2n + 1,), of which those beyond are repetitions.

    They are computed here, since a logarithm that another library rounds differently moves a distance to the next
    bucket.
    """
    longest = 1 << 14
    rows = rows_of(torch.arange(-longest, longest + 1))
    behind, ahead = (rows != rows[0]).nonzero(), (rows != rows[-1]).nonzero()
    needed = max(longest - int(behind[0]), int(ahead[-1]) - longest) + 1
    return rows[longest - needed : longest + needed + 1]

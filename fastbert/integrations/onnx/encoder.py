"""An encoder as a graph: embeddings, layers and the final norm, from its spec and the parameters of its modules."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from fastbert.errors import UserError
from fastbert.integrations.onnx.functions import activate, linear, norm
from fastbert.integrations.onnx.graph import Graph
from fastbert.integrations.onnx.inputs import LENGTH, Inputs
from fastbert.models.encoder import EncoderModel
from fastbert.models.modules import Layer
from fastbert.ops.encoder_layer.spec import AttentionSpec, LayerSpec, NormSpec, RotarySpec


def add_encoder(graph: Graph, inputs: Inputs, model: EncoderModel, *, causal: bool = False) -> str:
    """Return the last hidden states, fp32 (batch, length, hidden_size), of which those of padding are meaningless.

    `causal`: tokens attend to themselves and to those before them, whatever the spec says.
    """
    x = _embeddings(graph, inputs, model)
    if model.embeddings_project is not None:
        with graph.scope("embeddings_project"):
            x = linear(graph, model.embeddings_project, x)
    embedded = memory = x
    encoder = model.encoder
    layers = encoder.applications()
    for number, layer in enumerate(layers):
        repeats = number >= len(layers) - encoder.last_layer_repeats
        if not repeats:
            memory = x
        with graph.scope(f"encoder.layer.{number}"):
            x = LayerGraph(graph, inputs, model, layer, causal).add(x, memory if repeats else None)
        if number == 0 and encoder.convolution is not None:
            with graph.scope("encoder.convolution"):
                x = _convolution(graph, inputs, encoder.convolution, embedded, x)
    if encoder.LayerNorm is not None:
        with graph.scope("encoder.LayerNorm"):
            x = norm(graph, encoder.LayerNorm, x)
    return x


def _embeddings(graph: Graph, inputs: Inputs, model: EncoderModel) -> str:
    """Return the embeddings of the tokens, (batch, length, width)."""
    embeddings = model.embeddings
    with graph.scope("embeddings"):
        x = graph.quantizable_op("Gather", graph.parameter(embeddings.word_embeddings.weight), inputs.ids)
        if embeddings.position_embeddings is not None:
            x = graph.op("Add", x, _positions(graph, inputs, model, embeddings.position_embeddings.weight))
        if embeddings.token_type_embeddings is not None:
            # A single row, of a table of one, is added to all tokens.
            table = graph.parameter(embeddings.token_type_embeddings.weight)
            x = graph.op("Add", x, table if inputs.types is None else graph.op("Gather", table, inputs.types))
        if embeddings.projection is not None:
            x = linear(graph, embeddings.projection, x)
        return x if embeddings.LayerNorm is None else norm(graph, embeddings.LayerNorm, x)


def _positions(graph: Graph, inputs: Inputs, model: EncoderModel, table: Tensor) -> str:
    """Return the embeddings of the positions: the columns, or counted over the tokens that are not the padding's."""
    offset = model.position_offset
    if not offset:
        rows = graph.op("Slice", graph.parameter(table), graph.ints(0), inputs.length, graph.ints(0))
        return graph.shaped(rows, (LENGTH, table.shape[1]))
    padding = graph.number(model.config.pad_token_id)
    is_token = graph.cast(graph.op("Not", graph.op("Equal", inputs.ids, padding)), "INT64")
    counted = graph.op("Mul", graph.op("CumSum", is_token, graph.number(1)), is_token)
    return graph.op("Gather", graph.parameter(table), graph.op("Add", counted, graph.number(offset - 1)))


def _convolution(graph: Graph, inputs: Inputs, module: Any, embedded: str, x: str) -> str:
    """Return LayerNorm(x + activation(convolution of the embeddings, which are 0 at padding))."""
    conv: nn.Conv1d = module.conv
    assert conv.bias is not None
    half = conv.kernel_size[0] // 2
    columns = graph.op("Transpose", graph.op("Mul", embedded, inputs.float_mask()), perm=[0, 2, 1])
    rows = graph.op(
        "Conv", columns, graph.parameter(conv.weight), graph.parameter(conv.bias), group=conv.groups, pads=[half, half]
    )
    inner = activate(graph, module.activation, graph.op("Transpose", rows, perm=[0, 2, 1]))
    return norm(graph, module.LayerNorm, graph.op("Add", x, inner))


class LayerGraph:
    """One application of a layer."""

    def __init__(self, graph: Graph, inputs: Inputs, model: EncoderModel, layer: Any, causal: bool) -> None:
        self.graph = graph
        self.inputs = inputs
        self.model = model
        self.spec: LayerSpec = layer.spec
        self.attention: AttentionSpec = layer.spec.self_attention
        self.causal: bool = causal or self.attention.causal
        self.parts: dict[str, Any] = parts(layer)
        if self.attention.similarity != "dot":
            raise UserError(f"similarity={self.attention.similarity!r} has no form in ONNX here; only 'dot' has")

    def add(self, x: str, memory: str | None = None) -> str:
        """Return the layer's output, (batch, length, hidden_size); `memory` has the keys and values, None: x."""
        graph, spec = self.graph, self.spec
        context = self._attend(self._norm("attention_norm", "pre", x), memory)
        product = linear(graph, self.parts["attention_output"], context)
        x = self._norm("attention_norm", "post", graph.op("Add", product, x))
        inner = linear(graph, self.parts["intermediate"], self._norm("output_norm", "pre", x))
        network = spec.feed_forward
        if network.gated:
            inner, gate = graph.ops("Split", 2, inner, axis=-1)
            inner = graph.op("Mul", activate(graph, network.activation, inner), gate)
        else:
            inner = activate(graph, network.activation, inner)
        return self._norm("output_norm", "post", graph.op("Add", linear(graph, self.parts["output"], inner), x))

    def _norm(self, name: str, place: str, x: str) -> str:
        """Return the norm of x if the layer has this norm in this place, else x."""
        spec: NormSpec | None = getattr(self.spec, name)
        return x if spec is None or spec.place != place else norm(self.graph, self.parts[name], x)

    def _attend(self, x: str, memory: str | None) -> str:
        """Return self-attention, (batch, length, heads * head_dim)."""
        graph, inputs, attention = self.graph, self.inputs, self.attention
        q, k, v = (self._heads(name, x if memory is None or name == "query" else memory) for name in QKV)
        if attention.rotary is not None:
            q, k = self._rotated(q, attention.rotary), self._rotated(k, attention.rotary)
        groups = attention.heads if attention.key_value_heads is None else attention.key_value_heads
        if groups != attention.heads:
            k, v = self._repeated(k, groups), self._repeated(v, groups)
        scores = graph.op("MatMul", q, graph.op("Transpose", k, perm=[0, 1, 3, 2]))
        if attention.position == "disentangled":
            scores = self._disentangled(scores, q, k)
        if attention.scale is None:
            scores = graph.op("Div", scores, graph.number(math.sqrt(attention.head_dim)))
        else:
            scores = graph.op("Mul", scores, graph.number(attention.scale))
        scores = graph.op("Add", scores, inputs.score_bias(attention, self.causal))
        context = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), v)
        rows = graph.op("Transpose", context, perm=[0, 2, 1, 3])
        return graph.op("Reshape", rows, graph.ints(0, 0, attention.heads * attention.head_dim))

    def _heads(self, name: str, x: str) -> str:
        """Return a projection by heads, (batch, heads, length, head_dim)."""
        rows = self.graph.op(
            "Reshape", linear(self.graph, self.parts[name], x), self.graph.ints(0, 0, -1, self.attention.head_dim)
        )
        return self.graph.op("Transpose", rows, perm=[0, 2, 1, 3])

    def _rotated(self, x: str, rotary: RotarySpec) -> str:
        """Return queries or keys, turned by the angles of their columns."""
        graph, half, rest = self.graph, rotary.width // 2, self.attention.head_dim - rotary.width
        cosines, sines = self.inputs.rotary(rotary)
        sizes = [half, half, *[rest] * bool(rest)]
        first, second, *others = graph.ops("Split", len(sizes), x, graph.ints(*sizes), axis=-1)

        def combined(operator: str, a: str, b: str) -> str:
            return graph.op(operator, graph.op("Mul", a, cosines), graph.op("Mul", b, sines))

        turned = combined("Sub", first, second), combined("Add", second, first)
        return graph.op("Concat", *turned, *others, axis=-1)

    def _repeated(self, x: str, groups: int) -> str:
        """Return keys or values (batch, groups, length, head_dim), each group for the heads that share it."""
        graph, heads = self.graph, self.attention.heads
        copies = graph.op("Concat", *[graph.op("Unsqueeze", x, graph.ints(2))] * (heads // groups), axis=2)
        return graph.op("Reshape", copies, graph.ints(0, heads, -1, self.attention.head_dim))

    def _disentangled(self, scores: str, q: str, k: str) -> str:
        """Return the scores, plus those of queries and relative positions, and of relative positions and keys."""
        graph, inputs = self.graph, self.inputs
        shape = graph.op("Shape", scores)
        if self.attention.position_keys:
            indices = inputs.once("keys' rows", lambda: graph.op("Expand", inputs.bucket_rows(), shape))
            by_position = graph.op("MatMul", q, self._position_table("key"))
            scores = graph.op("Add", scores, graph.op("GatherElements", by_position, indices, axis=-1))
        if self.attention.position_queries:
            # Of each key, the rows of all queries.
            indices = inputs.once(
                "queries' rows",
                lambda: graph.op("Expand", graph.op("Transpose", inputs.bucket_rows(), perm=[1, 0]), shape),
            )
            by_position = graph.op("MatMul", k, self._position_table("query"))
            added = graph.op("GatherElements", by_position, indices, axis=-1)
            scores = graph.op("Add", scores, graph.op("Transpose", added, perm=[0, 1, 3, 2]))
        return scores

    def _position_table(self, name: str) -> str:
        """Return the projected embeddings of relative positions, which no input changes: (heads, head_dim, rows)."""
        positions: Any = self.model.positions
        table = positions.embeddings.weight
        table = table if positions.LayerNorm is None else positions.LayerNorm(table)
        module = self.parts[name if self.attention.shares_position_projections else f"position_{name}"]
        projected = nn.functional.linear(table, module.weight, module.bias)
        by_head = projected.unflatten(-1, (-1, self.attention.head_dim)).permute(1, 2, 0)
        return self.graph.tensor(f"{self.graph.name_of(module.weight)}.position_{name}s", by_head)


QKV = ("query", "key", "value")


def parts(layer: Any) -> dict[str, nn.Module]:
    """Return a layer's linear layers and norms by the names of `LayerParameters`."""
    if not isinstance(layer, Layer):
        named: dict[str, nn.Module] = layer.named_parts()
        return named
    modules = layer.plain_modules()
    assert modules is not None, "a loaded model has plain layers"
    return layer.attention.self.named_projections() | layer.named_parts(modules)

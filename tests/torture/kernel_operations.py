"""Every operation of `fastbert.ops` as random cases, with its oracle in float64.

One file: it is the list of operations; each is a function that draws the arguments of a call and returns them with the
formula, from `fastbert.ops.reference` where it has one. `test_kernels` fails if an operation is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torture.kernel_draws import Draw

from fastbert import ops
from fastbert.ops import reference
from fastbert.ops.dropout.arguments import TokenDropout
from fastbert.ops.encoder_layer.arguments import LayerBatch, LayerParameters
from fastbert.ops.encoder_layer.op import encoder_layer
from fastbert.ops.encoder_layer.spec import bert_layer
from fastbert.ops.native import matmul

Leaves = dict[str, Tensor]
Results = tuple[Tensor, ...]


@dataclass
class Case:
    """A call: the floating tensors by name, the call of an operation, and the same in float64 by formulas."""

    leaves: Leaves
    call: Callable[[Leaves], Results]
    oracle: Callable[[Leaves], Results]
    options: dict[str, Any] = field(default_factory=dict)
    """What else decides the results, for messages."""
    trains: bool = True
    """False for a call without gradients."""
    eager: Callable[[Leaves], Results] | None = None
    """The same by PyTorch, where the call is one of a native kernel instead of an operation."""
    terms: Callable[[Leaves, list[Tensor]], dict[str, float]] | None = None
    """A bound, by name, on the terms of gradients that may cancel, given the leaves and upstream gradients in fp64."""
    parameters: frozenset[str] = frozenset()
    """The leaves that are passed as parameters, which the native backend prepacks."""


def _vectors(draw: Draw, dtype: torch.dtype, width: int, *names: str) -> Leaves:
    """Return vectors of one dtype: that of the rows or, for bf16 and fp16 rows, at times fp32."""
    dtype = torch.float32 if draw.chance(0.25) else dtype
    return {name: draw.values(width, dtype=dtype, most=10.0) for name in names}


def _rows_shape(draw: Draw, most_rows: int = 140, most_width: int = 600) -> tuple[int, ...]:
    width, rows = draw.size(most_width, 1), draw.rows(most_rows)
    return (rows, width) if draw.chance(0.8) else (draw.rows(4), draw.size(9, 1), width)


def _dropped(x: Tensor, dropout: TokenDropout | None) -> Tensor:
    if dropout is None:
        return x
    ids, offsets = dropout.sequence_ids.long(), dropout.offsets.long()
    return x * reference.token_dropout_mask(x.shape[-1], dropout.p, dropout.key, ids, offsets, dropout.site)


def _norm(draw: Draw, dtype: torch.dtype, rms: bool) -> Case:
    shape = _rows_shape(draw)
    names = ["weight"] + ["bias"] * (not rms and draw.chance(0.8))
    leaves = {"x": draw.values(*shape, dtype=dtype), **_vectors(draw, dtype, shape[-1], *names)}
    eps = draw.random.choice((1e-12, 1e-6, 1e-5))
    if rms:
        return Case(
            leaves,
            lambda t: (ops.rms_norm(t["x"], t["weight"], eps),),
            lambda t: (reference.rms_norm(t["x"], t["weight"], eps),),
            {"eps": eps},
        )
    return Case(
        leaves,
        lambda t: (ops.layer_norm(t["x"], t["weight"], t.get("bias"), eps),),
        lambda t: (reference.layer_norm(t["x"], t["weight"], t.get("bias", 0.0), eps),),
        {"eps": eps},
    )


def layer_norm(draw: Draw, dtype: torch.dtype) -> Case:
    return _norm(draw, dtype, rms=False)


def rms_norm(draw: Draw, dtype: torch.dtype) -> Case:
    return _norm(draw, dtype, rms=True)


def _norm_of_sum(draw: Draw, dtype: torch.dtype, rms: bool) -> Case:
    shape = (draw.rows(140), draw.size(600, 1))
    dropout, returns_sum = draw.token_dropout(shape[0]), draw.chance(0.5)
    names = ["weight"] + ["bias"] * (not rms and draw.chance(0.8)) + ["x_bias"] * draw.chance(0.6)
    leaves = {
        "x": draw.values(*shape, dtype=dtype, most=1e3),
        "residual": draw.values(*shape, dtype=dtype, most=1e3),
        **_vectors(draw, dtype, shape[1], *names),
    }
    eps = draw.random.choice((1e-12, 1e-6, 1e-5))

    def call(t: Leaves) -> Results:
        options: dict[str, Any] = {"x_bias": t.get("x_bias"), "return_sum": returns_sum}
        if rms:
            result = ops.dropout_add_rms_norm(t["x"], t["residual"], t["weight"], eps, dropout, **options)
        else:
            result = ops.dropout_add_layer_norm(
                t["x"], t["residual"], t["weight"], t.get("bias"), eps, dropout, **options
            )
        return result if returns_sum else (result,)

    def oracle(t: Leaves) -> Results:
        total = t["residual"] + _dropped(t["x"] + t.get("x_bias", 0.0), dropout)
        if rms:
            y = reference.rms_norm(total, t["weight"], eps)
        else:
            y = reference.layer_norm(total, t["weight"], t.get("bias", 0.0), eps)
        return (y, total) if returns_sum else (y,)

    return Case(leaves, call, oracle, {"eps": eps, "dropout": dropout and dropout.p})


def dropout_add_layer_norm(draw: Draw, dtype: torch.dtype) -> Case:
    return _norm_of_sum(draw, dtype, rms=False)


def dropout_add_rms_norm(draw: Draw, dtype: torch.dtype) -> Case:
    return _norm_of_sum(draw, dtype, rms=True)


def _terms_of_norm(
    inner: Tensor, weight: Tensor, eps: float, upstream: list[Tensor], row_gradients: tuple[str, ...]
) -> dict[str, float]:
    """Bound what LayerNorm makes of a GELU that is wrong by 4 units of fp32, which the native kernels' may be (4e-7).

    Where all values of a row are nearly equal, it divides by little more than the root of eps.
    """
    if not inner.numel():
        return {}
    rstd = float((inner.var(-1, unbiased=False) + eps).rsqrt().max())
    moved = 4 * max(1.0, float(inner.abs().max())) * rstd  # of normed values
    bounds = {"result 0": moved * float(weight.abs().max())}
    if upstream and row_gradients:
        rows = math.prod(inner.shape[:-1])
        gradient = float(weight.abs().max() * upstream[0].abs().max())
        x = rstd * gradient * (4 + 3 * moved)
        bounds |= {f"gradient of {row_gradients[0]}": x, f"gradient of {row_gradients[1]}": rows * x}
        bounds["gradient of weight"] = rows * moved * float(upstream[0].abs().max())
    return bounds


def gelu_layer_norm(draw: Draw, dtype: torch.dtype) -> Case:
    shape, approximate = _rows_shape(draw), draw.random.choice(("none", "tanh"))
    names = ["weight"] + ["norm_bias"] * draw.chance(0.8) + ["bias"] * draw.chance(0.7)
    leaves = {"x": draw.values(*shape, dtype=dtype, most=1e4), **_vectors(draw, dtype, shape[-1], *names)}
    eps = draw.random.choice((1e-12, 1e-5))

    def oracle(t: Leaves) -> Results:
        inner = reference.gelu(t["x"] + t.get("bias", 0.0), approximate)
        return (reference.layer_norm(inner, t["weight"], t.get("norm_bias", 0.0), eps),)

    return Case(
        leaves,
        lambda t: (ops.gelu_layer_norm(t["x"], t.get("bias"), t["weight"], t.get("norm_bias"), eps, approximate),),
        oracle,
        {"eps": eps, "approximate": approximate},
        terms=lambda t, upstream: _terms_of_norm(
            reference.gelu(t["x"] + t.get("bias", 0.0), approximate), t["weight"], eps, upstream, ("x", "bias")
        ),
    )


def bias_gelu(draw: Draw, dtype: torch.dtype) -> Case:
    shape, approximate = _rows_shape(draw), draw.random.choice(("none", "tanh"))
    leaves = {"x": draw.values(*shape, dtype=dtype, most=1e4)}
    leaves |= _vectors(draw, dtype, shape[-1], *["bias"] * draw.chance(0.8))
    return Case(
        leaves,
        lambda t: (ops.bias_gelu(t["x"], t.get("bias"), approximate),),
        lambda t: (reference.gelu(t["x"] + t.get("bias", 0.0), approximate),),
        {"approximate": approximate},
    )


def gated_activation(draw: Draw, dtype: torch.dtype) -> Case:
    *rows, width = _rows_shape(draw, most_width=300)
    activation = draw.random.choice(("gelu", "gelu_tanh", "relu", "silu"))
    leaves = {"x": draw.values(*rows, 2 * width, dtype=dtype, most=1e4)}
    leaves |= _vectors(draw, dtype, 2 * width, *["bias"] * draw.chance(0.8))
    return Case(
        leaves,
        lambda t: (ops.gated_activation(t["x"], t.get("bias"), activation),),
        lambda t: (reference.gated_activation(t["x"] + t.get("bias", 0.0), activation),),
        {"activation": activation},
    )


def dropout(draw: Draw, dtype: torch.dtype) -> Case:
    shape = (draw.rows(140), draw.size(600, 1))
    drops = draw.token_dropout(shape[0], p=0.95)
    return Case(
        {"x": draw.values(*shape, dtype=dtype)},
        lambda t: (ops.dropout(t["x"], drops),),
        lambda t: (_dropped(t["x"], drops),),
        {"dropout": drops and drops.p},
    )


def embedding_layer_norm(draw: Draw, dtype: torch.dtype) -> Case:
    tokens, width, count = draw.rows(140), draw.size(600, 1), draw.random.choice((1, 2, 3, 3, 4))
    ids, leaves = [], {}
    for i in range(count):
        rows = draw.size(130, 1)
        index = torch.randint(rows, (2 * tokens,), generator=draw.generator)
        index = index.to(draw.random.choice((torch.int64, torch.int64, torch.int32)))
        ids.append(draw.place(index[::2] if draw.chance(0.3) else index[:tokens]))
        leaves[f"table{i}"] = draw.values(rows, width, dtype=dtype, most=1e3)
    leaves |= _vectors(draw, dtype, width, "weight", "bias")
    drops, eps = draw.token_dropout(tokens), draw.random.choice((1e-12, 1e-5))

    def call(t: Leaves) -> Results:
        tables = [t[f"table{i}"] for i in range(count)]
        return (ops.embedding_layer_norm(ids, tables, t["weight"], t["bias"], eps, drops),)

    def oracle(t: Leaves) -> Results:
        total = sum(t[f"table{i}"][ids[i].long()] for i in range(count))
        return (_dropped(reference.layer_norm(total, t["weight"], t["bias"], eps), drops),)

    return Case(leaves, call, oracle, {"eps": eps, "dropout": drops and drops.p})


def softmax(draw: Draw, dtype: torch.dtype) -> Case:
    shape = (draw.rows(3), draw.size(4, 1), draw.size(40, 1), draw.size(300, 1))
    scores, scale = draw.values(*shape, dtype=dtype, most=1e2), draw.random.choice((1.0, 1.0, 0.125, 2.0))
    drops, trains = draw.random.choice((0.0, 0.0, 0.1, 0.5)), True
    if draw.chance(0.3):  # logits of -inf, or of +inf: its row is NaN, where nothing is dropped
        infinity = math.inf if draw.chance(0.2) and not drops else -math.inf
        trains = infinity < 0
        hidden = torch.rand(shape, generator=draw.generator) < draw.random.choice((0.01, 0.5, 0.97))
        scores = draw.layout(scores.masked_fill(hidden, infinity))
    mask = None
    if draw.chance(0.5):
        sizes = [size if draw.chance(0.6) else 1 for size in shape[draw.random.randint(0, 3) :]]
        mask = draw.place(torch.rand(sizes, generator=draw.generator) < draw.random.choice((0.0, 0.3, 0.9)))
    site, key = draw.random.randint(0, 5000), draw.keys(shape[0])

    def oracle(t: Leaves) -> Results:
        x = t["scores"]
        visible = (x != -math.inf) if mask is None else (x != -math.inf) & mask
        # A masked -inf would make NaN of the gradient of the product with the scale.
        y = reference.attention_probabilities(x.masked_fill(x == -math.inf, 0.0) * scale, visible)
        if drops and shape[0]:
            masks = [reference.attention_dropout_mask(*shape[1:], drops, each, site) for each in key]
            y = y * torch.stack(masks)
        return (y,)

    options: dict[str, Any] = {"dropout_p": drops, "dropout_key": key, "dropout_site": site}
    return Case(
        {"scores": scores},
        lambda t: (ops.softmax(t["scores"], mask, scale=scale, **options),),
        oracle,
        {"scale": scale, "mask": mask is not None and tuple(mask.shape), "dropout": drops},
        trains,
    )


def attention(draw: Draw, dtype: torch.dtype) -> Case:
    relative = draw.chance(0.2)
    longest = 24 if relative else 40 if draw.chance(0.95) else 140
    lengths_q, self_attention = draw.lengths(3 * longest, longest), draw.chance(0.7)
    lengths_k = list(lengths_q) if self_attention else [draw.random.randint(0, longest) for _ in lengths_q]
    most_q, most_k = max(lengths_q, default=0), max(lengths_k, default=0)
    dim = draw.random.choice((1, 2, 8, 16, 32, 32, 33, 64, 64, 80, 96, 128, 256)) if draw.chance(0.3) else 32
    groups, group = draw.random.choice((1, 2, 3)), draw.random.choice((1, 1, 1, 2))
    heads = groups * group
    leaves = {
        "q": draw.values(sum(lengths_q), heads, dim, dtype=dtype, most=30.0),
        "k": draw.values(sum(lengths_k), groups, dim, dtype=dtype, most=30.0),
        "v": draw.values(sum(lengths_k), groups, dim, dtype=dtype, most=1e3),
    }
    options: dict[str, Any] = {"causal": draw.chance(0.3)}
    if draw.chance(0.2):
        options["window"] = draw.random.randint(1, 20)
    if draw.chance(0.2):
        options["scale"] = draw.random.choice((1.0, 0.02, 0.5))
    if draw.chance(0.3):
        options |= {
            "dropout_p": draw.random.choice((0.001, 0.1, 0.5)),
            "dropout_key": draw.keys(len(lengths_q)),
            "dropout_site": draw.random.randint(0, 5000),
        }
    if self_attention and draw.chance(0.2) and dim > 1 and lengths_q:
        width = 2 * draw.random.randint(1, dim // 2)
        table = torch.rand(most_k + draw.random.randint(0, 9), width // 2, generator=draw.generator) * 7
        options["rotary"] = draw.place(torch.cat((table.cos(), table.sin()), dim=1))
        if draw.chance(0.3) and len(table):
            options["rotary_positions"] = draw.integers(len(table), sum(lengths_q))
    distances = 2 * (max(most_q, most_k, 1) + draw.random.randint(0, 3)) - 1
    if draw.chance(0.2):
        leaves["distance_bias"] = draw.normal(heads, distances, dtype=draw.random.choice((dtype, torch.float32)))
    if relative and group == 1:
        rows = draw.random.randint(1, 12)
        options["buckets"] = draw.place(torch.randint(rows, (distances,), generator=draw.generator).int())
        for name in draw.random.choice(
            (("position_keys",), ("position_queries",), ("position_keys", "position_queries"))
        ):
            leaves[name] = draw.normal(rows, heads, dim, dtype=dtype)
    elif draw.chance(0.3):
        sizes = (
            (max(1, most_q), max(1, most_k))
            if draw.chance(0.7)
            else (draw.size(most_q or 1, 1), draw.size(most_k or 1, 1))
        )
        bias = draw.normal(heads, *sizes, dtype=draw.random.choice((dtype, torch.float32)))
        if draw.chance(0.5):
            bias = bias.masked_fill(torch.rand(bias.shape, generator=draw.generator) < draw.random.random(), -math.inf)
        leaves["bias"] = draw.layout(bias)
    cu_q, cu_k = (draw.place(torch.tensor([0, *lengths]).cumsum(0).int()) for lengths in (lengths_q, lengths_k))
    tables = ("bias", "distance_bias", "position_keys", "position_queries")

    def call(t: Leaves) -> Results:
        given = {name: t[name] for name in tables if name in t}
        return (ops.attention(t["q"], t["k"], t["v"], cu_q, cu_k, most_q, most_k, **given, **options),)

    def oracle(t: Leaves) -> Results:
        given = {name: t[name] for name in tables if name in t}
        if "bias" in given:  # which counts as 0 beyond its shape
            rows, columns = given["bias"].shape[1:]
            given["bias"] = F.pad(given["bias"], (0, max(0, most_k - columns), 0, max(0, most_q - rows)))
        if "rotary" in options:
            given["rotary"] = options["rotary"].double()
        return (reference.attention(t["q"], t["k"], t["v"], cu_q, cu_k, **{**options, **given}),)

    def terms(t: Leaves, upstream: list[Tensor]) -> dict[str, float]:
        """Gradients of scores are P (dP - D) with D = sum(P dP): where P is nearly 1, two large numbers cancel."""
        if not upstream or not upstream[0].numel():
            return {}
        d = (upstream[0].abs() * oracle(t | {"v": t["v"].abs()})[0].abs()).sum(-1)
        scale = options.get("scale", dim**-0.5)
        # Gradients of q are sums over keys, of P that sums to 1; all others over queries too.
        most_q, most_k = (float(t[name].abs().max()) if t[name].numel() else 0.0 for name in ("q", "k"))
        to_tables = [most_k, *(float(t[name].abs().max()) for name in tables[2:] if name in t)]
        largest, total = 2 * float(d.max()), 2 * float(d.sum())
        bounds = {"q": largest * scale * sum(to_tables), "bias": total, "distance_bias": total}
        bounds["k"] = total * scale * sum((most_q, *to_tables[1:]))
        bounds |= {"position_keys": total * scale * most_q, "position_queries": total * scale * most_k}
        return {f"gradient of {name}": bound for name, bound in bounds.items()}

    shown = {name: value for name, value in options.items() if not isinstance(value, Tensor)}
    return Case(leaves, call, oracle, shown | {"lengths_q": lengths_q, "lengths_k": lengths_k}, terms=terms)


def linear(draw: Draw, dtype: torch.dtype) -> Case:
    shape = _rows_shape(draw, most_width=400)
    outputs, activation = draw.size(300, 1), draw.random.choice((None, None, "gelu", "gelu_tanh"))
    scale = shape[-1] ** -0.5
    leaves = {
        "x": draw.values(*shape, dtype=dtype, most=1e3),
        "weight": draw.layout(draw.normal(outputs, shape[-1], dtype=dtype, scale=scale)),
    }
    if draw.chance(0.7):
        leaves["bias"] = draw.values(outputs, dtype=dtype, most=10.0)

    def oracle(t: Leaves) -> Results:
        u = t["x"] @ t["weight"].transpose(0, 1) + t.get("bias", 0.0)
        return (u if activation is None else reference.gelu(u, "tanh" if activation == "gelu_tanh" else "none"),)

    return Case(
        leaves,
        lambda t: (ops.linear(t["x"], t["weight"], t.get("bias"), activation=activation),),
        oracle,
        {"activation": activation},
        parameters=frozenset({"weight", "bias"}),
    )


def linear_cross_entropy(draw: Draw, dtype: torch.dtype) -> Case:
    rows, width, vocabulary = draw.rows(100), draw.size(130, 1), draw.size(600, 1)
    leaves = {
        "x": draw.values(rows, width, dtype=dtype, most=30.0),
        "weight": draw.layout(draw.normal(vocabulary, width, dtype=dtype, scale=width**-0.5)),
    }
    if draw.chance(0.8):
        leaves["bias"] = draw.values(vocabulary, dtype=dtype, most=10.0)
    labels = torch.randint(vocabulary, (rows,), generator=draw.generator)
    labels[torch.rand(rows, generator=draw.generator) < draw.random.choice((0.0, 0.2, 1.0))] = -100
    labels = draw.place(labels)
    smoothing, z_loss = draw.random.choice((0.0, 0.0, 0.1)), draw.random.choice((0.0, 0.0, 0.01))

    def oracle(t: Leaves) -> Results:
        logits = t["x"] @ t["weight"].transpose(0, 1) + t.get("bias", 0.0)
        counted = labels != -100
        losses = reference.cross_entropy(logits[counted], labels[counted], smoothing)
        if z_loss:
            losses = losses + z_loss * reference.z_loss(logits[counted])
        return (losses.sum(),)

    def call(t: Leaves) -> Results:
        options = {"label_smoothing": smoothing, "z_loss": z_loss}
        result = ops.linear_cross_entropy(t["x"], t["weight"], t.get("bias"), labels, **options)
        assert int(result.count) == int((labels != -100).sum())
        return (result.loss_sum,)

    return Case(
        leaves, call, oracle, {"label_smoothing": smoothing, "z_loss": z_loss}, parameters=frozenset({"weight", "bias"})
    )


def encoder_layer_of_bert(draw: Draw, dtype: torch.dtype) -> Case:
    heads, dim = draw.random.choice((1, 2, 3)), draw.random.choice((8, 16, 32, 33))
    width, inner = heads * dim, draw.size(100, 1)
    lengths = draw.lengths(30, 20)
    tokens, ends = sum(lengths), draw.place(torch.tensor([0, *lengths]).cumsum(0).int())
    activation = draw.random.choice(("gelu", "gelu_tanh"))
    causal, eps = draw.chance(0.2), draw.random.choice((1e-12, 1e-5))
    spec = bert_layer(width, heads, inner, activation, eps, causal=causal)
    shapes = {"intermediate": (inner, width), "output": (width, inner), "intermediate_bias": (inner,)}
    square = ("query", "key", "value", "attention_output")
    leaves = {"x": draw.values(tokens, width, dtype=dtype, most=10.0)}
    for name in LayerParameters._fields:
        shape = shapes.get(name, (width, width) if name in square else (width,))
        leaves[name] = draw.normal(*shape, dtype=dtype, scale=shape[-1] ** -0.5 if len(shape) > 1 else 0.5)
    p = draw.random.choice((0.0, 0.0, 0.1, 0.5))
    starts = ends[:-1].long()
    sequences = draw.place(torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths, dtype=torch.int64)))
    offsets = draw.place(torch.arange(tokens) - starts[sequences])
    key = draw.keys(len(lengths))
    indices = None
    if draw.chance(0.3) and tokens:
        indices = draw.integers(tokens, draw.size(tokens))
    index, recompute = draw.random.randint(0, 11), draw.chance(0.3)
    drops = {"dropout_key": key, "sequence_ids": sequences, "offsets": offsets} if p else {}
    batch = LayerBatch(
        cu_seqlens=ends, max_seqlen=max(lengths, default=0), attention_p=p, attention_output_p=p, output_p=p,
        token_indices=indices, **drops,
    )  # fmt: skip

    def call(t: Leaves) -> Results:
        weights = LayerParameters(*[t[name] for name in LayerParameters._fields])
        return (encoder_layer(t["x"], weights, spec, batch, index, recompute=recompute),)

    def dropped(x: Tensor, site: int) -> Tensor:
        where = (sequences, offsets) if indices is None else (sequences[indices], offsets[indices])
        return _dropped(x, TokenDropout(p, key, *where, ops.Site(site).of_layer(index)) if p else None)

    def joined(t: Leaves, name: str, x: Tensor) -> Tensor:
        return x @ t[name].transpose(0, 1) + t[f"{name}_bias"]

    def attend(t: Leaves) -> tuple[Tensor, ...]:
        q, k, v = (joined(t, name, t["x"]).view(tokens, heads, dim) for name in ("query", "key", "value"))
        site = ops.Site.ATTENTION.of_layer(index)
        options: dict[str, Any] = {"dropout_p": p, "dropout_key": key, "dropout_site": site} if p else {}
        return q, k, v, *(reference.attention(q, k, x, ends, ends, causal=causal, **options) for x in (v, v.abs()))

    def finish(t: Leaves, context: Tensor) -> Tensor:
        x = t["x"]
        if indices is not None:
            context, x = context[indices], x[indices]
        x = x + dropped(joined(t, "attention_output", context), ops.Site.ATTENTION_OUTPUT)
        x = reference.layer_norm(x, t["attention_norm"], t["attention_norm_bias"], eps)
        h = reference.gelu(joined(t, "intermediate", x), "tanh" if activation == "gelu_tanh" else "none")
        x = x + dropped(joined(t, "output", h), ops.Site.FEED_FORWARD_OUTPUT)
        return reference.layer_norm(x, t["output_norm"], t["output_norm_bias"], eps)

    def oracle(t: Leaves) -> Results:
        return (finish(t, attend(t)[3].flatten(1)),)

    def terms(t: Leaves, upstream: list[Tensor]) -> dict[str, float]:
        """As in `attention`, multiplied by the projections of q and k."""
        if not upstream or not upstream[0].numel():
            return {}
        q, k, _, context, magnitudes = attend(t)
        context = context.flatten(1).detach().requires_grad_()
        gradient = torch.autograd.grad(finish(t, context), context, upstream)[0]
        d = 2 * (gradient.abs() * magnitudes.flatten(1)).unflatten(1, (heads, dim)).sum(-1) * dim**-0.5
        of_q, of_k = float(d.max() * k.abs().max()), float(d.sum() * q.abs().max())
        bounds = {"x": of_q * float(t["query"].abs().sum(0).max()) + of_k * float(t["key"].abs().sum(0).max())}
        for name, bound in (("query", of_q), ("key", of_k)):
            bounds |= {name: bound * float(t["x"].abs().sum(0).max()), f"{name}_bias": bound * tokens}
        return {f"gradient of {name}": bound for name, bound in bounds.items()}

    shown = {"lengths": lengths, "heads": heads, "inner": inner, "p": p, "causal": causal, "eps": eps}
    shown |= {"activation": activation, "indices": None if indices is None else len(indices), "recompute": recompute}
    names = frozenset(LayerParameters._fields)
    return Case(leaves, call, oracle, shown, parameters=names, terms=terms)


def matmul_with_epilogue(draw: Draw, dtype: torch.dtype) -> Case:
    """The native matmul with all that it adds in its epilogue, on fp32, bf16 and, of int8, the quantised definition."""
    rows, depth, columns = draw.rows(140), draw.size(300, 1), draw.size(300, 1)
    element = draw.random.choice(("float", "float", "int8"))
    activation = draw.random.choice((None, None, "gelu", "gelu_tanh"))
    leaves = {
        "x": draw.place(draw.values(rows, depth, dtype=dtype, most=1e3).contiguous()),
        "weight": draw.normal(columns, depth, dtype=dtype, scale=depth**-0.5),
    }
    if draw.chance(0.6):
        leaves["bias"] = draw.normal(columns, dtype=dtype)
    if draw.chance(0.4):
        leaves["residual"] = draw.normal(rows, columns, dtype=dtype)
    if draw.chance(0.3):
        leaves |= {"norm_weight": draw.normal(columns, dtype=dtype), "norm_bias": draw.normal(columns, dtype=dtype)}
    name = "int8" if element == "int8" else {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]

    def call(t: Leaves) -> Results:
        norm = (t["norm_weight"], t["norm_bias"], 1e-5) if "norm_weight" in t else None
        packed = matmul.prepack(t["weight"], name)
        return (matmul.matmul(t["x"], packed, t.get("bias"), activation, t.get("residual"), norm),)

    def formula(t: Leaves, wide: torch.dtype, norm: bool = True) -> Results:
        x, weight = t["x"].to(wide), t["weight"].to(wide)
        if element == "int8":
            # Neighbouring inputs are rounded to the same integers: what they differ by is added.
            x = _dequantised_rows(leaves["x"]).to(wide) + (t["x"] - leaves["x"])
            weight = _dequantised_weight(leaves["weight"]).to(wide) + (t["weight"] - leaves["weight"])
        u = x @ weight.transpose(0, 1) + t.get("bias", torch.zeros(())).to(wide)
        if activation is not None:
            u = F.gelu(u, approximate="tanh" if activation == "gelu_tanh" else "none")
        u = u + t.get("residual", torch.zeros(())).to(wide)
        if "norm_weight" in t and norm:
            u = F.layer_norm(u, u.shape[-1:], t["norm_weight"].to(wide), t["norm_bias"].to(wide), 1e-5)
        return (u,)

    def eager(t: Leaves) -> Results:
        return (formula(t, torch.float32 if element == "int8" else dtype)[0].to(dtype),)

    def terms(t: Leaves, upstream: list[Tensor]) -> dict[str, float]:
        if "norm_weight" not in t:
            return {}
        return _terms_of_norm(formula(t, torch.float64, norm=False)[0], t["norm_weight"], 1e-5, [], ())

    shown = {"element": name, "activation": activation}
    return Case(leaves, call, lambda t: formula(t, torch.float64), shown, trains=False, eager=eager, terms=terms)


def _dequantised_rows(x: Tensor) -> Tensor:
    """Return rows as int8 holds them: x * (127 / peak) in fp32, rounded to integers, times peak / 127; a row of no more
    than 2^-100 counts as zeros."""
    x = x.float()
    peak = x.abs().amax(1, keepdim=True) if x.numel() else x.new_ones(len(x), 1)
    peak = torch.where(peak < 2.0**-100, 0.0, peak)
    factor = torch.where(peak > 0, torch.full_like(peak, 127.0) / peak, 0.0)
    return (x * factor).round().double() * (peak / 127.0).double()


def _dequantised_weight(weight: Tensor) -> Tensor:
    """Return a weight as int8 holds it: rounded quotients by peak / 127, which is once rounded to fp32."""
    weight = weight.float()
    scale = weight.abs().amax(1, keepdim=True) / 127.0
    integers = torch.where(scale > 0, (weight / scale).clamp(-127.0, 127.0).round(), 0.0)
    return integers.double() * scale.double()


OPERATIONS: dict[str, Callable[[Draw, torch.dtype], Case]] = {
    function.__name__: function
    for function in (
        attention, bias_gelu, dropout, dropout_add_layer_norm, dropout_add_rms_norm, embedding_layer_norm,
        gated_activation, gelu_layer_norm, layer_norm, linear, linear_cross_entropy, rms_norm, softmax,
    )
} | {"encoder_layer": encoder_layer_of_bert, "matmul": matmul_with_epilogue}  # fmt: skip


def as_leaf(name: str, x: Tensor, case: Case, needs: bool) -> Tensor:
    """Return a tensor as a leaf of autograd, without a copy, or as a parameter."""
    if name in case.parameters:
        return nn.Parameter(x.detach(), needs)
    return x.detach().requires_grad_(needs)

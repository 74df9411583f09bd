"""A whole encoder layer as one operation: what lies between its products is fused, and gradients of residual
connections are added inside the products that follow.

Models use it where a backend has it and every part of a layer is a plain module; elsewhere they put the layer together
from the other operations, which gives the same within rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops import dispatch
from fastbert.ops.attention.arguments import AttentionProblem
from fastbert.ops.attention.op import HEAD_DIMS, tf32_allowed
from fastbert.ops.autocast import without_autocast
from fastbert.ops.custom_op import operator
from fastbert.ops.dropout.arguments import Site, TokenDropout
from fastbert.ops.encoder_layer import native_inference
from fastbert.ops.native import buffers as native

WIDEST = 8192  # of a row that the LayerNorm kernels keep in registers


class LayerWeights(NamedTuple):
    """The parameters of a layer: products (out, in), biases and LayerNorms (width,)."""

    query: Tensor
    key: Tensor
    value: Tensor
    query_bias: Tensor
    key_bias: Tensor
    value_bias: Tensor
    attention_output: Tensor
    attention_output_bias: Tensor
    attention_norm: Tensor
    attention_norm_bias: Tensor
    intermediate: Tensor
    intermediate_bias: Tensor
    output: Tensor
    output_bias: Tensor
    output_norm: Tensor
    output_norm_bias: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerSettings:
    """Everything else: where sequences begin, what is dropped, and the layer's numbers."""

    cu_seqlens: Tensor
    max_seqlen: int
    heads: int
    eps: float
    tanh: bool
    """GELU by its approximation."""
    causal: bool
    layer: int
    """Counts the layer's dropout sites."""
    attention_p: float
    hidden_p: float
    dropout_key: Tensor | None
    """int64 (sequences,), with `sequence_ids` and `offsets` int64 (tokens,); None where nothing is dropped."""
    sequence_ids: Tensor | None
    offsets: Tensor | None
    rows: Tensor | None = None
    """int64 (rows,): the tokens whose output is wanted, some of them repeatedly perhaps; None: all, in their order.
    Attention looks at every token; what follows it is computed of these alone."""

    def hidden_dropout(self, site: Site) -> TokenDropout | None:
        """Dropout of the output's token vectors at a site of this layer."""
        if self.dropout_key is None or not self.hidden_p:
            return None
        assert self.sequence_ids is not None
        assert self.offsets is not None
        dropout = TokenDropout(
            self.hidden_p, self.dropout_key, self.sequence_ids, self.offsets, site.of_layer(self.layer)
        )
        return dropout if self.rows is None else dropout.select(self.rows)

    def outputs(self, tokens: Tensor) -> Tensor:
        """Of vectors (tokens, width) those of the output's tokens."""
        return tokens if self.rows is None else tokens.index_select(0, self.rows)

    def spread(
        self, outputs: Tensor, tokens: int, zeros: Callable[[tuple[int, int], torch.dtype], Tensor] | None = None
    ) -> Tensor:
        """The gradient of what `outputs` took, in `zeros` (tokens, width) where nothing was taken; without `rows` the
        gradient itself."""
        if self.rows is None:
            return outputs
        shape = (tokens, outputs.shape[1])
        spread = outputs.new_zeros(shape) if zeros is None else zeros(shape, outputs.dtype)
        return spread.index_add_(0, self.rows, outputs)

    def problem(self, qkv: Tensor, tf32: bool) -> AttentionProblem:
        """The attention of joined projections (tokens, 3, heads, head_dim)."""
        q, k, v = qkv.unbind(1)
        return AttentionProblem(
            q=q,
            k=k,
            v=v,
            cu_seqlens_q=self.cu_seqlens,
            cu_seqlens_k=self.cu_seqlens,
            max_seqlen_q=self.max_seqlen,
            max_seqlen_k=self.max_seqlen,
            causal=self.causal,
            dropout_p=self.attention_p,
            dropout_key=self.dropout_key if self.attention_p else None,
            dropout_site=Site.ATTENTION.of_layer(self.layer),
            bias=None,
            scale=1 / math.sqrt(q.shape[2]),
            tf32=tf32,
        )


# What the operator saves of a layer in training.
SAVE_NOTHING, SAVE_CHEAPLY, SAVE_ALL = 0, 1, 2


def serves(x: Tensor, weights: LayerWeights, heads: int, *, dropped: bool = False, int8: bool = False) -> str | None:
    """What computes this layer of `x` (tokens, width) as one operation: "triton", or on CPUs in inference what the
    native kernels multiply ("bf16", "int8", "fp32") and "training" where a gradient is wanted or something dropped;
    None where it is to be put together from single operations.

    `dropped`: something is dropped. `int8`: quantised, in inference without dropout.
    """
    chosen = dispatch.choose("encoder_layer", x.device)
    if chosen == "eager" or x.dim() != 2:
        return None
    dtype, width = product_dtype(x), x.shape[1]
    if chosen == "native":
        if x.dtype not in native.DTYPES or native.is_transformed():
            return None
        gradient = torch.is_grad_enabled() and (x.requires_grad or any(weight.requires_grad for weight in weights))
        element = native_inference.element_of(x.shape[0], dtype, weights, heads, int8 and not (gradient or dropped))
        return "training" if element is not None and (gradient or dropped) else element
    dispatch.require_triton(x.device, "x")
    if dtype not in (torch.float32, torch.bfloat16, torch.float16) or width > WIDEST:
        return None
    if width % heads or width // heads not in HEAD_DIMS:
        return None
    served = all(weight.dtype in (dtype, torch.float32) and weight.device == x.device for weight in weights)
    return "triton" if served else None


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of matrix products with `x`: autocast's where it is on."""
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def encoder_layer(
    x: Tensor, weights: LayerWeights, settings: LayerSettings, *, recompute: bool = False, served: str = "triton"
) -> Tensor:
    """The layer's output, (tokens, width) like `x`, in the dtype of the products (autocast's, else that of `x`).

    With `settings.rows` it is (rows, width), of these tokens alone.

    `served` is what `serves` answered. `recompute`: keep less for backward, which then computes LayerNorms again. GELU
    is never kept. Weights may be fp32 with products in half precision: their gradients are then accumulated and
    returned in fp32. Raises UserError for offsets that do not describe the tokens (on a GPU under FASTBERT_DEBUG=1).
    """
    offsets = settings.cu_seqlens
    if offsets.dtype != torch.int32 or offsets.dim() != 1 or not len(offsets) or not offsets.is_contiguous():
        raise UserError(
            f"cu_seqlens must be contiguous int32 of shape (sequences + 1,), not {offsets.dtype} {tuple(offsets.shape)}"
        )
    if offsets.device != x.device:
        raise UserError(f"cu_seqlens is on {offsets.device}, x on {x.device}: move them to one device")
    dispatch.refuse_forward_mode("encoder_layer")
    if settings.rows is not None:
        _check_rows(settings.rows, x)
    if served not in ("triton", "training"):
        return native_inference.encoder_layer(x, weights, settings, product_dtype(x), served)
    trained = torch.is_grad_enabled() and (x.requires_grad or any(weight.requires_grad for weight in weights))
    save = (SAVE_CHEAPLY if recompute else SAVE_ALL) if trained else SAVE_NOTHING
    tf32 = product_dtype(x) == torch.float32 and tf32_allowed()
    flat = tuple(getattr(settings, name) for name in _SETTINGS)
    result: Tensor = _forward(x, *weights, *flat, product_dtype(x), tf32, save, served == "training")[0]
    return result


_SQUARE = ("query", "key", "value", "attention_output")


def _check(x: Tensor, weights: LayerWeights, settings: LayerSettings) -> None:
    """Refuse weights and keys that kernels, which have nothing but their addresses, would read beyond the end."""
    inner, width = len(weights.intermediate), x.shape[1]
    widened = {"intermediate": (inner, width), "output": (width, inner), "intermediate_bias": (inner,)}
    for name, tensor in weights._asdict().items():
        shape = widened.get(name, (width, width) if name in _SQUARE else (width,))
        if tensor.shape != shape:
            raise UserError(f"{name} of layer {settings.layer} has shape {tuple(tensor.shape)}: it must be {shape}")
    key, sequences = settings.dropout_key, len(settings.cu_seqlens) - 1
    if key is not None and (key.dtype != torch.int64 or key.shape != (sequences,) or key.device != x.device):
        raise UserError(
            f"dropout_key must be int64 of shape ({sequences},) on {x.device}, one a sequence, not {key.dtype}"
            f" {tuple(key.shape)} on {key.device}"
        )
    dropped = replace(settings, rows=None).hidden_dropout(Site.ATTENTION_OUTPUT)
    if dropped is not None:
        dropped.check(x)


def _check_rows(rows: Tensor, x: Tensor) -> None:
    if rows.dtype != torch.int64 or rows.dim() != 1 or rows.device != x.device:
        raise UserError(f"rows must be int64 of shape (rows,) on {x.device}, not {rows.dtype} {tuple(rows.shape)}")


_SETTINGS = tuple(LayerSettings.__dataclass_fields__)


def _settings(values: tuple[Any, ...]) -> LayerSettings:
    return LayerSettings(**dict(zip(_SETTINGS, values, strict=True)))


@operator("fastbert::encoder_layer")
def _forward(
    x: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_bias: Tensor,
    key_bias: Tensor,
    value_bias: Tensor,
    attention_output: Tensor,
    attention_output_bias: Tensor,
    attention_norm: Tensor,
    attention_norm_bias: Tensor,
    intermediate: Tensor,
    intermediate_bias: Tensor,
    output: Tensor,
    output_bias: Tensor,
    output_norm: Tensor,
    output_norm_bias: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    heads: int,
    eps: float,
    tanh: bool,
    causal: bool,
    layer: int,
    attention_p: float,
    hidden_p: float,
    dropout_key: Tensor | None,
    sequence_ids: Tensor | None,
    offsets: Tensor | None,
    rows: Tensor | None,
    dtype: torch.dtype,
    tf32: bool,
    save: int,
    native: bool,
) -> list[Tensor]:
    """The output, and where something is saved what backward wants: see `forward` in `_kernels`."""
    weights = LayerWeights(
        query, key, value, query_bias, key_bias, value_bias, attention_output, attention_output_bias, attention_norm,
        attention_norm_bias, intermediate, intermediate_bias, output, output_bias, output_norm, output_norm_bias,
    )  # fmt: skip
    settings = _settings(
        (cu_seqlens, max_seqlen, heads, eps, tanh, causal, layer, attention_p, hidden_p, dropout_key, sequence_ids,
         offsets, rows)
    )  # fmt: skip
    # Inside of the operator, where a compiled graph may look too.
    _check(x, weights, settings)
    with without_autocast(x.device):
        found: list[Tensor] = _kernels(native).forward(x, weights, settings, dtype, tf32, save)
    return found


def _kernels(native: bool) -> Any:
    """The module that computes a layer forward and backward."""
    if native:
        from fastbert.ops.encoder_layer import native_training

        return native_training
    from fastbert.kernels import encoder_layer as kernels

    return kernels


@_forward.register_fake
def _(x: Tensor, *others: Any) -> list[Tensor]:
    weights = LayerWeights(*others[: len(LayerWeights._fields)])
    settings = _settings(others[len(weights) : -4])
    dtype, _, save, _ = others[-4:]
    tokens, width = x.shape
    outputs = tokens if settings.rows is None else settings.rows.shape[0]

    def empty(*shape: Any, kind: torch.dtype = dtype) -> Tensor:
        return x.new_empty(shape, dtype=kind)

    y = empty(outputs, width)
    if save == SAVE_NOTHING:
        return [y]
    statistics = [empty(outputs, kind=torch.float32) for _ in range(4)]
    lse = empty(settings.heads, tokens, kind=torch.float32)
    saved = [empty(tokens, 3 * width), empty(tokens, width), lse, empty(outputs, width), *statistics[:2]]
    saved += [empty(outputs, weights.intermediate.shape[0]), empty(outputs, width), *statistics[2:]]
    return [y, *saved, *([empty(outputs, width)] if save == SAVE_ALL else [])]


class Wanted(NamedTuple):
    """Which gradients backward computes, in its order: the projections' are joined, and LayerNorms come with the bias
    before them as (3, width): weight, bias, bias of the product. Vectors are fp32 and cost nothing."""

    x: bool
    projections: bool
    projection_biases: bool
    attention_output: bool
    attention_vectors: bool
    intermediate: bool
    intermediate_bias: bool
    output: bool
    output_vectors: bool


@operator("fastbert::encoder_layer_backward")
def _backward(
    grad: Tensor,
    saved: list[Tensor],
    x: Tensor,
    weights: list[Tensor],
    cu_seqlens: Tensor,
    max_seqlen: int,
    heads: int,
    eps: float,
    tanh: bool,
    causal: bool,
    layer: int,
    attention_p: float,
    hidden_p: float,
    dropout_key: Tensor | None,
    sequence_ids: Tensor | None,
    offsets: Tensor | None,
    rows: Tensor | None,
    dtype: torch.dtype,
    tf32: bool,
    native: bool,
    wanted: list[bool],
) -> list[Tensor]:
    """The gradients in the order of `Wanted`."""
    settings = _settings(
        (cu_seqlens, max_seqlen, heads, eps, tanh, causal, layer, attention_p, hidden_p, dropout_key, sequence_ids,
         offsets, rows)
    )  # fmt: skip
    kernels = _kernels(native)
    found: list[Tensor] = kernels.backward(
        grad, saved, x, LayerWeights(*weights), settings, dtype, tf32, Wanted(*wanted)
    )
    return found


@_backward.register_fake
def _(grad: Tensor, saved: list[Tensor], x: Tensor, weights: list[Tensor], *others: Any) -> list[Tensor]:
    wanted, given, width = Wanted(*others[-1]), LayerWeights(*weights), x.shape[1]
    joined = x.new_empty((3 * width, width) if wanted.projections else (0,), dtype=given.query.dtype)

    def sums(*shape: int) -> Tensor:
        return x.new_empty(shape, dtype=torch.float32)

    def like(weight: Tensor, want: bool) -> Tensor:
        return torch.empty_like(weight) if want else weight.new_empty(0)

    return [
        like(x, wanted.x),
        joined,
        sums(3 * width if wanted.projection_biases else 0),
        like(given.attention_output, wanted.attention_output),
        sums(3, width),
        like(given.intermediate, wanted.intermediate),
        sums(given.intermediate.shape[0]),
        like(given.output, wanted.output),
        sums(3, width),
    ]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    weights = len(LayerWeights._fields)
    x, settings, (dtype, tf32, _, native) = inputs[0], inputs[1 + weights : -4], inputs[-4:]
    # The output itself is not needed: the sum before its LayerNorm is kept.
    tensors = {i: value for i, value in enumerate(settings) if isinstance(value, Tensor)}
    ctx.save_for_backward(x, *inputs[1 : 1 + weights], *tensors.values(), *output[1:])
    ctx.places = tuple(tensors)
    ctx.settings = tuple(None if i in tensors else value for i, value in enumerate(settings))
    ctx.numbers = (dtype, tf32, native)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    count = len(LayerWeights._fields)
    behind = (None,) * (len(_SETTINGS) + 4)
    grad = grads[0]
    if grad is None:
        return (None,) * (1 + count) + behind
    x, *rest = ctx.saved_tensors
    weights, rest = rest[:count], rest[count:]
    settings = list(ctx.settings)
    for i, tensor in zip(ctx.places, rest, strict=False):
        settings[i] = tensor
    saved = rest[len(ctx.places) :]
    needs = ctx.needs_input_grad[: 1 + count]
    of_weights = dict(zip(LayerWeights._fields, needs[1:], strict=True))
    wanted = Wanted(
        x=needs[0],
        projections=any(needs[1:4]),
        projection_biases=any(needs[4:7]),
        attention_output=of_weights["attention_output"],
        attention_vectors=True,
        intermediate=of_weights["intermediate"],
        intermediate_bias=True,
        output=of_weights["output"],
        output_vectors=True,
    )
    found = _backward(grad.contiguous(), saved, x, weights, *settings, *ctx.numbers, list(wanted))
    dx, projections, projection_biases, dwo, first, dw1, db1, dw2, last = found
    gradients = [
        *projections.chunk(3), *projection_biases.chunk(3), dwo, first[2], first[0], first[1], dw1, db1, dw2, last[2],
        last[0], last[1],
    ]  # fmt: skip
    found = [
        gradient.to(weight.dtype) if need else None
        for gradient, weight, need in zip(gradients, weights, needs[1:], strict=True)
    ]
    return dx if needs[0] else None, *found, *behind


_forward.register_autograd(_gradients, setup_context=_setup_context)
dispatch.register("encoder_layer", "eager", "composed of the other operations")
dispatch.register("encoder_layer", "triton", "fastbert.kernels.encoder_layer")
dispatch.register("encoder_layer", "native", "fastbert.ops.encoder_layer.native_inference")

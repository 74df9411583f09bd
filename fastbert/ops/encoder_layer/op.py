"""A whole encoder layer as one operation: what lies between its matmuls is fused, and gradients of residual connections
are added inside the matmuls that follow.

Where no backend fuses a layer, it is composed of the single operations, which gives the same within rounding.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastbert.io.log import logger
from fastbert.ops import custom_op, dispatch
from fastbert.ops.attention.op import ATTENTION, tf32_allowed
from fastbert.ops.autocast import matmul_dtype, without_autocast
from fastbert.ops.encoder_layer import accumulating, eager, flat_layer, native, triton
from fastbert.ops.encoder_layer.arguments import (
    SAVE_ALL,
    SAVE_CHEAPLY,
    SAVE_NOTHING,
    EncoderLayerArguments,
    GradMask,
    LayerBatch,
    LayerParameters,
)
from fastbert.ops.encoder_layer.spec import LayerSpec, decode_spec
from fastbert.ops.operation import Backend, Operation

ENCODER_LAYER = Operation("encoder_layer", eager.Eager(), native.Native(), triton.Triton())


def encoder_layer(
    x: Tensor,
    parameters: LayerParameters,
    spec: LayerSpec,
    batch: LayerBatch,
    index: int = 0,
    *,
    int8: bool = False,
    recompute: bool = False,
) -> Tensor:
    """Compute a post-LN encoder layer (Vaswani et al. 2017, section 3.1; Devlin et al. 2019).

    x (tokens, hidden_size), bf16, fp16 or fp32. Returns (tokens, hidden_size) in the dtype of matmuls (autocast's, else
    that of x), or (rows, hidden_size) of the tokens `batch.token_indices`. `index` counts the dropout sites. `int8`
    quantises weights per output and tokens one by one, on CPUs in inference without dropout. `recompute` saves less for
    backward, which then computes LayerNorms again; GELU is never saved. Parameters may be fp32 with matmuls in half
    precision: their gradients are then accumulated and returned in fp32.

    The `triton` backend supports head widths 32, 64, 96 and 128 up to 8192 features, the `native` backend any head
    width up to 256 where the matmul table prefers its matmuls; other layers, and specs of other kinds, are composed of
    single operations. Raises UserError for offsets that do not describe the tokens (on a GPU under FASTBERT_DEBUG=1).
    """
    arguments = EncoderLayerArguments(
        x, parameters, spec, batch, index, matmul_dtype(x), int8=int8, recompute=recompute
    )
    return run(arguments, select(arguments))


def select(arguments: EncoderLayerArguments) -> Backend[EncoderLayerArguments]:
    """Return the backend that computes a layer; `eager` means that it is composed of single operations."""
    return dispatch.select_backend(ENCODER_LAYER, arguments.x.device, arguments)


def run(arguments: EncoderLayerArguments, backend: Backend[EncoderLayerArguments]) -> Tensor:
    """Compute a layer on the backend that `select` returned."""
    arguments.check()
    if backend.composite:
        return backend.forward(arguments)
    dispatch.refuse_forward_mode("encoder_layer")
    trains, tf32 = arguments.needs_backward, arguments.dtype == torch.float32 and tf32_allowed()
    if backend.name == "triton" and not torch.compiler.is_compiling():
        owned = flat_layer.owner(arguments.parameters, arguments.dtype)
        if owned is not None:
            return accumulating.run(arguments._replace(tf32=tf32), *owned)
        if trains and arguments.parameters.query.dtype != arguments.dtype:
            _log_casts(arguments.dtype)
    if backend.name == "native" and not (trains or arguments.batch.drops):
        return backend.infer(arguments)  # type: ignore[attr-defined]
    save = (SAVE_CHEAPLY if arguments.recompute else SAVE_ALL) if trains else SAVE_NOTHING
    x, parameters, spec, batch, index, dtype, *_ = arguments
    flat = [getattr(batch, name) for name in FlatBatch._fields]
    return _forward(x, list(parameters), spec.encoded, *flat, index, dtype, tf32, save, backend.name)[0]


@functools.cache
def _log_casts(dtype: torch.dtype) -> None:
    """Log once that a layer trains without flat buffers: under DDP and FSDP, with another optimiser, in fp16."""
    logger.info(
        "encoder layers cast their weights to %s in every forward and backward pass, and return their gradients: only"
        " `fastbert pretrain` and `finetune` in bf16 on one GPU keep copies, and gradients that matmuls add to",
        str(dtype).removeprefix("torch."),
    )


class FlatBatch(NamedTuple):
    """A LayerBatch that drops with one probability behind both halves, as operators of torch receive it."""

    cu_seqlens: Tensor
    max_seqlen: int
    attention_p: float
    output_p: float
    dropout_key: Tensor | None
    sequence_ids: Tensor | None
    offsets: Tensor | None
    token_indices: Tensor | None

    def rebuild(self) -> LayerBatch:
        """Return the batch that was flattened."""
        return LayerBatch(**self._asdict(), attention_output_p=self.output_p)


@custom_op.operator("fastbert::encoder_layer")
def _forward(
    x: Tensor,
    parameters: list[Tensor],
    spec: str,
    batch: FlatBatch,
    index: int,
    dtype: torch.dtype,
    tf32: bool,
    save: int,
    backend: str,
) -> list[Tensor]:
    """Return the output and, if anything is saved, the tensors of the backend's backward."""
    layer = (LayerParameters(*parameters), decode_spec(spec), batch.rebuild())
    arguments = EncoderLayerArguments(x, *layer, index, dtype, tf32)
    arguments.check_shapes()
    with without_autocast(x.device):
        return ENCODER_LAYER.backend(backend).forward(arguments, save)


@_forward.register_fake
def _(
    x: Tensor, parameters: list[Tensor], spec: str, batch: FlatBatch, index: int, dtype: torch.dtype, *others: Any
) -> list[Tensor]:
    (tokens, width), (tf32, save, backend) = x.shape, others
    rows = tokens if batch.token_indices is None else batch.token_indices.shape[0]
    inner, heads = LayerParameters(*parameters).intermediate.shape[0], decode_spec(spec).self_attention.heads

    def empty(*shape: Any, kind: torch.dtype = dtype) -> Tensor:
        return x.new_empty(shape, dtype=kind)

    y = empty(rows, width)
    if save == SAVE_NOTHING:
        return [y]
    statistics = [empty(rows, kind=torch.float32) for _ in range(4)]
    lse = empty(heads, tokens, kind=torch.float32)
    saved = [empty(tokens, 3 * width), empty(tokens, width), lse]
    if backend == "triton":
        layer = (LayerParameters(*parameters), decode_spec(spec), batch.rebuild())
        attention = EncoderLayerArguments(x, *layer, index, dtype, tf32).attention(saved[0])
        rest_rows = ATTENTION.backend(backend).rest_rows(attention)
        saved.append(empty(rest_rows, *attention.q.shape[1:]))
    saved += [empty(rows, width), *statistics[:2]]
    saved += [empty(rows, inner), empty(rows, width), *statistics[2:]]
    return [y, *saved, *([empty(rows, width)] if save == SAVE_ALL else [])]


@custom_op.operator("fastbert::encoder_layer_backward")
def _backward(
    grad: Tensor,
    saved: list[Tensor],
    x: Tensor,
    parameters: list[Tensor],
    spec: str,
    batch: FlatBatch,
    index: int,
    dtype: torch.dtype,
    tf32: bool,
    backend: str,
    mask: list[bool],
) -> list[Tensor]:
    """Return the gradients in the order of `GradMask`."""
    layer = (LayerParameters(*parameters), decode_spec(spec), batch.rebuild())
    arguments = EncoderLayerArguments(x, *layer, index, dtype, tf32)
    return ENCODER_LAYER.backend(backend).backward(arguments, grad, saved, GradMask(*mask))


@_backward.register_fake
def _(grad: Tensor, saved: list[Tensor], x: Tensor, parameters: list[Tensor], *others: Any) -> list[Tensor]:
    mask, weights, width = GradMask(*others[-1]), LayerParameters(*parameters), x.shape[1]
    joined = x.new_empty((3 * width, width) if mask.projections else (0,), dtype=weights.query.dtype)

    def sums(*shape: int) -> Tensor:
        return x.new_empty(shape, dtype=torch.float32)

    def like(weight: Tensor, computed: bool) -> Tensor:
        return torch.empty_like(weight) if computed else weight.new_empty(0)

    return [
        like(x, mask.x),
        joined,
        sums(3 * width if mask.projection_biases else 0),
        like(weights.attention_output, mask.attention_output),
        sums(3, width),
        like(weights.intermediate, mask.intermediate),
        sums(weights.intermediate.shape[0]),
        like(weights.output, mask.output),
        sums(3, width),
    ]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, parameters, *options = inputs
    # The output itself is not needed: the sum before its LayerNorm is saved.
    custom_op.save(ctx, x, *parameters, *options, *output[1:])
    ctx.set_materialize_grads(False)


@_forward.register_autograd(setup_context=_setup_context)
def _(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    needs_x, needs, *others = ctx.needs_input_grad
    count, after = len(needs), [None] * len(others)
    grad = grads[0]
    if grad is None:
        return None, [None] * count, *after
    x, *values = custom_op.saved(ctx)
    parameters, values = values[:count], values[count:]
    (*options, _, backend), saved = values[: len(others)], values[len(others) :]
    by_name = LayerParameters(*needs)
    mask = GradMask(
        x=needs_x,
        projections=any(needs[:3]),
        projection_biases=any(needs[3:6]),
        attention_output=bool(by_name.attention_output),
        attention_vectors=True,
        intermediate=bool(by_name.intermediate),
        intermediate_bias=True,
        output=bool(by_name.output),
        output_vectors=True,
    )
    dx, projections, projection_biases, dwo, first, dw1, db1, dw2, last = _backward(
        grad.contiguous(), saved, x, parameters, *options, backend, list(mask)
    )
    gradients = [
        *projections.chunk(3), *projection_biases.chunk(3), dwo, first[2], first[0], first[1], dw1, db1, dw2, last[2],
        last[0], last[1],
    ]  # fmt: skip
    of_parameters = [
        gradient.to(parameter.dtype) if needed else None
        for gradient, parameter, needed in zip(gradients, parameters, needs, strict=True)
    ]
    return dx if needs_x else None, of_parameters, *after

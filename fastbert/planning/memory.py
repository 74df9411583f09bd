"""Memory of a pre-training step on one device, part by part, at the moment when most is in use. Imports no torch.

Sizes follow from what the kernels save (docs/performance-cpu.md, docs/performance-gpu.md) and from the order in which a
step allocates and frees: gradients of a layer appear when its activations go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from fastbert.planning.flops import BatchStatistics, Checkpointing, last_layer_rows
from fastbert.planning.parameters import PartParameters, parameters, total
from fastbert.planning.stacks import ElmoShape, EncoderShape, ModelShape

Parallel = Literal["none", "ddp", "fsdp"]
FP32 = 4
DTYPE_BYTES = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4}
MOMENT = 4  # bytes of a moment per parameter, in fp32
CHUNK = 2048  # tokens of the feed-forward network at a time, on CPUs
CPU_LOGITS, CPU_ROWS = 64 << 20, 128  # logits of a chunk: bytes, and rows at least
GPU_LOGITS, GPU_SHARE = 128_000_000, 0.09 * 12  # bytes in one chunk; above, bytes per logit of all rows
SMALLEST_SNAPSHOT = 32 << 20  # bytes; smaller checkpoints are written at once
DDP_BUCKET = 25 << 20  # bytes; two are compressed at a time
CUDA_CONTEXT = 900 << 20
"""Context, libraries and kernels of a process on a GPU, and what the allocator does not use of its blocks."""
GATHERED_LAYERS = 2
"""Layers whose weights FSDP holds whole at a time: the one that is computed, and the next."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a step is computed on a device."""

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: str = "bf16"
    """Of matmuls and activations."""
    param_dtype: Literal["fp32", "bf16"] = "fp32"
    """Of weights and gradients; beside bf16 the optimiser has fp32 masters."""
    optimizer: str = "adamw"
    checkpointing: Checkpointing = "none"
    parallel: Parallel = "none"
    devices: int = 1
    accumulates: bool = False
    """True if a step has several micro-batches, whose gradients are added up."""
    kernels: bool = True
    """True if a layer is one operation of the kernels, and on a CPU its matmuls read prepacked weights."""
    snapshot: bool = False
    """True if a copy of model and optimiser stays in the memory of a CPU, from which checkpoints are written."""
    long_sequences: bool = False
    """True if sequences are longer than 128 tokens, for which the kernels of a GPU save one vector more."""

    @property
    def element(self) -> int:
        """Return the bytes of an activation's element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def flat(self) -> bool:
        """Return whether all parameters are in flat buffers with a bf16 copy: on one GPU, in bf16."""
        plain = self.param_dtype == "fp32" and self.parallel == "none" and self.kernels and self.optimizer != "muon"
        return self.device == "cuda" and self.dtype == "bf16" and plain

    @property
    def weight(self) -> int:
        """Return the bytes of a weight, and of its gradient."""
        return DTYPE_BYTES[self.param_dtype]

    def state(self, parts: Iterable[PartParameters]) -> int:
        """Return the bytes of the optimiser's state: two moments of each parameter, one where it is Muon's, masters."""
        master = FP32 if self.param_dtype == "bf16" else 0
        return sum(
            part.count * ((1 if self.optimizer == "muon" and part.is_layers else 2) * MOMENT + master) for part in parts
        )


@dataclass(frozen=True)
class MemoryPlan:
    """The bytes of each part on one device at the moment when most memory is in use."""

    parts: dict[str, int]
    when: str
    """The phase of a step at that moment."""
    phases: dict[str, int] = field(default_factory=dict)
    """The bytes in use in each phase."""
    activations: int = 0
    """Bytes that the forward pass saves, the gradient of the vocabulary's matrix left out."""

    @property
    def total(self) -> int:
        """Return the bytes of all parts."""
        return sum(self.parts.values())


def memory(shape: ModelShape, micro_batch: BatchStatistics, setup: Setup, *, baseline: int = 0) -> MemoryPlan:
    """Return the memory of a step of micro-batches with these statistics; `baseline` is what the process uses without
    a model."""
    counted = parameters(shape)
    count = total(counted)
    owned = -(-count // setup.devices) if setup.parallel == "fsdp" else count
    state = setup.state(counted)
    sharded = state if setup.parallel != "fsdp" else -(-state // setup.devices)
    fixed: dict[str, int] = {"weights": setup.weight * owned, "optimiser": sharded}
    if setup.flat:
        fixed["bf16 copy of the weights"] = 2 * count
    if setup.device == "cpu" and setup.kernels:
        # One copy for the forward pass and one for the gradient of the input.
        fixed["prepacked weights"] = 2 * setup.element * sum(part.multiplied for part in counted)
    saved = setup.weight * count + state
    if setup.snapshot and setup.device == "cpu" and saved >= SMALLEST_SNAPSHOT:
        fixed["copy for checkpoints"] = saved
    if setup.parallel == "ddp":
        fixed["DDP buckets"] = setup.weight * count + min(2 * DDP_BUCKET, setup.weight * count)
    if setup.parallel == "fsdp":
        layers = [part.count for part in counted if part.is_layers]
        depth = sum(stack.distinct_layers if isinstance(stack, EncoderShape) else stack.layers for stack in shape)
        # The root holds embeddings and heads from its forward pass to its backward pass; weights are gathered in fp32.
        gathered = min(GATHERED_LAYERS, depth) * sum(layers) // depth
        fixed["gathered weights"] = FP32 * (count - sum(layers) + gathered)
        fixed["gradients to reduce"] = (FP32 + reduced_bytes(setup.dtype)) * gathered
    tables = sum(stack.rotary_elements for stack in shape if isinstance(stack, EncoderShape))
    fixed["rotary tables"] = FP32 * tables
    fixed["framework"] = baseline if setup.device == "cpu" else CUDA_CONTEXT
    phases = _phases(shape, micro_batch, setup, owned)
    when = max(phases, key=lambda name: sum(phases[name].values()))
    used = {**fixed, **phases[when]}
    parts = {name: used[name] for name in (*fixed, *(name for name in phases[when] if name not in fixed))}
    base = sum(fixed.values())
    return MemoryPlan(
        {name: size for name, size in parts.items() if size},
        when,
        {name: base + sum(phase.values()) for name, phase in phases.items()},
        phases["loss"]["activations"],
    )


def reduced_bytes(dtype: str) -> int:
    """Return the bytes of an element of gradients that processes sum, where matmuls are in `dtype`."""
    return 2 if dtype == "bf16" else FP32


def layer_bytes(stack: EncoderShape, batch: BatchStatistics, setup: Setup) -> int:
    """Return the bytes that one layer of an encoder, computed for all tokens, saves for the backward pass, its input
    included."""
    if setup.checkpointing == "layer":
        return int(stream_bytes(stack, setup) * stack.width * batch.tokens)
    before, behind = _vectors(stack, setup)
    return int((before + behind + _statistics(stack)) * batch.tokens) + _relative_bytes(stack, setup)


def stream_bytes(stack: EncoderShape, setup: Setup) -> int:
    """Return the bytes of an element of the hidden states between layers."""
    return max(FP32, setup.element) if stack.fp32_stream else setup.element


def _vectors(stack: EncoderShape, setup: Setup) -> tuple[float, float]:
    """Return the bytes of vectors that a layer saves per token, up to attention's context and behind it."""
    width, inner, element = stack.width, stack.inner, setup.element
    selective = setup.checkpointing == "selective"
    if stack.fused and setup.kernels:
        # x, qkv, context; both sums before a norm, the input of GELU, and the output of the first norm.
        behind = 2 * width + inner + (0 if selective else width)
        if setup.device == "cuda" and setup.long_sequences:
            behind += width  # what rounding removed from the context
        return 5 * width * element, behind * element
    stream, attention = stream_bytes(stack, setup), 2 * stack.queries + 2 * stack.keys
    if setup.device == "cuda" and setup.long_sequences:
        attention += stack.queries  # what rounding removed from the context
    network = stack.network_outputs + inner
    if selective:  # x, and the results of matmuls and of attention
        return stream * width + attention * element, (2 * width + stack.network_outputs) * element
    if not stack.pre_norm:
        # x, q, k, v, context; both sums before a norm, the output of the first, the activation and its input.
        return (width + attention) * element, (3 * width + network) * element
    # x and its norm, which each projection rounds, q, k, v, context; the sum, its norm, the activation and its input.
    normed = (3 if stream > element else 1) * width
    return stream * width + (normed + attention) * element, stream * width + (width + network) * element


def _statistics(stack: EncoderShape) -> float:
    """Return the bytes of numbers per token that a layer saves: of both norms, and of attention."""
    return FP32 * (2 * (1 if stack.rms_norm else 2) + stack.heads)


def _relative_bytes(stack: EncoderShape, setup: Setup) -> int:
    """Return the bytes of projected relative positions that a layer saves, and of the table that each projection
    rounds."""
    rounded = setup.element if setup.element < FP32 else 0
    return int(stack.relative_rows * stack.queries * setup.element + stack.relative_rows * stack.width * rounded)


def _last_layer(stack: EncoderShape, batch: BatchStatistics, setup: Setup) -> float:
    """Return the bytes that the last layer saves, which is computed for the tokens that the head reads."""
    if setup.checkpointing == "layer":
        return layer_bytes(stack, batch, setup)
    before, behind = _vectors(stack, setup)
    if not (stack.fused and setup.kernels):
        behind += stack.queries * setup.element  # the context of these tokens
    rows = rows_of_last_layer(stack, batch)
    return (before + _statistics(stack)) * batch.tokens + behind * rows + _relative_bytes(stack, setup)


def rows_of_last_layer(stack: EncoderShape, batch: BatchStatistics) -> float:
    """Return the tokens that the last layer of an encoder computes behind its attention."""
    return min(batch.dot(last_layer_rows(stack)), batch.tokens + batch.sequences)


def _encoder_activations(stack: EncoderShape, batch: BatchStatistics, setup: Setup) -> float:
    """Return the bytes that an encoder saves between its forward and its backward pass, without its head's."""
    element, stream, width, tokens = setup.element, stream_bytes(stack, setup), stack.width, batch.tokens
    rows = rows_of_last_layer(stack, batch)
    saved = (stack.layers - 1) * float(layer_bytes(stack, batch, setup)) + _last_layer(stack, batch, setup)
    if stack.embedding_projection is not None:
        saved += stack.embedding * element * tokens
    if stack.embedding_norm and (stack.fp32_stream or stack.embedding_projection == "matrix"):
        saved += stream * width * tokens  # the norm's input, which the fused operation does not save
    if stack.convolution is not None:  # its neighbourhoods, activation, weight as a matrix, and the sum before its norm
        size, groups = stack.convolution
        saved += (size + 2) * width * element * tokens + FP32 * size * width * width / groups
    if stack.final_norm:
        saved += stream * width * rows
    return saved + 8 * 5 * tokens + rows * width * element


def _head_activations(stack: EncoderShape, batch: BatchStatistics, setup: Setup) -> float:
    """Return the bytes that a head saves: its inputs, those of its norm and of the vocabulary's matmul."""
    if stack.head == "detection":
        return 4.0 * batch.tokens * stack.width * setup.element
    vectors = 2 * stack.decoder_inputs if stack.head == "tied" else stack.width + 3 * stack.decoder_inputs
    return batch.predictions * vectors * setup.element


def logits_bytes(stack: EncoderShape | ElmoShape, batch: BatchStatistics, setup: Setup) -> float:
    """Return the bytes of the logits that are in memory at a time."""
    if isinstance(stack, EncoderShape) and stack.head == "detection":
        return 0.0
    logits = batch.predictions * stack.vocab * setup.element
    if setup.device == "cuda":
        return min(logits, max(GPU_LOGITS, GPU_SHARE * batch.predictions * stack.vocab))
    if not setup.kernels:
        return batch.predictions * stack.vocab * (setup.element + 2 * FP32)
    return min(logits, max(CPU_LOGITS, CPU_ROWS * stack.vocab * setup.element))


def _layer_workspace(stack: EncoderShape, batch: BatchStatistics, setup: Setup) -> float:
    """Return the bytes of temporaries of one layer's backward pass."""
    element, tokens = setup.element, batch.tokens
    # Gradients of the sums, of the context, of q, k and v, and of the input; of the activation, and of its input.
    if stack.fused and setup.kernels:
        chunk = min(tokens, CHUNK) if setup.device == "cpu" else tokens
        workspace = 7.0 * stack.width * tokens * element + 2 * chunk * stack.inner * element
    else:
        inner = 2 * stack.queries + 2 * stack.keys + stack.network_outputs + stack.inner
        workspace = (3.0 * stack.width * stream_bytes(stack, setup) + inner * element) * tokens
        workspace += _relative_bytes(stack, setup)
    if setup.checkpointing == "layer":  # the layer's own activations, computed again
        workspace += layer_bytes(stack, batch, replace(setup, checkpointing="none"))
    if stack.distinct_layers < stack.layers:  # the gradient of one application, beside the sum of the others
        workspace += FP32 * sum(rows * columns for rows, columns in stack.layer_matrices)
    return workspace


def _elmo_activations(stack: ElmoShape, batch: BatchStatistics, setup: Setup) -> float:
    """Return the bytes that ELMo saves: gates, cells and their tanh in fp32, outputs of layers, and of characters."""
    gates = stack.layers * batch.tokens * 2 * 6 * stack.units * FP32
    outputs = (stack.layers + 1) * batch.tokens * 2 * stack.projection * (FP32 + setup.element)
    filters, window = sum(stack.filters), len(stack.filters)
    characters = batch.windows * window * (stack.characters * setup.element + 8)
    words = batch.words * filters * (8 + FP32 + (2 + 3 * stack.highways) * setup.element)
    return gates + outputs + characters + words + batch.predictions * 4 * stack.projection * setup.element


def _phases(shape: ModelShape, batch: BatchStatistics, setup: Setup, owned: int) -> dict[str, dict[str, int]]:
    """Return the bytes of gradients, activations and temporaries in each phase of a step."""
    gradients = setup.weight * owned
    if setup.parallel == "fsdp" and setup.accumulates:  # whole until the last micro-batch, which reduces them
        gradients = setup.weight * total(parameters(shape))
    before = gradients if setup.accumulates or setup.flat else 0
    if setup.parallel == "ddp":
        gradients = 0  # those of the last micro-batch are views of the buckets, which are always there
    activations = head = logits = workspace = table = tied = 0.0
    for stack in shape:
        logits = max(logits, logits_bytes(stack, batch, setup))
        if isinstance(stack, ElmoShape):
            activations += _elmo_activations(stack, batch, setup)
            head, table = 2.0 * head, 2.0 * FP32 * stack.vocab * stack.projection
            tied = table
            workspace = 2.0 * batch.tokens * 4 * stack.units * (FP32 + setup.element)
            continue
        activations += _encoder_activations(stack, batch, setup)
        head += _head_activations(stack, batch, setup)
        workspace = max(workspace, _layer_workspace(stack, batch, setup))
        # The gradient of the vocabulary's matrix is computed with the loss.
        if stack.head != "detection":
            table = max(table, float(FP32 * stack.vocab * stack.decoder_inputs))
            tied = table if stack.tied else tied
    windows = 0.0
    for stack in shape:
        if isinstance(stack, ElmoShape):
            windows = batch.windows * sum(stack.filters) * (FP32 + setup.element)
    loss = {
        "gradients": int(before),
        "activations": int(activations + head),
        "logits and gradient of the vocabulary": int(logits + table),
    }
    backward = {
        "gradients": int(before + (0 if before else table)),
        "activations": int(activations),
        "temporaries": int(workspace + table),
    }
    # A tied matrix of the vocabulary has two gradients, from the head and from the embedding, and their sum.
    end = {"gradients": int(gradients), "temporaries": int(2 * tied + windows + 2 * workspace)}
    update = {"gradients": int(gradients)}
    phases = {"loss": loss, "backward": backward, "end of backward": end, "update": update}
    if setup.device != "cpu" or not setup.kernels:
        return phases
    # The allocator of a CPU keeps what was in use at most; gradients of tied tables come from torch's.
    pool = max(sum(phases["loss"].values()), sum(phases["backward"].values()) - int(table))
    kept = pool + int(2 * tied) - sum(end.values())
    if kept > 0:
        phases["end of backward"] = {**end, "kept by the allocator": kept}
    return phases

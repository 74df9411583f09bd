"""A plan of a pre-training run: parameters, memory per device, FLOPs, time, communication and disk.

Everything is arithmetic on the flags, but the time where steps are measured and the peak of a CPU's matmuls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from fastbert.config import PRESETS, BertConfig
from fastbert.errors import UserError
from fastbert.planning import peak
from fastbert.planning.batches import batch_of_shards, planned_batch
from fastbert.planning.communication import Communication, communication
from fastbert.planning.fitting import (
    FRAMEWORK_BYTES,
    GIB,
    check_shards,
    chosen_parallel,
    cures,
    largest_micro_batch,
    memory_limit,
    shortage,
)
from fastbert.planning.flags import DEFAULT_GPU, PlanFlags
from fastbert.planning.flops import (
    OPTIMIZER_FLOPS,
    BatchStatistics,
    StepFlops,
    optimizer_flops,
    parts,
    step_flops,
    windows_of,
)
from fastbert.planning.memory import FP32, MemoryPlan, Setup, memory
from fastbert.planning.parameters import PartParameters, parameters, total
from fastbert.planning.shape import model_shape
from fastbert.planning.stacks import ModelShape
from fastbert.planning.times import (
    GPU_UTILISATION,
    Times,
    device_peak,
    exposed_seconds,
    link_bandwidth,
    update_seconds,
)
from fastbert.training.config import MASK_RATE, MASK_RATES

if TYPE_CHECKING:
    from fastbert.planning.measure import MeasuredSteps

CPU_MICRO_BATCH = 32
DEFAULT_STEPS = 1000
NOTED_WAIT = 0.25
"""The share of a step that waits for communication from which on a plan says so."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The sizes of a run."""

    model: str
    objective: str
    layers: int
    parameters: list[PartParameters]
    device: str
    devices: int
    parallel: str
    dtype: str
    checkpointing: str
    batch_size: int
    micro_batch: int
    micro_batches: int
    """Per optimiser step and device."""
    largest_micro_batch: int
    steps: int
    tokens_per_step: float
    memory: MemoryPlan
    memory_limit: float
    flops: StepFlops
    """Of an optimiser step on all devices, without the optimiser's."""
    flops_parts: list[tuple[str, float]]
    optimizer_flops: float
    peak: float | None
    """FLOP/s of one device."""
    utilisation: float | None
    """The share of the peak that the passes reach: given, or measured."""
    times: Times
    communication: Communication
    link_bandwidth: float
    checkpoint_bytes: float
    checkpoints_bytes: float
    shards_bytes: float
    measured: MeasuredSteps | None
    notes: tuple[str, ...] = ()

    @property
    def tokens(self) -> float:
        """Return the tokens of the run."""
        return self.steps * self.tokens_per_step

    @property
    def seconds(self) -> float:
        """Return the seconds of the run, without validations and checkpoints."""
        return self.steps * self.times.step

    @property
    def tokens_per_second(self) -> float:
        """Return the throughput of all devices."""
        return self.tokens_per_step / self.times.step

    @property
    def model_utilisation(self) -> float | None:
        """Return the model FLOPs utilisation of whole steps."""
        return None if self.peak is None else self.flops.model / (self.times.step * self.peak * self.devices)

    def record(self) -> dict[str, Any]:
        """Return the plan as JSON can store it, sizes in bytes, times in seconds."""
        values = asdict(self)
        values["memory"] |= {"total": self.memory.total, "fits": self.memory.total <= self.memory_limit}
        values["times"]["step"] = self.times.step
        values["flops"] |= {"model": self.flops.model, "total": self.flops.total}
        values["flops_parts"] = dict(self.flops_parts)
        values["total_parameters"] = total(self.parameters)
        for name in ("tokens", "seconds", "tokens_per_second", "model_utilisation"):
            values[name] = getattr(self, name)
        return values


def planned_model(flags: PlanFlags) -> tuple[Any, str]:
    """Return the config of the model and its objective. Imports torch unless the model is one of BERT's sizes.

    Raises `UserError` as `pretrain` does for a model that cannot have the objective or the length.
    """
    published = flags.model in PRESETS and flags.architecture in (None, "bert") and flags.max_positions is None
    if published and flags.objective in (None, "mlm+nsp", "mlm"):
        config = BertConfig.preset(flags.model)
        if flags.max_length <= config.max_sequence_length:
            return _with_vocabulary(config, flags), flags.objective or "mlm+nsp"
    from fastbert.training.config import PretrainConfig
    from fastbert.training.objectives import model_config, with_objective

    run = with_objective(
        PretrainConfig(
            model=flags.model,
            architecture=flags.architecture,
            objective=flags.objective,
            max_length=flags.max_length,
            max_positions=flags.max_positions,
            generator_size=flags.generator_size,
        )
    )
    assert run.objective is not None
    return _with_vocabulary(model_config(run, None), flags), run.objective


def _with_vocabulary(config: Any, flags: PlanFlags) -> Any:
    if flags.vocab_size is None:
        return config
    changes: dict[str, Any] = {"vocab_size": flags.vocab_size}
    if config.model_type == "elmo":
        changes["output_size"] = min(flags.vocab_size, config.output_size)
    return replace(config, **changes)


def make_plan(flags: PlanFlags, *, clock: Callable[[], float] = time.perf_counter) -> Plan:
    """Return the plan of a run; `clock` times the steps that are measured.

    Raises `UserError` for a model that cannot have the objective or the length, and for a micro-batch that does not fit
    the memory.
    """
    config, objective = planned_model(flags)
    shape = model_shape(config, objective, flags.generator_size)
    mask_prob = MASK_RATES.get(config.model_type, MASK_RATE) if flags.mask_prob is None else flags.mask_prob
    one, corpus_tokens = _batch_of_one(flags, objective, mask_prob, windows_of(shape))
    device: Literal["cpu", "cuda"] = "cpu" if flags.plans_cpu else "cuda"
    gpu = None if flags.plans_cpu else flags.gpu_kind
    dtype = _cpu_dtype(flags) if gpu is None else flags.gpu_dtype
    limit = memory_limit(flags, gpu)
    per_device = math.ceil(flags.batch_size / flags.devices)
    counted = parameters(shape)
    count = total(counted)
    setup = Setup(
        device=device,
        dtype=dtype,
        param_dtype=flags.param_dtype,
        optimizer=flags.optimizer,
        checkpointing=flags.checkpointing,
        devices=flags.devices,
        long_sequences=flags.max_length > 128,
        snapshot=flags.async_save != "off",
    )
    setup = replace(setup, parallel=chosen_parallel(flags, shape, one, setup, limit))
    if setup.parallel == "fsdp":
        check_shards(flags, shape)
    most = largest_micro_batch(shape, one, setup, limit, per_device)
    if most == 0:
        raise UserError(shortage(shape, one, setup, limit, flags))
    micro_batch = flags.micro_batch or min(most, per_device if gpu is not None else CPU_MICRO_BATCH)
    micro_batch = min(micro_batch, per_device)
    setup = replace(setup, accumulates=micro_batch < per_device)
    used = memory(shape, one * micro_batch, setup, baseline=FRAMEWORK_BYTES)
    if used.total > limit:
        raise UserError(
            f"--micro-batch {micro_batch}: needs {used.total / GIB:.1f} GiB per device, of {limit / GIB:.1f}; at most"
            f" {most} fit{cures(setup, flags)}"
        )
    micro_batches = math.ceil(per_device / micro_batch)
    batch = one * flags.batch_size
    measured = _measured(flags, config, objective, one * micro_batch, dtype, clock) if flags.measures else None
    if measured is not None and measured.framework is not None and gpu is None:
        used = memory(shape, one * micro_batch, setup, baseline=measured.framework)
    flops = step_flops(parts(shape, flags.checkpointing), batch)
    rate = device_peak(flags, gpu, dtype)
    exchanged = communication(counted, flags.devices, setup.parallel, dtype, micro_batches)
    bandwidth = link_bandwidth(flags, gpu)
    computed = flops.total / flags.devices
    if measured is not None:
        layers = config.num_hidden_layers
        passes, update = micro_batches * measured.passes_of(layers), measured.update_of(layers)
        utilisation = computed / (passes * rate)
    else:
        utilisation = flags.given_utilisation or GPU_UTILISATION
        passes = computed / (utilisation * rate)
        update = update_seconds(count / flags.devices if setup.parallel == "fsdp" else count, gpu)
        # Muon's matmuls are divided among the devices.
        matmuls = optimizer_flops(flags.optimizer, shape, count) - OPTIMIZER_FLOPS[flags.optimizer] * count
        update += matmuls / (flags.devices * utilisation * rate)
    exchange = exchanged.seconds(bandwidth)
    exposed = exposed_seconds(exchange, passes, micro_batches, setup.parallel)
    times = Times(passes, update, exchange, exposed)
    steps = flags.steps or (DEFAULT_STEPS if flags.tokens is None else math.ceil(flags.tokens / batch.tokens))
    checkpoint = setup.weight * count + setup.state(counted)
    shard_tokens = corpus_tokens or steps * batch.tokens / flags.epochs
    return Plan(
        model=flags.model,
        objective=objective,
        layers=config.num_hidden_layers,
        parameters=counted,
        device="this CPU" if gpu is None else gpu.name,
        devices=flags.devices,
        parallel=setup.parallel,
        dtype=dtype,
        checkpointing=flags.checkpointing,
        batch_size=flags.batch_size,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        largest_micro_batch=most,
        steps=steps,
        tokens_per_step=batch.tokens,
        memory=used,
        memory_limit=limit,
        flops=flops,
        flops_parts=_by_part(shape, flags, batch),
        optimizer_flops=optimizer_flops(flags.optimizer, shape, count),
        peak=rate,
        utilisation=utilisation,
        times=times,
        communication=exchanged,
        link_bandwidth=bandwidth,
        checkpoint_bytes=checkpoint,
        # One more while it is written, and the trained model.
        checkpoints_bytes=(flags.keep_checkpoints + 1) * checkpoint + FP32 * count,
        shards_bytes=shard_tokens * (2 if config.vocab_size < 1 << 16 else 4),
        measured=measured,
        notes=_notes(flags, corpus_tokens, one, times, micro_batch),
    )


def _batch_of_one(
    flags: PlanFlags, objective: str, mask_prob: float, windows: tuple[int, ...]
) -> tuple[BatchStatistics, int | None]:
    """Return the mean statistics of one sequence, and the tokens of the corpus if shards are given."""
    if flags.data is None:
        batch = planned_batch(flags.batch_size, flags.max_length, objective, mask_prob, flags.mean_length, windows)
        return batch * (1 / flags.batch_size), None
    sizes = CPU_MICRO_BATCH, flags.max_length, objective, mask_prob, windows
    batch, tokens = batch_of_shards(flags.data, flags.mix, flags.stream_options, *sizes)
    return batch * (1 / CPU_MICRO_BATCH), tokens


def _cpu_dtype(flags: PlanFlags) -> str:
    if flags.matmul_dtype != "auto":
        return flags.matmul_dtype
    import torch

    from fastbert.ops.dispatch import fastest_dtype

    return "bf16" if fastest_dtype(torch.device("cpu"), training=True)[0] == torch.bfloat16 else "fp32"


def _measured(
    flags: PlanFlags,
    config: Any,
    objective: str,
    micro_batch: BatchStatistics,
    dtype: str,
    clock: Callable[[], float],
) -> MeasuredSteps:
    """Measure steps here. Raises `UserError` where this machine has no such device."""
    import torch

    from fastbert.planning.measure import measure_steps
    from fastbert.training.precision import tf32_matmuls

    device = torch.device("cpu" if flags.plans_cpu else "cuda")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError(
                "--measure: this machine has no GPU; measure there, give --utilisation, or plan with --device cpu"
            )
        name = torch.cuda.get_device_name(device)
        here = peak.gpu_of_device(name)
        if here is not flags.gpu_kind:
            raise UserError(
                f"--gpu {flags.gpu or DEFAULT_GPU}: this machine has a {name}; name that one, or give --utilisation"
            )
    with tf32_matmuls(flags.tf32, device, lambda message: None):
        return measure_steps(
            config,
            objective,  # type: ignore[arg-type]
            micro_batch,
            device=device,
            dtype=dtype,
            checkpointing=flags.checkpointing,
            generator_size=flags.generator_size,
            optimizer=flags.optimizer,
            param_dtype=flags.param_dtype,
            clock=clock,
        )


def _by_part(shape: ModelShape, flags: PlanFlags, batch: BatchStatistics) -> list[tuple[str, float]]:
    counted = parts(shape, flags.checkpointing)
    return [
        (part.name, batch.dot(part.forward) + batch.dot(part.backward) + batch.dot(part.recomputed)) for part in counted
    ]


def _notes(
    flags: PlanFlags, corpus_tokens: int | None, one: BatchStatistics, times: Times, micro_batch: int
) -> tuple[str, ...]:
    notes = []
    if times.exposed > NOTED_WAIT * times.step:
        notes.append(
            f"{times.exposed / times.step:.0%} of a step waits for communication, which micro-batches of"
            f" {micro_batch:,} are too short to hide; raise --batch-size, or use fewer than {flags.devices:,} devices"
        )
    if corpus_tokens is None:
        notes.append(
            f"sequences of {one.tokens:.0f} tokens on average are assumed; --data reads those of shards, --mean-length"
            " sets them"
        )
    if not flags.measures and flags.given_utilisation is None:
        notes.append(f"a utilisation of {GPU_UTILISATION:.0%} is assumed; --measure measures it on such a GPU")
    return tuple(notes)

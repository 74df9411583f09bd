"""A plan as tables of text. Imports no torch."""

from __future__ import annotations

from fastbert.planning.parameters import total
from fastbert.planning.plan import Plan

Row = tuple[str, str, str]


def sections(plan: Plan) -> list[tuple[str, list[Row]]]:
    """Return the sections of a plan: a title, and rows of a name, a value and a remark."""
    return [
        ("Run", _run(plan)),
        ("Parameters", _parameters(plan)),
        (f"Memory per device, at its peak ({plan.memory.when})", _memory(plan)),
        ("FLOPs per optimiser step, all devices", _flops(plan)),
        ("Time per optimiser step", _time(plan)),
        *([("Communication per optimiser step and device", _communication(plan))] if plan.devices > 1 else []),
        ("Disk", _disk(plan)),
    ]


def _run(plan: Plan) -> list[Row]:
    shared = "" if plan.devices == 1 else f" with {plan.parallel.upper()}"
    for_pretrain = "" if plan.micro_batches == 1 else f"; give pretrain --micro-batch {plan.micro_batch}"
    if plan.parallel == "fsdp":
        for_pretrain += f"{' and' if for_pretrain else '; give pretrain'} --parallel fsdp"
    recomputed = "" if plan.checkpointing == "none" else f", activation checkpointing: {plan.checkpointing}"
    hours, each = plan.devices * plan.seconds / 3600, plan.tokens_per_second / plan.devices
    return [
        ("model", plan.model, f"objective {plan.objective}, {_count(total(plan.parameters))} parameters"),
        ("devices", f"{plan.devices:,} x {plan.device}{shared}", f"{plan.dtype}{recomputed}"),
        ("batch", f"{plan.batch_size:,} sequences", f"{_count(plan.tokens_per_step)} tokens"),
        ("micro-batch", f"{plan.micro_batch:,} sequences", f"{plan.micro_batches} per step and device{for_pretrain}"),
        ("steps", f"{plan.steps:,}", f"{_count(plan.tokens)} tokens"),
        ("time", duration(plan.seconds), f"{_hours(hours)} device hours, without validation"),
        ("throughput", f"{_count(plan.tokens_per_second)} tokens/s", f"{_count(each)} per device"),
    ]


def _parameters(plan: Plan) -> list[Row]:
    whole = total(plan.parameters)
    rows = [(part.name, f"{part.count:,}", f"{part.count / whole:.1%}") for part in plan.parameters if part.count]
    return [*rows, ("total", f"{whole:,}", "")]


def _memory(plan: Plan) -> list[Row]:
    used = plan.memory
    rows = [(name, _bytes(size), f"{size / used.total:.1%}") for name, size in used.parts.items()]
    left = plan.memory_limit - used.total
    most = f"the largest micro-batch that fits: {plan.largest_micro_batch:,}"
    fits = f"of {_bytes(plan.memory_limit)}; {most}" if left >= 0 else f"does not fit {_bytes(plan.memory_limit)}"
    return [*rows, ("total", _bytes(used.total), fits)]


def _flops(plan: Plan) -> list[Row]:
    flops = plan.flops
    rows = [(name, _flop(value), f"{value / flops.total:.1%}") for name, value in plan.flops_parts]
    return [
        *rows,
        ("forward", _flop(flops.forward), ""),
        ("backward", _flop(flops.backward), ""),
        ("recomputed", _flop(flops.recomputed), "attention's scores, and checkpointed layers"),
        ("optimiser", _flop(plan.optimizer_flops), "not counted above"),
        ("run", _flop(flops.total * plan.steps), ""),
    ]


def _time(plan: Plan) -> list[Row]:
    times, share = plan.times, plan.utilisation
    peak = "" if plan.peak is None else f" of {plan.peak / 1e12:,.4g} TFLOP/s"
    how = "" if share is None else f"{share:.1%}{peak} {'assumed' if plan.measured is None else 'measured'}"
    if plan.measured is not None:
        few, more = plan.measured.layers
        how += f" with {few} and {more} layers"
    rows = [
        ("forward and backward", duration(times.passes), how),
        ("optimiser", duration(times.update), ""),
        ("communication not hidden", duration(times.exposed), ""),
        ("step", duration(times.step), ""),
    ]
    mfu = plan.model_utilisation
    return rows if mfu is None else [*rows, ("model FLOPs utilisation", f"{mfu:.1%}", "of whole steps")]


def _communication(plan: Plan) -> list[Row]:
    sent = plan.communication
    kinds = (("all-reduce", sent.all_reduce), ("all-gather", sent.all_gather), ("reduce-scatter", sent.reduce_scatter))
    rows = [(name, _bytes(size), "") for name, size in kinds if size]
    at = f"at {plan.link_bandwidth:g} GB/s, mostly behind the backward pass"
    return [*rows, ("time", duration(plan.times.communication), at)]


def _disk(plan: Plan) -> list[Row]:
    return [
        ("token shards", _bytes(plan.shards_bytes), ""),
        ("a checkpoint", _bytes(plan.checkpoint_bytes), "weights and optimiser state"),
        ("checkpoints and model", _bytes(plan.checkpoints_bytes), "at most, while one is written"),
    ]


def duration(seconds: float) -> str:
    """Return a time in a unit of its size."""
    for size, unit in ((86400 * 365.25, "years"), (86400, "days"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e3:.3g} ms"


def _bytes(size: float) -> str:
    for limit, unit in ((1 << 50, "PiB"), (1 << 40, "TiB"), (1 << 30, "GiB")):
        if size >= limit:
            return f"{size / limit:.2f} {unit}"
    return f"{size / (1 << 20):,.0f} MiB"


def _flop(value: float) -> str:
    for limit, unit in ((1e24, "Y"), (1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}FLOP"
    return f"{value / 1e6:.3g} MFLOP"


def _hours(value: float) -> str:
    return _count(value) if value >= 10 else f"{value:.1f}" if value >= 0.1 else f"{value:.2g}"


def _count(value: float) -> str:
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:,.0f}"

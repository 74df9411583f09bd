"""Compute steps of a run again, and compare them with what the run has recorded: bit for bit.

Every step records its loss and the norm of its gradient exactly in steps.jsonl, and some the sum of the weights' bits.
The replay begins at the newest checkpoint before the first step, or at the run's first weights, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastbert.distributed.world import World, joined
from fastbert.errors import UserError
from fastbert.training.assembly import assemble
from fastbert.training.checkpoint import find, load_state, step_of
from fastbert.training.device import choose_device, deterministic_algorithms, kernels_of_run
from fastbert.training.given_data import given_shards
from fastbert.training.precision import tf32_matmuls
from fastbert.training.preparation import read_inputs
from fastbert.training.processes import CONTINUE
from fastbert.training.reporter import Reporter
from fastbert.training.run_folder import Run, recorded_run
from fastbert.training.schedule_log import FILE as SCHEDULE
from fastbert.training.schedule_log import scheduled_steps
from fastbert.training.step_log import ExactStep, read_steps


@dataclass(frozen=True)
class ReplayedStep:
    """A step that was computed again, and the run's own record of it."""

    computed: ExactStep
    recorded: ExactStep | None
    """None for a step that the run has not recorded."""

    @property
    def is_equal(self) -> bool | None:
        """Return whether both are equal, to the bit; None without a record. The sums of weights are compared where the
        run has recorded one."""
        recorded, computed = self.recorded, self.computed
        if recorded is None:
            return None
        same = recorded.loss == computed.loss and recorded.gradient_norm == computed.gradient_norm
        return same and recorded.weights in (None, computed.weights)

    def describe(self) -> str:
        """Return the step in one line."""
        step, loss, norm = self.computed.step, self.computed.loss, self.computed.gradient_norm
        weights = "not summed" if self.computed.weights is None else f"{self.computed.weights:016x}"
        line = f"step {step:>7,}  loss {_shown(loss)}  gradient norm {_shown(norm)}  weights {weights}"
        if self.recorded is None:
            return f"{line}  not recorded"
        if self.is_equal:
            return f"{line}  equal"
        before = self.recorded
        seen = f"loss {_shown(before.loss)}, gradient norm {_shown(before.gradient_norm)}"
        seen += "" if before.weights is None else f", weights {before.weights:016x}"
        return f"{line}  different: the run had {seen}"


def _shown(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.17g}"


def replay(
    folder: Path, first: int, last: int, reporter: Reporter | None = None, *, data: Sequence[str] = ()
) -> Iterator[ReplayedStep]:
    """Compute the steps from `first` to `last` of the run in `folder` again; yield each beside the run's record.

    With the processes of torchrun, as many as the run had, each yields the same. `data` is where the run's token shards
    are now, if they were moved. Raises `UserError` for a folder without a run, a run whose shards or teacher are no
    longer there or were changed, and steps behind its end.
    """
    run = recorded_run(folder)
    config = run.config
    locations = tuple(data) or config.data or (str(config.out / "data"),)
    with joined(config.device) as world, world.watched(CONTINUE):
        reporter = (reporter or Reporter()) if world.is_main else Reporter()
        recorded = read_steps(folder)
        newest = max(recorded, default=0)
        if last > newest:
            raise UserError(
                f"--steps {first}:{last}: the run in {folder} has taken {newest:,} steps; name earlier ones"
            )
        world.shared("shards", lambda: _verified(run, locations))
        device, dtype = choose_device(config.device, config.matmul_dtype, reporter.on_message)
        with (
            deterministic_algorithms(config.deterministic),
            tf32_matmuls(config.tf32, device, reporter.on_message),
            kernels_of_run(folder, device, reporter.on_message, writes=False),
        ):
            trainer = assemble(run, read_inputs(run, locations), world, device, dtype, Reporter(), first - 1).trainer
            _check_processes(folder, world, reporter)
            begin = trainer.resume(at_most=first - 1)
            trainer.omitted |= {line.step for line in recorded.values() if line.omitted}
            start = f"the checkpoint of step {begin:,}" if begin else "the first weights"
            reporter.on_message(f"computing steps {begin + 1:,} to {last:,}, from {start}")
            if config.hours is not None:
                trainer.schedule.recorded = {
                    line.step: line.progress for line in scheduled_steps(folder / SCHEDULE, begin + 1)
                }
            for step in trainer.replayed(last):
                if step.step >= first:
                    # Only the first process knows the sum of weights, and all must end at the same step.
                    known = world.shared(f"step-{step.step}", lambda step=step: {"weights": step.weights})  # type: ignore[misc]
                    yield ReplayedStep(replace(step, weights=known["weights"]), recorded.get(step.step))


def _verified(run: Run, locations: Sequence[str]) -> dict[str, Any]:
    """Compare the run's token shards with those that it began with, and every file with its SHA-256. Raises
    `UserError`, with the cure, where they were moved, replaced or damaged."""
    config = run.config
    given_shards(locations, run.data, config.stream_options, config.window_tokens, Reporter(), "replay with --data")
    return {}


def _check_processes(folder: Path, world: World, reporter: Reporter) -> None:
    """Report a run that had another number of processes, whose sums round differently."""
    for checkpoint in reversed(find(folder / "checkpoints")):
        processes = load_state(checkpoint).get("processes", 1)
        if processes != world.size:
            reporter.on_message(
                f"the run had {processes} processes at step {step_of(checkpoint):,}, and now there are {world.size}:"
                " sums over them round differently; replay it with as many (torchrun --nproc-per-node)"
            )
        return

"""How the time of BERT grows: with sequences and their length, with the width of the model, and with threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path

from fastbert.benchmarks.cpu.lineup import Lineup, Result, measure_all
from fastbert.benchmarks.cpu.workloads import Workload, batch
from fastbert.benchmarks.harness.command_line import Progress
from fastbert.config import BertConfig

COUNTS, LENGTHS = (1, 8, 32), (8, 16, 32, 64, 128, 256, 512)
QUICK_COUNTS, QUICK_LENGTHS = (1, 8), (8, 32)
WIDTHS, QUICK_WIDTHS = ("tiny", "mini", "small", "medium", "base"), ("tiny", "mini")
MOST_TOKENS = 2048  # of a batch; the encoder's own workloads have the larger ones
COMPARED, QUICK_COMPARED = (8, 128), (8, 32)  # sequences and length in other widths and with fewer threads
CONTENDERS = ("fastbert", "onnxruntime", "openvino")  # others take minutes to compile all sizes, or are far slower


@dataclass(frozen=True, kw_only=True)
class GrowthWorkload(Workload):
    """A batch, and the preset and threads with which it is measured."""

    preset: str
    threads: int


def shapes(counts: Sequence[int], lengths: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Return all pairs of a number of sequences and a length of at most so many tokens."""
    return [(count, length) for count in counts for length in lengths if count * length <= most]


def workloads(preset: str, threads: int, quick: bool = False) -> list[GrowthWorkload]:
    """Return full batches of `preset` from one short text on, named `sequences x length`; then one batch in every other
    width, and with fewer threads than `threads`. `quick` ones have at most 8 sequences of 32."""
    counts, lengths = (QUICK_COUNTS, QUICK_LENGTHS) if quick else (COUNTS, LENGTHS)
    made = [full(shape, preset, threads) for shape in shapes(counts, lengths, MOST_TOKENS)]
    shape = QUICK_COMPARED if quick else COMPARED
    widths = [width for width in (QUICK_WIDTHS if quick else WIDTHS) if width != preset]
    made += [full(shape, width, threads, f", {width}") for width in widths]
    fewer = [1 << power for power in range(threads.bit_length()) if 1 << power < threads]
    return made + [full(shape, preset, number, f", {number} thread{'s' * (number > 1)}") for number in fewer]


def full(shape: tuple[int, int], preset: str, threads: int, ending: str = "") -> GrowthWorkload:
    """Return a full batch of sequences and a length; the note has the width of its model."""
    (count, length), config = shape, BertConfig.preset(preset)
    work = batch(f"{count}x{length}{ending}", [length] * count, length, config)
    size = f"{config.num_hidden_layers} layers of width {config.hidden_size}"
    shared = {field.name: getattr(work, field.name) for field in fields(work)}
    note = f"{work.tokens:,} tokens, {size}"
    return GrowthWorkload(**{**shared, "note": note}, preset=preset, threads=threads)


def measure_growth(
    chosen: Sequence[GrowthWorkload],
    start: Callable[[str, int, Path], Lineup],
    rounds: int,
    folder: Path,
    progress: Progress,
) -> Result:
    """Measure batches, those of each preset and number of threads with contenders of their own, which `start` returns
    for these two and a new folder."""
    setting: tuple[str, int] | None = None
    lineup: Lineup
    with ExitStack() as stack:

        def measure(workload: GrowthWorkload) -> Result:
            nonlocal setting, lineup
            if setting != (workload.preset, workload.threads):
                stack.close()  # processes of other settings would keep their memory
                setting = workload.preset, workload.threads
                subfolder = folder / f"{workload.preset}-{workload.threads}"
                subfolder.mkdir()
                lineup = stack.enter_context(start(*setting, subfolder))
            return lineup.measure(workload, rounds)

        return measure_all(chosen, measure, progress)

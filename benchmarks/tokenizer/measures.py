"""The measures of `bench_tokenizer`: each function returns the rows of one question, on contenders that take turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fastbert.benchmarks import peers
from fastbert.benchmarks.harness import measure
from fastbert.benchmarks.harness.command_line import Say
from fastbert.benchmarks.harness.isolation import Contender, Isolated, Local
from fastbert.benchmarks.harness.measure import FASTBERT, Comparison, ContenderFailed, Row, Timing
from fastbert.benchmarks.harness.texts import Vocabulary, Workload
from fastbert.benchmarks.tokenizer.contender import save_texts
from fastbert.benchmarks.tokenizer.hostile import KINDS

CLASS_PATH = "fastbert.benchmarks.tokenizer.contender:TokenizerContender"
REFERENCE = "huggingface"
PADDED_COMPARED = 1000
HOSTILE_PATIENCE = 30.0  # seconds of timed work on hostile texts, for contenders other than fastbert
ENGLISH_PARTS = 5


class Lineup:
    """The contenders of a kind that take part, each with the same number of threads; one that fails is reported and
    left out of the workload, and one that cannot load a vocabulary out of all workloads with it."""

    def __init__(
        self, names: Sequence[str], threads: int, *, isolate: bool, folder: Path, say: Say, kind: str = "tokenizer"
    ) -> None:
        self.threads = threads
        self.isolate = isolate
        self.folder = folder
        self.say = say
        self.kind = kind
        self.names: list[str] = [name for name in names if peers.missing(kind, name) is None]
        self.unloadable: set[tuple[str, Path]] = set()
        self.members: dict[str, Contender] = {}
        self.active: list[str] = []
        self.dtypes: dict[str, str] = {}
        self.comparisons: dict[str, Comparison] = {}
        self.tokens: int | None = None

    def __enter__(self) -> Lineup:
        return self

    def __exit__(self, *error: object) -> None:
        for member in self.members.values():
            member.close()

    def open(self, workload: Workload) -> None:
        """Pass the workload's texts and vocabulary to every contender."""
        self.workload = workload
        self.active, self.comparisons, self.tokens = [], {}, None
        path = self.folder / "texts.json"
        save_texts(path, workload.texts)
        vocabulary = workload.vocabulary
        for name in self.names:
            if (name, vocabulary.path) in self.unloadable:
                continue
            try:
                if name not in self.members:
                    self.members[name] = self._start(name)
                answer = self.members[name].call(
                    "open", texts=str(path), path=str(vocabulary.path), options=vocabulary.options
                )
            except ContenderFailed as error:
                self.unloadable.add((name, vocabulary.path))
                self.drop(name, error)
                continue
            self.active.append(name)
            self.dtypes[name] = answer["dtype"]

    def compare(self) -> None:
        """Compare all ids with those of the reference (else fastbert's), and report differences."""
        rows = self._collect("save_rows")
        reference = REFERENCE if REFERENCE in rows else FASTBERT if FASTBERT in rows else next(iter(rows), None)
        if reference is None:
            return
        self.tokens = len(rows[reference][0])
        self.comparisons = {name: measure.compare_rows(rows[reference], values) for name, values in rows.items()}
        self._report(self.comparisons, reference, self.workload.name)

    def compare_padded(self, length: int) -> dict[str, Comparison]:
        """Compare padded arrays of the first texts; the result has only contenders that support them."""
        rows = self._collect("save_padded", length=length, count=PADDED_COMPARED)
        reference = REFERENCE if REFERENCE in rows else FASTBERT
        if reference not in rows:
            return {}
        comparisons = {name: measure.compare_rows(rows[reference], values, filler=0) for name, values in rows.items()}
        self._report(comparisons, reference, f"{self.workload.name}, padded")
        return comparisons

    def measures(self, method: str, names: Iterable[str] | None = None, **arguments: Any) -> dict[str, Any]:
        """Return, per active contender, a function that returns the timing of a method."""
        names_here = self.active if names is None else [name for name in names if name in self.active]
        return {name: self._measure(name, method, arguments) for name in names_here}

    def drop(self, name: str, error: ContenderFailed) -> None:
        """Leave a contender out of this workload; it is restarted for the next."""
        self.say(f"{name}: left out of {self.workload.name}: {error}")
        if name in self.active:
            self.active.remove(name)
        member = self.members.pop(name, None)
        if member is not None:
            member.close()

    def rows(self, what: str, timings: Mapping[str, Sequence[Timing]], **more: Any) -> list[Row]:
        """Return rows of the open workload: `what` names the measure."""
        comparisons: Mapping[str, Comparison] = more.pop("comparisons", self.comparisons)
        options: dict[str, Any] = {"tokens": self.tokens, "text_bytes": self.workload.text_bytes, "dtype": self.dtypes}
        return measure.make_rows(
            f"{self.workload.name}, {what}",
            timings,
            threads=self.threads,
            differences={name: comparison.max_abs_difference for name, comparison in comparisons.items()},
            outputs={name: str(comparisons[name]) if name in comparisons else "not compared" for name in timings},
            **(options | more),
        )

    def _start(self, name: str) -> Contender:
        arguments = {"kind": self.kind, "name": name, "threads": self.threads}
        if self.isolate:
            return Isolated(CLASS_PATH, arguments, peers.thread_environment(self.threads))
        return Local(CLASS_PATH, arguments)

    def _measure(self, name: str, method: str, arguments: Mapping[str, Any]) -> Callable[[], Timing]:
        return lambda: Timing(*self.members[name].call(method, **arguments))

    def _collect(self, method: str, **arguments: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        rows = {}
        for name in list(self.active):
            path = self.folder / f"{name}.npz"
            try:
                if self.members[name].call(method, path=str(path), **arguments) is False:
                    continue
            except ContenderFailed as error:
                self.drop(name, error)
                continue
            with np.load(path) as arrays:
                rows[name] = (arrays["ids"], arrays["offsets"])
            path.unlink()
        return rows

    def _report(self, comparisons: Mapping[str, Comparison], reference: str, where: str) -> None:
        for name, comparison in comparisons.items():
            if comparison.differing:
                text = self.workload.texts[comparison.first or 0]
                shown = ascii(text[:60]) + ("..." if len(text) > 60 else "")
                self.say(
                    f"{name}: {comparison} from {reference} ({where}); the first is number {comparison.first}: {shown}"
                )


def cold_and_warm(lineup: Lineup, rounds: int, measures: Sequence[str]) -> list[Row]:
    """Measure the first pass of new tokenizers, and repeated passes of one."""
    table = []
    if "cold" in measures:
        timings = measure.interleave(lineup.measures("time_cold"), rounds, warming=False, failed=lineup.drop)
        table += lineup.rows("cold", timings)
    if "warm" in measures:
        timings = measure.interleave(lineup.measures("time_warm"), rounds, failed=lineup.drop)
        table += lineup.rows("warm", timings)
    return table


def padded(lineup: Lineup, rounds: int, *, count: int, length: int = 512) -> list[Row]:
    """Measure three int64 arrays (texts, length), truncated and padded."""
    comparisons = lineup.compare_padded(length)
    count = min(count, len(lineup.workload.texts))
    measures = lineup.measures("time_padded", comparisons, length=length, count=count)
    timings = measure.interleave(measures, rounds, failed=lineup.drop)
    text_bytes = sum(len(text.encode()) for text in lineup.workload.texts[:count])
    what = f"{count:,} padded to {length}"
    return lineup.rows(
        what, timings, comparisons=comparisons, dtype="int64", tokens=count * length, text_bytes=text_bytes
    )


def has_offsets() -> bool:
    """Return whether fastbert's tokenizer returns offsets and words of many texts as arrays."""
    from fastbert.tokenizers import WordPieceTokenizer

    return hasattr(WordPieceTokenizer, "encode_aligned_ragged")


def aligned(lineup: Lineup, rounds: int) -> list[Row]:
    """Measure fastbert with offsets and word ids beside fastbert with ids alone."""
    if FASTBERT not in lineup.active or not has_offsets():
        return []
    more = f"{FASTBERT}, offsets and words"
    measures = {
        FASTBERT: lineup.measures("time_warm", [FASTBERT])[FASTBERT],
        more: lineup.measures("time_aligned", [FASTBERT])[FASTBERT],
    }
    dtypes = dict.fromkeys(measures, lineup.dtypes[FASTBERT])
    return lineup.rows("offsets and words", measure.interleave(measures, rounds), dtype=dtypes)


def threads(single: Lineup, several: Lineup, rounds: int) -> list[Row]:
    """Measure warm passes with one thread and with several, in turns; `speed_up` is their ratio."""
    both = {(name, lineup.threads): measure for lineup in (single, several) for name, measure in _warm(lineup).items()}
    keys = {f"{name} {count}": (name, count) for name, count in both}
    failed: list[str] = []

    def drop(key: str, error: ContenderFailed) -> None:
        failed.append(keys[key][0])
        (single if keys[key][1] == single.threads else several).drop(keys[key][0], error)

    timings_by_key = measure.interleave({key: both[keys[key]] for key in keys}, rounds, failed=drop)
    by_count: dict[int, dict[str, list[Timing]]] = {single.threads: {}, several.threads: {}}
    for key, timings in timings_by_key.items():
        name, count = keys[key]
        if name not in failed:
            by_count[count][name] = timings
    alone = {name: statistics.median(value.seconds for value in values) for name, values in by_count[1].items()}
    table = several.rows(f"warm, {several.threads} threads", by_count[several.threads], comparisons=single.comparisons)
    return [_with(row, speed_up=round(alone[row.contender] * 1e3 / row.median_ms, 2)) for row in table]


def load_times(lineup: Lineup, vocabularies: Sequence[Vocabulary], rounds: int) -> list[Row]:
    """Measure the construction of a tokenizer from a vocab.txt, or from a folder."""
    table = []
    for vocabulary in vocabularies:
        measures = lineup.measures("time_load", path=str(vocabulary.path), options=vocabulary.options)
        timings = measure.interleave(measures, rounds, failed=lineup.drop)
        table += measure.make_rows(
            f"load {vocabulary.name}, {vocabulary.entries:,} entries",
            timings,
            dtype=lineup.dtypes,
            threads=lineup.threads,
            outputs=dict.fromkeys(timings, "not compared"),
        )
    return table


def memory(
    names: Sequence[str],
    counts: Sequence[int],
    workload: Workload,
    folder: Path,
    say: Say,
    *,
    kind: str = "tokenizer",
) -> dict[str, Any]:
    """Return the growth of new processes over two passes by contender, in megabytes per thread."""
    grown: dict[str, Any] = {}
    for count in counts:
        with Lineup(names, count, isolate=True, folder=folder, say=say, kind=kind) as lineup:
            lineup.open(workload)
            for name in lineup.active:
                grown_bytes = lineup.members[name].call("grown_memory")
                if grown_bytes is not None:
                    grown.setdefault(name, {})[count] = round(grown_bytes / 1e6 / count, 1)
    for name, figures in grown.items():
        shown = ", ".join(f"{value} MB per thread with {count}" for count, value in figures.items())
        say(f"memory: {name} grew by {shown}")
    return grown


def with_memory(rows: Sequence[Row], grown: Mapping[str, Any], workload: Workload) -> list[Row]:
    """Add the memory to the warm rows of the workload on which it was measured."""
    return [
        _with(row, memory_megabytes_per_thread=grown[row.contender])
        if row.workload.startswith(f"{workload.name}, warm") and row.contender in grown
        else row
        for row in rows
    ]


def hostile(
    lineup: Lineup, *, count: int, size: int, kinds: Sequence[str] = tuple(KINDS), names: Iterable[str] | None = None
) -> list[Row]:
    """Measure single texts designed to be slow, each new, beside ordinary text of the workload of that size; `names`
    are the contenders, by default all that are active."""
    table = []
    for name in [name for name in lineup.active if names is None or name in names]:
        try:
            table += _hostile(lineup, name, count, size, kinds)
        except ContenderFailed as error:
            lineup.drop(name, error)
    fastbert_ms = next((row.median_ms for row in table if row.contender == FASTBERT), None)
    return [
        replace(row, ratio_to_fastbert=round(row.median_ms / fastbert_ms, 3) if fastbert_ms else None) for row in table
    ]


def _hostile(lineup: Lineup, name: str, count: int, size: int, kinds: Sequence[str]) -> list[Row]:
    member = lineup.members[name]
    room = max(lineup.workload.text_bytes - size, 1)
    starts = [room * part // ENGLISH_PARTS for part in range(ENGLISH_PARTS)]
    member.call("time_part", start=0, size=1000)

    def ordinary(**options: Any) -> float:
        timings = [Timing(*member.call("time_part", start=start, size=size, **options)) for start in starts]
        return statistics.median(timing.seconds for timing in timings)

    plain, cold_plain = ordinary(), ordinary(cold=True)
    timings: list[Timing] = []
    for index in range(count):
        kind = kinds[index % len(kinds)]
        timings.append(Timing(*member.call("time_hostile", kind=kind, size=size, seed=index)))
        if name != FASTBERT and sum(timing.seconds for timing in timings) > HOSTILE_PATIENCE:
            lineup.say(f"{name}: {len(timings)} of {count} hostile texts took {HOSTILE_PATIENCE:.0f} s; stopped")
            break
    worst = max(range(len(timings)), key=lambda index: timings[index].seconds)
    by_kind: dict[str, float] = {}
    for index, timing in enumerate(timings):
        kind = kinds[index % len(kinds)]
        by_kind[kind] = max(by_kind.get(kind, 0.0), timing.seconds)
    ratio = timings[worst].seconds / plain
    megabytes = f"{size / 1e6:g} MB"
    [row] = measure.make_rows(
        f"{count} hostile texts of {megabytes}",
        {name: timings},
        dtype=lineup.dtypes,
        threads=lineup.threads,
        text_bytes=size,
        outputs={name: "not compared"},
    )
    details = {
        "plain_ms": round(plain * 1e3, 3),
        "cold_plain_ms": round(cold_plain * 1e3, 3),
        "worst_ms": round(timings[worst].seconds * 1e3, 3),
        "worst_kind": kinds[worst % len(kinds)],
        "worst_over_plain": round(ratio, 2),
        "worst_over_cold_plain": round(timings[worst].seconds / cold_plain, 2),
        "worst_over_plain_by_kind": {kind: round(value / plain, 2) for kind, value in by_kind.items()},
        "note": f"worst {ratio:.1f}x plain text ({kinds[worst % len(kinds)]})",
    }
    return [_with(row, **details)]


def _warm(lineup: Lineup) -> dict[str, Any]:
    return lineup.measures("time_warm")


def renamed(row: Row, workload: str) -> Row:
    """Return the row of a workload with a different name."""
    return replace(row, workload=workload)


def _with(row: Row, **details: Any) -> Row:
    return replace(row, details={**row.details, **details})

"""The options that the tokenizer benchmarks share, their command line and the files they write."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from fastbert.benchmarks import peers
from fastbert.benchmarks.harness import command_line, records, report
from fastbert.benchmarks.harness.command_line import Say
from fastbert.benchmarks.harness.measure import FASTBERT, Row
from fastbert.benchmarks.harness.suite import Call, Case, Workshop
from fastbert.benchmarks.harness.texts import Workload
from fastbert.benchmarks.tokenizer.contender import TokenizerContender, save_texts
from fastbert.errors import UserError

MEGABYTES = 8


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions:
    """The selection and size of the measurement."""

    KIND: ClassVar[str]
    """The kind of contender."""
    MEASURES: ClassVar[tuple[str, ...]]
    """All measures."""
    LEAST_THREADS: ClassVar[int] = 1
    """The smallest number of threads."""
    QUICK_MEGABYTES: ClassVar[float]
    """The maximum size of each text with `quick`."""

    quick: bool = False
    """Less text, fewer rounds."""
    data: Path | None = None
    """The data folder; None: FASTBERT_DATA, else the one beside the clone, else Python's own documentation."""
    python_text: bool = False
    """Use Python's own documentation even if there is a data folder."""
    text: Path | None = None
    """Instead of these: a file with one text per line."""
    contenders: tuple[str, ...] = ()
    """Contenders; none: all that are installed."""
    measures: tuple[str, ...] = ()
    """The measures."""
    workloads: tuple[str, ...] = ()
    """Only workloads whose name contains one of these."""
    threads: int = 1
    """The number of threads."""
    rounds: int | None = None
    """Timed calls per contender; None: five, three if `quick`."""
    megabytes: float | None = None
    """Maximum size of each text; None: eight, less if `quick`."""
    isolate: bool = True
    """One process per contender."""
    hostile: int | None = None
    """Number of hostile texts; None: 200, fewer if `quick`."""

    def __post_init__(self) -> None:
        for what, chosen, known in (
            ("contender", self.contenders, peers.names(self.KIND)),
            ("measure", self.measures, self.MEASURES),
        ):
            for name in chosen:
                if name not in known:
                    raise UserError(f"unknown {what} {name!r}; there are {', '.join(known)}")
        for flag, value, least in (
            ("threads", self.threads, self.LEAST_THREADS), ("rounds", self.rounds, 1), ("hostile", self.hostile, 1),
        ):  # fmt: skip
            if value is not None and value < least:
                raise UserError(f"--{flag} {value} must be at least {least}")
        if self.megabytes is not None and not self.megabytes > 0:
            raise UserError(f"--megabytes {self.megabytes} must be above 0")

    @property
    def limit(self) -> int:
        """Return the maximum size of each text in bytes."""
        return int((self.megabytes or (self.QUICK_MEGABYTES if self.quick else MEGABYTES)) * 1e6)

    @property
    def timed_rounds(self) -> int:
        """Return the number of timed calls per contender."""
        return self.rounds or (3 if self.quick else 5)

    def names(self, say: Say) -> list[str]:
        """Return the selected contenders; `say` receives a line per contender that is not installed."""
        names = list(self.contenders or peers.names(self.KIND))
        for name in names:
            module = peers.missing(self.KIND, name)
            if module is not None:
                say(f"{name}: not installed (no module {module}); left out")
        return names


def select(what: str, names: Sequence[str], parts: Sequence[str]) -> list[str]:
    """Return the names that contain one of the parts, or all names without parts. Raises `UserError` for none."""
    selected = [name for name in names if not parts or any(part in name for part in parts)]
    if not selected:
        raise UserError(
            f"no {what} name contains {' or '.join(parts) or 'that'}; there are {', '.join(names) or 'none'}"
        )
    return selected


def select_workloads(workloads: Sequence[Workload], parts: Sequence[str]) -> list[Workload]:
    """Return the workloads whose names contain one of the parts, or all. Raises `UserError` for none."""
    selected = select("workload", [workload.name for workload in workloads], parts)
    return [workload for workload in workloads if workload.name in selected]


def parser(
    description: str | None, options: type[TokenizerOptions], *, quick: str, threads: str, hostile: str
) -> argparse.ArgumentParser:
    """Return a parser with the flags of `TokenizerOptions`, `text` apart, and the files to write; the last three
    arguments are help texts."""
    flags = command_line.parser(description, quick=quick, rounds="timed calls per contender (default: 5, quick 3)")
    flags.add_argument("--data", type=Path, help="data folder (default: FASTBERT_DATA)")
    flags.add_argument("--python-text", action="store_true", help="use Python's own documentation, not the data folder")
    flags.add_argument("--contenders", nargs="+", default=(), metavar="NAME", help="default: all that are installed")
    flags.add_argument("--measures", nargs="+", default=options.MEASURES, choices=options.MEASURES, help="default: all")
    flags.add_argument("--threads", type=int, default=options.threads, help=threads)
    sizes = f"(default: {MEGABYTES}, quick {options.QUICK_MEGABYTES:g})"
    flags.add_argument("--megabytes", type=float, help=f"maximum size of each text in MB {sizes}")
    flags.add_argument("--hostile", type=int, help=hostile)
    return flags


def cases(kind: str, names: Sequence[str], make: Callable[[Path], Sequence[Workload]]) -> list[Case]:
    """Return fastbert's cases of `pytest benchmarks`: each text that `make` returns, cold and warm, on one thread."""
    return [
        Case(
            benchmark=kind,
            workload=f"{name}, {measure}",
            open=partial(_open, kind, name, measure == "cold", make),
            dtype="int32",
            threads=1,
        )
        for name in names
        for measure in ("cold", "warm")
    ]


def _open(kind: str, name: str, cold: bool, make: Callable[[Path], Sequence[Workload]], workshop: Workshop) -> Call:
    def written(folder: Path) -> dict[str, Workload]:
        folder.mkdir()
        return {workload.name: workload for workload in make(folder)}

    workload = workshop.once("texts", written)[name]
    path, vocabulary = workshop.folder / "texts.json", workload.vocabulary
    save_texts(path, workload.texts)
    opened = TokenizerContender(FASTBERT, 1, kind)
    opened.open(str(path), str(vocabulary.path), vocabulary.options)
    tokens = len(opened.tokenizer.rows(opened.tokenizer.encode(opened.texts))[0])
    sizes = {"tokens": tokens, "text_bytes": workload.text_bytes}
    if cold:
        return Call(run=lambda tokenizer, texts: tokenizer.encode(texts), fresh=opened.fresh, **sizes)
    return Call(run=lambda: opened.tokenizer.encode(opened.texts), **sizes)


def publish(
    rows: Sequence[Row],
    kind: str,
    json: Path | None,
    chart: Path | None,
    *,
    what: str,
    versions: Sequence[str] = (),
) -> None:
    """Write the rows to the requested files: a record, and a chart of `what` with the versions of some packages."""
    if json is not None:
        packages = (*peers.distributions(kind), "fastbert-engine")
        records.write(json, records.record(kind, map(asdict, rows), packages))
    if chart is not None:
        installed = records.versions(versions)
        shown = ", ".join(f"{name} {version}" for name, version in installed.items() if name != "python")
        title = f"{what} on {records.machine()['cpu']}"
        report.chart(chart, rows, title=f"{title}\n{shown}" if shown else title)

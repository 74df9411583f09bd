"""The entries of the speed run: the flags of `fastbert pretrain`, and the time and machine class that they are for."""

from __future__ import annotations

from dataclasses import dataclass

CORES = 2
CPU, GPU = f"{CORES} CPU cores", "1 GPU"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A recipe for one machine class and one training time."""

    name: str
    about: str
    minutes: float
    """Training time; starting, compiling, validating and saving the model are measured beside it."""
    flags: tuple[str, ...]
    machine: str = CPU
    processes: int = 1
    """Started by torchrun where there are several."""
    threads: int = 2
    """The number of threads of each process."""


def _pair(kind: str, about: str, flags: tuple[str, ...]) -> tuple[Entry, Entry]:
    """Return the entries of a recipe for 20 and for 75 minutes, by a process per core."""
    short, long = (
        Entry(name=f"{kind}-{minutes}", about=about, minutes=minutes, flags=flags, processes=2, threads=1)
        for minutes in (20, 75)
    )
    return short, long


ENTRIES = {
    entry.name: entry
    for entry in (
        *_pair("bert-2018", "the published recipe", ("--recipe=bert-2018", "--model=mini")),
        *_pair("short", "our recipe for short runs", ("--recipe=short", "--model=mini", "--lr=3e-3")),
    )
}

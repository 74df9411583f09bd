"""The data of the speed run: fixed text, split, vocabulary and task sets, checked by one hash.

The folder is the one that the other benchmarks read. Of each corpus the documents are put into the order of their
SHA-256, so that books do not come author by author; the last 5 % of them are held out, and never trained on.
"""

from __future__ import annotations

import hashlib
import itertools
import lzma
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fastbert.benchmarks.bench_finetune import extract
from fastbert.errors import UserError
from fastbert.io.atomic_write import write_atomic

CORPORA = ("wiki-en/wiki_en.sent.txt.xz", "books-en/books_en.sent.txt.xz")
VOCABULARY = "vocab/bert-base-uncased-vocab.txt.xz"
TASKS = {"sst2": ("SST-2/train.tsv", "SST-2/dev.tsv"), "stsb": ("STS-B/train.tsv", "STS-B/dev.tsv")}
BLIMP = "blimp/blimp.tsv.xz"
HELD_OUT = 0.05
SHA256 = "dd6f3f08c1a96537e97d8d072e67c1ee2c77bb64ff0cc9e4e83b0663ca582d6d"
"""Of the training text, the held-out text, the vocabulary, the task sets and BLiMP, in this order."""


@dataclass(frozen=True)
class SpeedrunData:
    """Shards of the training and of the held-out text, BLiMP's pairs, and the task sets by name, (train, dev)."""

    train: Path
    held_out: Path
    blimp: Path
    tasks: dict[str, tuple[Path, Path]]


def prepared(data: Path, folder: Path) -> SpeedrunData:
    """Return the data of the speed run, made of the data folder in `folder` unless it is there already.

    Raises `UserError` where a file is missing, or differs from those that the entries were measured on."""
    texts = [folder / "train.txt", folder / "held-out.txt"]
    vocabulary = folder / "vocab.txt"
    missing = [name for name in (*CORPORA, VOCABULARY, BLIMP) if not (data / name).is_file()]
    if missing:
        raise UserError(f"{data}: holds no {missing[0]}, which the speed run needs")
    folder.mkdir(parents=True, exist_ok=True)
    tasks = {name: tuple(extract(data, file, folder / "tasks") for file in files) for name, files in TASKS.items()}
    if not all(path.is_file() for path in (*texts, vocabulary)):
        for path, documents in zip(texts, _split(data), strict=True):
            write_atomic(path, "\n".join(documents))
        write_atomic(vocabulary, lzma.decompress((data / VOCABULARY).read_bytes()).decode("utf-8"))
    digest = _hash([*texts, vocabulary, *itertools.chain(*tasks.values()), data / BLIMP])
    if digest != SHA256:
        made = ", ".join(path.name for path in (*texts, vocabulary))
        raise UserError(
            f"{folder}: the data of the speed run has the SHA-256 {digest}, not {SHA256}: results would not be"
            f" comparable; delete {made} there, which are made of {data}, and repeat; if that does not help, {data}"
            " holds other files"
        )
    shards = []
    for path in texts:
        out = folder / path.stem
        shards.append(out)
        if not (out / "index.json").is_file():
            words = [sys.executable, "-P", "-m", "fastbert", "prepare", f"--corpus={path}", f"--tokenizer={vocabulary}"]
            subprocess.run([*words, "--text-format=lines", f"--out={out}", "--quiet"], check=True)
    return SpeedrunData(shards[0], shards[1], data / BLIMP, {name: (a, b) for name, (a, b) in tasks.items()})


def _split(data: Path) -> tuple[list[str], list[str]]:
    """Return the documents to train on, and those held out: sentences as lines, each with its newline."""
    train: list[str] = []
    held_out: list[str] = []
    for name in CORPORA:
        documents = sorted(_documents(data / name), key=lambda text: hashlib.sha256(text.encode()).digest())
        kept = len(documents) - round(HELD_OUT * len(documents))
        train += documents[:kept]
        held_out += documents[kept:]
    return train, held_out


def _documents(path: Path) -> Iterator[str]:
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        for filled, lines in itertools.groupby(file, key=lambda line: bool(line.strip())):
            if filled:
                yield "".join(lines)


def _hash(paths: list[Path]) -> str:
    """Return the SHA-256 of the files' own, in their order."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()

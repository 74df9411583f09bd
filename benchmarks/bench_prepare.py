"""Measure `fastbert prepare`: megabytes of text per second and peak memory, by the size and the layout of the text.

    python benchmarks/bench_prepare.py --quick
    python benchmarks/bench_prepare.py --text wiki.txt.xz books.txt.xz --megabytes 1000 2000 --json rows.json

The text, by default the English that comes with Python, is repeated with changed words up to the size, as one sentence
per line, one paragraph per line and wrapped prose; it was just written, so it is in the page cache. Every preparation
runs in a new process, in turns; imports are not timed. Memory is the process's peak as a whole, mapped files included.
The shards of all numbers of workers must be the same files before anything is reported.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import IO, Any

from fastbert.benchmarks.harness import child_process, process_memory, records
from fastbert.benchmarks.harness.measure import FASTBERT, Row, Timing, make_rows

LAYOUTS = ("lines", "paragraphs", "prose")
PARAGRAPH_SENTENCES = 5
WRAP = 76
SOURCE_BYTES = 20_000_000  # of Python's text that is repeated
VOCABULARY_SIZE = 30_522
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The selection and size of the measurement."""

    text: tuple[Path, ...]
    tokenizer: Path | None
    megabytes: tuple[int, ...]
    layouts: tuple[str, ...]
    workers: tuple[int, ...]
    dedup: bool
    rounds: int
    json: Path | None


def write_text(documents: Sequence[Sequence[str]], path: Path, layout: str, size: int) -> None:
    """Write documents, repeated with changes, to a text file of about `size` bytes."""
    written = 0
    with path.open("wb") as file:
        for repeat in count():
            for document in documents:
                sentences = document if repeat == 0 else list(_changed(document, repeat))
                written += _write_document(file, sentences, layout)
                if written >= size:
                    return


def _changed(document: Sequence[str], repeat: int) -> Iterator[str]:
    """Yield sentences with other digits, and two neighbouring words swapped."""
    draw = random.Random(f"{repeat} {document[0]}")
    for sentence in document:
        words = _DIGIT.sub(lambda digit: str((int(digit[0]) + repeat) % 10), sentence).split(" ")
        if len(words) > 4:
            first = draw.randrange(len(words) - 1)
            words[first], words[first + 1] = words[first + 1], words[first]
        yield " ".join(words)


def _write_document(file: IO[bytes], sentences: Sequence[str], layout: str) -> int:
    groups = range(0, len(sentences), PARAGRAPH_SENTENCES)
    paragraphs = [" ".join(sentences[begin : begin + PARAGRAPH_SENTENCES]) for begin in groups]
    if layout == "lines":
        text = "\n".join(sentences) + "\n\n"
    elif layout == "paragraphs":
        text = "\n".join(paragraphs) + "\n\n"
    else:
        text = "\n\n".join("\n".join(textwrap.wrap(paragraph, WRAP)) for paragraph in paragraphs) + "\n\n\n"
    return file.write(text.encode())


def measure(options: Options, folder: Path) -> list[Row]:
    """Return the rows of all sizes and layouts; exit if the shards depend on the number of workers."""
    documents, tokenizer = _source(options, folder)
    rows: list[Row] = []
    for layout in options.layouts:
        for megabytes in options.megabytes:
            path = folder / f"{layout}.txt"
            write_text(documents, path, layout, 1_000_000 * megabytes)
            rows += _of_text(options, path, layout, megabytes, tokenizer, folder)
            path.unlink()
    return rows


def _of_text(options: Options, path: Path, layout: str, megabytes: int, tokenizer: Path, folder: Path) -> Iterator[Row]:
    modes = ("off", "all") if options.dedup else ("off",)
    contenders = {
        FASTBERT if workers == options.workers[0] and mode == "off" else _name(workers, mode): (workers, mode)
        for mode in modes
        for workers in options.workers
    }
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for _ in range(options.rounds):
        for name, (workers, mode) in contenders.items():
            measured[name].append(_in_a_process(path, layout, tokenizer, folder / "shards", workers, mode))
    for mode in modes:
        indices = {measured[name][0]["index"] for name, (_, other) in contenders.items() if other == mode}
        if len(indices) > 1:
            sys.exit(f"{layout}, {megabytes} MB: the shards depend on the number of workers: nothing to compare")
    timings = {name: [Timing(run["seconds"], run["processor"]) for run in runs] for name, runs in measured.items()}
    size = path.stat().st_size
    rows = make_rows(
        f"{layout}-{megabytes}MB",
        timings,
        dtype="uint16",
        threads=max(options.workers),
        differences=dict.fromkeys(timings, 0.0),
        outputs=dict.fromkeys(timings, "equal"),
        tokens=measured[FASTBERT][0]["tokens"],
        text_bytes=size,
    )
    for row in rows:
        workers, mode = contenders[row.contender]
        run = measured[row.contender][0]
        peak = max(run["peak_bytes"] for run in measured[row.contender])
        details = {"workers": workers, "dedup": mode, "peak_bytes": peak, "sentences": run["sentences"]}
        yield replace(row, details={**row.details, **details})


def _name(workers: int, mode: str) -> str:
    return f"{workers} worker{'s' * (workers > 1)}" + ("" if mode == "off" else f", dedup {mode}")


def _source(options: Options, folder: Path) -> tuple[list[list[str]], Path]:
    """Return the documents that are repeated, and a tokenizer, built from them unless one is given."""
    from fastbert.data.corpus import Corpus
    from fastbert.data.python_text import python_documents
    from fastbert.tokenizers.piece_training import train_tokenizer

    source = Corpus.find(options.text).documents() if options.text else python_documents(SOURCE_BYTES)
    documents = list(source)
    if options.tokenizer is not None:
        return documents, options.tokenizer
    sentences = chain.from_iterable(documents)
    tokenizer = train_tokenizer(sentences, "wordpiece", VOCABULARY_SIZE, lower_case=True)
    (folder / "tokenizer").mkdir()
    tokenizer.save_pretrained(folder / "tokenizer")
    return documents, folder / "tokenizer"


def _in_a_process(path: Path, layout: str, tokenizer: Path, out: Path, workers: int, mode: str) -> dict[str, Any]:
    words = (path, layout, tokenizer, out, workers, mode)
    return child_process.answer_of("fastbert.benchmarks.bench_prepare", words, f"{path.name}, {workers} workers")


def child(path: str, layout: str, tokenizer: str, out: str, workers: str, mode: str) -> dict[str, Any]:
    """Prepare a text; return time, memory and the hash of the shards' index."""
    from fastbert.data.corpus import Corpus
    from fastbert.data.prepare import prepare
    from fastbert.io.checksums import sha256
    from fastbert.tokenizers.loading import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    corpus = Corpus.find(path, text_format=layout)  # type: ignore[arg-type]  # one of LAYOUTS
    start, processor = time.perf_counter(), time.process_time()
    shards = prepare(corpus, loaded, out, overwrite=True, workers=int(workers), dedup=mode)  # type: ignore[arg-type]
    return {
        "seconds": time.perf_counter() - start,
        "processor": time.process_time() - processor,
        "peak_bytes": process_memory.high_water(),
        "tokens": shards.num_tokens,
        "sentences": shards.num_sentences,
        "index": sha256(shards.folder / "index.json"),
    }


def show(rows: Sequence[Row]) -> None:
    """Print a table."""
    print(f"{'workload':<20}{'contender':<24}{'seconds':>9}{'MB/s':>8}{'CPUs':>6}{'peak MB':>9}")
    for row in rows:
        print(
            f"{row.workload:<20}{row.contender:<24}{row.median_ms / 1000:>9.1f}{row.megabytes_per_second or 0:>8.0f}"
            f"{row.threads_used or 0:>6.1f}{row.details['peak_bytes'] / 1e6:>9.0f}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if child_process.answered(argv, child):
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 MB, one round")
    parser.add_argument("--text", type=Path, nargs="+", default=(), help="text to repeat (default: Python's own)")
    parser.add_argument("--tokenizer", type=Path, help="folder or vocab.txt (default: one is built from the text)")
    parser.add_argument("--megabytes", type=int, nargs="+", help="sizes of the text (default: 1000 and 2000)")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS, help="layouts of the text")
    parser.add_argument("--workers", type=int, nargs="+", help="numbers of workers (default: all cores, and one)")
    parser.add_argument("--dedup", action="store_true", help="measure --dedup all as well")
    parser.add_argument("--rounds", type=int, help="processes of each (default: 3)")
    parser.add_argument("--folder", type=Path, help="folder for the text and the shards (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    flags = parser.parse_args(argv)
    options = Options(
        text=tuple(flags.text),
        tokenizer=flags.tokenizer,
        megabytes=tuple(flags.megabytes or ((100,) if flags.quick else (1000, 2000))),
        layouts=tuple(flags.layouts),
        workers=tuple(dict.fromkeys(flags.workers or (len(os.sched_getaffinity(0)), 1))),
        dedup=flags.dedup,
        rounds=flags.rounds or (1 if flags.quick else 3),
        json=flags.json,
    )
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-", dir=flags.folder) as temporary:
        rows = measure(options, Path(temporary))
    show(rows)
    if options.json is not None:
        records.write(options.json, records.record("prepare", map(asdict, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

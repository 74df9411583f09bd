"""Compare exact searches for the ten nearest vectors: their recall first, then the milliseconds of a search.

    python benchmarks/bench_search.py --quick
    python benchmarks/bench_search.py --threads 2 --json rows.json
    python benchmarks/bench_search.py --index sentences --json rows.json

The vectors are synthetic, a million of width 384 around random centres. With --index, an index that `fastbert search
index --store fp32` made, its vectors are searched as well, by the last ones of them, which are left out of the search.

- fastbert: int8 with the best 100 scored again in fp16; also fp16, and fp32. Vectors are memory-mapped files.
- torch and NumPy: a matmul in fp32 over vectors in memory, then the ten largest.
- FAISS, if it is installed: a flat index of fp32, and one of 8-bit numbers (SQ8).

Recall is the part of the ten nearest by fp64 that a contender returns.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.measure import FASTBERT, Row, interleave, make_rows, timed
from fastbert.search import Index
from fastbert.search.faiss_files import import_faiss
from fastbert.search.format import read_settings, vectors_name

TOP, QUERIES, WIDTH = 10, 200, 384
LEAST_RECALL = 0.99
Search = Callable[[Tensor], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The size of the measurement."""

    count: int = 1_000_000
    index: Path | None = None
    batches: tuple[int, ...] = (1, 16)
    threads: int = 1
    rounds: int = 15
    json: Path | None = None


def synthetic(count: int, seed: int = 0) -> Tensor:
    """Return unit vectors, fp32 (count, 384), around a thousand centres."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(1000, WIDTH, generator=generator)
    vectors = torch.empty(count, WIDTH)
    for part in vectors.split(1 << 16):
        rows = centres[torch.randint(len(centres), (len(part),), generator=generator)]
        part.copy_(torch.nn.functional.normalize(rows + torch.randn(part.shape, generator=generator)))
    return vectors


def stored(folder: Path) -> Tensor:
    """Return the vectors of an fp32 index, fp32 (count, width)."""
    settings = read_settings(folder)
    if settings.store != "fp32":
        sys.exit(
            f"--index {folder}: holds {settings.store}, and recall is measured against fp32: make it with --store fp32"
        )
    return torch.from_numpy(np.load(folder / vectors_name("fp32")))


def contenders(vectors: Tensor, folder: Path, threads: int) -> Iterator[tuple[str, str, Search]]:
    """Yield name, dtype and search of each contender; a search takes queries and returns indices (q, 10)."""
    texts = [str(number) for number in range(len(vectors))]
    for store, name in (("int8", FASTBERT), ("fp16", "fastbert, fp16"), ("fp32", "fastbert, fp32")):
        index = Index.from_vectors(folder / store, vectors, texts, store=store)
        yield name, store, partial(_fastbert, index)
    yield "torch", "fp32", lambda queries: (queries @ vectors.T).topk(TOP).indices.numpy()
    yield "NumPy", "fp32", partial(_numpy, vectors.numpy())
    if find_spec("faiss") is None:
        return
    faiss = import_faiss()
    faiss.omp_set_num_threads(threads)
    for kind, name, dtype in (("Flat", "FAISS, flat", "fp32"), ("SQ8", "FAISS, SQ8", "int8")):
        peer = faiss.index_factory(vectors.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
        peer.train(vectors[:100_000].numpy())
        for part in vectors.split(1 << 16):
            peer.add(part.numpy())
        yield name, dtype, partial(_faiss, peer)


def _fastbert(index: Index, queries: Tensor) -> np.ndarray:
    return index.search(queries, TOP)[1].numpy()


def _numpy(vectors: np.ndarray, queries: Tensor) -> np.ndarray:
    scores = queries.numpy() @ vectors.T
    best = np.argpartition(scores, -TOP, axis=1)[:, -TOP:]
    return np.take_along_axis(best, np.take_along_axis(scores, best, 1).argsort(1)[:, ::-1], 1)


def _faiss(index: object, queries: Tensor) -> np.ndarray:
    indices: np.ndarray = index.search(queries.numpy(), TOP)[1]  # type: ignore[attr-defined]
    return indices


def nearest(vectors: Tensor, queries: Tensor) -> np.ndarray:
    """Return the indices of the ten nearest vectors by fp64, int64 (q, 10)."""
    scores = torch.cat([queries.double() @ part.double().T for part in vectors.split(1 << 16)], 1)
    return scores.topk(TOP).indices.numpy()


def measure(name: str, vectors: Tensor, options: Options, report: Callable[[str], None]) -> list[Row]:
    """Return the rows of all contenders. Exits where one finds less than 99 % of the nearest vectors."""
    queries, vectors = vectors[-QUERIES:], vectors[:-QUERIES]
    exact = nearest(vectors, queries)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as folder:
        searches, dtypes, recalls = dict[str, Search](), dict[str, str](), dict[str, float]()
        for contender, dtype, search in contenders(vectors, Path(folder), options.threads):
            indices = search(queries)
            recalls[contender] = float((indices[:, :, None] == exact[:, None]).any(2).mean())
            searches[contender], dtypes[contender] = search, dtype
            report(f"{name}, {contender}: recall@{TOP} {recalls[contender]:.4f}")
            if recalls[contender] < LEAST_RECALL and contender.startswith(FASTBERT):
                sys.exit(f"{contender}: finds too few of the nearest vectors: there is nothing to compare")
        for batch in options.batches:
            calls = {who: timed(partial(search, queries[:batch])) for who, search in searches.items()}
            timings = interleave(calls, options.rounds)
            workload = f"{name}, {batch} {'query' if batch == 1 else 'queries'}"
            made = make_rows(
                workload, timings, dtype=dtypes, threads=options.threads, outputs=dict.fromkeys(timings, "close")
            )
            rows += [
                replace(row, details={**row.details, "recall_at_10": round(recalls[row.contender], 4)}) for row in made
            ]
    return rows


def show(rows: Sequence[Row]) -> None:
    """Print a table."""
    print(f"{'workload':<39}{'contender':<18}{'ms':>9}{'p20':>9}{'p80':>9}{'ratio':>8}{'recall':>9}{'CPU used':>10}")
    for row in rows:
        print(
            f"{row.workload:<39}{row.contender:<18}{row.median_ms:>9.1f}{row.p20:>9.1f}{row.p80:>9.1f}"
            f"{row.ratio_to_fastbert or 0:>8.2f}{row.details['recall_at_10']:>9.4f}{row.threads_used or 0:>10.2f}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("--quick", action="store_true", help="20,000 vectors, three rounds")
    line.add_argument("--count", type=int, help="synthetic vectors (default: 1,000,000)")
    line.add_argument("--index", type=Path, help="an index made with --store fp32, searched as well")
    line.add_argument("--threads", type=int, help="threads of all (default: all cores)")
    line.add_argument("--rounds", type=int, help="rounds per contender (default: 15)")
    line.add_argument("--json", type=Path, help="file to write the rows to")
    flags = line.parse_args(arguments)
    options = Options(
        count=flags.count or (20_000 if flags.quick else 1_000_000),
        index=flags.index,
        threads=flags.threads or len(os.sched_getaffinity(0)),
        rounds=flags.rounds or (3 if flags.quick else 15),
        json=flags.json,
    )
    torch.set_num_threads(options.threads)
    rows = []
    if options.index is not None:
        vectors = stored(options.index)
        rows += measure(f"{len(vectors) - QUERIES:,} x {vectors.shape[1]} of an index", vectors, options, print)
    rows += measure(f"{options.count:,} x {WIDTH}", synthetic(options.count + QUERIES), options, print)
    show(rows)
    if options.json is not None:
        packages = (*records.PACKAGES, "faiss-cpu")
        records.write(options.json, records.record("search", map(asdict, rows), packages))
    return 0


if __name__ == "__main__":
    sys.exit(main())

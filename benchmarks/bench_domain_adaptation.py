"""Measure what continued pre-training on the text of a domain is worth, and how positions are best extended.

    python benchmarks/bench_domain_adaptation.py --json rows.json

A small BERT is pre-trained on the first megabytes of the data folder's Wikipedia (--data, else FASTBERT_DATA). The
domain is film reviews: the phrases of SST-2's training set, without their labels. `adapted` continues on them,
`extended` too, after `fastbert vocab --extend` has added words of theirs. All are scored on the sentences of SST-2's
development set, which occur in neither text: bits per character do not depend on the vocabulary. The downstream score
is the accuracy there after fine-tuning on some labelled examples, over several seeds; the masked-LM loss is that of
phrases held out from training.

`positions` extends the same small BERT, which was trained on sequences of 64 tokens, to 256 by each method and trains
both on. No time is measured.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import fastbert
from fastbert.benchmarks.bench_defaults import WIKIPEDIA, command
from fastbert.benchmarks.bench_finetune import extract
from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.texts import find_data
from fastbert.errors import UserError
from fastbert.scoring.scorer import load_scorer
from fastbert.scoring.text_scores import TextTotals, score_texts

WORDS = 10  # of the shortest phrases of the domain
LENGTH, LONG = 64, 256
NO_LR = 1e-12  # with which one step leaves the weights as they were
RUN: dict[str, Any] = {"objective": "mlm", "device": "cpu", "quiet": True, "resume": True}


def domain(data: Path, folder: Path) -> tuple[Path, Path, Path, list[str]]:
    """Return the text of the domain, SST-2's training and development files, and the latter's sentences."""
    train, dev = (extract(data, f"SST-2/{name}.tsv", folder) for name in ("train", "dev"))
    phrases = dict.fromkeys(line.split("\t")[1].strip() for line in train.read_text().splitlines()[1:])
    text = folder / "domain.txt"
    text.write_text("\n\n".join(phrase for phrase in phrases if len(phrase.split()) >= WORDS) + "\n")
    sentences = [line.split("\t")[1].strip() for line in dev.read_text().splitlines()[1:]]
    return text, train, dev, sentences


def bits_per_character(model: Path, sentences: Sequence[str]) -> float:
    """Return the pseudo-log-likelihood of sentences, in bits per character."""
    totals = TextTotals()
    for _ in score_texts(load_scorer(model, mode="within-word"), sentences, totals):
        pass
    return totals.bits_per_character


def accuracy(model: Path, train: Path, dev: Path, out: Path, options: argparse.Namespace) -> list[float]:
    """Return the accuracy after fine-tuning on the first examples, per seed."""
    labelled = out.with_suffix(".tsv")
    labelled.write_text("\n".join(train.read_text().splitlines()[: options.examples + 1]) + "\n")
    result = fastbert.finetune(
        task="classification", model=model, train=labelled, eval=dev, out=out, seeds=options.seeds, epochs=4,
        batch_size=16, max_length=LENGTH, device="cpu", quiet=True, resume=True,
    )  # fmt: skip
    return result.scores[dev.name]["accuracy"]["per_seed"]


def adaptation(options: argparse.Namespace, base: Path, data: Path, folder: Path) -> list[dict[str, Any]]:
    """Return a row for the base model, one continued on the domain, and one whose vocabulary was extended first."""
    text, train, dev, sentences = domain(data, folder)
    pieces = fastbert.load_tokenizer(base).tokenize
    fitting = [each for each in sentences if len(pieces(each)) <= LENGTH - 2][: options.sentences]
    flags = {"corpus": text, "text_format": "lines", "max_length": LENGTH, "steps": options.adaptation_steps}
    common: dict[str, Any] = {**flags, **RUN, "eval_samples": 512, "seed": options.seed}
    models = {"base": base}
    untrained = {**common, "steps": 1, "lr": NO_LR}
    before = fastbert.pretrain(init=base, out=folder / "before", **untrained).validation
    adapted = fastbert.pretrain(init=base, out=folder / "adapted", **common)
    models["adapted"], after = adapted.model, adapted.validation
    extended = folder / "vocabulary"
    words = ["--corpus", text, "--text-format", "lines", "--model", base, "--extend", "--out", extended]
    command(["vocab", *words, "--add", options.words, "--overwrite", "--quiet"], torch.get_num_threads())
    models["extended"] = fastbert.pretrain(init=extended, out=folder / "extended", **common).model
    rows = []
    for name, model in models.items():
        scores = accuracy(model, train, dev, folder / f"task-{name}", options)
        tokenizer = fastbert.load_tokenizer(model)
        row = {
            "workload": "film reviews (SST-2)",
            "contender": name,
            "bits_per_character": round(bits_per_character(model, fitting), 4),
            "accuracy": round(sum(scores) / len(scores), 2),
            "accuracy_per_seed": [round(score, 2) for score in scores],
            "vocabulary": len(tokenizer),
            "tokens_per_word": round(
                sum(len(tokenizer.tokenize(sentence)) for sentence in sentences)
                / sum(len(sentence.split()) for sentence in sentences),
                4,
            ),
        }
        if name != "extended":  # whose losses are of other tokens
            held_out = before if name == "base" else after
            row |= {
                "mlm_loss": round(held_out.mlm_loss, 4),
                "mlm_accuracy": round(100 * held_out.mlm_accuracy, 2),
            }
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def positions(options: argparse.Namespace, base: Path, corpus: Path, folder: Path) -> list[dict[str, Any]]:
    """Return a row per method of extending positions: validation losses on long sequences, before training and after
    some steps."""
    rows = []
    for method in ("repeat", "interpolate"):
        losses = {}
        for steps, lr in ((1, NO_LR), (options.position_steps, None)):
            result = fastbert.pretrain(
                corpus=corpus, text_format="lines", init=base, out=folder / f"{method}-{steps}", max_positions=LONG,
                extend_positions=method, max_length=LONG, steps=steps, lr=lr, batch_size=16, eval_samples=64,
                short_sequence_prob=0.0, seed=options.seed, **RUN,
            )  # fmt: skip
            losses["loss_before" if steps == 1 else "loss_after"] = round(result.validation.mlm_loss, 4)
        row = {"workload": f"{LENGTH} to {LONG} positions", "contender": method, **losses}
        rows.append({**row, "steps": options.position_steps})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="+", choices=("adaptation", "positions"), default=["adaptation", "positions"])
    parser.add_argument("--model", default="mini", help="size of the base model (default: mini)")
    parser.add_argument("--work", type=Path, help="folder of the runs, which another call continues (default: none)")
    parser.add_argument("--megabytes", type=float, default=4.0, help="Wikipedia to pre-train on (default: 4)")
    parser.add_argument("--steps", type=int, default=1200, help="steps of the base model (default: 1200)")
    parser.add_argument("--adaptation-steps", type=int, default=600, help="steps on the domain (default: 600)")
    parser.add_argument("--position-steps", type=int, default=60, help="steps on long sequences (default: 60)")
    parser.add_argument("--words", type=int, default=1000, help="words to add to the vocabulary (default: 1000)")
    parser.add_argument("--examples", type=int, default=1000, help="labelled examples (default: 1000)")
    parser.add_argument("--sentences", type=int, default=300, help="held-out sentences to score (default: 300)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of fine-tuning (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="seed of pre-training (default: 0)")
    parser.add_argument("--data", type=Path, help="data folder (default: FASTBERT_DATA)")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    options = parser.parse_args(arguments)
    data = find_data(options.data)
    if data is None:
        raise UserError("no data folder: name one with --data or FASTBERT_DATA")
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        folder = options.work or Path(temporary)
        folder.mkdir(exist_ok=True)
        corpus = folder / "corpus.txt"
        with lzma.open(data / WIKIPEDIA, "rb") as source, corpus.open("wb") as file:
            while file.tell() < options.megabytes * 1_000_000 and (line := source.readline()):
                file.write(line)
        base = fastbert.pretrain(
            corpus=corpus, text_format="lines", model=options.model, max_positions=LENGTH,
            max_length=LENGTH, steps=options.steps, eval_samples=256, seed=options.seed,
            out=folder / "base", **RUN,
        )  # fmt: skip
        rows: list[dict[str, Any]] = []
        if "adaptation" in options.what:
            rows += adaptation(options, base.model, data, folder)
        if "positions" in options.what:
            rows += positions(options, base.model, corpus, folder)
    if options.json is not None:
        names = ("model", "megabytes", "steps", "adaptation_steps", "words", "examples", "sentences", "seeds", "seed")
        settings = {
            **{name: getattr(options, name) for name in names},
            "base_validation_loss": round(base.validation.mlm_loss, 4),
            "threads": torch.get_num_threads(),
        }
        records.write(options.json, records.record("domain-adaptation", rows, records.PACKAGES, settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())

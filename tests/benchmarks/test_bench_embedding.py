"""The benchmarks of contrastive training: their examples and comparisons, and a whole run on toy data."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from random import Random

import pytest
from toy_tasks import sentence, toy_folder

from fastbert.benchmarks import bench_embedding_training
from fastbert.benchmarks.embedding import examples
from fastbert.benchmarks.embedding.examples import Example, ExampleForm
from fastbert.finetuning.config import FinetuneConfig
from fastbert.tasks.registry import make_task

TRIPLETS = [Example((f"anchor {n}", f"near {n}", f"far {n}")) for n in range(6)]
SCORED = [Example((f"first {n}", f"second {n}"), (n / 5,)) for n in range(6)]
HEADER = "label\tpremise\thypothesis\n"


def snli(premises: int, seed: int = 0) -> str:
    """Premises with an entailed, a neutral and a contradicting sentence."""
    draw = Random(seed)
    lines = []
    for _ in range(premises):
        premise = sentence(draw, True, 9)
        for label in ("entailment", "neutral", "contradiction"):
            lines.append(f"{label}\t{premise}\t{sentence(draw, label == 'entailment', 7)}")
    return HEADER + "\n".join(lines) + "\n"


def test_triplets_are_made_of_entailed_and_contradicting_sentences(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_text(HEADER + "entailment\tp\te\nneutral\tp\tn\ncontradiction\tp\tc\nentailment\tq\te\n")
    assert examples.snli_triplets(path) == [Example(("p", "e", "c"))]


def test_examples_with_a_known_text_are_left_out() -> None:
    other = Example(("anchor 9", "near 0", "far 9"))
    assert examples.without_duplicates([*TRIPLETS, other, Example(("same", "same", "x"))]) == TRIPLETS


@pytest.mark.parametrize("form", ["triplets", "pairs", "scored", "binary", "taught", "labelled", "graded", "lists"])
def test_fastbert_reads_the_same_texts_and_labels(form: ExampleForm, tmp_path: Path) -> None:
    made = examples.in_form(form, TRIPLETS, SCORED)
    path = examples.write(tmp_path / "train.jsonl", form, made)
    name = "rerank" if form in ("labelled", "graded", "lists") else "embedding"
    config = FinetuneConfig(task=name, model="unused", train=path)
    read = make_task(name, config.task_settings()).read(str(path))
    assert [each.texts for each in read] == [each.texts for each in made]
    labels = [tuple(each.labels or each.teacher or ()) for each in read]
    assert labels == [pytest.approx(each.labels) for each in made]


def test_a_batch_without_duplicates_has_every_text_once() -> None:
    pairs = [Example((f"question {n}", f"paragraph {n // 4}")) for n in range(16)]
    batches = examples.batches_without_duplicates(pairs, 4, seed=0)
    assert sorted(each.texts for batch in batches for each in batch) == sorted(each.texts for each in pairs)
    for batch in batches:
        assert len({each.texts[1] for each in batch}) == len(batch) <= 4


def test_differences_are_relative_to_the_peer_and_steps_near_zero_to_the_mean() -> None:
    parity = pytest.importorskip("fastbert.benchmarks.embedding.parity")
    agreement = parity.Agreement(fastbert=[1.01, 2.0, 1e-9], peer=[1.0, 2.0, 0.0])
    assert agreement.differences == pytest.approx([0.01, 0.0, 1e-6])
    row = agreement.row("x")
    assert (row["at_step"], row["loss_at_step"], row["mean_loss"]) == (1, 1.0, 1.0)
    assert row["max_absolute_difference"] == pytest.approx(0.01)


@pytest.mark.slow
def test_training_is_compared_with_that_of_sentence_transformers(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", minversion="6.0")
    (tmp_path / "finetune").mkdir()
    with tarfile.open(tmp_path / "finetune" / "SNLI.tar.xz", "w:xz") as archive:
        for name in ("dev", "test"):
            content = snli(80, seed=len(name)).encode()
            member = tarfile.TarInfo(f"SNLI/{name}.tsv")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    model = toy_folder(tmp_path / "model", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    file = tmp_path / "rows.json"
    flags = ["--quick", "--threads", "1", "--data", str(tmp_path), "--folder", str(model), "--json", str(file)]
    assert bench_embedding_training.main([*flags, "--contenders", "fastbert", "fp32", "--max-length", "32"]) == 0
    record = json.loads(file.read_text())
    rows = record["rows"]
    assert record["benchmark"] == "embedding-training"
    assert {row["workload"] for row in rows} == {"batch 16", "batch 64, cached gradients"}
    assert all(row["outputs"] == "close" for row in rows if row["dtype"] == "fp32")
    assert all(row["examples_per_second"] > 0 for row in rows)

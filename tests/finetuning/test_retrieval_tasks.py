"""Embedders, rerankers, sparse vectors and vectors of tokens: trained, scored, saved, and loaded by their classes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finetune_runs import assert_close, config, lines, same, weights, words, wrong
from ranks import Ranks
from retrieval_data import about, lists, masked_folder, scored, triplets

from fastbert import CrossEncoder, SparseEncoder, TokenEncoder, load_embedder, maxsim
from fastbert.errors import UserError
from fastbert.finetuning.evaluation import split_off
from fastbert.finetuning.mixture import mixed
from fastbert.finetuning.negatives import negatives_file
from fastbert.finetuning.run import finetune
from fastbert.tasks.finetuned_model import load_trained
from fastbert.tasks.predicting import predict
from fastbert.tasks.registry import make_task, task_class
from fastbert.training.reporter import Reporter
from fastbert.training.stopping import Stopped

pytest.importorskip("tyro", reason="the command line needs tyro")

SHORT: dict[str, Any] = {"epochs": (1.0,), "batch_size": (16,), "lr": (2e-3,), "log_every": 1, "eval": ()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("groups")
    masked_folder(folder / "model")
    triplets(folder / "train.jsonl", 160, seed=1)
    triplets(folder / "dev.jsonl", 40, seed=2)
    triplets(folder / "pairs.jsonl", 60, seed=3, negatives=0)
    triplets(folder / "hard.jsonl", 40, seed=4, negatives=3)
    triplets(folder / "few.jsonl", 14, seed=7)
    scored(folder / "scored.tsv", 64, seed=5)
    lists(folder / "lists.jsonl", 48, seed=6)
    triplets(folder / "some.jsonl", 64, seed=8)
    return folder


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    running = Ranks(tmp_path_factory.mktemp("ranks"))
    yield running
    running.close()


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plot takes longer than a run."""
    monkeypatch.setattr("fastbert.finetuning.result.plot_trials", lambda *_: None)


def flags_of(place: Path, **flags: Any) -> dict[str, Any]:
    chosen = {"task": "embedding", "train": "train.jsonl", **SHORT, **flags}
    chosen["train"] = place / chosen["train"]
    chosen["eval"] = tuple(place / name for name in chosen["eval"])
    return chosen


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in lines(out, "train")]


def served(task: str, folder: Path, queries: list[str], texts: list[str]) -> torch.Tensor:
    """The score of each query with the text of the same index, by the class that serves such folders."""
    if task == "embedding":
        model, tokenizer, _ = load_embedder(folder)
        a, b = model.embed(queries, tokenizer, normalize=True), model.embed(texts, tokenizer, normalize=True)
        return (a * b).sum(1)
    if task == "splade":
        sparse = SparseEncoder(folder, dtype="fp32")
        a = sparse.encode(queries, role="query").to_torch().to_dense()
        return (a * sparse.encode(texts).to_torch().to_dense()).sum(1)
    if task == "colbert":
        encoder = TokenEncoder(folder, dtype="fp32")
        return maxsim(encoder.encode(queries, role="query"), encoder.encode(texts)).diagonal()
    return CrossEncoder(folder, dtype="fp32").predict(list(zip(queries, texts)), activation="identity")


@pytest.mark.parametrize("task", ["embedding", "splade", "colbert", "rerank"])
def test_a_trained_model_is_served_with_the_scores_of_its_run(task: str, place: Path, tmp_path: Path) -> None:
    """It has learned, the folder's class gives the same similarities as the run's predictions, and `evaluate` the same
    metrics."""
    out = tmp_path / "run"
    prompts = {"query_prompt": "the ", **({} if task == "rerank" else {"document_prompt": "a "})}
    flags = flags_of(place, task=task, eval=("dev.jsonl",), epochs=(6.0,), lr=(3e-3,), **prompts)
    result = finetune(config(place, out, **flags))
    assert np.mean(losses(out)[-5:]) < np.mean(losses(out)[:5])
    scores = result.scores["dev.jsonl"]
    assert {"ndcg@10", "mrr@10", "recall@10", "map", "accuracy"} <= scores.keys()
    assert scores["accuracy"]["mean"] > {"rerank": 45, "colbert": 60}.get(task, 70)
    found = [json.loads(line) for line in (out / "predictions" / "dev.jsonl.jsonl").read_text().splitlines()]
    dev = [json.loads(line) for line in (place / "dev.jsonl").read_text().splitlines()]
    queries, texts = [line["anchor"] for line in dev], [line["positive"] for line in dev]
    if task == "embedding":
        queries, texts = ["the " + query for query in queries], ["a " + text for text in texts]
    torch.testing.assert_close(
        served(task, out / "model", queries, texts), torch.tensor([one["score"] for one in found]), rtol=1e-4, atol=1e-4
    )
    trained = load_trained(str(out / "model"))
    dataset = trained.task.read_gold(str(place / "dev.jsonl"))
    again = trained.task.score(dataset, predict(trained.task, trained.model, trained.tokenizer, dataset))
    assert again == pytest.approx({name: value["mean"] for name, value in scores.items()}, abs=1e-3)


def test_a_run_draws_its_scores(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.undo()
    flags = flags_of(place, train="few.jsonl", eval=("few.jsonl",), matryoshka=(32, 8))
    finetune(config(place, tmp_path / "run", **flags))
    assert (tmp_path / "run" / "loss.png").is_file()


LOSSES = {
    "info-nce, symmetric": {"symmetric": True},
    "triplet": {"loss": "triplet", "train": "hard.jsonl"},
    "matryoshka": {"matryoshka": (32, 8), "eval": ("dev.jsonl",)},
    "dot": {"similarity": "dot", "normalize": True, "pooling": "cls"},
    "max pooling, lora": {"pooling": "max", "lora": 2},
    "cosent": {"train": "scored.tsv", "eval": ("scored.tsv",)},
    "angle": {"train": "scored.tsv", "loss": "angle"},
    "cosine": {"train": "scored.tsv", "loss": "cosine"},
    "contrastive": {"train": "scored.tsv", "loss": "contrastive", "score_range": (0.0, 5.0)},
    "lists": {"train": "lists.jsonl", "eval": ("lists.jsonl",)},
    "splade of lists": {"task": "splade", "train": "lists.jsonl"},
    "colbert without masks": {"task": "colbert", "query_length": 0, "token_width": 8, "symmetric": True},
    "list-ce": {"task": "rerank", "train": "lists.jsonl", "eval": ("lists.jsonl",)},
    "lambda": {"task": "rerank", "train": "lists.jsonl", "loss": "lambda", "epochs": (6.0,)},
    "bce of scores": {"task": "rerank", "train": "scored.tsv"},
    "several files": {"more_train": ("pairs.jsonl",), "mix": (0.5, 2.0)},
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_forms(name: str, place: Path, tmp_path: Path) -> None:
    """Each is trained, its loss falls, and it is saved with its settings."""
    if name.endswith("lora"):
        pytest.importorskip("peft")
    flags = flags_of(place, **{"train": "some.jsonl", "epochs": (3.0,), **LOSSES[name]})
    flags["more_train"] = tuple(place / file for file in flags.pop("more_train", ()))
    out = tmp_path / "run"
    result = finetune(config(place, out, **flags))
    run = losses(out)
    assert np.mean(run[-3:]) < np.mean(run[:3])
    if name == "matryoshka":
        assert {"ndcg@10/32", "ndcg@10/8"} <= result.scores["dev.jsonl"].keys()
    if name == "cosent":
        assert result.scores["scored.tsv"].keys() == {"spearman", "pearson"}
        assert result.scores["scored.tsv"]["spearman"]["mean"] > 20
    if name in ("lists", "list-ce"):
        assert result.scores["lists.jsonl"]["ndcg@10"]["mean"] > 50
    if name == "several files":
        assert lines(out, "train")[-1]["step"] == 3 * -(-(32 + 120) // 16)


def test_a_teacher(place: Path, tmp_path: Path) -> None:
    """A trained cross-encoder teaches an embedder's margins, and an embedder a cross-encoder's scores."""
    teacher = finetune(config(place, tmp_path / "teacher", **flags_of(place, task="rerank", train="hard.jsonl"))).model
    student = finetune(
        config(place, tmp_path / "student", **flags_of(place, train="hard.jsonl", teacher=str(teacher), epochs=(4.0,)))
    )
    assert losses(tmp_path / "student")[-1] < losses(tmp_path / "student")[0]
    kl = flags_of(place, task="colbert", train="hard.jsonl", teacher=str(teacher), loss="kl", epochs=(3.0,))
    finetune(config(place, tmp_path / "kl", **kl))
    assert losses(tmp_path / "kl")[-1] < losses(tmp_path / "kl")[0]
    flags = flags_of(place, task="rerank", train="hard.jsonl", teacher=str(student.model), loss="mse", epochs=(3.0,))
    finetune(config(place, tmp_path / "back", **flags))
    assert losses(tmp_path / "back")[-1] < losses(tmp_path / "back")[0]
    assert "does not read its scores" in wrong(place, tmp_path, **flags_of(place, loss="triplet", teacher=str(teacher)))


def test_mined_negatives_are_written_and_used_again(place: Path, tmp_path: Path) -> None:
    flags = flags_of(place, task="rerank", train="pairs.jsonl", mine_negatives=str(place / "model"), negatives=2)
    finetune(config(place, tmp_path / "run", **flags))
    file = tmp_path / "run.negatives.jsonl"
    mined = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(mined) == 60
    assert all(len(line["negatives"]) == 2 for line in mined)
    changed = file.stat().st_mtime_ns
    flags["negatives_file"] = file
    finetune(config(place, tmp_path / "other", **{**flags, "task": "embedding"}))
    assert file.stat().st_mtime_ns == changed


def test_false_negatives_are_masked_and_counted(place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A text that is the positive of two anchors, and a query that occurs twice, are no negatives of each other."""
    from random import Random

    random = Random(0)
    rows = [{"anchor": about(random, "kind", 5), "positive": about(random, "kind", 6)} for _ in range(6)]
    rows[1]["positive"] = rows[0]["positive"]
    rows[3]["anchor"] = rows[2]["anchor"]
    (tmp_path / "twice.jsonl").write_text("\n".join(map(json.dumps, rows)))
    flags = flags_of(place, batch_size=(6,), steps=1)
    finetune(config(place, tmp_path / "run", **{**flags, "train": tmp_path / "twice.jsonl"}))
    # Each of both anchors has the other's positive masked, whether positives or anchors are equal.
    assert lines(tmp_path / "run", "train")[0]["masked_negatives"] == 4
    assert "of 6 rows 2 have a query and 2 a positive that other rows have too" in caplog.text


@pytest.mark.parametrize(
    ("task", "size"), [("embedding", 3), ("colbert", 2), pytest.param("splade", 2, marks=pytest.mark.slow)]
)
def test_processes_share_all_negatives(task: str, size: int, place: Path, ranks: Ranks, tmp_path: Path) -> None:
    """Losses, scores and weights do not depend on the number of processes, nor on the passes of each. The second batch
    has one example, so that one process has it and others none."""
    flags = flags_of(
        place, task=task, train="few.jsonl", eval=("few.jsonl",), dropout=0.1, batch_size=(13,), pass_tokens=60,
        lr=(1e-3,),
    )  # fmt: skip
    finetune(config(place, tmp_path / "one", **{**flags, "pass_tokens": 100_000}))
    finetune(config(place, tmp_path / "passes", **flags))
    assert_close(tmp_path / "passes", tmp_path / "one", 1e-5)
    ended = ranks.run([words(place, tmp_path / "shared", **flags)] * size)
    assert ended.codes == [0] * size, ended.outputs
    assert_close(tmp_path / "shared", tmp_path / "one", 1e-5)


def test_resumed_runs_have_the_same_bits(place: Path, tmp_path: Path) -> None:
    flags = flags_of(
        place, task="colbert", train="dev.jsonl", eval=("few.jsonl",), dropout=0.1, epochs=(4.0,), checkpoint_every=3
    )
    finetune(config(place, tmp_path / "whole", **flags))

    reporter = Reporter()

    def on_step(record: dict[str, Any], progress: float) -> None:
        if record["step"] == 8:
            signal.raise_signal(signal.SIGINT)

    reporter.on_step = on_step  # type: ignore[method-assign]
    with pytest.raises(Stopped):
        finetune(config(place, tmp_path / "parts", **flags), reporter)
    finetune(config(place, tmp_path / "parts", **flags, resume=True))
    assert same(weights(tmp_path / "parts" / "model"), weights(tmp_path / "whole" / "model"))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"task": "rerank", "train": "pairs.jsonl"}, "positives alone"),
        ({"loss": "bce"}, "for which --task embedding has --loss info-nce, triplet, margin-mse, kl, not bce"),
        ({"task": "colbert", "train": "scored.tsv"}, "cannot be trained on pairs with scores"),
        ({"train": "pairs.jsonl", "loss": "triplet"}, "has no negative"),
        ({"train": "hard.jsonl", "loss": "margin-mse"}, "has no scores of a teacher"),
        ({"matryoshka": (64,)}, "--matryoshka 64: the model's vectors have 32 numbers"),
        ({"more_train": ("scored.tsv",)}, "train on files of one form"),
        ({"mix": (1.0, 2.0)}, "--mix"),
        ({"task": "classification", "mine_negatives": "model"}, "--mine-negatives"),
        ({"loss_temperature": 0.0}, "--loss-temperature 0 must be above 0"),
        ({"train": "scored.tsv", "score_range": (0.0, 1.0)}, "outside --score-range 0 1"),
        ({"train": "scored.tsv", "score_range": (1.0, 0.0)}, "--score-range 1 0"),
        ({"task": "splade", "query_flops": -1.0}, "--query-flops -1"),
        ({"task": "splade", "lm_weight": 0.5}, "--lm-weight 0.5 changes nothing without --task"),
        ({"train": "pairs.jsonl", "batch_size": (16, 1)}, "--batch-size 1: --loss info-nce compares the examples"),
        ({"train": "scored.tsv", "batch_size": (1,)}, "--batch-size 1: --loss cosent"),
    ],
)
def test_refusals(flags: dict[str, Any], message: str, place: Path, tmp_path: Path) -> None:
    chosen = flags_of(place, **flags)
    if "more_train" in flags:
        chosen["more_train"] = tuple(place / file for file in flags["more_train"])
    assert message in wrong(place, tmp_path, **chosen)
    assert not (tmp_path / "run").exists()


def test_a_last_batch_of_one_has_a_loss_of_zero(place: Path, tmp_path: Path) -> None:
    """There is nothing to tell a single positive from."""
    finetune(config(place, tmp_path / "run", **flags_of(place, train="pairs.jsonl", batch_size=(59,))))
    first, last = losses(tmp_path / "run")
    assert first > 0
    assert last == 0


def test_a_batch_of_one_with_negatives_is_trained(place: Path, tmp_path: Path) -> None:
    finetune(config(place, tmp_path / "run", **flags_of(place, train="hard.jsonl", batch_size=(1,), steps=2)))
    assert all(loss > 0 for loss in losses(tmp_path / "run"))


def test_copies_of_a_mixture_are_not_held_out(place: Path) -> None:
    """An example that an epoch has twice is either trained on or scored."""
    task = make_task("embedding", task_class("embedding").settings_type(max_length=32))
    files = [task.read(str(place / name)) for name in ("hard.jsonl", "pairs.jsonl")]
    train, (held_out,) = split_off(mixed(files, (2.5, 1.0)), 0.25)
    names = {(example.location, example.id) for example in held_out}
    assert len(names) == len(held_out) == 25
    assert not any((example.location, example.id) in names for example in train)
    assert len(train) > 75


def test_a_file_of_negatives_is_none_that_the_run_reads(place: Path) -> None:
    flags = flags_of(place, train="pairs.jsonl", mine_negatives="model", overwrite=True)
    flags["negatives_file"] = place / "." / "pairs.jsonl"
    with pytest.raises(UserError, match="is the file of --train, which would be replaced"):
        negatives_file(config(place, place / "run", **flags))
    here = negatives_file(config(place, Path("."), **{**flags, "negatives_file": None}))
    assert here == Path.cwd().with_name(f"{Path.cwd().name}.negatives.jsonl")

"""Whole adaptations with a toy model: their files and scores, interruptions, and input that cannot be used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from domain_text import write_corpus
from pretrain_runs import stop_at
from safetensors.torch import load_file
from toy_tasks import toy_folder

from fastbert.adaptation import run as run_module
from fastbert.adaptation.config import AdaptConfig
from fastbert.adaptation.evaluation import MaskedLoss
from fastbert.adaptation.results import ADAPTED, BEFORE, FILE, PRETRAINED, Results
from fastbert.adaptation.run import adapt
from fastbert.embeddings.embed import embed
from fastbert.embeddings.folder import load_embedder
from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import UserError
from fastbert.models import registry
from fastbert.training.stopping import Stopped

METRICS = {"ndcg@10", "mrr@10", "recall@10"}


def config(place: Path, out: Path, **flags: Any) -> AdaptConfig:
    chosen = {
        "corpus": (str(place / "corpus.txt"),),
        "model": str(place / "model"),
        "out": out,
        "pairs": "dropout",
        "pretrain_steps": 3,
        "contrastive_steps": 3,
        "pretrain_batch_size": 8,
        "batch_size": 8,
        "max_length": 32,
        "held_out": 0.2,
        "device": "cpu",
        "dtype": "fp32",
    }
    return AdaptConfig(**{**chosen, **flags})


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def results_of(run: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((run / FILE).read_text())
    return values


@pytest.fixture(scope="module")
def whole(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was not interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    result = adapt(config(place, out))
    assert (result.folder, result.model) == (out, out / "model")
    return out


def test_a_run_scores_every_stage_and_leaves_an_embedder(whole: Path) -> None:
    values = results_of(whole)
    assert values["finished"]
    assert values["masked_lm"].keys() == {BEFORE, PRETRAINED}
    assert values["retrieval"].keys() == {BEFORE, PRETRAINED, ADAPTED}
    assert all(scores.keys() == METRICS for scores in values["retrieval"].values())
    assert all(0 < score <= 100 for scores in values["retrieval"].values() for score in scores.values())
    assert values["masked_lm"][BEFORE]["new_head"]
    assert not values["masked_lm"][PRETRAINED]["new_head"]
    assert values["masked_lm"][PRETRAINED]["loss"] < values["masked_lm"][BEFORE]["loss"]
    assert 2 < values["word_frequencies"] < 4  # 22 words and the punctuation
    model, tokenizer, settings = load_embedder(whole)
    assert settings.pooling == "mean"
    assert settings.max_length == 32
    assert torch.isfinite(embed(model, ["the house was warm"], tokenizer)).all()


def test_held_out_text_is_in_no_stage_of_training(whole: Path) -> None:
    held_out = [*(whole / "text" / "held-out.txt").read_text().split("\n\n")]
    pairs = (whole / "sentences.jsonl").read_text()
    assert len(held_out) > 2
    for document in held_out:
        for sentence in filter(None, document.split("\n")):
            assert sentence not in pairs
    assert json.loads((whole / "pretrain" / "config.json").read_text())["run"]["corpus"] == [
        str(whole / "text" / "train.txt")
    ]


def test_dropout_pairs_are_encoded_with_two_masks(whole: Path) -> None:
    """Equal vectors of a pair would have a cosine of 1 and, in a batch of 8 different texts, a loss near 0 at once."""
    rows = [json.loads(line) for line in (whole / "sentences.jsonl").read_text().splitlines()]
    assert all(row["anchor"] == row["positive"] for row in rows)
    lines = [json.loads(line) for line in (whole / "embedder" / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["loss"] > 0.01
    assert lines[0]["gradient_norm"] > 0


def test_the_table_has_a_row_per_stage_and_marks_a_new_head(whole: Path) -> None:
    lines = Results.read(whole).table().splitlines()
    assert lines[0].startswith("held-out text: 8 documents, 96 sentences; 8 passages as queries")
    assert [line[:26].strip() for line in lines[3:7]] == [
        "word frequencies alone",
        "before",
        "after pre-training",
        "after contrastive training",
    ]
    assert "*" in lines[4]
    assert lines[-1].startswith("* of a new head")


def test_a_finished_run_is_not_repeated(whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()}
    messages: list[str] = []
    result = adapt(AdaptConfig(out=whole, resume=True), run_module.Reporter(on_message=messages.append))
    assert result.results.finished
    assert messages == [f"{whole}: the run is finished"]
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()} == before


def test_a_run_that_is_interrupted_again_and_again_continues_to_the_bit(
    place: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Ctrl-C in pre-training, and at the end of each stage, before anything tells that it is done; the corpus is
    gone after the first start."""
    out, corpus = tmp_path / "run", tmp_path / "corpus.txt"
    shutil.copy(place / "corpus.txt", corpus)
    settings = config(place, out, corpus=(str(corpus),))
    evaluation = run_module.evaluation
    stages = [(run_module, "write_pairs"), (evaluation, "masked_loss"), (evaluation, "retrieval")]
    stages += [(run_module, "pretrain"), (run_module, "finetune")]
    for home, stage in stages:
        if stage == "pretrain":
            with pytest.raises(Stopped):
                adapt(settings, stop_at(2))
            assert (out / "pretrain" / "checkpoints").is_dir()
        with monkeypatch.context() as patch:
            patch.setattr(home, stage, interrupted(getattr(home, stage)))
            with pytest.raises(KeyboardInterrupt):
                adapt(settings)
        corpus.unlink(missing_ok=True)
        settings = AdaptConfig(out=out, resume=True)
        assert not (out / "model").exists()
    assert adapt(settings).results.finished
    assert results_of(out) == results_of(whole)
    expected = weights(whole)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(out).items())


def interrupted(stage: Callable[..., Any]) -> Callable[..., None]:
    """The stage with an interruption at its end."""

    def run(*arguments: Any, **options: Any) -> None:
        stage(*arguments, **options)
        raise KeyboardInterrupt

    return run


def test_without_pre_training_an_embedder_keeps_its_settings(place: Path, tmp_path: Path) -> None:
    source = tmp_path / "embedder"
    model = registry.load_encoder(place / "model")
    model.embed_settings = EmbedSettings(pooling="cls", normalize=True, prompts={"query": "they ", "document": "a "})
    model.save_pretrained(source)
    for name in ("vocab.txt", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(place / "model" / name, source)
    flags = {"model": str(source), "pairs": "neighbours", "contrastive_steps": 1}
    for steps in (0, 1):
        out = tmp_path / f"run-{steps}"
        flags["pretrain_steps"] = steps
        if not steps:
            flags["pretrain_batch_size"] = None
        adapt(config(place, out, **flags))
        _, _, settings = load_embedder(out)
        assert (settings.pooling, settings.normalize) == ("cls", True)
        assert settings.prompts == {"query": "they ", "document": "a "}
        assert (out / "pretrain").exists() == bool(steps)
        assert (results_of(out)["masked_lm"] == {}) == (not steps)
        flags["pretrain_batch_size"] = 8


def wrong(settings: AdaptConfig) -> str:
    with pytest.raises(UserError) as caught:
        adapt(settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_corpus_smaller_than_a_batch_is_refused(place: Path, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "small.txt", 4)
    flags = {"corpus": (str(corpus),), "pretrain_steps": 0, "pretrain_batch_size": None}
    settings = config(place, tmp_path / "run", **flags, batch_size=64)
    assert wrong(settings).startswith(f"--corpus {corpus}: has 9 different passages, fewer than --batch-size 64;")
    refused = config(place, tmp_path / "run", corpus=(str(corpus),), batch_size=64, overwrite=True)
    assert "fewer than --batch-size 64" in wrong(refused)
    assert not (tmp_path / "run" / "pretrain").exists()  # as it is refused before the long stage
    smaller = replace(settings, batch_size=4, overwrite=True)
    assert adapt(smaller).results.finished


def test_a_model_that_reads_left_to_right_is_refused(tmp_path: Path, place: Path) -> None:
    folder = toy_folder(tmp_path / "model", is_decoder=True)
    assert "reads left to right" in wrong(config(place, tmp_path / "run", model=str(folder)))
    assert not (tmp_path / "run").exists()


def test_a_model_that_cannot_be_trained_is_refused_before_the_corpus_is_read(tmp_path: Path, place: Path) -> None:
    model = registry.load_encoder(place / "model")
    model.embed_settings = EmbedSettings(similarity="euclidean")
    model.save_pretrained(tmp_path / "model")
    distances = wrong(config(place, tmp_path / "run", model=str(tmp_path / "model")))
    assert "compares vectors by euclidean distance, and contrastive training by cosine or dot product" in distances
    longer = wrong(config(place, tmp_path / "run", max_length=999))
    assert longer.startswith("--max-length 999 is more than the ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", ["", "\n\n \n", "One sentence."])
def test_an_empty_corpus_is_refused(text: str, place: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(text)
    message = wrong(config(place, tmp_path / "run", corpus=(str(tmp_path / "empty.txt"),)))
    assert message.startswith("the corpus has a single sentence" if text.strip() else "the corpus is empty")
    assert not (tmp_path / "run" / "text").exists()


def test_folders_of_other_runs_are_left_alone(place: Path, whole: Path, tmp_path: Path) -> None:
    assert "already holds a run; continue it with --resume" in wrong(config(place, whole))
    assert "--batch-size 9 differs from the run being resumed" in wrong(config(place, whole, batch_size=9, resume=True))
    pretraining = whole / "pretrain"
    assert "holds a run of `fastbert pretrain`" in wrong(config(place, pretraining, resume=True))
    assert "holds no adaptation of fastbert" in wrong(config(place, pretraining, overwrite=True))
    inside = config(place, whole, model=str(whole / "model"), overwrite=True)
    assert "belongs to the run that --overwrite removes" in wrong(inside)
    assert "holds no run to resume, and --corpus is missing" in wrong(AdaptConfig(out=tmp_path / "new", resume=True))
    other = tmp_path / "other"
    (other / "model").mkdir(parents=True)
    assert "holds no run to resume, but files" in wrong(config(place, other, resume=True))
    assert results_of(whole)["finished"]


def test_a_folder_that_cannot_be_written_is_refused(place: Path) -> None:
    from fastbert.cli import adapt as command

    with pytest.raises(UserError, match="--out /proc/run: cannot be written to /proc"):
        command.check(config(place, Path("/proc/run")))


def test_results_of_a_newer_version_are_refused(whole: Path, tmp_path: Path) -> None:
    values = results_of(whole)
    for change, message in (({"version": 9}, "written by a newer fastbert"), ({"format": "x"}, "does not hold")):
        (tmp_path / FILE).write_text(json.dumps({**values, **change}))
        with pytest.raises(UserError, match=message):
            Results.read(tmp_path)


def test_a_pre_training_that_diverged_is_not_trained_on(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter((3.0, float("nan")))

    def masked_loss(*arguments: Any, **options: Any) -> MaskedLoss:
        return MaskedLoss(loss=next(losses), accuracy=0.0, new_head=False)

    monkeypatch.setattr(run_module.evaluation, "masked_loss", masked_loss)
    message = wrong(config(place, tmp_path / "run", pretrain_steps=1))
    assert message.endswith("is not finite; start again with --overwrite and a lower --pretrain-lr")
    assert not (tmp_path / "run" / "embedder").exists()


def test_errors_of_a_training_name_the_flags_of_the_command(place: Path, tmp_path: Path) -> None:
    flags = {"contrastive_lr": 1e9, "contrastive_steps": 9, "pretrain_steps": 0, "pretrain_batch_size": None}
    assert wrong(config(place, tmp_path / "run", **flags)).endswith("; use a --contrastive-lr below 1e+09")
    assert not (tmp_path / "run" / "model").exists()


def test_cures_by_flags_that_the_command_lacks_are_left_out() -> None:
    message = "start again in another --out with an --lr below 3 or a longer --warmup, or with --on-nan skip"
    with pytest.raises(UserError) as error, run_module._named_flags(lr="pretrain-lr"):
        raise UserError(message)
    assert str(error.value) == "start again in another --out with a --pretrain-lr below 3"


def test_several_processes_are_refused(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert wrong(config(place, tmp_path / "run")).startswith("adapt runs in one process; run `fastbert pretrain")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"batch_size": 1}, "--batch-size 1 must be at least 2"),
        ({"sentences": 4}, "--batch-size 8 is more than --sentences 4"),
        ({"held_out": 0.9}, "--held-out 0.9 must be above 0 and at most 0.5"),
        ({"dropout": 0.0}, "--dropout 0 makes both texts of --pairs dropout equal"),
        ({"pretrain_steps": 0}, "--pretrain-batch-size changes nothing with --pretrain-steps 0"),
        ({"contrastive_lr": float("nan")}, "--contrastive-lr nan must be above 0 and finite"),
        ({"resume": True, "overwrite": True}, "--resume and --overwrite exclude each other"),
    ],
)
def test_flags_are_checked(flags: dict[str, Any], message: str, place: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        config(place, tmp_path, **flags)


def test_the_command_prints_the_table(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    from fastbert.cli import main

    assert main(["adapt", "--out", str(whole), "--resume", "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "after contrastive training" in printed
    assert f"model:   {whole / 'model'}" in printed

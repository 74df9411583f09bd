"""Model cards: metadata that YAML reads, Markdown that nothing breaks out of, and a command that repeats the run."""

import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fastbert.cli import finetune as finetune_command
from fastbert.cli import pretrain as pretrain_command
from fastbert.finetuning.config import FinetuneConfig, Trial
from fastbert.finetuning.model_card import finetuning_card
from fastbert.finetuning.results import TrialResult
from fastbert.training.config import PretrainConfig
from fastbert.training.metrics import Metrics
from fastbert.training.model_card import (
    UNRECORDED,
    Card,
    TextFacts,
    base_model,
    command,
    duration,
    evenly,
    pretraining_card,
    size_of,
    table,
    write_card,
)
from fastbert.training.recipes import with_recipe

CPU = torch.device("cpu")
HOSTILE = "a|b\n# c <script>[x](y)* `` ` ``` $ü"
FACTS = TextFacts(tokens=122_084, documents=122, vocab_size=2048, fingerprint="ab" * 32)
CONFIG = PretrainConfig(
    corpus=(Path("text one.txt"), Path(f"/data/{HOSTILE}".replace("\n", " "))),
    model="tiny", objective="mlm", steps=120,
    batch_size=8, lr=9e-4, max_length=64, whole_word=True, mask_replacement=(80.0, 10.0, 10.0), out=Path("runs/my run"),
)  # fmt: skip


def line(step: int, split: str = "validation") -> Metrics:
    return Metrics(
        step=step, split=split, loss=3.0, mlm_loss=3.0 - step / 1000, nsp_loss=None,  # type: ignore[arg-type]
        mlm_accuracy=0.1, nsp_accuracy=None,
        tokens=10 * step, tokens_per_second=1.0, learning_rate=1e-4, seconds=90.0 * step, memory_bytes=3_400_000_000,
    )  # fmt: skip


def pretrained(config: PretrainConfig = CONFIG, **changes: Any) -> str:
    history = [line(step, split) for step in range(1, 51) for split in ("train", "validation")]
    model = {"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 128}
    values: dict[str, Any] = {"unigram": 6.5, "device": CPU, "parameters": 760_322, "judged": "It uses *context*."}
    return pretraining_card(config, model, history, FACTS, **{**values, **changes}).render()


def front(text: str) -> dict[str, Any]:
    """Return the metadata as YAML reads it."""
    yaml = pytest.importorskip("yaml", reason="comes with transformers")
    begin, metadata, _ = text.split("---\n", 2)
    assert begin == ""
    values: dict[str, Any] = yaml.safe_load(metadata)
    return values


def command_in(text: str) -> list[str]:
    """Return the words of the command in a card's block of code."""
    section = text.partition("## Reproduce\n\n")[2]
    fence, _, rest = section.partition("sh\n")
    assert set(fence) == {"`"}
    return shlex.split(rest.partition(f"\n{fence}\n")[0])


def test_a_pretrained_model_has_data_recipe_curve_scores_and_command() -> None:
    text = pretrained()
    values = front(text)
    assert values["library_name"] == "transformers"
    assert values["pipeline_tag"] == "fill-mask"
    assert values["tags"] == ["fastbert", "bert", "mlm"]
    assert values["datasets"][0] == "text one.txt"
    assert not {"license", "language", "base_model"} & set(values), "what is not known is left out"
    for part in (
        "# my run: bert, 0.76 M parameters", "pre-trained from scratch", r"It uses \*context\*.",
        "| tokens | 122,084 |", "| loss on predicted tokens, nats | 2.95 |",
        "| of word frequencies alone, nats | 6.5 |",
        "![loss curve](loss.png)",
        "| `--whole-word` | yes |", "| `--mask-replacement` | 80 10 10 |", "| time of training | 75 min |",
        "| peak memory | 3.4 GB |", FACTS.fingerprint,
    ):  # fmt: skip
        assert part in text, part
    rows = text.partition("## Curve")[2].partition("## Reproduce")[0].count("\n| ") - 2
    assert rows == 12
    assert "| 50 | 500 | 2.95 | 0.1 |" in text


def test_a_run_of_several_processes_tells_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "| processes |" not in pretrained()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert "| processes | 4 |" in pretrained()
    assert command_in(pretrained())[:4] == ["torchrun", "--no-python", "--nproc-per-node=4", "fastbert"]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert command_in(pretrained())[2:5] == ["--nnodes=2", "--nproc-per-node=2", "fastbert"]


def test_shards_are_named_like_files() -> None:
    text = pretrained(replace(CONFIG, corpus=(), data=("s3://bucket/wiki/", "shards/books")))
    assert front(text)["datasets"] == ["wiki", "books"]
    assert "| text | wiki, books |" in text


def test_names_stay_text_and_tables_stay_tables() -> None:
    text = pretrained()
    body = text.split("---\n", 2)[2].partition("## Reproduce")[0]
    assert "<script>" not in body.replace(r"\<script\>", "")
    for section in text.split("\n## ")[1:]:
        rows = [row for row in section.split("\n") if row.startswith("|")]
        columns = {row.replace(r"\|", "").count("|") for row in rows}
        assert len(columns) <= 1, section
    assert table(["a"], []) == ""
    assert table(["a", "b"], [[None, 0.123456], ["x\ny", "`--a|b`"]]).splitlines()[2:] == [
        "| undefined | 0.1235 |",
        "| x y | `--a\\|b` |",
    ]


def test_the_command_gives_the_same_configuration() -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    from fastbert.cli.flags import parse

    words = command_in(pretrained(replace(CONFIG, lr=0.00012345678)))
    assert "0.00012345678" in words
    words = command_in(pretrained())
    assert words[:2] == ["fastbert", "pretrain"]
    again = parse(pretrain_command.Config, "pretrain", words[2:])
    again = replace(again, corpus=tuple(map(Path, again.corpus)))
    changed = [item.name for item in fields(CONFIG) if getattr(again, item.name) != getattr(CONFIG, item.name)]
    assert not [name for name in changed if name not in UNRECORDED]
    assert again.out == CONFIG.out
    # Values of a recipe that flags have replaced, and the mean of a schedule.
    given = PretrainConfig(corpus=("text",), recipe="bert-2018", max_length=64, batch_schedule="2:6", mask_prob=0.2)
    stored = replace(with_recipe(given, ("recipe", "max_length", "batch_schedule", "mask_prob")), batch_size=4)
    words = shlex.split(command("pretrain", stored).splitlines()[1])
    again = pretrain_command.complete(parse(pretrain_command.Config, "pretrain", words[2:]), words[2:])
    assert replace(again, recipe="bert-2018", batch_size=4, out=stored.out) == stored
    config = FinetuneConfig(task="span", model="org/model", train=Path("a b.json"), lr=(5e-5, 3e-5), seeds=3, bilstm=0)
    words = command_in(finetuned(config))
    again = parse(finetune_command.Config, "finetune", words[2:])
    assert replace(again, out=config.out) == config


def finetuned(config: FinetuneConfig, scored: bool = True) -> str:
    """The card of a grid whose best model is that of the second seed of a point; the other point's mean is higher."""
    other = Trial(lr=3e-5, batch_size=16, epochs=3.0, seed=0)
    scores = {HOSTILE: {"f1": 80.9, "exact_match": 60.0}} if scored else None
    shared: dict[str, Any] = {"best_step": 20, "steps": 20, "tokens": 9, "seconds": 30.0}
    done = [TrialResult(trial=other, scores=scores, value=80.9 if scored else None, epochs=3.0, **shared)]
    for seed in (0, 1):
        trial = Trial(lr=5e-5, batch_size=8, epochs=2.0, seed=seed)
        scores = {HOSTILE: {"f1": 80.0 + seed, "exact_match": 70.0}} if scored else None
        value = 80.0 + seed if scored else None
        done.append(TrialResult(trial=trial, scores=scores, value=value, epochs=2.0, **shared))
    lines = (
        [{**vars(done[2].trial), "step": 20, "split": "validation", "scores": {HOSTILE: {"f1": 81.0}}}]
        if scored
        else []
    )
    baselines = {HOSTILE: {"majority": {"f1": 50.0}}}
    card = finetuning_card(
        config, {"model_type": "roberta"}, done, lines, metric="f1", examples={"a b.json": 100, HOSTILE: 20},
        fingerprint="cd" * 32, labels=["x", "y|z"], baselines=baselines, device=CPU,
    )  # fmt: skip
    return card.render()


def test_a_fine_tuned_model_has_scores_beside_baselines_and_its_base() -> None:
    config = FinetuneConfig(task="span", model="org/model", train=Path("a b.json"), out=Path("runs/squad"))
    text = finetuned(config)
    values = front(text)
    assert values["base_model"] == "org/model"
    assert values["pipeline_tag"] == "question-answering"
    assert values["datasets"] == ["a b.json", HOSTILE]
    assert values["metrics"] == ["exact_match", "f1"]
    [result] = values["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "f1", "value": 81.0}, {"type": "exact_match", "value": 70.0}]
    assert (
        "fine-tuned from org/model with fastbert for the task `span`: learning rate 5e-05, batches of 8, 2 epochs"
        in text
    )
    assert "(seed 1, the best of 3 trials by f1)" in text
    assert "| f1 | 81 | 80.5 | 0.7071 | 2 | majority 50 |" in text
    assert "| 20 | 81 |" in text
    assert "| hardware | " in text
    assert "| time of training | 90 s |" in text
    without = finetuned(replace(config, model="runs/base/model"), scored=False)
    assert "base_model" not in front(without) or front(without)["base_model"] == "runs/base/model"
    assert "## Scores" not in without


def test_base_models_are_those_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert base_model("bert-base-uncased") == "bert-base-uncased"
    assert base_model("org/name.v2") == "org/name.v2"
    (tmp_path / "local").mkdir()
    monkeypatch.chdir(tmp_path)
    for folder in ("local", "./local", "/x/y", "a/b/c", "../x", ""):
        assert base_model(folder) is None, folder


def test_small_parts(tmp_path: Path) -> None:
    assert [duration(seconds) for seconds in (0, 45.4, 150, 7300)] == ["0 s", "45 s", "2 min", "2.0 h"]
    assert [size_of(count) for count in (4_400_000, 110_000_000, 760_322)] == ["4.4 M", "110 M", "0.76 M"]
    assert evenly(list(range(100)), 4) == [24, 49, 74, 99]
    (tmp_path / "curve.png").write_bytes(b"picture")
    folder = tmp_path / "model"
    folder.mkdir()
    write_card(folder, Card("t", "s\ud800", []), tmp_path / "curve.png")
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "loss.png"]
    write_card(folder, Card("again", "s", []), tmp_path / "gone.png")
    assert "# again" in (folder / "README.md").read_text()

"""Whole fine-tuning runs on toy tasks: what they learn, what they leave, and how they continue."""

from __future__ import annotations

import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from toy_tasks import echoes, moods, sentiment, toy_folder

from fastbert import WordPieceTokenizer
from fastbert.errors import UserError
from fastbert.finetuning import start
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.run import FinetuneResult, _Run, finetune, task_settings
from fastbert.finetuning.run_folder import read_run
from fastbert.models.seq2seq.config import SequenceConfig
from fastbert.tasks.examples import Dataset, TextExample
from fastbert.tasks.registry import make_task
from fastbert.tasks.settings import TaskSettings
from fastbert.training import checkpoint
from fastbert.training.metrics import read_records
from fastbert.training.reporter import Reporter
from fastbert.training.run_record import sealed
from fastbert.training.stopping import Stopped


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    toy_folder(folder / "model")
    sentiment(folder / "train.tsv", 192, seed=1)
    sentiment(folder / "dev.tsv", 64, seed=2)
    sentiment(folder / "other.tsv", 40, seed=3)
    moods(folder / "pairs.tsv", 256, seed=4)
    moods(folder / "pairs-dev.tsv", 64, seed=5)
    return folder


def config(toy: Path, out: Path, **flags: Any) -> FinetuneConfig:
    chosen = {
        "task": "classification",
        "model": str(toy / "model"),
        "train": toy / "train.tsv",
        "eval": (toy / "dev.tsv",),
        "out": out,
        "epochs": (3.0,),
        "lr": (1e-2,),
        "batch_size": (16,),
        "max_length": 32,
        "device": "cpu",
        "dtype": "fp32",
    }
    return FinetuneConfig(**{**chosen, **flags})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_learns_and_leaves_its_files(toy: Path, tmp_path: Path) -> None:
    result = finetune(config(toy, tmp_path / "run"))
    assert result.scores["dev.tsv"]["accuracy"]["mean"] > 95
    run = tmp_path / "run"
    names = {path.name for path in run.iterdir()}
    files = {"config.json", "loss.png", "metrics.jsonl", "results.json", "vocab.txt"}
    assert names == files | {"model", "predictions", "tokenizer"}
    assert (run / "tokenizer" / "vocab.txt").read_bytes() == (run / "vocab.txt").read_bytes()
    assert read_run(run) == config(toy, run)
    stored = json.loads((run / "results.json").read_text())
    assert stored["results"]["dev.tsv"]["accuracy"] == result.scores["dev.tsv"]["accuracy"]
    assert stored["finished"] is True
    lines = read_records(run / "metrics.jsonl")
    assert [line["step"] for line in lines if line["split"] == "train"] == [1, 10, 20, 30, 36]
    assert [line["step"] for line in lines if line["split"] == "validation"] == [12, 24, 36]
    predictions = [json.loads(line) for line in (run / "predictions" / "dev.tsv.jsonl").read_text().splitlines()]
    assert len(predictions) == 64
    assert predictions[0]["label"] in ("bad", "good")
    assert sum(predictions[0]["probabilities"].values()) == pytest.approx(1.0, abs=1e-5)


def test_the_model_loads_in_transformers_with_its_labels(toy: Path, tmp_path: Path) -> None:
    finetune(config(toy, tmp_path / "run"))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert model.config.id2label == {0: "bad", 1: "good"}
    text = "the river was bright and they found a house"
    with torch.no_grad():
        logits = model(**tokenizer(text, return_tensors="pt")).logits
    assert int(logits.argmax()) == 1


def test_regression(toy: Path, tmp_path: Path) -> None:
    flags = {"task": "regression", "train": toy / "pairs.tsv", "eval": (toy / "pairs-dev.tsv",), "epochs": (8.0,)}
    result = finetune(config(toy, tmp_path / "run", **flags))
    assert result.metric == "spearman"
    assert result.scores["pairs-dev.tsv"]["pearson"]["mean"] > 80
    model = transformers.AutoModelForSequenceClassification.from_pretrained(result.model)
    assert model.config.num_labels == 1
    assert model.config.problem_type == "regression"


def test_seeds_have_mean_and_deviation(toy: Path, tmp_path: Path) -> None:
    result = finetune(config(toy, tmp_path / "run", seeds=3, epochs=(0.5,), lr=(1e-3,)))
    values = [one.value for one in result.trials]
    accuracy = result.scores["dev.tsv"]["accuracy"]
    assert [one.trial.seed for one in result.trials] == [0, 1, 2]
    assert len(set(values)) > 1
    assert accuracy["per_seed"] == pytest.approx(values, abs=1e-4)
    mean = sum(values) / 3  # type: ignore[arg-type]
    assert accuracy["mean"] == pytest.approx(mean, abs=1e-3)
    assert accuracy["std"] == pytest.approx((sum((v - mean) ** 2 for v in values) / 2) ** 0.5, abs=1e-3)  # type: ignore[operator]


def test_a_grid_finds_its_best_point(toy: Path, tmp_path: Path) -> None:
    result = finetune(config(toy, tmp_path / "run", lr=(1e-7, 1e-2), epochs=(2.0,)))
    assert result.best.lr == 1e-2
    assert json.loads((tmp_path / "run" / "results.json").read_text())["model"]["lr"] == 1e-2
    assert len(json.loads((tmp_path / "run" / "results.json").read_text())["grid"]) == 2
    # The model that is kept is the best trial's.
    predictions = (tmp_path / "run" / "predictions" / "dev.tsv.jsonl").read_text().splitlines()
    gold = [line.split("\t")[0] for line in (toy / "dev.tsv").read_text().splitlines()[1:]]
    right = sum(json.loads(line)["label"] == label for line, label in zip(predictions, gold, strict=True))
    assert 100 * right / 64 == pytest.approx(result.scores["dev.tsv"]["accuracy"]["mean"], abs=1e-3)


def test_several_files_to_evaluate_on(toy: Path, tmp_path: Path) -> None:
    files = (toy / "dev.tsv", toy / "other.tsv")
    result = finetune(config(toy, tmp_path / "run", eval=files, epochs=(1.0,)))
    assert set(result.scores) == {"dev.tsv", "other.tsv"}
    assert {path.name for path in (tmp_path / "run" / "predictions").iterdir()} == {
        "dev.tsv.jsonl",
        "other.tsv.jsonl",
    }


def test_files_of_one_name_are_told_apart(toy: Path, tmp_path: Path) -> None:
    files = []
    for name, labels in (("a", ("bad", "good")), ("b", ("good", "bad"))):
        (tmp_path / name / "x").mkdir(parents=True)
        files.append(sentiment(tmp_path / name / "x" / "dev.tsv", 40, seed=2, names=labels))
    result = finetune(config(toy, tmp_path / "run", eval=tuple(files)))
    right, wrong_way_round = (result.scores[f"{name}-x-dev.tsv"]["accuracy"]["mean"] for name in "ab")
    assert right > 90
    assert right + wrong_way_round == pytest.approx(100)
    assert result.trials[0].value == pytest.approx(right, abs=1e-3)
    assert "is given twice" in wrong(toy, tmp_path / "other", eval=(files[0], files[0]))


def test_predictions_that_are_all_the_same_are_the_worst(toy: Path, tmp_path: Path) -> None:
    flags = {"task": "regression", "train": toy / "pairs.tsv", "eval": (toy / "pairs-dev.tsv",), "epochs": (0.5,)}
    result = finetune(config(toy, tmp_path / "run", lr=(30.0, 1e-2), warmup=0.0, max_grad_norm=1e9, **flags))
    assert result.kept.lr == 1e-2
    json.loads((tmp_path / "run" / "results.json").read_text(), parse_constant=pytest.fail)


def test_labels_that_are_one_number_have_one_order() -> None:
    task = make_task("classification", TaskSettings())
    spelled = ("1", "01", "10", "2")
    task.learn_labels(
        Dataset("x", tuple(TextExample(id=str(i), location="", text="a", label=name) for i, name in enumerate(spelled)))
    )
    assert task.labels == ("01", "1", "2", "10")


def test_without_a_file_to_evaluate_on_the_last_model_is_kept(toy: Path, tmp_path: Path) -> None:
    result = finetune(config(toy, tmp_path / "run", eval=(), epochs=(1.0,)))
    assert result.scores == {}
    assert result.trials[0].best_step == 12
    assert (result.model / "model.safetensors").exists()


def test_examples_that_are_held_out(toy: Path, tmp_path: Path) -> None:
    result = finetune(config(toy, tmp_path / "run", eval=(), validation_fraction=0.25, epochs=(6.0,)))
    assert result.scores["held-out"]["accuracy"]["mean"] > 80
    lines = (tmp_path / "run" / "predictions" / "held-out.jsonl").read_text().splitlines()
    held = [int(json.loads(line)["id"]) for line in lines]
    assert len(set(held)) == 48
    assert held == sorted(held)
    again = finetune(config(toy, tmp_path / "again", eval=(), validation_fraction=0.25, seed=5, epochs=(0.1,)))
    lines = (again.folder / "predictions" / "held-out.jsonl").read_text().splitlines()
    assert [int(json.loads(line)["id"]) for line in lines] == held


def test_a_frozen_encoder_stays_bit_for_bit(toy: Path, tmp_path: Path) -> None:
    finetune(config(toy, tmp_path / "run", frozen=True, epochs=(1.0,)))
    before, after = weights(toy / "model"), weights(tmp_path / "run" / "model")
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before.get(name[5:], tensor + 1))}
    assert changed == {
        "classifier.weight",
        "classifier.bias",
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
    }


def test_micro_batches_change_nothing_but_rounding(toy: Path, tmp_path: Path) -> None:
    losses = []
    for name, size in (("whole", None), ("parts", 5)):
        finetune(config(toy, tmp_path / name, micro_batch=size, epochs=(1.0,), lr=(1e-4,), log_every=1, dropout=0.0))
        losses.append([x["loss"] for x in read_records(tmp_path / name / "metrics.jsonl") if x["split"] == "train"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


@pytest.mark.parametrize("flags", [{"layer_decay": 0.8}, {"gradual_unfreezing": True}, {"reinit_layers": 1}])
def test_recipes_learn_too(toy: Path, tmp_path: Path, flags: dict[str, Any]) -> None:
    result = finetune(config(toy, tmp_path / "run", epochs=(6.0,), schedule="slanted-triangular", **flags))
    assert result.scores["dev.tsv"]["accuracy"]["mean"] > 90


def test_early_stopping_ends_a_run_that_no_longer_improves(toy: Path, tmp_path: Path) -> None:
    flags = {"epochs": (50.0,), "eval_every": 12, "early_stopping": 2, "schedule": "constant"}
    result = finetune(config(toy, tmp_path / "run", **flags))
    assert result.trials[0].steps < 600
    assert result.trials[0].steps - result.trials[0].best_step == 24


class _Interrupted(Reporter):
    """Asks the run to stop at a step, as a signal does."""

    def __init__(self, step: int, trial: int) -> None:
        super().__init__()
        self.trial = 0

        def on_trial(number: int, total: int, name: str) -> None:
            self.trial = number

        def on_step(record: dict[str, Any], progress: float) -> None:
            if self.trial == trial and record["step"] == step:
                signal.raise_signal(signal.SIGINT)

        self.on_trial, self.on_step = on_trial, on_step  # type: ignore[method-assign]


def assert_same_runs(parts: FinetuneResult, whole: FinetuneResult) -> None:
    """Trials, weights and losses that were written down, to the same bits."""
    assert [replace(one, seconds=0) for one in parts.trials] == [replace(one, seconds=0) for one in whole.trials]
    assert same(weights(parts.model), weights(whole.model))
    logs = [(result.folder / "metrics.jsonl").read_text() for result in (whole, parts)]
    clocks = r'"(seconds|tokens_per_second)": [^,}]+'
    assert re.sub(clocks, "", logs[0]) == re.sub(clocks, "", logs[1])


@pytest.mark.parametrize("log_every", [1, 10])
@pytest.mark.parametrize(("trial", "step"), [(1, 5), (1, 12), (2, 17), (2, 24)])
def test_an_interrupted_run_continues_bit_for_bit(
    toy: Path, tmp_path: Path, trial: int, step: int, log_every: int
) -> None:
    flags = {"seeds": 2, "epochs": (2.0,), "lr": (1e-3,), "log_every": log_every}
    whole = finetune(config(toy, tmp_path / "whole", **flags))
    with pytest.raises(Stopped):
        finetune(config(toy, tmp_path / "parts", **flags), _Interrupted(step, trial))
    assert_same_runs(finetune(FinetuneConfig(out=tmp_path / "parts", resume=True)), whole)


class Crash(Exception):
    """What a run does not expect."""


@pytest.mark.parametrize(("step", "steps_again"), [(4, 24), (5, 24), (17, 9), (20, 9), (23, 4)])
def test_a_run_that_crashed_goes_on_from_its_last_checkpoint(
    toy: Path, tmp_path: Path, step: int, steps_again: int
) -> None:
    flags = {"epochs": (2.0,), "lr": (1e-3,)}
    whole = finetune(config(toy, tmp_path / "whole", **flags))
    steps: list[int] = []

    def crash(record: dict[str, Any], progress: float) -> None:
        if record["step"] == step:
            raise Crash

    with pytest.raises(Crash):
        finetune(config(toy, tmp_path / "parts", checkpoint_every=5, **flags), Reporter(on_step=crash))
    again = Reporter(on_step=lambda record, progress: steps.append(record["step"]))
    assert_same_runs(finetune(FinetuneConfig(out=tmp_path / "parts", resume=True), again), whole)
    assert len(steps) == steps_again


def test_results_name_the_model_that_is_kept_whatever_crashed(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that goes on scores otherwise than the one that crashed, as other devices may."""
    values: list[float] = []
    monkeypatch.setattr(_Run, "_choose", lambda self, scores: values.pop(0))
    flags = {"epochs": (1.0,), "lr": (1e-3,), "eval_every": 4}

    def crash(record: dict[str, Any], progress: float) -> None:
        if record["step"] == 9:
            raise Crash

    values += [50, 0, 0]
    whole = finetune(config(toy, tmp_path / "whole", **flags))
    values += [50, 60]
    with pytest.raises(Crash):
        finetune(config(toy, tmp_path / "parts", checkpoint_every=5, **flags), Reporter(on_step=crash))
    values += [49, 48]
    parts = finetune(FinetuneConfig(out=tmp_path / "parts", resume=True))
    assert values == []
    assert (parts.trials[0].best_step, parts.trials[0].value) == (4, 50)
    assert same(weights(parts.model), weights(whole.model))


def test_what_is_damaged_costs_a_run_its_last_steps_only(
    toy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint before the newest one takes over, where that or the best model that it names is damaged; so it
    does for one line of metrics, and for a config.json that is gone. What differs otherwise is refused by name."""
    flags = {"epochs": (2.0,), "lr": (1e-3,), "eval_every": 4, "log_every": 5, "checkpoint_every": 5}
    whole = finetune(config(toy, tmp_path / "whole", **flags))

    def crash(record: dict[str, Any], progress: float) -> None:
        if record["step"] == 17:
            raise Crash

    with pytest.raises(Crash):
        finetune(config(toy, tmp_path / "crashed", resume=True, **flags), Reporter(on_step=crash))
    assert [path.name for path in checkpoint.find(tmp_path / "crashed" / "checkpoints")] == [
        "step-00000010",
        "step-00000015",
    ]
    for name in ("model", "best", "state", "config"):
        out = tmp_path / name
        shutil.copytree(tmp_path / "crashed", out)
        newest = out / "checkpoints" / "step-00000015"
        best = json.loads((newest / "state.json").read_text())["progress"]["best_step"]
        earlier = json.loads((newest.with_name("step-00000010") / "state.json").read_text())["progress"]["best_step"]
        if name == "model":
            flip(newest / "model.safetensors")
        elif name == "best" and best != earlier:
            flip(out / "checkpoints" / f"best-{best:08d}" / "model.safetensors")
        elif name == "state":
            with (out / "metrics.jsonl").open("a") as file:
                file.write('nonsense\n{"step": 3}\n{"step": 18, "spl')
        elif name == "config":
            saved = json.loads((out / "config.json").read_text())
            saved["finetune"]["weight_decay"] = 0.5
            (out / "config.json").write_text(json.dumps(saved))
            with pytest.raises(UserError, match=r"has weight_decay=0\.5, but .*step-00000015 was written"):
                finetune(FinetuneConfig(out=out, resume=True))
            (out / "config.json").unlink()
        assert_same_runs(finetune(FinetuneConfig(out=out, resume=True)), whole)
    assert "damaged (its SHA-256 is not the manifest's); trying the one before it" in caplog.text
    assert "is not a metrics record; it is dropped" in caplog.text
    log = (tmp_path / "config" / "metrics.jsonl").read_bytes()
    messages: list[str] = []
    finetune(config(toy, tmp_path / "config", resume=True, **flags), Reporter(on_message=messages.append))
    assert len(messages) == 1
    assert "the run is finished" in messages[0]
    assert (tmp_path / "config" / "metrics.jsonl").read_bytes() == log
    flip(tmp_path / "config" / "results.json")
    with pytest.raises(UserError, match=r"results\.json"):
        finetune(FinetuneConfig(out=tmp_path / "config", resume=True))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_folder_has_one_run_at_a_time(toy: Path, tmp_path: Path) -> None:
    refused: list[str] = []

    def again(record: dict[str, Any], progress: float) -> None:
        for flag in ("resume", "overwrite"):
            refused.append(wrong(toy, tmp_path, **{flag: True}))

    finetune(config(toy, tmp_path / "run", epochs=(0.1,)), Reporter(on_step=again))
    assert set(refused) == {
        f"{tmp_path / 'run'}: another process is writing there; wait for it to end, or choose another --out"
    }


@pytest.mark.parametrize("flag", ["model", "teacher"])
def test_a_weight_that_is_not_finite_is_named(toy: Path, tmp_path: Path, flag: str) -> None:
    first = finetune(config(toy, tmp_path / "first", epochs=(0.1,)))
    path = first.model / "model.safetensors"
    tensors = weights(first.model)
    tensors["bert.encoder.layer.1.intermediate.dense.weight"][3, 2] = torch.nan
    save_file(tensors, path, metadata={"format": "pt"})
    for manifest in first.model.glob("*manifest*"):
        manifest.unlink()
    message = wrong(toy, tmp_path, **{flag: str(first.model)})
    assert "bert.encoder.layer.1.intermediate.dense.weight holds NaN or infinity" in message
    assert str(first.model) in message


def test_what_a_crash_left_of_old_checkpoints_is_in_nobodys_way(toy: Path, tmp_path: Path) -> None:
    finetune(config(toy, tmp_path / "run", epochs=(0.5,)))
    left = tmp_path / "run" / "checkpoints.gone" / "step-00000003"
    left.mkdir(parents=True)
    (left / "state.json").write_text("{}")
    assert len(finetune(FinetuneConfig(out=tmp_path / "run", resume=True, seeds=2)).trials) == 2
    assert not left.exists()


@pytest.mark.parametrize("flag", [{"temperature": 3.0}, {"null_threshold": 1.0}, {"null_threshold": float("inf")}])
def test_runs_that_were_begun_with_useless_flags_go_on(toy: Path, tmp_path: Path, flag: dict[str, float]) -> None:
    """Such flags are refused of new runs; older ones have them."""
    finetune(config(toy, tmp_path / "run", epochs=(0.5,)))
    with pytest.raises(UserError, match="changes nothing without"):
        finetune(config(toy, tmp_path / "new", **flag))
    path = tmp_path / "run" / "config.json"
    saved = json.loads(path.read_text())
    saved["finetune"] |= flag
    del saved["sha256"]
    path.write_text(json.dumps(sealed(saved)))
    assert len(finetune(FinetuneConfig(out=tmp_path / "run", resume=True, seeds=2)).trials) == 2
    assert len(finetune(config(toy, tmp_path / "run", epochs=(0.5,), overwrite=True)).trials) == 1


def test_a_run_is_not_continued_on_other_data(toy: Path, tmp_path: Path) -> None:
    train = sentiment(tmp_path / "train.tsv", 64, seed=1)
    finetune(config(toy, tmp_path / "run", train=train, epochs=(0.5,)))
    sentiment(train, 64, seed=9)
    with pytest.raises(UserError, match="was trained with another --model, --train or --eval"):
        finetune(FinetuneConfig(out=tmp_path / "run", resume=True, seeds=2))
    sentiment(train, 64, seed=1)
    assert len(finetune(FinetuneConfig(out=tmp_path / "run", resume=True, seeds=2)).trials) == 2


def test_more_seeds_are_added_by_resuming(toy: Path, tmp_path: Path) -> None:
    first = finetune(config(toy, tmp_path / "run", epochs=(1.0,)))
    more = finetune(FinetuneConfig(out=tmp_path / "run", resume=True, seeds=3))
    assert more.trials[0] == first.trials[0]
    assert len(more.trials) == 3


def test_the_same_seed_gives_the_same_bits(toy: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = finetune(config(toy, tmp_path / "first", epochs=(1.0,)))
    torch.manual_seed(2)
    second = finetune(config(toy, tmp_path / "second", epochs=(1.0,)))
    assert same(weights(first.model), weights(second.model))


def test_a_head_for_the_same_labels_is_kept(toy: Path, tmp_path: Path) -> None:
    first = finetune(config(toy, tmp_path / "first"))
    again = config(toy, tmp_path / "second", model=str(first.model), lr=(1e-9,), epochs=(0.1,))
    assert finetune(again).scores["dev.tsv"]["accuracy"]["mean"] > 95
    sentiment(tmp_path / "other.tsv", 96, seed=1, names=("no", "yes"))
    other = config(toy, tmp_path / "third", model=str(first.model), train=tmp_path / "other.tsv", eval=())
    messages: list[str] = []
    finetune(replace(other, epochs=(0.2,)), Reporter(on_message=messages.append))
    assert "new weights: classifier.bias, classifier.weight" in messages


def wrong(toy: Path, tmp_path: Path, **flags: Any) -> str:
    with pytest.raises(UserError) as caught:
        finetune(config(toy, tmp_path / "run", **flags))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("decoder", ["decoder", "bert2bert", "prefix"])
def test_a_model_that_writes_is_trained_further(decoder: str, toy: Path, tmp_path: Path) -> None:
    train, dev = echoes(tmp_path / "train.tsv", 64, seed=1), echoes(tmp_path / "dev.tsv", 16, seed=2)
    files = {"task": "seq2seq", "train": train, "eval": (dev,), "max_target_length": 6, "epochs": (1.0,)}
    layers = 1 if decoder == "decoder" else None
    first = finetune(config(toy, tmp_path / "first", decoder=decoder, decoder_layers=layers, **files))
    # Whatever the flags have as their default, the model goes on as what it is.
    again = config(toy, tmp_path / "second", model=str(first.model), **files)
    task = make_task("seq2seq", task_settings(again))
    begun = start.begin(task, first.model, again, seed=5)
    assert begun.new_weights == ()
    assert begun.config.kind == decoder
    begun.save_pretrained(tmp_path / "begun")
    assert same(weights(tmp_path / "begun"), weights(first.model))
    second = finetune(again)
    assert not same(weights(second.model), weights(first.model))
    assert weights(second.model).keys() == weights(first.model).keys()
    for other in {"decoder", "bert2bert", "prefix"} - {decoder}:
        with pytest.raises(UserError, match=f"--decoder {other}: the model already has a decoder, {decoder}; omit"):
            finetune(config(toy, tmp_path / "third", model=str(first.model), decoder=other, **files))
    # A classifier that was made of it does not write, so it may become anything.
    classifier = finetune(config(toy, tmp_path / "classes", model=str(toy / "model"), epochs=(0.1,)))
    text = json.loads((classifier.model / "config.json").read_text()) | {"fastbert_seq2seq": {"kind": "prefix"}}
    (classifier.model / "config.json").write_text(json.dumps(text))
    assert SequenceConfig.of_writer(classifier.model) is None


def test_a_label_that_training_never_saw(toy: Path, tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_text("label\tsentence\ngood\ta day\nGood\tthe road\nugly\ta river\n")
    message = wrong(toy, tmp_path, eval=(path,))
    assert f"{path}, line 3: the label 'Good' is not one of the training set's: bad, good" in message
    assert "did you mean 'good'?" in message
    assert "2 such examples" in message


def test_one_label_is_nothing_to_learn(toy: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("label\tsentence\ngood\ta day\ngood\tthe road\n")
    assert "all 2 examples have the label 'good'" in wrong(toy, tmp_path, train=path)


def test_pairs_and_single_texts_mixed(toy: Path) -> None:
    one = TextExample(id="0", location="line 2", text="a day", label="x")
    dataset = Dataset("mixed.jsonl", (one, replace(one, location="line 3", pair="a river")))
    task = make_task("classification", TaskSettings())
    with pytest.raises(UserError, match=r"mixed\.jsonl, line 3: is a pair, but the file begins with a single text"):
        task.encode(dataset, WordPieceTokenizer.from_pretrained(toy / "model"), labelled=False)


def test_longer_than_the_models_positions(toy: Path, tmp_path: Path) -> None:
    assert "--max-length 65 is more than the 64 positions" in wrong(toy, tmp_path, max_length=65)


def test_too_few_examples_to_hold_some_out(toy: Path, tmp_path: Path) -> None:
    assert "--validation-fraction 0.001: of 192 examples" in wrong(toy, tmp_path, eval=(), validation_fraction=0.001)


def test_a_metric_of_another_task(toy: Path, tmp_path: Path) -> None:
    assert "--metric pearson: classification has accuracy" in wrong(toy, tmp_path, metric="pearson")


def test_a_metric_that_is_not_defined(toy: Path, tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_text("label\tsentence\ngood\ta day\ngood\tthe road\n")
    message = wrong(toy, tmp_path, metric="matthews", eval=(path,), epochs=(0.1,))
    assert f"--metric matthews: is undefined on {path}" in message


def test_a_gradient_that_is_not_finite(toy: Path, tmp_path: Path) -> None:
    message = wrong(toy, tmp_path, lr=(1e30,), warmup=0.0)
    assert "the gradient is not a finite number" in message
    assert "use an --lr below 1e+30" in message


def test_a_folder_that_holds_a_run(toy: Path, tmp_path: Path) -> None:
    finetune(config(toy, tmp_path / "run", epochs=(0.1,)))
    assert "already holds a run" in wrong(toy, tmp_path)
    result = finetune(config(toy, tmp_path / "run", epochs=(0.2,), overwrite=True))
    assert result.best.epochs == 0.2


def test_overwriting_spares_other_folders(toy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text('{"mine": true}')
    assert "holds no fine-tuning run" in wrong(toy, tmp_path, overwrite=True)
    assert (folder / "config.json").read_text() == '{"mine": true}'


def test_a_run_is_not_trained_from_the_model_that_it_removes(toy: Path, tmp_path: Path) -> None:
    finetune(config(toy, tmp_path / "run", epochs=(0.1,)))
    message = wrong(toy, tmp_path, model=str(tmp_path / "run" / "model"), overwrite=True)
    assert "belongs to the run that --overwrite removes" in message

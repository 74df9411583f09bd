"""Fine-tuning runs that stop, crash or are damaged: they continue bit for bit, or say why not."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from finetune_runs import config, same, weights
from pretrain_runs import without_clocks
from toy_tasks import sentiment

from fastbert.errors import UserError
from fastbert.finetuning import evaluation
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.run import FinetuneResult, _Run, finetune
from fastbert.io.checksums import sealed
from fastbert.training import checkpoint
from fastbert.training.reporter import Reporter
from fastbert.training.stopping import Stopped


class Crash(Exception):
    """What a run does not expect."""


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


@pytest.mark.parametrize("error", [UserError("No space left on device"), RuntimeError("a bug")], ids=["full", "bug"])
def test_a_report_that_fails_does_not_lose_its_trial(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    flags = {"seeds": 1, "epochs": (1.0,), "lr": (1e-3,)}
    whole = finetune(config(place, tmp_path / "whole", **flags))

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "write_report", fail)
        with pytest.raises(type(error)):
            finetune(config(place, tmp_path / "parts", **flags))
    assert not list((tmp_path / "parts" / "reports").iterdir())
    steps: list[int] = []
    parts = finetune(
        FinetuneConfig(out=tmp_path / "parts", resume=True), Reporter(on_step=lambda record, _: steps.append(1))
    )
    assert not steps, "the trial is not trained again"
    assert_same_runs(parts, whole)
    for name in ("predictions/dev.tsv.jsonl", "reports/dev.tsv/report.json", "reports/dev.tsv/errors.tsv"):
        assert (parts.folder / name).read_bytes() == (whole.folder / name).read_bytes(), name


def test_a_report_that_failed_is_made_from_the_kept_model_after_worse_trials(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends between recording its first trial, the best, and describing it; the one that goes on trains the
    second."""
    values: list[float] = []
    monkeypatch.setattr(_Run, "_choose", lambda self, scores: values.pop(0))
    flags = {"seeds": 2, "epochs": (1.0,), "lr": (1e-3,)}
    values += [60, 50]
    whole = finetune(config(place, tmp_path / "whole", **flags))

    def fail(*_: object) -> None:
        raise Crash

    values += [60]
    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "write_report", fail)
        with pytest.raises(Crash):
            finetune(config(place, tmp_path / "parts", **flags))
    values += [50]
    parts = finetune(FinetuneConfig(out=tmp_path / "parts", resume=True))
    assert values == []
    name = "predictions/dev.tsv.jsonl"
    assert (parts.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def assert_same_runs(parts: FinetuneResult, whole: FinetuneResult) -> None:
    """Trials, weights and losses that were written down, to the same bits."""
    assert [replace(one, seconds=0) for one in parts.trials] == [replace(one, seconds=0) for one in whole.trials]
    assert same(weights(parts.model), weights(whole.model))
    logs = [(result.folder / "metrics.jsonl").read_text() for result in (whole, parts)]
    assert without_clocks(logs[0]) == without_clocks(logs[1])


def test_results_name_the_model_that_is_kept_whatever_crashed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that goes on scores otherwise than the one that crashed, as other devices may."""
    values: list[float] = []
    monkeypatch.setattr(_Run, "_choose", lambda self, scores: values.pop(0))
    flags = {"epochs": (1.0,), "lr": (1e-3,), "eval_every": 4}

    def crash(record: dict[str, Any], progress: float) -> None:
        if record["step"] == 9:
            raise Crash

    values += [50, 0, 0]
    whole = finetune(config(place, tmp_path / "whole", **flags))
    values += [50, 60]
    with pytest.raises(Crash):
        finetune(config(place, tmp_path / "parts", checkpoint_every=5, **flags), Reporter(on_step=crash))
    values += [49, 48]
    parts = finetune(FinetuneConfig(out=tmp_path / "parts", resume=True))
    assert values == []
    assert (parts.trials[0].best_step, parts.trials[0].value) == (4, 50)
    assert same(weights(parts.model), weights(whole.model))


def test_what_is_damaged_costs_a_run_its_last_steps_only(
    place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint before the newest one takes over, where that or the best model that it names is damaged; so it
    does for one line of metrics, and for a config.json that is gone. What differs otherwise is refused by name."""
    flags = {"epochs": (2.0,), "lr": (1e-3,), "eval_every": 4, "log_every": 5, "checkpoint_every": 5}
    whole = finetune(config(place, tmp_path / "whole", **flags))

    def crash(record: dict[str, Any], progress: float) -> None:
        if record["step"] == 17:
            raise Crash

    with pytest.raises(Crash):
        finetune(config(place, tmp_path / "crashed", resume=True, **flags), Reporter(on_step=crash))
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
    finetune(config(place, tmp_path / "config", resume=True, **flags), Reporter(on_message=messages.append))
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


def test_what_a_crash_left_of_old_checkpoints_is_in_nobodys_way(place: Path, tmp_path: Path) -> None:
    finetune(config(place, tmp_path / "run", epochs=(0.5,)))
    left = tmp_path / "run" / "checkpoints.gone" / "step-00000003"
    left.mkdir(parents=True)
    (left / "state.json").write_text("{}")
    assert len(finetune(FinetuneConfig(out=tmp_path / "run", resume=True, seeds=2)).trials) == 2
    assert not left.exists()


@pytest.mark.parametrize("flag", [{"temperature": 3.0}, {"null_threshold": 1.0}, {"null_threshold": float("inf")}])
def test_runs_that_were_begun_with_useless_flags_go_on(place: Path, tmp_path: Path, flag: dict[str, float]) -> None:
    """Such flags are refused of new runs; older ones have them."""
    finetune(config(place, tmp_path / "run", epochs=(0.5,)))
    with pytest.raises(UserError, match="changes nothing without"):
        finetune(config(place, tmp_path / "new", **flag))
    path = tmp_path / "run" / "config.json"
    saved = json.loads(path.read_text())
    saved["finetune"] |= flag
    del saved["sha256"]
    path.write_text(json.dumps(sealed(saved)))
    assert len(finetune(FinetuneConfig(out=tmp_path / "run", resume=True, seeds=2)).trials) == 2
    assert len(finetune(config(place, tmp_path / "run", epochs=(0.5,), overwrite=True)).trials) == 1


def test_a_run_is_not_continued_on_other_data(place: Path, tmp_path: Path) -> None:
    train = sentiment(tmp_path / "train.tsv", 64, seed=1)
    finetune(config(place, tmp_path / "run", train=train, epochs=(0.5,)))
    sentiment(train, 64, seed=9)
    with pytest.raises(UserError, match="was trained with another --model, --train or --eval"):
        finetune(FinetuneConfig(out=tmp_path / "run", resume=True, seeds=2))
    sentiment(train, 64, seed=1)
    assert len(finetune(FinetuneConfig(out=tmp_path / "run", resume=True, seeds=2)).trials) == 2


def test_seeds_that_come_before_the_trial_under_way(place: Path, tmp_path: Path) -> None:
    """It is not continued from the checkpoint of one of them."""
    flags = {"lr": (1e-3, 1e-4), "epochs": (1.0,), "checkpoint_every": 5}
    whole = finetune(config(place, tmp_path / "whole", seeds=2, **flags))
    with pytest.raises(Stopped):
        finetune(config(place, tmp_path / "parts", **flags), _Interrupted(7, trial=2))
    messages: list[str] = []
    again = Reporter(on_message=messages.append)
    assert_same_runs(finetune(FinetuneConfig(out=tmp_path / "parts", resume=True, seeds=2), again), whole)
    assert any("begins again, after the seeds that were added before it" in text for text in messages)


def test_more_seeds_are_added_by_resuming(place: Path, tmp_path: Path) -> None:
    first = finetune(config(place, tmp_path / "run", epochs=(1.0,)))
    more = finetune(FinetuneConfig(out=tmp_path / "run", resume=True, seeds=3))
    assert more.trials[0] == first.trials[0]
    assert len(more.trials) == 3

"""Trackers: each line once, over interruptions, and never a run that they end."""

from __future__ import annotations

import importlib
import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_tracker
import pytest
from fake_tracker import Fake
from pretrain_runs import stop_at

from fastbert.errors import UserError
from fastbert.training import tracking_flags
from fastbert.training.config import PretrainConfig
from fastbert.training.metrics import MetricsLog
from fastbert.training.pretrain import pretrain
from fastbert.training.reporter import Record, Reporter
from fastbert.training.stopping import Stopped
from fastbert.training.trackers import progress, recording
from fastbert.training.trackers.progress import Position, Progress
from fastbert.training.trackers.recording import logged_lines, send_finished, tracked
from fastbert.training.trackers.tracker import TrackedRun, Tracker, flat_settings, numbers
from fastbert.training.tracking_flags import TrackingFlags, check_tracking

TRIAL = {"lr": 1e-5, "batch_size": 8, "epochs": 2.0, "seed": 0}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    return fake_tracker.install(monkeypatch)


def line(step: int, split: str = "train", **values: Any) -> Record:
    return {"step": step, "split": split, "loss": 5 - step / 100, "nsp_loss": None, "tokens": 10 * step, **values}


def run(out: Path, names: tuple[Any, ...], step: int, last: int, said: list[str], *, stop: bool = False) -> None:
    """Write lines of ten steps each, as a run does that continues after `step`."""
    flags, out_log = TrackingFlags(track=names), out / "metrics.jsonl"
    out.mkdir(exist_ok=True)
    logged = logged_lines(flags, out) if step else []
    try:
        hooks = tracked(flags, out, Reporter(on_message=said.append), {"lr": 0.1}, step=step, logged=logged)
        with hooks as reporter:
            log = MetricsLog(out_log, (lambda line: line["step"] <= step) if step else None, reporter.on_line)
            for number in range(step + 10, last + 1, 10):
                log.append(line(number))
                if number % 50 == 0:
                    log.append(line(number, "validation", scores={"dev.tsv": {"f1": 1.0, "odd": float("nan")}}))
            if stop:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert stop


def test_a_resumed_run_continues_its_curves_without_a_step_twice(fake: type[Fake], tmp_path: Path) -> None:
    said: list[str] = []
    run(tmp_path / "run", ("wandb", "wandb"), 0, 70, said, stop=True)
    run(tmp_path / "run", ("wandb",), 50, 120, said)
    [lines] = fake.runs.values()
    steps = [(step, sorted({name.partition("/")[0] for name in values})) for step, values in lines]
    assert [step for step, splits in steps if splits == ["train"]] == list(range(10, 121, 10))
    assert [step for step, splits in steps if splits == ["validation"]] == [50, 100]
    assert lines[0][1] == {"train/loss": 4.9, "train/tokens": 100.0}
    assert lines[5][1]["validation/dev.tsv/f1"] == 1.0
    assert fake.closed == [False, True]
    assert [(known.name, known.step) for known in fake.opened] == [("run", 0), ("run", 50)]
    assert not said


def test_pretraining_feeds_its_tracker_over_an_interruption(fake: type[Fake], config: PretrainConfig) -> None:
    """What the tracker has is what metrics.jsonl has, line by line, and the run's profile lies beside it."""
    tracked_config = replace(config, track=("wandb",), profile=True, profile_steps=2)
    with pytest.raises(Stopped):
        pretrain(tracked_config, stop_at(7))
    pretrain(replace(tracked_config, resume=True))
    [logged] = fake.runs.values()
    lines = [json.loads(line) for line in (config.out / "metrics.jsonl").read_text().splitlines()]
    assert logged == [(line["step"], numbers(line)) for line in lines]
    assert {line["split"] for line in lines} == {"train", "validation"}
    assert fake.closed == [False, True]
    assert fake.opened[1].settings["steps"] == 12
    assert fake.opened[1].settings["model.hidden_size"] == 32
    assert (config.out / "profile.json.gz").stat().st_size > 1000
    pretrain(replace(tracked_config, resume=True))
    assert fake.closed == [False, True], "of a finished run it has all lines"
    (config.out / progress.FOLDER / progress.FILE).unlink()
    pretrain(replace(tracked_config, resume=True))
    assert list(fake.runs.values()) == [logged, logged], "one that is added gets them"
    pretrain(replace(tracked_config, overwrite=True, track=(), profile=False))
    assert not (config.out / progress.FOLDER).exists()
    assert not (config.out / "profile.json.gz").exists()


def test_a_tracker_added_later_gets_what_was_before(fake: type[Fake], tmp_path: Path) -> None:
    run(tmp_path / "run", (), 0, 70, [], stop=True)
    assert not (tmp_path / "run" / progress.FOLDER).exists(), "no flag, no folder"
    run(tmp_path / "run", ("wandb",), 50, 80, [])
    [lines] = fake.runs.values()
    assert [step for step, _ in lines] == [10, 20, 30, 40, 50, 50, 60, 70, 80]


def test_a_new_run_in_the_folder_has_new_curves_and_damaged_identities_are_reported(
    fake: type[Fake], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path / "run", ("wandb",), 0, 30, [])
    run(tmp_path / "run", ("wandb",), 0, 30, [])
    assert [len(lines) for lines in fake.runs.values()] == [3, 3]
    (tmp_path / "run" / progress.FOLDER / progress.FILE).write_text("{")
    (tmp_path / "run" / "metrics.jsonl").write_text("no record\n{}\n")
    run(tmp_path / "run", ("wandb",), 20, 30, [])
    assert "trackers begin new curves" in caplog.text
    assert "not a metrics record" in caplog.text
    assert len(fake.runs) == 3


def test_a_tracker_that_fails_is_reported_once_and_never_ends_the_run(fake: type[Fake], tmp_path: Path) -> None:
    said: list[str] = []
    fake.fails_at = 30
    run(tmp_path / "run", ("wandb",), 0, 80, said)
    assert said == ["--track wandb: the server is gone; the run continues without it"]
    assert [step for lines in fake.runs.values() for step, _ in lines] == [10, 20]


def test_a_resumed_run_sends_what_a_tracker_lacks(fake: type[Fake], tmp_path: Path) -> None:
    """A tracker that was given up, or one whose process was killed, has fewer lines than the run."""
    said: list[str] = []
    fake.fails_at = 30
    run(tmp_path / "run", ("wandb",), 0, 80, said, stop=True)
    assert Progress.read(tmp_path / "run").get("wandb", "") == progress.Known("id-0", Position(20, "train"))
    fake.fails_at = None
    run(tmp_path / "run", ("wandb",), 50, 100, said)
    [lines] = fake.runs.values()
    assert [step for step, _ in lines] == [10, 20, 30, 40, 50, 50, 60, 70, 80, 90, 100, 100]
    assert len(said) == 1


def test_what_trackers_have_is_stored_though_lines_come_fast(
    fake: type[Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = progress.write_json_atomic

    def slow(path: Path, content: Any) -> None:
        time.sleep(0.02)
        write(path, content)

    monkeypatch.setattr(progress, "write_json_atomic", slow)
    run(tmp_path / "run", ("wandb",), 0, 100, [])
    known = Progress.read(tmp_path / "run").get("wandb", "")
    assert known is not None
    assert known.last == Position(100, "validation")


def test_damaged_entries_begin_new_curves(fake: type[Fake], tmp_path: Path) -> None:
    run(tmp_path / "run", ("wandb",), 0, 30, [])
    for entry in ("1", '"id-0"', '{"identity": "id-0", "last": [1e999, "train", 0]}', '{"last": null}', "[1]"):
        (tmp_path / "run" / progress.FOLDER / progress.FILE).write_text(f'{{"wandb": {{"": {entry}}}, "mlflow": 3}}')
        run(tmp_path / "run", ("wandb",), 20, 30, [])
    assert [len(lines) for lines in fake.runs.values()] == [3] * 6


def test_what_was_sent_counts_though_another_tracker_cannot_be_opened(
    fake: type[Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(run: TrackedRun, identity: str | None) -> Tracker:
        raise RuntimeError("no key")

    monkeypatch.setitem(recording.KINDS, "mlflow", refuses)
    monkeypatch.setattr(tracking_flags, "find_spec", lambda name: object())
    run(tmp_path / "run", (), 0, 30, [])
    for _ in range(2):
        with pytest.raises(UserError, match="--track mlflow: no key"):
            run(tmp_path / "run", ("wandb", "mlflow"), 20, 30, [])
    run(tmp_path / "run", ("wandb",), 20, 30, [])
    [lines] = fake.runs.values()
    assert [step for step, _ in lines] == [10, 20, 30]
    said: list[str] = []
    flags = TrackingFlags(track=("mlflow", "wandb"))
    send_finished(flags, tmp_path / "run", Reporter(on_message=said.append), {}, logged=[line(10), line(40)])
    assert said == ["--track mlflow: no key; the run continues without it"]
    assert [step for step, _ in lines] == [10, 20, 30, 40]


def test_a_run_that_goes_back_sends_no_line_twice(fake: type[Fake], tmp_path: Path) -> None:
    """The first line after a roll-back may have the step of the last one before; a second validation of a step, that
    of averaged weights, is another line."""
    returned: list[int] = []
    flags = TrackingFlags(track=("wandb",))
    with tracked(flags, tmp_path, Reporter(on_rollback=returned.append), {}) as hooks:
        for step in (10, 20):
            hooks.on_line(line(step))
        hooks.on_rollback(15)
        for step in (20, 30):
            hooks.on_line(line(step))
        for _ in range(2):
            hooks.on_line(line(30, "validation"))
        hooks.on_rollback(25)
        hooks.on_line(line(30))
        hooks.on_line(line(40))
    [lines] = fake.runs.values()
    assert [step for step, _ in lines] == [10, 20, 30, 30, 30, 40]
    assert returned == [15, 25]


def test_a_finished_trial_is_sent_once(fake: type[Fake], tmp_path: Path) -> None:
    flags = TrackingFlags(track=("wandb",))
    lines = [line(step, **{**TRIAL, "seed": seed}) for seed in (0, 1) for step in (10, 20)]
    for _ in range(2):
        for seed in (0, 1, 2):
            send_finished(flags, tmp_path, Reporter(), {}, logged=lines, trial={**TRIAL, "seed": seed})
    assert [[step for step, _ in logged] for logged in fake.runs.values()] == [[10, 20], [10, 20]]
    assert fake.closed == [True, True]


def test_a_full_disk_does_not_end_the_thread(fake: type[Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path, content: Any) -> None:
        raise OSError("No space left on device")

    said: list[str] = []
    with tracked(TrackingFlags(track=("wandb",)), tmp_path, Reporter(on_message=said.append), {}) as hooks:
        monkeypatch.setattr(progress, "write_json_atomic", fails)
        for step in (10, 20, 30):
            hooks.on_line(line(step))
    [lines] = fake.runs.values()
    assert [step for step, _ in lines] == [10, 20, 30]
    assert not said


def test_training_does_not_wait_for_a_tracker_that_hangs(
    fake: type[Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, said = threading.Event(), []
    monkeypatch.setattr(fake, "log", lambda self, values, step: hangs.wait())
    monkeypatch.setattr(recording, "MOST_WAITING", 5)
    monkeypatch.setattr(recording, "LONGEST_CLOSE", 0.05)
    run(tmp_path / "run", ("wandb",), 0, 300, said)
    hangs.set()
    assert said[0].startswith("trackers are 5 lines behind")
    assert said[1] == "wandb did not take the last lines within 0 s; the run has them"
    assert len(said) == 2
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 36


def test_trials_have_runs_of_their_own(fake: type[Fake], tmp_path: Path) -> None:
    flags = TrackingFlags(track=("wandb",), track_dir=tmp_path / "all")
    for seed in (0, 1):
        trial = {**TRIAL, "seed": seed}
        lines = [line(10, **TRIAL), line(10, **{**TRIAL, "seed": 1})] if seed else []
        with tracked(flags, tmp_path / "run", Reporter(), {}, step=10 * seed, logged=lines, trial=trial) as hooks:
            hooks.on_line(line(20, **trial))
    first, second = fake.opened
    assert (first.name, second.name) == ("lr-1e-05_batch-size-8_epochs-2_seed-0", second.name)
    assert first.group == second.group
    assert first.group.startswith("run-")
    assert first.folder == tmp_path / "all"
    assert [[step for step, _ in lines] for lines in fake.runs.values()] == [[20], [10, 20]]
    assert all("train/seed" not in values for lines in fake.runs.values() for _, values in lines)


def test_what_cannot_be_opened_is_one_line_at_the_start(
    fake: type[Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"--track mlflow: the package mlflow is not installed: `pip install mlflow`"):
        check_tracking(TrackingFlags(track=("wandb", "mlflow")))
    with pytest.raises(UserError, match=r"fastbert-engine\[tensorboard\]"):
        check_tracking(TrackingFlags(track=("tensorboard",)))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"--track-dir .*file: is a file"):
        check_tracking(TrackingFlags(track_dir=tmp_path / "file"))
    for flags, message in (
        (TrackingFlags(track=("csv",)), "--track csv: choose among"),  # type: ignore[arg-type]
        (TrackingFlags(profile_steps=0), "--profile-steps 0 must be from 1"),
    ):
        with pytest.raises(UserError, match=message):
            flags.check_flags()

    def refuses(run: TrackedRun, identity: str | None) -> Tracker:
        raise RuntimeError("no key " + "x" * 1000 + "\nsecond line")

    monkeypatch.setitem(recording.KINDS, "mlflow", refuses)
    monkeypatch.setattr(tracking_flags, "find_spec", lambda name: object())
    with pytest.raises(UserError, match="--track mlflow: no key x") as caught:
        run(tmp_path / "run", ("wandb", "mlflow"), 0, 30, [])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert fake.closed == [False], "the one that was open is closed"


def test_numbers_and_settings_are_plain() -> None:
    record = {"step": 3, "split": "train", "loss": float("inf"), "mfu": 0.5, "flag": True, "text": "x", "lr": 1e-5}
    assert numbers(record) == {"train/mfu": 0.5}
    for scores in (None, [1], {"a": [2]}, {"a": {"b": "c"}}, "x"):
        assert numbers({"step": 1, "split": "validation", "scores": scores}) == {}
    settings = {"a": None, "b": [1, 2], "c": (), "model": {"d": Path("x"), "e": {"f": 0.5}}, "g": True}
    assert flat_settings(settings) == {"b": "1 2", "model.d": "x", "model.e.f": 0.5, "g": True}


def test_tensorboard_shows_each_step_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra [tensorboard]")
    reader: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    said: list[str] = []
    run(tmp_path / "run", ("tensorboard",), 0, 70, said, stop=True)
    run(tmp_path / "run", ("tensorboard",), 50, 120, said)
    events = reader.EventAccumulator(str(tmp_path / "run" / "tracking" / "tensorboard" / "run"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(10, 121, 10))
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(
        [5 - step / 100 for step in range(10, 121, 10)]
    )
    assert [event.step for event in events.Scalars("validation/dev.tsv/f1")] == [50, 100]
    assert "_hparams_/session_start_info" in events.summary_metadata
    run(tmp_path / "run", ("tensorboard",), 0, 30, said)  # with --overwrite
    events = reader.EventAccumulator(str(tmp_path / "run" / "tracking" / "tensorboard" / "run"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [10, 20, 30]
    assert not said


def test_weights_and_biases_works_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the package wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    said: list[str] = []
    run(tmp_path / "run", ("wandb",), 0, 70, said, stop=True)
    run(tmp_path / "run", ("wandb",), 50, 120, said)
    files = sorted((tmp_path / "run" / "tracking" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    assert len({file.name for file in files}) == 1, "both have the run's id"
    assert not said


def test_mlflow_continues_its_run_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="needs the package mlflow")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    said: list[str] = []
    run(tmp_path / "run", ("mlflow",), 0, 70, said, stop=True)
    run(tmp_path / "run", ("mlflow",), 50, 120, said)
    client_type: Any = importlib.import_module("mlflow").MlflowClient
    client = client_type(tracking_uri=f"sqlite:///{tmp_path / 'run' / 'tracking' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("fastbert")
    [found] = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status, found.data.params) == ("run", "FINISHED", {"lr": "0.1"})
    history = client.get_metric_history(found.info.run_id, "train/loss")
    assert [metric.step for metric in history] == list(range(10, 121, 10))
    assert not said

"""Checkpoints: which one is taken, which ones are removed, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_checkpoints import Writer

from fastbert.errors import CheckpointError
from fastbert.training import checkpoint
from fastbert.training.checkpoint import NewerFormat


def damage(folder: Path, name: str = checkpoint.MODEL) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)


def step(root: Path, number: int) -> Path:
    return root / f"step-{number:08d}"


def test_damaged_checkpoints_do_not_count_as_kept(tmp_path: Path) -> None:
    """The run falls back to 4, while 5 and 6 are damaged: what it saves must not cost the only whole one."""
    Writer(tmp_path, keep=9).save(3, 4, 5, 6)
    for number in (3, 5, 6):
        damage(step(tmp_path, number))
    resumed = Writer(tmp_path)
    loaded = resumed.checkpoints.load_last(lambda state: state["step"])
    assert loaded is not None
    assert loaded[1] == 4
    damage(step(tmp_path, 4))  # as it is known to be whole, unless somebody looks
    resumed.save(4)
    assert resumed.names() == [3, 4, 5, 6]  # 3 may go only when two whole ones are newer
    checkpoint.load(step(tmp_path, 4))
    resumed.save(5)
    assert resumed.names() == [4, 5, 6]
    resumed.save(6, 7)
    assert resumed.names() == [6, 7]
    for number in (6, 7):
        checkpoint.load(step(tmp_path, number))


def test_each_older_checkpoint_is_read_once_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Writer(tmp_path, keep=9).save(1, 2, 3)
    read: list[str] = []
    original = checkpoint.check
    monkeypatch.setattr(checkpoint, "check", lambda folder: (read.append(folder.name), original(folder)))
    writer = Writer(tmp_path, keep=3)
    writer.save(4, 5, 6, 7)
    assert read == ["step-00000003", "step-00000002"]
    assert writer.names() == [5, 6, 7]


@pytest.mark.parametrize("draws", [None, 1, checkpoint.DRAWS_FORMAT], ids=["unnamed", "older", "same"])
@pytest.mark.parametrize("p", [0.0, 0.1])
def test_other_dropout_masks_are_reported(
    p: float, draws: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(tmp_path)
    writer.model.config = dataclasses.replace(writer.model.config, attention_probs_dropout_prob=p)
    writer.save(1)
    saved = checkpoint.load(step(tmp_path, 1))
    assert saved.state["dropout_draws"] == checkpoint.DRAWS_FORMAT
    state = {name: value for name, value in saved.state.items() if name != "dropout_draws"}
    if draws is not None:
        state["dropout_draws"] = draws
    checkpoint.restore(dataclasses.replace(saved, state=state), writer.model, writer.optimizer)
    reported = "drew attention's dropout masks differently; the run continues" in caplog.text
    assert reported == (p > 0 and draws != checkpoint.DRAWS_FORMAT)


def test_an_old_checkpoint_that_cannot_be_removed_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(tmp_path, keep=1)
    writer.save(1)

    def refuse(path: Path, ignore_errors: bool = False) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    monkeypatch.setattr(Path, "rename", lambda self, to: os.rename(self, to))
    writer.save(2)
    assert "step-00000001: an old checkpoint could not be removed" in caplog.text
    assert writer.names() == [2]


def nested(depth: int) -> str:
    return '{"format_version": 2, "sha256": ' + "[" * depth + "]" * depth + "}"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (checkpoint.MANIFEST, nested(100_000), "nested too deeply"),
        (checkpoint.MANIFEST, '{"format_version": 99, "sha256": {}}', r"newer fastbert \(format 99\); update fastbert"),
        (checkpoint.MANIFEST, '{"format_version": "2", "sha256": {}}', "format_version '2'"),
        (checkpoint.MANIFEST, '{"format_version": 1, "sha256": {}}', "has format 1, from before the first release"),
        (checkpoint.MANIFEST, '{"format_version": 2, "sha256": {"model.safetensors": 3}}', "lacks the SHA-256"),
        (checkpoint.MANIFEST, "[]", "is not an object"),
        (checkpoint.MANIFEST, '{"format_version": ' + "9" * 5000 + "}", "manifest.json"),
        (checkpoint.STATE, '{"format_version": 2, "step": "9"}', "step is '9'"),
        (checkpoint.STATE, '{"format_version": 2, "step": 8}', "holds step 8; it was renamed"),
        (checkpoint.STATE, "[1]", "is not an object"),
    ],
)
def test_whatever_is_wrong_with_the_newest_the_one_before_is_taken(
    name: str, content: str, message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Writer(tmp_path).save(8, 9)
    newest = step(tmp_path, 9)
    (newest / name).write_text(content)
    if name == checkpoint.STATE:  # by somebody who fits the manifest to it
        manifest: dict[str, Any] = json.loads((newest / checkpoint.MANIFEST).read_text())
        manifest["sha256"][name] = checkpoint.digest(newest / name)
        (newest / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    with caplog.at_level(logging.WARNING):
        last = checkpoint.load_last(tmp_path)
    assert last is not None
    assert last.state["step"] == 8
    with pytest.raises(CheckpointError, match=message):
        checkpoint.load(newest)
    shutil.rmtree(step(tmp_path, 8))
    kind, what = (NewerFormat, "update fastbert, or start") if " 99," in content else (CheckpointError, "no checkpo")
    with pytest.raises(kind, match=what):
        checkpoint.load_last(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "step-00000009", "../step-00000001", "step-00000001/..", "x" * 1000, "\xff", "step-1"]
)
def test_latest_is_a_hint_that_nothing_depends_on(content: str, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.save(1, 2)
    assert (tmp_path / "latest").read_text() == "step-00000002\n"
    (tmp_path / "latest").write_bytes(content.encode("latin-1"))
    assert checkpoint.latest(tmp_path) is None
    last = checkpoint.load_last(tmp_path)
    assert last is not None
    assert last.state["step"] == 2
    (tmp_path / "latest").unlink()
    os.mkfifo(tmp_path / "latest")
    assert checkpoint.latest(tmp_path) is None
    writer.save(3)
    assert checkpoint.latest(tmp_path) == tmp_path / "step-00000003"


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    Writer(tmp_path).save(3, 4)
    for number, name in ((4, checkpoint.MANIFEST), (3, checkpoint.STATE)):
        (step(tmp_path, number) / name).unlink()
        os.mkfifo(step(tmp_path, number) / name)
    with pytest.raises(CheckpointError, match="no checkpoint is whole"):
        checkpoint.load_last(tmp_path)


def test_an_optimiser_of_another_shape_is_refused(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.save(1)
    last = checkpoint.load_last(tmp_path)
    assert last is not None
    name = next(iter(dict(writer.model.named_parameters())))
    for key in (f"exp_avg/{name}", "exp_avg"):
        wrong = checkpoint.Checkpoint(last.folder, last.model, {key: torch.zeros(3)}, last.state)
        with pytest.raises(CheckpointError):
            checkpoint.restore(wrong, writer.model, writer.optimizer)

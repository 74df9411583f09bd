"""Saves in the background: exactly the state at the call, durable before `latest` moves, and every way to fail."""

from __future__ import annotations

import errno
import logging
import os
import random
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from killing import SAVING, operand
from torch import Tensor, nn
from toy_checkpoints import Writer

from fastbert.errors import CheckpointError
from fastbert.training import checkpoint, checkpoint_writing, saving
from fastbert.training.parallel import _gathered
from fastbert.training.saving import Checkpoints
from fastbert.training.saving_flags import AsyncSave
from fastbert.training.snapshot import snapshot


def trained(root: Path, seed: int, *, background: AsyncSave = "on", **retention: Any) -> Writer:
    """A writer whose optimiser has a state."""
    writer = Writer(root)
    writer.checkpoints = Checkpoints(root, retention.pop("keep", 2), background=background, **retention)
    take_step(writer, seed)
    return writer


def take_step(writer: Writer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in writer.model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    writer.optimizer.step()


def contents(writer: Writer) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    now = snapshot(writer.model, writer.optimizer)
    model, optimizer = ({name: value.clone() for name, value in part.items()} for part in (now.model, now.optimizer))
    return model, optimizer


def assert_holds(folder: Path, expected: tuple[dict[str, Tensor], dict[str, Tensor]]) -> None:
    loaded = checkpoint.load(folder)
    for tensors, wanted in zip((loaded.model, loaded.optimizer), expected, strict=True):
        assert tensors.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert torch.equal(tensors[name], tensor), name


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Holds writers back until it is set."""
    event, write = threading.Event(), checkpoint_writing.write_hashed

    def gated(*values: Any) -> str:
        assert event.wait(60)
        return write(*values)

    monkeypatch.setattr(checkpoint_writing, "write_hashed", gated)
    yield event
    event.set()


def test_a_checkpoint_is_the_state_at_the_call(tmp_path: Path, gate: threading.Event, seed: int) -> None:
    writer = trained(tmp_path, seed)
    progress, flushed = {"losses": [1.0]}, list[str]()
    for number in (1, 2):
        gate.clear()
        expected = contents(writer)
        state = {"step": number, "progress": progress}
        saved = writer.checkpoints.save_async(
            snapshot(writer.model, writer.optimizer), state, [lambda: flushed.append(threading.current_thread().name)]
        )
        take_step(writer, seed + number)
        with torch.no_grad():
            for tensor in writer.model.state_dict().values():
                tensor.mul_(2)
        progress["losses"].append(2.0)
        assert not saved.exists()
        assert writer.checkpoints.names()[-1] == saved.name
        assert checkpoint.latest(tmp_path) == (tmp_path / "step-00000001" if number == 2 else None)
        gate.set()
        writer.checkpoints.wait()
        assert [name.rpartition("_")[0] for name in flushed] == ["fastbert checkpoint"] * number
        assert_holds(saved, expected)
        assert checkpoint.load(saved).state["progress"] == {"losses": [1.0, *[2.0] * (number - 1)]}
        assert checkpoint.latest(tmp_path) == saved


def test_one_save_is_in_flight_and_the_next_one_waits(
    tmp_path: Path, gate: threading.Event, seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(saving, "_LONG_WAIT", 0.1)
    writer = trained(tmp_path, seed)
    with caplog.at_level(logging.INFO), writer.checkpoints as checkpoints:
        threading.Timer(0.3, gate.set).start()
        for number in (1, 2, 3):
            checkpoints.save_async(snapshot(writer.model, writer.optimizer), {"step": number})
            assert checkpoint.latest(tmp_path) == (tmp_path / f"step-{number - 1:08d}" if number > 1 else None) or (
                gate.is_set()
            )
            checkpoints.check()
    assert writer.names() == [2, 3]
    assert caplog.text.count("raise --checkpoint-every if this happens often") == 1


def test_a_save_at_once_waits_for_that_behind_the_steps(tmp_path: Path, gate: threading.Event, seed: int) -> None:
    writer = trained(tmp_path, seed)
    writer.checkpoints.save_async(snapshot(writer.model, writer.optimizer), {"step": 1})
    threading.Timer(0.1, gate.set).start()
    expected = contents(writer)
    written = writer.checkpoints.save(snapshot(writer.model, writer.optimizer), {"step": 1})
    assert_holds(written, expected)
    last = writer.checkpoints.load_last(dict)
    assert last is not None
    assert last[0].folder == written


def test_small_models_and_those_without_memory_are_saved_at_once(
    tmp_path: Path, gate: threading.Event, seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_memory(*size: int, **options: Any) -> Tensor:
        raise RuntimeError("not enough memory: you tried to allocate")

    gate.set()
    writer = trained(tmp_path, seed, background="auto", keep=9)
    source = snapshot(writer.model, writer.optimizer)

    def is_behind(number: int, **options: bool) -> bool:
        gate.clear()
        threading.Timer(0.1, gate.set).start()
        folder = writer.checkpoints.save_async(source, {"step": number}, **options)
        behind = not folder.exists()
        writer.checkpoints.wait()
        return behind

    assert not is_behind(1)
    monkeypatch.setattr(saving, "SMALL", 0)
    monkeypatch.setattr(saving, "available_memory", lambda: source.nbytes)
    assert not is_behind(2)
    assert is_behind(3, owned=True)  # nothing is copied
    monkeypatch.setattr(saving, "available_memory", lambda: 2 * source.nbytes)
    assert is_behind(4)
    monkeypatch.setattr(saving, "available_memory", lambda: 0)
    assert is_behind(5)  # the memory is there already
    writer.checkpoints.background = "off"
    assert not is_behind(6)
    monkeypatch.setattr(torch, "empty", no_memory)
    writer.checkpoints = Checkpoints(tmp_path, 9, background="on")
    for number in (7, 8):
        assert not is_behind(number)
    assert caplog.text.count("no memory for a copy of the checkpoint (") == 1


def test_an_error_behind_the_steps_is_raised_at_the_next_one(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = trained(tmp_path, seed)
    writer.save(1)

    def broken(*values: Any) -> str:
        raise OSError(errno.EIO, "Input/output error")

    def wait_in_vain() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            writer.checkpoints.check()
            time.sleep(0.001)

    source = snapshot(writer.model, writer.optimizer)
    monkeypatch.setattr(checkpoint_writing, "write_hashed", broken)
    message = r"step-00000002: the checkpoint could not be written \(\[Errno 5\] .*\); those before it are whole\. Free"
    writer.checkpoints.save_async(source, {"step": 2})
    with pytest.raises(CheckpointError, match=message):
        wait_in_vain()
    writer.checkpoints.check()  # it was raised once
    writer.checkpoints.save_async(source, {"step": 2})
    with pytest.raises(CheckpointError, match=message):
        writer.checkpoints.save_async(source, {"step": 3})
    with pytest.raises(CheckpointError, match=message), writer.checkpoints:
        writer.checkpoints.save_async(source, {"step": 2})

    def fail(error: BaseException) -> None:
        with writer.checkpoints:
            writer.checkpoints.save_async(source, {"step": 2})
            raise error

    with pytest.raises(RuntimeError, match="of a step"):
        fail(RuntimeError("of a step"))
    assert re.search(message, caplog.text)
    assert writer.names() == [1]


def test_a_second_ctrl_c_gives_the_save_up(tmp_path: Path, gate: threading.Event, seed: int) -> None:
    writer = trained(tmp_path, seed)

    def interrupt() -> None:
        with writer.checkpoints:
            writer.checkpoints.save_async(snapshot(writer.model, writer.optimizer), {"step": 1})
            threading.Timer(0.1, gate.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert list(tmp_path.iterdir()) == []


def test_the_space_is_checked_before_a_byte_is_written(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = trained(tmp_path, seed)
    writer.save(1)
    free = [0]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, free[0]))
    source = snapshot(writer.model, writer.optimizer)

    def attempt(number: int) -> None:
        writer.checkpoints.save_async(source, {"step": number})
        writer.checkpoints.wait()

    needed = r"step-0000000\d: the checkpoint could not be written \(.*it needs ([\d,]+) bytes, and 0 are free\)"
    for _ in range(2):  # a save that succeeds in between starts the count again
        attempt(2)
        found = re.search(needed + ".* The run goes on, and ends if the next", caplog.text)
        assert found
        size = int(found[1].replace(",", ""))
        assert source.nbytes < size < source.nbytes + (2 << 20)
        caplog.clear()
        free[0] = size
        attempt(3)
        free[0] = 0
    attempt(4)
    with pytest.raises(CheckpointError, match=needed):
        attempt(5)
    with pytest.raises(CheckpointError, match=needed):
        writer.checkpoints.save(source, {"step": 6})
    assert writer.names() == [1, 3]
    assert checkpoint.latest(tmp_path) == tmp_path / "step-00000003"


def counted(operations: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Calls `operations(name, number)` before each operation on files below `root`."""
    number = 0

    def replacement(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*values: Any, **named: Any) -> Any:
            nonlocal number
            if operand(values[0], named.get("dir_fd")).is_relative_to(root):
                number += 1
                operations(name, number)
            return original(*values, **named)

        return operation

    for name in SAVING:
        monkeypatch.setattr(os, name, replacement(name, getattr(os, name)))


def test_an_error_of_any_operation_leaves_whole_checkpoints(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    """Until the new checkpoint is durable the one before it is the newest, and no error goes unseen."""
    writer = trained(tmp_path / "writer", seed)
    source, expected = snapshot(writer.model, writer.optimizer), contents(writer)

    def attempt(root: Path, fail: Callable[[str, int], None]) -> str:
        """Save steps 1, 2 and 3, the second with errors; return the error that was raised."""
        checkpoints, raised = Checkpoints(root, 1, background="on"), ""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda descriptor: None)  # takes most of the time
            checkpoints.save(source, {"step": 1})
            caplog.clear()
            with pytest.MonkeyPatch.context() as failing:
                counted(fail, failing, root)
                checkpoints.save_async(source, {"step": 2})
                try:
                    checkpoints.wait()
                except CheckpointError as error:
                    raised = str(error)
            last, latest = checkpoint.load_last(root), checkpoint.latest(root)
            assert last is not None
            assert latest is not None
            assert_holds(last.folder, expected)
            checkpoint.load(latest)
            if raised or "could not be written" in caplog.text:
                assert "those before it are whole. Free some disk space" in raised + caplog.text
                assert checkpoints.names()[0] == "step-00000001"
            elif not caplog.text:
                assert sorted(path.name for path in root.iterdir()) == ["latest", "step-00000002"]
            checkpoints.save(source, {"step": 3})
            assert sorted(path.name for path in root.iterdir()) == ["latest", "step-00000003"]
        return raised

    operations: list[str] = []
    assert not attempt(tmp_path / "whole", lambda name, number: operations.append(name))
    assert set(operations) == set(SAVING)
    writes = [number for number, name in enumerate(operations) if name == "write"]
    others = [number for number, name in enumerate(operations) if name != "write"]
    draw = random.Random(seed)
    points = range(len(operations)) if request.config.option.slow else sorted(others + draw.sample(writes, 4))
    raised = 0
    for point in points:
        for code in (errno.ENOSPC, errno.EIO):

            def fail(name: str, number: int, point: int = point, code: int = code) -> None:
                if number == point + 1:
                    raise OSError(code, os.strerror(code))

            message = attempt(tmp_path / f"{point}-{code}", fail)
            assert not message or code == errno.EIO or "cannot be opened" in message
            raised += bool(message)
    assert raised > 12


def test_short_writes_are_continued_and_lost_bytes_are_seen(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, write, draw = trained(tmp_path, seed), os.write, random.Random(seed)
    expected = contents(writer)
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: draw.randint(0, len(data))]))
    writer.checkpoints.save_async(snapshot(writer.model, writer.optimizer), {"step": 1})
    writer.checkpoints.wait()
    assert_holds(tmp_path / "step-00000001", expected)
    for lose in (lambda data: data[:-1], lambda data: bytes(len(data))):

        def lost(file: int, data: Any, lose: Callable[[Any], Any] = lose) -> int:
            write(file, lose(data))
            return len(data)

        monkeypatch.setattr(os, "write", lost)
        writer.checkpoints.save_async(snapshot(writer.model, writer.optimizer), {"step": 2})
        with pytest.raises(CheckpointError, match=r"model\.safetensors has other bytes than were written to it"):
            writer.checkpoints.wait()
        assert writer.names() == [1]


def test_multiples_are_kept_for_ever(tmp_path: Path, seed: int) -> None:
    writer = trained(tmp_path, seed, keep=2, keep_every=4)
    with writer.checkpoints as checkpoints:
        for number in range(1, 12):
            checkpoints.save_async(snapshot(writer.model, writer.optimizer), {"step": number})
    assert writer.names() == [4, 8, 10, 11]
    assert [step for step in range(13) if checkpoints.keeps(step)] == [0, 4, 8, 12]
    assert not Checkpoints(tmp_path, 1).keeps(4)


def test_gathered_tensors_are_saved_and_sharded_ones_restored(tmp_path: Path, seed: int) -> None:
    """Each of two processes has half of the rows of every matrix; the checkpoint has whole ones."""
    writer = trained(tmp_path, seed)
    expected = contents(writer)
    gathered: list[Tensor] = []

    def gather(tensor: Tensor) -> Tensor:
        gathered.append(tensor)
        if not tensor.dim():  # a number of steps, which the next one changes
            return _gathered(tensor)
        return torch.cat([tensor[: len(tensor) // 2], tensor[len(tensor) // 2 :]])

    source = snapshot(writer.model, writer.optimizer, gather)
    assert len(gathered) == len(expected[0]) + len(expected[1])
    state = {"step": 1, "world_size": 2, "samples": 640}
    saved = writer.checkpoints.save_async(source, state, owned=True)
    take_step(writer, seed + 1)
    writer.checkpoints.wait()
    assert_holds(saved, expected)
    loaded = checkpoint.load(saved)
    assert loaded.state["world_size"] == 2
    other, places = trained(tmp_path / "other", seed + 2), []

    def shard(whole: Tensor, like: Tensor) -> Tensor:
        places.append((whole.shape, isinstance(like, nn.Parameter)))
        return whole.clone()

    checkpoint.restore(loaded, other.model, other.optimizer, shard)
    for found, wanted in zip(contents(other), expected, strict=True):
        assert all(torch.equal(found[name], value) for name, value in wanted.items())
    moments = sum(value.dim() > 0 for value in expected[1].values())
    assert len(places) == len(expected[0]) + moments

"""Two processes do not write to one folder, and a folder is free again when its holder is gone."""

import fcntl
import os
import threading
from pathlib import Path

import pytest

from fastbert.errors import UserError
from fastbert.io.locking import locked_folder


def test_the_second_is_refused_and_the_folder_named(tmp_path: Path) -> None:
    with locked_folder(tmp_path, "wait"):
        message = f"{tmp_path}: another process is writing there; wait"
        with pytest.raises(UserError, match=message), locked_folder(tmp_path, "wait"):
            pass
        held: list[str] = []

        def other() -> None:
            try:
                with locked_folder(tmp_path, "wait"):
                    held.append("locked")
            except UserError:
                held.append("refused")

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert held == ["refused"]
    with locked_folder(tmp_path, "wait"):
        pass


def test_an_empty_new_folder_is_removed_and_a_used_one_stays(tmp_path: Path) -> None:
    with locked_folder(tmp_path / "a" / "b", "wait"):
        pass
    assert not (tmp_path / "a" / "b").exists()
    with locked_folder(tmp_path / "a" / "b", "wait"):
        (tmp_path / "a" / "b" / "file").write_text("x")
    assert (tmp_path / "a" / "b" / "file").read_text() == "x"
    (tmp_path / "empty").mkdir()
    with locked_folder(tmp_path / "empty", "wait"):
        pass
    assert (tmp_path / "empty").is_dir()


def test_a_folder_that_its_last_holder_removed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, original = tmp_path / "run", fcntl.flock
    calls = []

    def flock(descriptor: int, operation: int) -> None:
        if not calls:
            folder.rmdir()  # between opening and locking
        calls.append(descriptor)
        original(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked_folder(folder, "wait"):
        assert folder.is_dir()
        assert os.path.samestat(os.fstat(calls[-1]), os.stat(folder))
    assert len(calls) == 2


def test_a_file_system_without_locks_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked_folder(tmp_path, "wait"):
        pass
    assert "has no locks" in caplog.text

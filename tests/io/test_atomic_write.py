"""Files are replaced as a whole: an error or an interrupt leaves the old content and no temporary file."""

import json
import os
from pathlib import Path

import pytest

from fastbert.io.atomic_write import atomic_write, write_atomic, write_json_atomic


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def interrupted() -> None:
        with atomic_write(path) as partial:
            partial.write_text("half")
            assert path.read_text() == "old"
            raise error

    with pytest.raises(error):
        interrupted()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_outermost_file_appears_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, replace = [], os.replace

    def record(source: Path, target: Path) -> None:
        names.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", record)
    with atomic_write(tmp_path / "index") as index, atomic_write(tmp_path / "data") as data:
        data.write_text("data")
        index.write_text("index")
    assert names == ["data", "index"]
    assert sorted(os.listdir(tmp_path)) == ["data", "index"]


def test_a_link_is_replaced_and_its_target_kept(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_atomic(tmp_path / "link", "new")
    assert (tmp_path / "target").read_text() == "old"
    assert (tmp_path / "link").read_text() == "new"
    assert not (tmp_path / "link").is_symlink()


def test_pipes_and_devices_are_written_to_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_json_atomic(pipe, {"a": "ü"}, ensure_ascii=False)
    assert os.read(descriptor, 100).decode() == json.dumps({"a": "ü"}, indent=2, ensure_ascii=False) + "\n"
    os.close(descriptor)
    assert os.listdir(tmp_path) == ["pipe"]
    write_atomic(Path(os.devnull), "nothing")
    assert not Path(os.devnull).is_file()


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    path = tmp_path / "file"
    path.write_text("old")

    def overfull() -> None:
        with atomic_write(path) as partial:
            partial.symlink_to("/dev/full")
            partial.write_text("new")

    with pytest.raises(OSError, match="No space") as raised:
        overfull()
    assert raised.value.filename == str(path), "the message names the file"
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_writes_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic_write(path) as first:
        first.write_text("first")
        write_atomic(path, "second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["file"]


def test_temporary_files_of_killed_processes_are_removed_after_a_day(tmp_path: Path) -> None:
    path, old, new = (tmp_path / name for name in ("a[b]", "a[b].0123abcd.partial", "a[b].4567abcd.partial"))
    old.touch()
    new.touch()  # perhaps still being written
    os.utime(old, (0, 0))
    write_atomic(path, "content")
    assert sorted(tmp_path.iterdir()) == [path, new]

"""A folder that is replaced is whole at every moment: processes are killed before each of their file operations."""

import ctypes
import errno
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.data.prepare import prepare
from fastbert.data.shards import TokenShards
from fastbert.errors import UserError
from fastbert.io import folder_exchange
from fastbert.io.folder_exchange import recover_folder, replace_folder
from fastbert.tokenizers import WordPieceTokenizer

KILLED = 9
OPERATIONS = ("chmod", "link", "mkdir", "open", "rename", "replace", "rmdir", "unlink", "utime")
Files = dict[str, str]


@pytest.fixture(params=["exchange", "no-exchange", "no-links"])
def filesystem(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """This one, one that does not exchange names, and one without hard links either."""
    if request.param != "exchange":
        monkeypatch.setattr(folder_exchange, "exchange", lambda first, second: False)
        monkeypatch.setattr("fastbert.checkpoints.atomic_folder.exchange", lambda first, second: False)
    if request.param == "no-links":

        def refuse(*_: Any, **__: Any) -> None:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", refuse)
    return str(request.param)


def killed_at_each_step(act: Callable[[], object], prepare_again: Callable[[], None]) -> Iterator[int]:
    """Yield after processes that run `act` and are killed before their first, second, ... file operation, until one
    runs to its end."""
    step = 0
    while True:
        prepare_again()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of fork in a process with threads
            child = os.fork()
        if child == 0:
            _run_and_die(act, step)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, KILLED)
        yield step
        if code == 0:
            return
        step += 1


def _run_and_die(act: Callable[[], object], step: int) -> None:
    left = step

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                os._exit(KILLED)
            left -= 1
            return operation(*arguments, **options)

        return run

    try:
        for name in OPERATIONS:
            setattr(os, name, counted(getattr(os, name)))
        library = ctypes.CDLL(None, use_errno=True)
        if hasattr(library, "renameat2"):
            fake = type("Library", (), {"renameat2": staticmethod(counted(library.renameat2))})
            ctypes.CDLL = lambda *_, **__: fake  # type: ignore[assignment, misc, return-value]
        act()
        os._exit(0)
    finally:
        os._exit(1)


def write(folder: Path, files: Files) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def read(folder: Path) -> Files:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and ".fastbert-partial" not in path.parts
    }


OLD = {"config.json": "old", "model.safetensors": "old", "modules.json": "old", "1_Pooling/config.json": "old"}
NEW = {"config.json": "new", "model.safetensors": "new", "1_Pooling/config.json": "new"}
THEIRS = {"notes.txt": "mine", "runs/a/log.txt": "mine", "runs/b.txt": "mine"}


def test_a_folder_that_is_merged_into_is_whole_after_every_kill(tmp_path: Path, filesystem: str) -> None:
    out = tmp_path / "out"

    def again() -> None:
        for path in tmp_path.iterdir():
            folder_exchange.remove(path)
        write(out, {**OLD, **THEIRS})

    def act() -> None:
        with atomic_folder(out, superseded=("modules.json",)) as folder:
            write(folder, NEW)

    steps = 0
    for steps in killed_at_each_step(act, again):
        result = read(out)
        assert {name: result[name] for name in THEIRS} == THEIRS, f"killed at step {steps}"
        if filesystem == "exchange":
            assert result in ({**OLD, **THEIRS}, {**NEW, **THEIRS}), f"killed at step {steps}"
        else:  # a half-replaced folder has no config.json, so it does not load
            assert "config.json" not in result or result in ({**OLD, **THEIRS}, {**NEW, **THEIRS})
        act()
        assert read(out) == {**NEW, **THEIRS}, f"repeated after a kill at step {steps}"
        assert os.listdir(tmp_path) == ["out"]
        assert os.stat(out / "notes.txt").st_nlink == 1
    assert steps > 10


def test_a_folder_that_is_replaced_is_whole_after_every_kill(tmp_path: Path, filesystem: str) -> None:
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "old", "new"])
    out = tmp_path / "shards"

    def act(word: str = "new") -> None:
        recover_folder(out)
        write(tmp_path / "next", {"index.json": word, "data/x": word})
        replace_folder(tmp_path / "next", out)

    def again() -> None:
        for path in tmp_path.iterdir():
            folder_exchange.remove(path)
        act("old")

    for step in killed_at_each_step(act, again):
        if filesystem != "exchange":
            recover_folder(out)
        assert read(out) in ({"index.json": word, "data/x": word} for word in ("old", "new")), f"killed at step {step}"
        folder_exchange.remove(tmp_path / "next")
        act()
        assert read(out) == {"index.json": "new", "data/x": "new"}
        assert os.listdir(tmp_path) == ["shards"]

    def tokens() -> list[int]:
        return TokenShards.open(out).shards[0].tokens.tolist()

    for path in tmp_path.iterdir():
        folder_exchange.remove(path)
    prepare([["old"]], tokenizer, out)
    (tmp_path / ".shards.partial" / "folder").mkdir(parents=True)  # of one that was killed
    prepare([["new"]], tokenizer, out, overwrite=True)
    assert tokens() == [6]
    assert os.listdir(tmp_path) == ["shards"]


def test_files_that_appear_meanwhile_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    write(out, {**OLD, **THEIRS})

    def late(first: Path, second: Path) -> bool:
        write(out, {"late.txt": "mine", "runs/late.txt": "mine"})
        return folder_exchange.exchange(first, second)

    monkeypatch.setattr("fastbert.checkpoints.atomic_folder.exchange", late)
    with atomic_folder(out) as folder:
        write(folder, NEW)
    assert read(out) == {**OLD, **NEW, **THEIRS, "late.txt": "mine", "runs/late.txt": "mine"}
    assert os.listdir(tmp_path) == ["out"]


def test_modes_and_links_stay(tmp_path: Path) -> None:
    real = tmp_path / "real"
    write(real, {**OLD, **THEIRS})
    real.chmod(0o750)
    (real / "runs").chmod(0o700)
    (real / "link").symlink_to("nowhere")
    (tmp_path / "out").symlink_to(real)
    with atomic_folder(tmp_path / "out") as folder:
        write(folder, NEW)
    assert (tmp_path / "out").is_symlink()
    assert os.readlink(real / "link") == "nowhere"
    assert real.stat().st_mode & 0o777 == 0o750
    assert (real / "runs").stat().st_mode & 0o777 == 0o700
    assert read(real) == {**OLD, **NEW, **THEIRS}


def test_the_current_directory_stays_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "out", THEIRS)
    monkeypatch.chdir(tmp_path / "out" / "runs")
    before = os.stat(tmp_path / "out").st_ino
    with atomic_folder(Path("..")) as folder:
        write(folder, NEW)
    assert os.stat(tmp_path / "out").st_ino == before
    assert read(tmp_path / "out") == {**NEW, **THEIRS}
    assert os.listdir(tmp_path) == ["out"]


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "out") as folder:
        write(folder, NEW)
        with pytest.raises(UserError, match=r"out: another process is writing there"), atomic_folder(tmp_path / "out"):
            pass
    assert read(tmp_path / "out") == NEW
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: is a file; name a folder"), atomic_folder(tmp_path / "file") as folder:
        write(folder, NEW)
    assert sorted(os.listdir(tmp_path)) == ["file", "out"]

"""Toy calls of the commands that write files, each with what it replaces."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from torture.disk_faults import FaultyCommands
from torture.power_cuts import Recording
from toy_tasks import PLAIN, toy_folder

Files = dict[str, bytes]
NOTES = "notes.txt"
NEW_WORDS = ("houses", "rivers", "roads")  # which the vocabulary splits


@dataclass(frozen=True)
class Scene:
    """A command that writes `out`, which an earlier call of it has written if `old` names its arguments.

    Of a folder with notes, a file of the user is among the old ones, and stays.
    """

    name: str
    arguments: list[str]
    out: Path
    old: list[str] | None = None
    notes: bool = False


@dataclass(frozen=True)
class Corpora:
    """Inputs of the commands, in pairs of which the first is that of the old output."""

    models: tuple[Path, Path]
    texts: tuple[Path, Path]
    corpora: tuple[Path, Path]


def write_inputs(folder: Path) -> Corpora:
    """Write models, files of texts and corpora."""
    models = [toy_folder(folder / f"model-{i}", seed=i) for i in range(2)]
    texts, corpora = [], []
    for i in range(2):
        draw = random.Random(i)
        lines = [" ".join([*draw.choices(PLAIN, k=5), draw.choice(NEW_WORDS)]) for _ in range(20)]
        texts.append(folder / f"texts-{i}.txt")
        texts[i].write_text("\n".join(lines) + "\n")
        corpora.append(folder / f"corpus-{i}.txt")
        corpora[i].write_text("\n\n".join("\n".join(lines[j : j + 4]) for j in range(0, 20, 4)) + "\n")
    return Corpora((models[0], models[1]), (texts[0], texts[1]), (corpora[0], corpora[1]))


def scenes(command: str, inputs: Corpora, watched: Path) -> list[Scene]:
    """Return the calls of a command: where nothing is, and over an earlier output."""
    old, new = ({"model": str(inputs.models[i]), "text": str(inputs.texts[i])} for i in range(2))
    corpora = [["--corpus", str(path), "--text-format", "lines"] for path in inputs.corpora]
    over = "--overwrite"

    def pair(
        name: str, old_words: list[str], words: list[str], flags: list[str], out: Path, *, notes: bool
    ) -> list[Scene]:
        end = [*flags, "--out", str(out)]
        fresh = Scene(f"{name}, new", [*words, *end], out)
        return [fresh, Scene(f"{name}, over an old one", [*words, *end, over], out, [*old_words, *end], notes)]

    def converted(flags: list[str], name: str) -> list[Scene]:
        words = [["convert", each["model"]] for each in (old, new)]
        return pair(name, *words, flags, watched / "out", notes=True)

    def embedded(flags: list[str], file: str) -> list[Scene]:
        words = [["embed", "--model", each["model"], "--text", each["text"], *_CPU] for each in (old, new)]
        return pair(file, *words, flags, watched / file, notes=False)

    match command:
        case "save_pretrained":
            words = [["save_pretrained", each["model"], str(watched / "out")] for each in (old, new)]
            return [
                Scene("save_pretrained, new", words[1], watched / "out"),
                Scene("save_pretrained, over an old one", words[1], watched / "out", words[0], notes=True),
            ]
        case "convert":
            return [
                *converted([], "convert"),
                converted(["--max-shard-size", "60KB"], "convert to shards")[1],
                converted(["--to", "tensorflow"], "convert --to tensorflow")[1],
            ]
        case "convert_delta":
            words = [["convert", each["model"]] for each in (old, new)]
            flags = ["--base", old["model"]]
            return pair("convert --base", *words, flags, watched / "out.delta", notes=False)
        case "export":
            return [*converted(["--to", "onnx"], "convert --to onnx")]
        case "prepare":
            words = [["prepare", *corpus] for corpus in corpora]
            flags = ["--tokenizer", old["model"], "--workers", "1"]
            return pair("prepare", *words, flags, watched / "out", notes=False)
        case "vocab":
            words = [["vocab", *corpus] for corpus in corpora]
            flags = ["--vocab-size", "60", "--validation-fraction", "0"]
            extended = [[*words[i], "--extend", "--model", inputs.models[i].as_posix()] for i in range(2)]
            extension = ["--add", "2", "--min-frequency", "1", "--validation-fraction", "0"]
            return [
                *pair("vocab", *words, flags, watched / "out", notes=True),
                pair("vocab --extend", *extended, extension, watched / "out", notes=True)[1],
            ]
        case "embed":
            tokens = ["--vectors", "tokens"]
            return [*embedded([], "out.npy"), embedded([], "out.jsonl")[1], embedded(tokens, "out.safetensors")[1]]
        case "search_index":
            words = [["search", "index", "--model", x["model"], "--text", x["text"], *_CPU] for x in (old, new)]
            return pair("search index", *words, ["--store", "int8"], watched / "out", notes=True)
        case _:
            raise ValueError(command)


_CPU = ["--device", "cpu", "--dtype", "fp32"]


def files_of(path: Path) -> Files:
    """Return the content of a file under the name "", or of all files below a folder, whose names end with a slash."""
    if not os.path.lexists(path):
        return {}
    if not path.is_dir():
        return {"": path.read_bytes()}
    found = {f"{below.relative_to(path)}{'/' * below.is_dir()}": below for below in path.rglob("*")}
    return {"/": b"", **{name: b"" if name.endswith("/") else below.read_bytes() for name, below in found.items()}}


class Stage:
    """The watched folder, in which scenes are set up: `old` and `new` are the files before and behind the command."""

    def __init__(self, commands: FaultyCommands, scene: Scene, folder: Path) -> None:
        self.commands, self.scene, self.store = commands, scene, folder
        self._recording: Recording | None = None
        folder.mkdir(parents=True)
        empty(commands.watched)
        if scene.old is not None:
            assert commands.run(scene.old).code == 0, commands.run(scene.old).errors
            if scene.notes:
                (scene.out / NOTES).write_text("mine")
            shutil.copytree(commands.watched, folder / "old", symlinks=True)
        self.old = files_of(scene.out)
        result = commands.run(scene.arguments)
        assert result.code == 0, f"{scene.name}: {result.errors}"
        self.calls, self.new = result.calls, files_of(scene.out)
        self.beside = sorted(os.listdir(commands.watched))
        assert self.new != self.old, f"{scene.name}: the new output equals the old one"

    def recording(self) -> Recording:
        """Return the calls of the command with what they write."""
        if self._recording is None:
            self.set_up()
            self._recording = Recording(self.commands, self.scene.arguments)
        return self._recording

    def set_up(self) -> None:
        """Put the old output into the watched folder, and nothing else."""
        empty(self.commands.watched)
        if self.scene.old is not None:
            shutil.copytree(self.store / "old", self.commands.watched, symlinks=True, dirs_exist_ok=True)


def empty(folder: Path) -> None:
    """Remove all that is in a folder."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

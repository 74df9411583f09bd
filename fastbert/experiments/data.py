"""The corpora and task sets of experiments: those of a folder, or small ones made of the text that comes with Python.

A folder holds corpora in `wiki-en/` and `books-en/`, and task sets in `finetune/`, each in a folder of its name or in
NAME.tar.xz. Whatever is there is used; sets that stand in for others of the paper are named as such.
"""

from __future__ import annotations

import hashlib
import json
import random
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastbert.errors import UserError
from fastbert.experiments.toy_tasks import write_new, write_toy_pairs, write_toy_tasks
from fastbert.io.checksums import sha256
from fastbert.tasks.registry import TaskName

CORPORA = ("wiki-en", "books-en")
MOST_BYTES = 1 << 30  # of a set, unpacked


@dataclass(frozen=True, kw_only=True)
class TaskSet:
    """A task's training and evaluation file, and the set of the paper that it stands for."""

    name: str
    task: TaskName
    metric: str
    train: Path
    eval: Path
    stands_for: str = ""
    """The set of the paper, if this is another one."""
    note: str = ""
    """A further difference from the paper's set."""

    def described(self) -> dict[str, str]:
        """Return the set as summaries store it, without paths."""
        values = {"name": self.name, "task": self.task, "metric": self.metric, "stands_for": self.stands_for}
        values["note"] = self.note
        return {**values, "train": sha256(self.train), "eval": sha256(self.eval)}


@dataclass(frozen=True, kw_only=True)
class ExperimentData:
    """The corpora and the task sets by name."""

    name: str
    corpora: tuple[Path, ...]
    tasks: dict[str, TaskSet]
    pairs: Path | None = None
    """Minimal pairs of sentences, as `fastbert.scoring.blimp.read_pairs` reads them."""
    sources: tuple[Path, ...] = ()
    """The archives and folders that the sets were sampled from."""

    def fingerprint(self) -> str:
        """Return a hash of all files."""
        hashes = [sha256(path) for path in self.corpora]
        hashes += [json.dumps(task.described(), sort_keys=True) for _, task in sorted(self.tasks.items())]
        for source in (*self.sources, *([] if self.pairs is None else [self.pairs])):
            files = sorted(source.iterdir()) if source.is_dir() else [source]
            hashes += [sha256(file) for file in files if file.is_file()]
        return _hash("\n".join(hashes))


@dataclass(frozen=True)
class _Known:
    """A set as its folder holds it: `make` writes the training and the evaluation file of at most so many examples."""

    folder: str
    task: TaskName
    metric: str
    make: Callable[[Path, Path, int, int], tuple[Path, Path]]
    stands_for: str = ""
    note: str = ""


def find_data(folder: Path | None, work: Path, *, train: int, evaluate: int) -> ExperimentData:
    """Return the corpora and task sets of a folder, None for those of Python's own text; files are written to `work`.

    Sets have at most `train` and `evaluate` examples, the same ones on every call. Raises `UserError` for a folder
    without a corpus.
    """
    if folder is None:
        corpus, toy_sets = write_toy_tasks(work, train, evaluate)
        sets = {
            name: TaskSet(name=name, task=task, metric=metric, train=files[0], eval=files[1], stands_for=stands_for)
            for name, (task, metric, files, stands_for) in toy_sets.items()
        }
        pairs = write_toy_pairs(work, corpus)
        return ExperimentData(name="Python's own text", corpora=(corpus,), tasks=sets, pairs=pairs)
    if not folder.is_dir():
        raise UserError(f"--data {folder}: no such folder")
    corpora = tuple(path for name in CORPORA for path in sorted((folder / name).glob("*.sent.txt*")))
    if not corpora:
        raise UserError(f"--data {folder}: holds no {' or '.join(f'{name}/*.sent.txt' for name in CORPORA)}")
    tasks: dict[str, TaskSet] = {}
    sources = []
    for name, known in KNOWN.items():
        source = _unpacked(folder / "finetune", known.folder, work)
        if source is not None:
            files = known.make(source, work / "sets" / f"{name}-{train}-{evaluate}", train, evaluate)
            tasks[name] = TaskSet(
                name=name, task=known.task, metric=known.metric, train=files[0], eval=files[1],
                stands_for=known.stands_for, note=known.note,
            )  # fmt: skip
            archive = folder / "finetune" / known.folder
            sources.append(archive if archive.is_dir() else archive.with_name(f"{known.folder}.tar.xz"))
    blimp = folder / "blimp"
    return ExperimentData(
        name=str(folder),
        corpora=corpora,
        tasks=tasks,
        pairs=blimp if blimp.is_dir() else None,
        sources=tuple(sources),
    )


def _unpacked(folder: Path, name: str, work: Path) -> Path | None:
    """Return the folder of a set, unpacked if it is an archive; None if it is missing. Raises `UserError` for an
    archive that is damaged or too large."""
    if (folder / name).is_dir():
        return folder / name
    archive, target = folder / f"{name}.tar.xz", work / "unpacked"
    if not archive.is_file():
        return None
    if (target / name).is_dir():
        return target / name
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target) as partial, tarfile.open(archive, "r:xz") as tar:
            members = [member for member in tar if member.isfile()]
            if sum(member.size for member in members) > MOST_BYTES:
                raise UserError(f"{archive}: is larger than {MOST_BYTES >> 30} GiB unpacked")
            tar.extractall(partial, members, filter="data")
            if (Path(partial) / name).is_dir():
                (Path(partial) / name).rename(target / name)  # whole, or not at all
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"{archive}: not an intact archive ({error})") from None
    return target / name if (target / name).is_dir() else None


def sample(items: Sequence[str], count: int, seed: str) -> list[str]:
    """Return at most `count` of the items in a random order that depends on `seed` alone."""
    order = list(range(len(items)))
    random.Random(seed).shuffle(order)
    return [items[i] for i in order[:count]]


def _tables(train_name: str, eval_name: str) -> Callable[[Path, Path, int, int], tuple[Path, Path]]:
    """Return a function that writes samples of two tables; of one table, if both names are the same, disjoint parts."""

    def make(source: Path, out: Path, train: int, evaluate: int) -> tuple[Path, Path]:
        header, rows = _rows(source / train_name)
        if train_name == eval_name:
            splits = _disjoint_parts(rows, header.split("\t").index("label"), train, evaluate)
        else:
            splits = (sample(rows, train, train_name), sample(_rows(source / eval_name)[1], evaluate, eval_name))
        files = (out / "train.tsv", out / "eval.tsv")
        for file, split in zip(files, splits, strict=True):
            write_new(file, "".join(f"{row}\n" for row in (header, *split)))
        return files

    return make


def _disjoint_parts(rows: list[str], label: int, train: int, evaluate: int) -> tuple[list[str], list[str]]:
    """Return a training and an evaluation part of one table, at most a quarter of it, that have no text in common:
    QNLI asks each question twice, of a sentence with the answer and of one without. `label` is the column that is no
    text."""
    groups = _connected([row.split("\t") for row in rows], label)
    order = sample([str(number) for number in range(len(groups))], len(groups), "groups")
    held_out: list[int] = []
    rest: list[int] = []
    for number in map(int, order):
        split = held_out if len(held_out) + len(groups[number]) <= min(evaluate, len(rows) // 4) else rest
        split += groups[number]
    shuffled = [sample([rows[index] for index in split], len(split), "rows") for split in (rest, held_out)]
    return shuffled[0][:train], shuffled[1]


def _connected(rows: list[list[str]], label: int) -> list[list[int]]:
    """Return the numbers of rows in groups, of which no two have a cell in common outside the column `label`."""
    group_of: dict[str, int] = {}
    groups: list[list[int]] = []
    for number, cells in enumerate(rows):
        texts = [cell for column, cell in enumerate(cells) if column != label]
        joined = sorted({group_of[text] for text in texts if text in group_of})
        target = joined[0] if joined else len(groups)
        if not joined:
            groups.append([])
        groups[target].append(number)
        for other in joined[1:]:
            groups[target] += groups[other]
            for index in groups[other]:
                group_of |= {cell: target for column, cell in enumerate(rows[index]) if column != label}
            groups[other] = []
        group_of |= dict.fromkeys(texts, target)
    return [group for group in groups if group]


def _rows(path: Path) -> tuple[str, list[str]]:
    header, *rows = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    # SNLI has pairs without a label that annotators agreed on.
    return header, [row for row in rows if row and not row.startswith("-\t")]


def _sentences(source: Path, out: Path, train: int, evaluate: int) -> tuple[Path, Path]:
    """Write samples of the sentences of train.conll and dev.conll: for training ones in which every tag occurs, as far
    as there is room, and for evaluation ones whose tags a model can learn from these."""
    shuffled = []
    for name in ("train.conll", "dev.conll"):
        blocks = (source / name).read_text(encoding="utf-8").split("\n\n")
        sentences = [block.strip() for block in blocks if block.strip()]
        shuffled.append(sample(sentences, len(sentences), name))
    training = with_every_tag(shuffled[0], train)
    known = {tag for sentence in training for tag in _tags(sentence)}
    held_out = [sentence for sentence in shuffled[1] if _tags(sentence) <= known][:evaluate]
    files = (out / "train.conll", out / "eval.conll")
    for file, chosen in zip(files, (training, held_out), strict=True):
        write_new(file, "".join(f"{sentence}\n\n" for sentence in chosen))
    return files


def with_every_tag(sentences: Sequence[str], count: int) -> list[str]:
    """Return `count` sentences of a tagging set in order: the first one of each tag, and the first ones of all."""
    seen: set[str] = set()
    chosen: set[int] = set()
    for number, sentence in enumerate(sentences):
        if not _tags(sentence) <= seen and len(chosen) < count:
            chosen.add(number)
            seen |= _tags(sentence)
    for number in range(len(sentences)):
        if len(chosen) >= count:
            break
        chosen.add(number)
    return [sentences[number] for number in sorted(chosen)]


def _tags(sentence: str) -> set[str]:
    return {line.split("\t")[-1] for line in sentence.split("\n")}


def _questions(source: Path, out: Path, train: int, evaluate: int) -> tuple[Path, Path]:
    """Write the paragraphs of SQuAD's two files that hold the first so many questions, in a random order."""
    files = (out / "train.json", out / "eval.json")
    for file, pattern, count in zip(files, ("train-v1.1*.json", "dev-v1.1*.json"), (train, evaluate), strict=True):
        path = next(iter(sorted(source.glob(pattern))), None)
        if path is None:
            raise UserError(f"{source}: holds no {pattern}")
        data = json.loads(path.read_text(encoding="utf-8"))["data"]
        paragraphs = [json.dumps(paragraph) for article in data for paragraph in article["paragraphs"]]
        sampled, questions = [], 0
        for paragraph in map(json.loads, sample(paragraphs, len(paragraphs), pattern)):
            if questions >= count:
                break
            sampled.append(paragraph)
            questions += len(paragraph["qas"])
        write_new(file, json.dumps({"version": "1.1", "data": [{"title": "sample", "paragraphs": sampled}]}))
    return files


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


KNOWN: dict[str, _Known] = {
    "SNLI": _Known(
        "SNLI", "classification", "accuracy", _tables("dev.tsv", "test.tsv"), "MNLI", "trained on its development set"
    ),
    "QNLI": _Known(
        "QNLI",
        "classification",
        "accuracy",
        _tables("official_dev.tsv", "official_dev.tsv"),
        note="its development set in two parts without a common question or sentence",
    ),
    "SST-2": _Known("SST-2", "classification", "accuracy", _tables("train.tsv", "dev.tsv")),
    "SQuAD": _Known("squad", "span", "f1", _questions, note="paragraphs of its training and its development set"),
    "UNER": _Known("uner-en-ewt", "tagging", "f1", _sentences, "CoNLL-2003"),
    "POS": _Known("ud-ewt-pos", "tagging", "accuracy", _sentences),
}
"""The sets by name, in the order of tables."""


def described(data: ExperimentData) -> dict[str, object]:
    """Return the data as a summary stores it."""
    return {
        "name": data.name if data.name == "Python's own text" else "",
        "corpora": [path.name for path in data.corpora],
        "sets": {name: task.described() for name, task in data.tasks.items()},
    }

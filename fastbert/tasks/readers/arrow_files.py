"""Columns of parquet and Arrow files, and of data set folders of the library `datasets`.

A folder is one that `save_to_disk` writes (`state.json` or `dataset_dict.json` and Arrow files) or a copy from the
Hub (`data/train-00000-of-00001.parquet`). `FOLDER#train` names one of several splits. Integers of a class feature
become the names of the classes; -1, which means no label, becomes None.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastbert.errors import UserError, require_package
from fastbert.io.dataset_folders import SPLITS, STATE, saved_files, saved_splits
from fastbert.io.untrusted_input import read_json_object

KINDS = (".parquet", ".arrow")
README = "README.md"
MOST_README = 1 << 20  # bytes that are read
BATCH_ROWS = 4096  # of parquet that are in memory at a time
_SHARD = re.compile(r"(?:(?P<split>.+?)-)?\d+(?:-of-\d+)?(?:-[0-9a-f]{8,})?")
_CACHED = re.compile(r".+-(?P<split>[a-z_]+)(?:-\d+-of-\d+)?")  # ag_news-train-00000-of-00002.arrow
_CLASS = re.compile(r"\s*'?(\d+)'?:\s*(\S.*?)\s*")
_NAME = re.compile(r"\s*-\s+name:\s*(\S.*?)\s*")

Names = Sequence[str]


def is_arrow(path: str | Path) -> bool:
    """Return True if a path names a parquet or Arrow file, or a folder, perhaps with the name of a split."""
    file, _ = _split_of(str(path))
    return file.is_dir() or file.suffix.lower() in KINDS


def read_columns(path: str | Path) -> dict[str, list[Any]]:
    """Read all columns of a parquet or Arrow file, or of a split of a folder: values as Python objects, by name.

    Raises UserError for a missing pyarrow, a damaged file, and a folder whose split is ambiguous.
    """
    source, split = _split_of(str(path))
    if not source.exists():
        raise UserError(f"{path}: no such file")
    files, folder_classes = _of_folder(source, split) if source.is_dir() else ((source,), {})
    tables = [_table(file) for file in files]
    names = _unique(files[0], tables[0].column_names)
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for file, table in zip(files, tables):
        if table.column_names != names:
            raise UserError(
                f"{file}: has the columns {', '.join(table.column_names)}, not {', '.join(names)} as"
                f" {files[0].name}; keep such files in separate folders"
            )
        classes = {**folder_classes, **_classes_of_schema(table)}
        for name, column in columns.items():
            column.extend(_values(file, name, table.column(name), classes.get(name)))
    return columns


def stream_rows(path: str | Path, choose: Callable[[list[str]], list[str]]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a parquet or Arrow file, some thousand in memory at a time: the values, as Python objects, of
    the columns that `choose` names, given the names of all.

    Raises UserError for a missing pyarrow and a damaged file.
    """
    file = Path(path)
    pyarrow, parquet = _pyarrow(file)
    with _intact(file, pyarrow):
        if file.suffix.lower() == ".parquet":
            with parquet.ParquetFile(str(file)) as opened:
                names = choose(_unique(file, opened.schema_arrow.names))
                for batch in opened.iter_batches(batch_size=BATCH_ROWS, columns=list(dict.fromkeys(names))):
                    yield from _rows(file, names, batch)
            return
        with pyarrow.memory_map(str(file)) as source:
            try:
                reader = pyarrow.ipc.open_stream(source)
                batches = iter(reader)
            except pyarrow.ArrowInvalid:
                source.seek(0)
                reader = pyarrow.ipc.open_file(source)
                batches = map(reader.get_batch, range(reader.num_record_batches))
            names = choose(_unique(file, reader.schema.names))
            for batch in batches:
                yield from _rows(file, names, batch)


def _unique(file: Path, names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise UserError(f"{file}: has several columns of one name ({', '.join(names)}); rename them")
    return names


def _rows(file: Path, names: list[str], batch: Any) -> Iterator[tuple[Any, ...]]:
    return zip(*(_values(file, name, batch.column(name), None) for name in names), strict=True)


def _split_of(path: str) -> tuple[Path, str | None]:
    """Split `FOLDER#train` into folder and split, unless a folder has that very name."""
    folder, sign, split = path.rpartition("#")
    if sign and not Path(path).exists() and Path(folder).is_dir():
        return Path(folder), split
    return Path(path), None


def _of_folder(folder: Path, split: str | None) -> tuple[tuple[Path, ...], Mapping[str, Names]]:
    """Return the files of a split, and the classes that the folder lists for its columns."""
    splits = _splits(folder)
    if not splits:
        raise UserError(
            f"{folder}: is a folder without state.json, dataset_dict.json or .parquet files; name a file, or a folder"
            " written by `datasets`"
        )
    if split is None and len(splits) > 1:
        raise UserError(
            f"{folder}: holds the splits {', '.join(splits)}; name one of them, for example"
            f" {folder}#{next(iter(splits))}"
        )
    chosen = next(iter(splits)) if split is None else split
    if chosen not in splits:
        raise UserError(f"{folder}: has no split {chosen!r}; it holds {', '.join(splits)}")
    files = splits[chosen]
    for parent in (files[0].parent, folder):
        if (parent / "dataset_info.json").is_file():
            return files, _classes(read_json_object(parent / "dataset_info.json").get("features"))
    readme = folder / README
    return files, _classes_of_readme(readme) if readme.is_file() else {}


def _splits(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Return the files of every split of a folder."""
    if (folder / STATE).is_file():
        return {"all": saved_files(folder)}
    if (folder / SPLITS).is_file():
        return saved_splits(folder)
    splits: dict[str, list[Path]] = {}
    for pattern in ("*.parquet", "*/*.parquet", "*/*/*.parquet", "*.arrow"):
        for file in sorted(folder.glob(pattern)):
            if file.name.startswith("cache-"):
                continue  # of `map` and the like
            inside = [part for part in file.parent.relative_to(folder).parts if part != "data"]
            match = (_SHARD if file.suffix == ".parquet" else _CACHED).fullmatch(file.stem)
            name = file.stem if match is None else match["split"]
            splits.setdefault("/".join([*inside, name] if name else inside) or "all", []).append(file)
    return {name: tuple(files) for name, files in splits.items()}


def _table(file: Path) -> Any:
    """Read a file as a pyarrow Table."""
    if not file.is_file():
        raise UserError(f"{file}: no such file, so the data set is incomplete; download or save it again")
    pyarrow, parquet = _pyarrow(file)
    with _intact(file, pyarrow):
        if file.suffix.lower() == ".parquet":
            return parquet.ParquetFile(str(file)).read()
        with pyarrow.memory_map(str(file)) as source:
            try:
                return pyarrow.ipc.open_stream(source).read_all()
            except pyarrow.ArrowInvalid:
                source.seek(0)
                return pyarrow.ipc.open_file(source).read_all()


@contextmanager
def _intact(file: Path, pyarrow: Any) -> Iterator[None]:
    """Turn errors of reading a file into UserError."""
    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise UserError(f"{file}: not an intact {file.suffix} file ({reason}); copy or download it again") from None


def _pyarrow(file: Path) -> tuple[Any, Any]:
    message = (
        f"{file}: reading {file.suffix} needs the package pyarrow: `pip install 'fastbert-engine[data]'`, or save it as"
        " .jsonl"
    )
    return require_package("pyarrow", message), require_package("pyarrow.parquet", message)


def _values(file: Path, name: str, column: Any, classes: Names | None) -> list[Any]:
    """Return a column as Python objects, classes by their names."""
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise UserError(f"{file}: column {name!r} cannot be read ({reason}); leave it out or save it again") from None
    return values if classes is None else list(_named(file, name, values, classes))


def _named(file: Path, name: str, values: Sequence[Any], classes: Names) -> Iterator[Any]:
    for row, value in enumerate(values, 1):
        if isinstance(value, list):
            yield list(_named(file, name, value, classes))
        elif value is None or value == -1:
            yield None
        elif not isinstance(value, int):
            yield value  # the names themselves
        elif not 0 <= value < len(classes):
            raise UserError(f"{file}, row {row}: {name!r} is {value}, and has {len(classes)} names; correct it")
        else:
            yield classes[value]


def _classes_of_schema(table: Any) -> dict[str, Names]:
    """Return the classes that `datasets` stores in a file's schema."""
    raw = (table.schema.metadata or {}).get(b"huggingface")
    try:
        content = json.loads(raw) if raw else {}
    except (ValueError, RecursionError):
        return {}
    info = content.get("info") if isinstance(content, dict) else None
    return _classes(info.get("features") if isinstance(info, dict) else None)


def _classes(features: Any) -> dict[str, Names]:
    """Return the names of classes by column, also for lists of classes."""
    classes_of: dict[str, Names] = {}
    for column, feature in features.items() if isinstance(features, dict) else ():
        while True:
            if isinstance(feature, list) and len(feature) == 1:
                feature = feature[0]
            elif isinstance(feature, dict) and isinstance(feature.get("feature"), dict | list):
                feature = feature["feature"]
            else:
                break
        names = feature.get("names") if isinstance(feature, dict) else None
        is_classes = isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        if is_classes and isinstance(names, list) and all(isinstance(name, str) for name in names):
            classes_of[column] = tuple(names)
    return classes_of


def _classes_of_readme(path: Path) -> dict[str, Names]:
    """Return the classes that a card's header lists under `class_label`, for files whose schema has none."""
    with path.open("rb") as file:
        text = file.read(MOST_README).decode("utf-8", errors="replace")
    if not text.startswith("---"):
        return {}
    classes_of: dict[str, list[str]] = {}
    column = ""
    for line in text.split("\n---", 1)[0].splitlines():
        named, listed = _NAME.fullmatch(line), _CLASS.fullmatch(line)
        if named is not None:
            column = named[1].strip("'\"")
        elif line.strip() == "class_label:":
            classes_of[column] = []
        elif listed is not None and column in classes_of and int(listed[1][:9]) == len(classes_of[column]):
            classes_of[column].append(listed[2].strip("'\""))
    return {name: tuple(classes) for name, classes in classes_of.items() if classes}

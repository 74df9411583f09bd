"""Find the files of a corpus: by name, in folders, by patterns, in folders saved by `datasets`, and behind URLs."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fastbert.data.wikipedia import is_dump
from fastbert.errors import CorpusError, UserError
from fastbert.io.dataset_folders import SPLITS, STATE, names_in_state, names_of_splits, saved_files, saved_splits
from fastbert.io.locations import is_remote, local_path
from fastbert.io.log import logger
from fastbert.io.remote_sources import RemoteFile, find_remote, is_web, shown_url
from fastbert.io.sources import Source
from fastbert.io.text import COMPRESSIONS, plain_name
from fastbert.io.untrusted_input import MAX_JSON_BYTES, parse_json, require_regular_file

KINDS = (".txt", ".jsonl", ".parquet", ".arrow", ".xml")
_COMPRESSED = (".txt", ".jsonl", ".xml")
_KNOWN = ", ".join([*KINDS, *(f"*{suffix}" for suffix in COMPRESSIONS)])
_TRAIN = "train"
_CACHED = "cache-"  # begins the names of files that `datasets` leaves beside its data


def find_files(locations: Iterable[str]) -> tuple[Source, ...]:
    """Return the files of a corpus in reading order, each once.

    Raises CorpusError for a location without corpus files, see `Corpus.find`.
    """
    files: dict[object, Source] = {}  # by resolved path, so that a file named twice is read once
    for location in locations:
        try:
            is_url = is_remote(location)
            for file in _find_remote(location) if is_url else _find_local(str(local_path(location))):
                files.setdefault(file.resolve() if isinstance(file, Path) else file.url, file)
        except CorpusError:
            raise
        except UserError as error:  # of a damaged folder
            raise CorpusError(str(error)) from None
    return tuple(files.values())


def kind_of(name: str) -> str | None:
    """Return the extension of a corpus file, without that of a compression; None for other files."""
    plain = plain_name(name)
    kind = next((kind for kind in KINDS if plain.endswith(kind)), None)
    is_compressed = Path(name).name.lower() != plain
    return None if is_compressed and kind not in _COMPRESSED else kind


def _find_local(path: str) -> Iterator[Path]:
    folder, split = _split_of(path)
    if os.path.isdir(folder):
        yield from _of_folder(Path(folder), split)
    elif os.path.isfile(path):
        if kind_of(path) is None:
            raise CorpusError(f"{path} has an unknown extension; a corpus consists of {_KNOWN} files")
        yield Path(path)
    elif os.path.exists(path):
        require_regular_file(path, CorpusError)
    elif not glob.has_magic(path):
        raise CorpusError(f"no such file or folder: {path}")
    else:
        yield from _of_pattern(path)


def _of_pattern(pattern: str) -> Iterator[Path]:
    matches = sorted(glob.glob(pattern, recursive=True))
    if not matches:
        raise CorpusError(f"nothing matches the pattern {pattern}")
    files = []
    for match in matches:
        if os.path.isdir(match):
            files += _walk(Path(match))
        elif _is_corpus_file(Path(match)):
            files.append(Path(match))
    if not files:
        raise CorpusError(f"the pattern {pattern} matches no {_KNOWN} files (it matches {matches[0]})")
    yield from files


def _split_of(path: str) -> tuple[str, str | None]:
    """Split `FOLDER#train` into folder and split, unless a file or folder has that very name."""
    folder, sign, split = path.rpartition("#")
    return (folder, split) if sign and not os.path.exists(path) and os.path.isdir(folder) else (path, None)


def _of_folder(folder: Path, split: str | None) -> list[Path]:
    if split is not None and not (folder / SPLITS).is_file():
        raise CorpusError(f"{folder}#{split}: the folder has no {SPLITS}, so it has no splits; leave #{split} out")
    files = _walk(folder, split)
    if not files:
        raise CorpusError(f"the folder {folder} holds no {_KNOWN} files")
    return files


def _walk(folder: Path, split: str | None = None) -> list[Path]:
    """Return all corpus files under a folder, sorted, except hidden files and folders; of a folder that `datasets`
    saved, those that it lists."""
    files: list[Path] = []
    seen: set[tuple[int, int]] = set()
    for root, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        status = os.stat(root)
        if (status.st_dev, status.st_ino) in seen:  # through a link
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        if STATE in names:
            files += saved_files(Path(root))
            folders.clear()
        elif SPLITS in names:
            splits = saved_splits(Path(root))
            files += splits[_chosen(splits, split, str(root))]
            folders.clear()
        else:
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            paths = (Path(root, name) for name in names if not name.startswith("."))
            files += [path for path in paths if _is_corpus_file(path)]
    return sorted(files)


def _refuse(error: OSError) -> None:
    raise CorpusError(
        f"the folder {error.filename} cannot be read: {error.strerror}; make it readable, or move it away"
    )


def _chosen(splits: Mapping[str, object] | Iterable[str], split: str | None, folder: str) -> str:
    """Return the split to read: the one that is named, else the only one, else `train`."""
    names = list(splits)
    if split is not None and split not in names:
        raise CorpusError(f"{folder}: has no split {split!r}; it holds {', '.join(names)}")
    if split is None and len(names) != 1 and _TRAIN not in names:
        raise CorpusError(f"{folder}: holds the splits {', '.join(names) or 'none'}; name one, as in {folder}#NAME")
    chosen = split or (names[0] if len(names) == 1 else _TRAIN)
    if split is None and len(names) > 1:
        logger.warning(
            "%s: the split %s is read; it also holds %s", folder, chosen, ", ".join(sorted({*names} - {chosen}))
        )
    return chosen


def _is_corpus_file(path: Path) -> bool:
    """Return whether a file that was not named itself is part of a corpus."""
    kind = kind_of(path.name)
    if kind == ".xml":
        return is_dump(path)
    return kind is not None and not (kind == ".arrow" and path.name.startswith(_CACHED))


def _find_remote(url: str) -> Iterator[RemoteFile]:
    plain, _, split = url.partition("#")
    is_file = kind_of(RemoteFile(plain).name) is not None
    if not is_file and is_web(url):
        raise CorpusError(f"{shown_url(url)} has an unknown extension; over HTTP a corpus consists of {_KNOWN} files")
    listed = find_remote(plain, is_file=is_file, error=CorpusError)
    files = listed if is_file else list(_of_remote_folder(listed, split or None, plain))
    if not files:
        raise CorpusError(f"{shown_url(url)}: holds no {_KNOWN} files")
    yield from files


def _of_remote_folder(listed: list[RemoteFile], split: str | None, url: str) -> Iterator[RemoteFile]:
    by_url = {file.url: file for file in listed}
    skipped: list[str] = []
    # Folders before those in them: what a data set does not list is not read.
    for file in sorted(listed, key=lambda each: (each.url.count("/"), each.name != STATE)):
        if file.name in (STATE, SPLITS) and not file.url.startswith(tuple(skipped)):
            folder = file.url.removesuffix(file.name)
            skipped.append(folder)
            state = _json_object(file)
            if file.name == SPLITS:
                folder += _chosen(names_of_splits(state, shown_url(folder)), split, shown_url(folder)) + "/"
                if folder + STATE not in by_url:
                    raise CorpusError(
                        f"{shown_url(folder)}: has no {STATE}, so the data set is incomplete; save it again"
                    )
                state = _json_object(by_url[folder + STATE])
            for name in names_in_state(state, shown_url(folder)):
                if folder + name not in by_url:
                    raise CorpusError(f"{shown_url(folder + name)}: no such file, so the data set is incomplete")
                yield by_url[folder + name]
    for file in listed:
        hidden = any(part.startswith(".") for part in file.url.removeprefix(url).split("/"))
        kind = kind_of(file.name)
        if hidden or kind is None or file.url.startswith(tuple(skipped)):
            continue
        if kind == ".xml" and not is_dump(file):
            continue
        if not (kind == ".arrow" and file.name.startswith(_CACHED)):
            yield file


def _json_object(file: RemoteFile) -> dict[str, Any]:
    with file.open(error=CorpusError) as stream:
        content = parse_json(stream.read(MAX_JSON_BYTES), str(file))
    if not isinstance(content, dict):
        raise CorpusError(f"{file}: must hold a JSON object; save the data set again")
    return content

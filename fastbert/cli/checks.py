"""Check what a command was given, before torch is imported: models, inputs, and the places of outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbert.checkpoints.formats.names import PICKLED, PICKLED_INDEX, TENSORFLOW_INDEX, WEIGHTS, WEIGHTS_INDEX
from fastbert.checkpoints.hub import MAIN
from fastbert.checkpoints.pipeline_files import MODULES
from fastbert.checkpoints.source import config_folder, find_source
from fastbert.config import read_config_file
from fastbert.data.corpus import Corpus, CorpusFlags
from fastbert.errors import UserError
from fastbert.io.locations import is_remote, local_path
from fastbert.io.output_files import check_writable
from fastbert.io.remote_sources import shown_url
from fastbert.io.text import plain_name
from fastbert.io.untrusted_input import require_regular_file
from fastbert.tasks.text_files import TextFile

if TYPE_CHECKING:
    from fastbert.data.streamed_shards import StreamOptions

STDIN = "-"
SMALL = 1 << 16
"""Bytes of a file that is read to check it: larger ones are neither empty nor a header alone."""


@contextmanager
def named(flag: str) -> Iterator[None]:
    """Put the flag before the message of a `UserError`."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{flag} {error}") from None


def check_model(flag: str, source: str | Path | None, revision: str = MAIN) -> dict[str, Any]:
    """Return the content of the config.json of a model. Raises `UserError` for a model that does not exist, and for a
    folder without configuration or weights. None passes, and so does a model of sentence-transformers with
    its encoder in a folder of its own, whose configuration is not read."""
    if source is None:
        return {}
    with named(flag):
        path = find_source(source, revision)
        names = (WEIGHTS, WEIGHTS_INDEX, PICKLED, PICKLED_INDEX)
        has_weights = any((path / name).exists() for name in names) or any(path.glob(f"*{TENSORFLOW_INDEX}"))
        if (path / MODULES).exists() and not has_weights:
            return {}
        values = read_config_file(config_folder(path))[1]
    if path.is_dir() and not has_weights:
        raise UserError(f"{flag} {source}: holds no {WEIGHTS}; name a folder with a model's weights")
    return values


def check_length(length: int, values: Mapping[str, Any], model: str | Path | None) -> None:
    """Raise `UserError` for a --max-length of more tokens than the positions in a model's config.json, `values`."""
    positions = values.get("max_position_embeddings")
    if isinstance(positions, int) and length > positions:
        raise UserError(f"--max-length {length} is more than the {positions} positions of {model}; lower it")


def check_source(flag: str, source: str | Path | None) -> None:
    """Raise `UserError` for a model that does not exist, whatever its files are; None passes."""
    if source is not None:
        with named(flag):
            find_source(source)


def check_file(flag: str, path: str | Path | None) -> None:
    """Raise `UserError` for a missing file, or one that is no regular file; None and standard input pass."""
    if path is None or str(path) == STDIN:
        return
    try:
        with named(flag):
            require_regular_file(path)
    except FileNotFoundError:
        raise UserError(f"{flag} {path}: no such file") from None
    except OSError as error:  # no permission, a loop of links
        raise UserError(f"{flag} {path}: cannot be opened ({error.strerror})") from None


def check_exists(flag: str, path: Path | None) -> None:
    """Raise `UserError` for a missing file or folder; None passes."""
    if path is not None and not path.exists():
        raise UserError(f"{flag} {path}: no such file or folder")


def check_folder(flag: str, path: Path | None, cure: str = "") -> None:
    """Raise `UserError` for a missing folder, with the cure for one that does not exist; None passes."""
    if path is not None and not path.is_dir():
        missing = "no such folder" + (cure and f"; {cure}")
        raise UserError(f"{flag} {path}: " + ("is not a folder; name one" if path.exists() else missing))


def check_shards(locations: Sequence[str], options: StreamOptions) -> None:
    """Raise `UserError` for a --data, a folder or a URL, that holds no token shards."""
    from fastbert.data.streamed_shards import open_index

    for location in locations:
        with named("--data"):
            is_url = is_remote(location)
        if not is_url:
            check_folder("--data", local_path(location), "name one that `fastbert prepare` made")
        with named("--data"):
            open_index(location, options)


def local_file(flag: str, location: str, cure: str) -> Path:
    """Return the path of a location. Raises `UserError`, which ends in `cure`, for a URL."""
    with named(flag):
        is_url = is_remote(location)
    if is_url:
        raise UserError(f"{flag} {shown_url(location)}: is a URL; {cure}")
    return local_path(location)


def check_new_file(flag: str, path: Path | None) -> None:
    """Raise `UserError` for a file that cannot be written: it is a folder, or its own is missing or read-only. None
    passes, and so do devices and pipes."""
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"{flag} {path}: is a folder; name a file")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{flag} {path}: no such folder {path.parent}; make it first")
    if path.is_file() or not path.exists():
        check_writable(path, flag)


def check_new_folder(flag: str, path: Path | None, *, parents: bool = False) -> None:
    """Raise `UserError` for a folder that cannot be written: it is a file, or the one above it is read-only or, unless
    `parents` are made too, missing. None passes."""
    if path is None:
        return
    if path.exists() and not path.is_dir():
        raise UserError(f"{flag} {path}: is a file; give a folder")
    if not parents and not path.absolute().parent.is_dir():
        raise UserError(f"{flag} {path}: no such folder {path.parent}; make it first")
    check_writable(path / "x" if path.is_dir() else path, flag)


def check_no_run(out: Path, *results: str) -> None:
    """Raise `UserError` for a folder with checkpoints or results of a run, which a new run does not replace unasked.

    Whatever else there may be is examined when the run begins (see `run_folder.open_folder`).
    """
    if any((out / name).exists() for name in results) or next((out / "checkpoints").glob("step-*"), None) is not None:
        raise UserError(f"--out {out}: already holds a run; continue it with --resume or replace it with --overwrite")


def check_corpus(config: CorpusFlags) -> None:
    """Raise `UserError` for a corpus that does not exist, or holds no text as far as its size tells."""
    with named("--corpus:"):
        corpus = config.find_corpus()
        _refuse_empty(corpus)


def check_corpus_paths(paths: Iterable[str | Path], flag: str = "--corpus") -> None:
    """Raise `UserError` for paths without a corpus, which `flag` names."""
    with named(f"{flag}:"):
        _refuse_empty(Corpus.find(paths))


def _refuse_empty(corpus: Corpus) -> None:
    if corpus.total_bytes <= SMALL:
        for _ in corpus.documents():
            return


def check_texts(flag: str, path: str, column: str | None) -> None:
    """Raise `UserError` for texts that are missing, in a file of an unknown kind, or none. Standard input passes."""
    with named(flag):
        texts = TextFile(path, column)
        if path != STDIN and next(iter(texts), None) is None:
            raise UserError(f"{path}: holds no text; name a file that does")


def check_examples(
    flag: str,
    path: str | Path | None,
    task: str | None = None,
    read: Callable[[str], object] | None = None,
) -> None:
    """Raise `UserError` for examples that are missing or no text, or that a task cannot read by the suffix of their
    file. A small file is read, with `read`, which refuses one that is empty or has nothing but a header.

    None and standard input pass. FOLDER#SPLIT is a split of a folder of `datasets`, FILE.json#SPLIT one of CLINC150,
    SOURCES,TARGETS are two files of lines.
    """
    if path is None or str(path) == STDIN:
        return
    pair = str(path).split(",")
    if task in (None, "seq2seq") and len(pair) == 2 and not Path(path).exists():
        for file in pair:
            check_file(flag, file)
        if read is not None and sum(Path(file).stat().st_size for file in pair) <= SMALL:
            with named(flag):
                read(str(path))
        return
    source = _without_split(str(path))
    is_folder = Path(source).is_dir()
    if not is_folder:
        check_file(flag, source)
    elif not _holds_arrow(Path(source)):
        raise UserError(
            f"{flag} {source}: is a folder without state.json, dataset_dict.json or .parquet files; name a file, or a"
            " folder written by `datasets`"
        )
    from fastbert.tasks.readers.arrow_files import is_arrow
    from fastbert.tasks.readers.tables import opened
    from fastbert.tasks.reports.baselines import unlogged

    with named(flag), unlogged():  # the command logs it when it reads the file
        if task is not None:
            from fastbert.tasks.registry import task_class

            task_class(task).check_suffix(str(path) if is_folder else source)
        if is_arrow(source):
            return
        with opened(source):  # refuses binary files
            pass
        if read is not None and Path(source).stat().st_size <= SMALL:
            read(str(path))


def _holds_arrow(folder: Path) -> bool:
    """Return True if there are files of `datasets` in a folder, down to the third level."""
    patterns = [f"{above}*.{suffix}" for above in ("", "*/", "*/*/") for suffix in ("parquet", "arrow")]
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)


def _without_split(path: str) -> str:
    """Return FOLDER of FOLDER#SPLIT and FILE.json of FILE.json#SPLIT, else the path."""
    source, sign, _ = path.rpartition("#")
    is_split = sign and not Path(path).exists() and (Path(source).is_dir() or plain_name(source).endswith(".json"))
    return source if is_split else path

"""Queries and documents with ids, and BEIR's folders of these and of judgements."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.io.text import COMPRESSIONS, plain_name, whole_characters
from fastbert.tasks.readers.squad import read_squad
from fastbert.tasks.readers.tables import json_lines, name_of, opened
from fastbert.tasks.text_files import numbered_lines

KINDS = (".jsonl", ".tsv", ".txt")
_IDS = ("_id", "id")
_HEADERS = ("_id", "id", "qid", "pid", "docid", "query_id", "doc_id", "query-id", "corpus-id")
QUERIES, DOCUMENTS, JUDGEMENTS = "queries.jsonl", "corpus.jsonl", "qrels"


@dataclass(frozen=True)
class Texts:
    """Texts with their ids, in the order of a file."""

    path: str
    ids: tuple[str, ...]
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def index(self) -> dict[str, int]:
        """The index of each id."""
        return {name: index for index, name in enumerate(self.ids)}

    def of(self, ids: Sequence[str]) -> list[str]:
        """Return the texts of some ids."""
        return [self.texts[self.index[name]] for name in ids]


@dataclass(frozen=True)
class BeirFiles:
    """The files of a folder in BEIR's layout."""

    queries: Path
    documents: Path
    judgements: Path


def check_kind(path: str | Path) -> str:
    """Return the kind of a file of texts, as its suffix. Raises UserError for an unknown one."""
    kind = Path(plain_name(path)).suffix
    if kind not in KINDS:
        raise UserError(f"{path}: must be a {', '.join(KINDS)} file, perhaps with {' or '.join(COMPRESSIONS)}")
    return kind


def read_texts(path: str | Path) -> Texts:
    """Read queries or documents.

    `.jsonl` has an object per line, BEIR's: `_id` (or `id`), `text`, and perhaps `title`, which precedes the text
    with a space between. `.tsv` and `.txt` have lines of an id, a TAB and a text, perhaps below a header. Files may be
    compressed. Texts may be empty, which is counted in a warning.

    Raises UserError, naming file and line, for lines of a different form, for an id that is missing or occurs twice,
    and for a file without a text.
    """
    name, kind = name_of(path), check_kind(path)
    ids: dict[str, int] = {}
    texts = []
    with opened(path) as stream:
        lines = numbered_lines(stream, name)
        for line, identifier, text in _records(lines, name) if kind == ".jsonl" else _rows(lines, name):
            if not identifier.strip():
                raise UserError(f"{name}, line {line}: the id is empty; give every text its own")
            if identifier in ids:
                first = ids[identifier]
                raise UserError(f"{name}, line {line}: the id {identifier!r} is also that of line {first}; change one")
            ids[identifier] = line
            texts.append(text)
    if not texts:
        raise UserError(f"{name}, line 1: holds no text; name a file that does")
    if empty := sum(not text for text in texts):
        logger.warning("%s: %d of %d texts are empty", name, empty, len(texts))
    return Texts(name, tuple(ids), tuple(texts))


def _records(lines: Iterator[tuple[int, str]], name: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, id and text of JSON lines."""
    for line, record in json_lines(lines, name):
        where = f"{name}, line {line}"
        if not isinstance(record, dict):
            raise UserError(f"{where}: must be a JSON object with _id and text, not {type(record).__name__}")
        identifier = next((record[key] for key in _IDS if key in record), None)
        if isinstance(identifier, int) and not isinstance(identifier, bool):
            identifier = str(identifier)
        if not isinstance(identifier, str):
            keys = ", ".join(map(repr, list(record)[:10]))
            raise UserError(f"{where}: has no string under '_id' ({keys or 'no keys'}); give every text an id")
        title, text = record.get("title") or "", record.get("text")
        for key, value in (("text", text), ("title", title)):
            if not isinstance(value, str):
                raise UserError(f"{where}: {key!r} must be a string, not {type(value).__name__}")
        yield line, whole_characters(identifier), whole_characters(f"{title} {text}".strip())


def _rows(lines: Iterator[tuple[int, str]], name: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, id and text of lines with a TAB; a header is left out."""
    for line, content in lines:
        if not content.strip():
            continue
        cells = content.split("\t")
        if len(cells) != 2:
            raise UserError(f"{name}, line {line}: has {len(cells)} cells, not 2: an id, a TAB and a text")
        if line > 1 or cells[0].lower() not in _HEADERS:
            yield line, cells[0].strip(), cells[1].strip()


def find_beir(folder: Path, split: str = "test") -> BeirFiles:
    """Return the files of a folder in BEIR's layout, which may be compressed: `queries.jsonl`, `corpus.jsonl` and
    `qrels/SPLIT.tsv`. Raises UserError for the first that is missing."""
    return BeirFiles(
        _present(folder, QUERIES), _present(folder, DOCUMENTS), _present(folder, f"{JUDGEMENTS}/{split}.tsv")
    )


def _present(folder: Path, name: str) -> Path:
    for ending in ("", *COMPRESSIONS):
        path = folder / f"{name}{ending}"
        if path.exists():
            return path
    splits = sorted(path.name.partition(".")[0] for path in (folder / JUDGEMENTS).glob("*.tsv*"))
    others = f" (splits: {', '.join(splits)})" if name.startswith(JUDGEMENTS) and splits else ""
    raise UserError(f"{folder / name}: no such file{others}; BEIR's folders hold {QUERIES}, {DOCUMENTS} and qrels")


def write_beir_from_squad(path: str | Path, folder: str | Path, split: str = "test") -> tuple[int, int]:
    """Write the questions of a SQuAD file and its distinct paragraphs as a folder in BEIR's layout; return their
    numbers.

    The paragraph of a question is relevant to it, and no other. Paragraphs are numbered from 0 in the order of the
    file; equal ones are one document. `path` is SQuAD's JSON, or JSON lines of `id`, `question` and `context`. The
    folder appears whole. Raises UserError for damaged files, naming the question.
    """
    examples = read_squad(str(path), labelled=False, report=logger.warning)
    documents: dict[str, str] = {}
    for example in examples:
        documents.setdefault(example.context, str(len(documents)))
    with atomic_folder(Path(folder)) as new:
        queries = ({"_id": example.id, "text": example.question} for example in examples)
        _write_lines(new / QUERIES, map(_json, queries))
        texts = ({"_id": name, "title": "", "text": text} for text, name in documents.items())
        _write_lines(new / DOCUMENTS, map(_json, texts))
        (new / JUDGEMENTS).mkdir()
        judged = (f"{example.id}\t{documents[example.context]}\t1" for example in examples)
        _write_lines(new / JUDGEMENTS / f"{split}.tsv", ["query-id\tcorpus-id\tscore", *judged])
    return len(examples), len(documents)


def _json(record: Any) -> str:
    return json.dumps(record, ensure_ascii=False)


def _write_lines(path: Path, lines: Any) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)

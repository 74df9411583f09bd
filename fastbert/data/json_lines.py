"""Read texts from files of JSON lines, one object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator

from fastbert.data import text_lines
from fastbert.errors import CorpusError
from fastbert.io.sources import Source
from fastbert.io.text import whole_characters

_BLOCK_BYTES = 1 << 20
# A line of JSON cannot be cut: a longer one is an error.
MAX_LINE_BYTES = 1 << 26


def json_texts(file: Source, key: str, report: text_lines.Progress | None = None) -> Iterator[str]:
    """Yield the text under `key` of each line. Raises CorpusError, with the line, for what is not JSON or no text."""
    number = 0
    for block in text_lines.line_blocks(file, _BLOCK_BYTES, max_line=MAX_LINE_BYTES, cut=False, report=report):
        for line in block:
            number += 1
            if line.strip():
                yield _text(line, key, f"{file}, line {number}")


def _text(line: str, key: str, where: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{where}: not valid JSON ({error}); each line must be one JSON object") from None
    if not isinstance(record, dict):
        raise CorpusError(f'{where}: must be a JSON object such as {{"{key}": "..."}}, not {line[:40]!r}')
    if key not in record:
        keys = ", ".join(sorted(map(str, record))[:10]) or "none"
        raise CorpusError(f"{where}: no key {key!r} (keys: {keys}); name the key that holds the text")
    text = record[key]
    if not isinstance(text, str):
        raise CorpusError(f"{where}: the value of {key!r} must be a string, not {type(text).__name__}")
    return whole_characters(text)

"""Judgements of relevance, and the rankings of a system: TREC's and BEIR's files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from fastbert.errors import UserError
from fastbert.io.atomic_write import atomic_write
from fastbert.io.log import logger
from fastbert.tasks.readers.tables import name_of, opened
from fastbert.tasks.text_files import numbered_lines

TAG = "fastbert"
"""The system's name in runs that are written here."""


def read_judgements(path: str | Path) -> dict[str, dict[str, int]]:
    """Read judgements: relevance by the ids of query and document, in the order of the file.

    TREC's lines are `query 0 document relevance`, separated by white space. BEIR's have three cells separated by TABs,
    query, document and relevance, below a header. The file may be compressed. A judgement that is repeated is counted
    in a warning.

    Raises UserError, naming file and line, for lines of a different form, a relevance that is not a whole number, a
    document that is judged twice with different relevances, and a file without a judgement.
    """
    name = name_of(path)
    judgements: dict[str, dict[str, int]] = {}
    repeated = 0
    for line, (query, document, value) in _judgement_rows(path, name):
        relevance = _relevance(value)
        if relevance is None:
            raise UserError(f"{name}, line {line}: relevance {value[:40]!r} is not a whole number; correct it")
        judged = judgements.setdefault(query, {})
        if judged.get(document, relevance) != relevance:
            raise UserError(
                f"{name}, line {line}: judges document {document!r} of query {query!r} again, as {relevance} after"
                f" {judged[document]}; leave one out"
            )
        repeated += document in judged
        judged[document] = relevance
    if not judgements:
        raise UserError(f"{name}, line 1: holds no judgement; name a file that does")
    if repeated:
        logger.warning("%s: %d judgements are repeated, with the same relevance", name, repeated)
    return judgements


def _judgement_rows(path: str | Path, name: str) -> Iterator[tuple[int, tuple[str, str, str]]]:
    """Yield query, document and relevance of each line; BEIR's header is left out."""
    first = True
    for line, text in _lines(path, name):
        cells = text.split("\t")
        if len(cells) == 3:
            query, document, relevance = (cell.strip() for cell in cells)
            if first and not _is_number(relevance) and "id" in query.lower():  # query-id, corpus-id, score
                first = False
                continue
        else:
            cells = text.split()
            if len(cells) != 4:
                raise UserError(
                    f"{name}, line {line}: has {len(cells)} cells; give 'query 0 document relevance' (TREC), or three"
                    " separated by TABs (BEIR)"
                )
            query, _, document, relevance = cells
        first = False
        if not query or not document:
            raise UserError(f"{name}, line {line}: an id is empty; fill it in or leave the line out")
        yield line, (query, document, relevance)


def read_run(path: str | Path) -> dict[str, dict[str, float]]:
    """Read the rankings of a system: scores by the ids of query and document, in the order of the file.

    Lines are TREC's, `query Q0 document rank score tag`. As with trec_eval, the order follows from the scores, and
    ranks are not read. The file may be compressed. Raises UserError, naming file and line, for lines of a different
    form, scores that are not finite numbers, a document that a query has twice, and a file without a line.
    """
    name = name_of(path)
    run: dict[str, dict[str, float]] = {}
    for line, text in _lines(path, name):
        cells = text.split()
        if len(cells) != 6:
            raise UserError(f"{name}, line {line}: has {len(cells)} cells, not 6: query Q0 document rank score tag")
        query, _, document, _, value, _ = cells
        score = float(value) if _is_number(value) else math.nan
        if not math.isfinite(score):
            raise UserError(f"{name}, line {line}: score {value[:40]!r} is not a finite number; correct it")
        scores = run.setdefault(query, {})
        if document in scores:
            raise UserError(f"{name}, line {line}: query {query!r} has document {document!r} twice; leave one out")
        scores[document] = score
    if not run:
        raise UserError(f"{name}, line 1: holds no ranking; name a file that does")
    return run


def check_run_ids(queries: Iterable[str], documents: Iterable[str]) -> None:
    """Raise UserError for an id that a run cannot hold."""
    for kind, ids in (("the query", queries), ("the document", documents)):
        for name in ids:
            _check_id(kind, name)


def write_run(path: Path, run: Mapping[str, Mapping[str, float]], tag: str = TAG) -> None:
    """Write rankings in TREC's form, each query's documents in their order, with scores in nine digits, which represent
    each fp32 exactly.

    Raises UserError for ids and a tag that the form cannot hold, since they have white space or are empty.
    """
    with atomic_write(path) as partial, partial.open("w", encoding="utf-8") as file:
        _check_id("the tag", tag)
        for query, scores in run.items():
            check_run_ids([query], scores)
            for rank, (document, score) in enumerate(scores.items(), 1):
                file.write(f"{query} Q0 {document} {rank} {score:.9g} {tag}\n")


def _lines(path: str | Path, name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers."""
    with opened(path) as stream:
        for line, text in numbered_lines(stream, name):
            if text.strip():
                yield line, text


def _check_id(kind: str, name: str) -> None:
    if name.split() != [name]:
        raise UserError(f"{kind} {name!r} is empty or holds white space, which a run cannot hold; give it another id")


def _relevance(text: str) -> int | None:
    """Return a relevance, None for anything but a whole number, which may be written as 1.0, within 31 bits."""
    value = float(text) if _is_number(text) else math.nan
    return int(value) if value.is_integer() and abs(value) < 1 << 31 else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

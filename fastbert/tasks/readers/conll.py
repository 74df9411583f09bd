"""Read words with tags: CoNLL's columns of every year, CoNLL-U, and JSON objects or Arrow columns of two lists.

One file: the layouts differ in a line or two each, and share the walk over lines and its errors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.io.text import plain_name, whole_characters
from fastbert.tasks.examples import Dataset, TaggedExample
from fastbert.tasks.readers.arrow_files import is_arrow
from fastbert.tasks.readers.bad_rows import BadRows
from fastbert.tasks.readers.conll_columns import (
    BLANKS,
    TEXT_NAMES,
    ConllColumns,
    Lines,
    find_columns,
    is_comment,
    is_document_mark,
)
from fastbert.tasks.readers.tables import Row, Table, name_of, opened, read_table
from fastbert.tasks.readers.tags import OUTSIDE, count_invalid, is_entity_tag, scheme_of
from fastbert.tasks.settings import Columns
from fastbert.tasks.text_files import STDIN, numbered_lines

_NEW_DOCUMENT = re.compile(r"#\s+newdoc\b")
_SENTENCE_ID = re.compile(r"#\s+sent_id\s*=\s*(\S.*?)\s*$")
# CoNLL-U's ids of words that are several tokens, and of words that are not written.
_NO_WORD = re.compile(r"\d+[-.]\d+")
WORD_KEYS = ("words", "tokens")
TAG_KEYS = ("ner_tags", "tags", "pos_tags", "upos", "labels")
BESIDE_ENTITIES = ("ner_tags", "pos_tags", "upos")  # of several lists of tags, those of entities are used


@dataclass
class _Sentence:
    """A sentence while its lines are read."""

    document: int
    line: int = 0
    name: str | None = None
    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)


def read_conll(path: str, columns: Columns, *, labelled: bool, skip_bad: bool | None = None) -> Dataset[TaggedExample]:
    """Read the sentences of a file: one word per line, columns separated by TABs (by spaces if most lines have none),
    and an empty line between sentences. `-DOCSTART-` and `# newdoc` begin a document; without them all sentences are of
    the same one. Separators may repeat.

    The word is in the first column and the tag in the last, in CoNLL-U in `form` and `upos`. `columns.text` and
    `columns.label` name others: by number, from 1, or `upos`, `xpos`, `pos`, `chunk`, `ner` if the number of columns
    determines them. `.jsonl`, `.json`, `.parquet` and folders of `datasets` hold lists: `words` or `tokens`, and
    `tags` or `ner_tags`.

    Without `labelled`, tags are not read, and standard input or a `.txt` may have one sentence per line, with words
    separated by spaces. Tags that are invalid in their scheme are counted and reported.
    Raises UserError, with file and line, for damage, and for bad lines unless `skip_bad` leaves them out.
    """
    name = name_of(path)
    bad = BadRows(name, skip=skip_bad, unit="line")
    if is_arrow(path) or plain_name(path).endswith((".jsonl", ".json", ".ndjson")):
        examples = _of_objects(path, columns, labelled, bad)
    else:
        if plain_name(path).endswith(".csv"):
            raise UserError(
                f"{path}: tagging does not read .csv; give one word per line with its tag, or JSON lines of 'tokens'"
                " and 'tags'"
            )
        with opened(path) as stream:
            lines = list(numbered_lines(stream, name, bad.add))
        first = next((line for _, line in lines if line.strip()), "")
        if first.lstrip().startswith("{") and str(path) == STDIN:
            raise UserError("standard input, line 1: is JSON; give one word per line there, or a .jsonl file")
        is_text = str(path) == STDIN or plain_name(path).endswith(".txt")
        if not labelled and is_text and _is_running(lines, columns):
            examples = _of_running_text(lines)
        else:
            examples = _of_lines(name, lines, columns, labelled, bad)
    if labelled:
        examples = _without_odd_tags(examples, bad)
    bad.settle(len(examples))
    if not examples:
        raise UserError(f"{name} holds no sentence: name a file that does")
    dataset = Dataset(name, tuple(example for _, example in examples))
    if labelled:
        _report_scheme(dataset)
    return dataset


def _is_running(lines: Lines, columns: Columns) -> bool:
    """Return True if lines are sentences instead of words: some have several words, and none has columns."""
    texts = [line for _, line in lines]
    return columns.text is None and not any("\t" in line for line in texts) and any(len(x.split()) > 1 for x in texts)


def _of_running_text(lines: Lines) -> list[tuple[int, TaggedExample]]:
    """Read one sentence per line, with words separated by spaces."""
    numbered = [(number, line.split()) for number, line in lines if line.strip()]
    return [
        (number, TaggedExample(id=str(index), location=f"line {number}", words=tuple(words)))
        for index, (number, words) in enumerate(numbered)
    ]


def _of_lines(
    name: str, lines: Lines, columns: Columns, labelled: bool, bad: BadRows
) -> list[tuple[int, TaggedExample]]:
    layout = find_columns(name, lines, columns, labelled, bad)
    sentences = _sentences(lines, layout, bad)
    names = [sentence.name for sentence in sentences]
    has_names = None not in names and len(set(names)) == len(names)
    return [
        (
            sentence.line,
            TaggedExample(
                id=str(sentence.name) if has_names else str(index),
                location=f"line {sentence.line}",
                words=tuple(sentence.words),
                tags=None if layout.tag is None else tuple(sentence.tags),
                document=sentence.document,
            ),
        )
        for index, sentence in enumerate(sentences)
    ]


def _sentences(lines: Lines, layout: ConllColumns, bad: BadRows) -> list[_Sentence]:
    """Return the sentences that have words; bad lines go to `bad`."""
    sentences: list[_Sentence] = []
    document, begun = 0, False  # `begun`: the document has sentences
    inside = False  # a sentence, in which `#` is a word
    sentence = _Sentence(0)
    for number, line in lines:
        starts = not inside and is_comment(line, layout.by_tabs)
        if starts and not _NEW_DOCUMENT.match(line):
            match = _SENTENCE_ID.match(line)
            sentence.name = match[1] if match else sentence.name
            continue
        marks_document = starts or is_document_mark(line)
        if marks_document or not line.strip():
            if sentence.words:
                sentences.append(sentence)
                begun = True
            if inside:
                sentence, inside = _Sentence(document), False
            if marks_document and begun:
                document, begun = document + 1, False
            sentence.document = document
            continue
        if number == layout.header:
            continue
        inside = True
        cells = layout.cells(line)
        problem = _problem(cells, line, layout)
        if problem is not None:
            bad.add(number, f"line {number}: {problem}")
            continue
        if layout.is_conll_u and _NO_WORD.fullmatch(cells[0]):
            continue
        sentence.line = sentence.line or number
        sentence.words.append(cells[layout.word])
        if layout.tag is not None:
            sentence.tags.append(cells[layout.tag])
    if sentence.words:
        sentences.append(sentence)
    return sentences


def _problem(cells: Sequence[str], line: str, layout: ConllColumns) -> str | None:
    """Return the problem of a line of words, None if it has none."""
    if len(cells) != layout.width:
        cure = "give each word the same number, and an empty line between sentences"
        if layout.by_tabs and "\t" not in line and len(BLANKS.split(line.strip())) == layout.width:
            cure = "separate its columns by TABs as the others are"
        return f"has {len(cells)} columns, not {layout.width} as line {layout.example} has; {cure}"
    for index in (layout.word,) if layout.tag is None else (layout.word, layout.tag):
        is_unused = layout.is_conll_u and _NO_WORD.fullmatch(cells[0])
        if not is_unused and not cells[index].strip():
            return f"column {index + 1} is empty; fill it in"
    return None


def _of_objects(path: str, columns: Columns, labelled: bool, bad: BadRows) -> list[tuple[int, TaggedExample]]:
    table = read_table(path, bad=bad)
    words = _key(table, columns.text, WORD_KEYS, "--text-column")
    tags = _key(table, columns.label, TAG_KEYS, "--label-column") if labelled else None
    name = table.chosen(columns.id, "--id-column", table.find("id"))
    examples: list[tuple[int, TaggedExample]] = []
    ids: dict[str, int] = {}
    for i, row in table.numbered(bad):
        id_ = str(i) if name is None or row.cells[name] is None else whole_characters(str(row.cells[name]))
        with bad.row(row.line):
            if id_ in ids:
                raise UserError(
                    f"{table.where(row)}: the id {id_!r} is also that of line {ids[id_]}; give each its own"
                )
            ids[id_] = row.line
            word_list = _strings(table, row, words)
            tag_list = None if tags is None else _strings(table, row, tags)
            if tag_list is not None and len(tag_list) != len(word_list):
                raise UserError(
                    f"{table.where(row)}: has {len(tag_list)} tags for {len(word_list)} words; give each word one"
                )
            examples.append(
                (row.line, TaggedExample(id=id_, location=table.location(row), words=word_list, tags=tag_list))
            )
    return examples


def _key(table: Table, named: str | None, usual: Sequence[str], flag: str) -> int:
    if named is not None:
        return table.named(named, flag)
    names = [name for name in usual if table.find(name) is not None]
    if len(names) > 1 and names[0] == BESIDE_ENTITIES[0] and set(names) <= set(BESIDE_ENTITIES):
        logger.warning("%s: tags from %r; %s selects %s", table.path, names[0], flag, " or ".join(map(repr, names[1:])))
        names = names[:1]
    if not names and table.first(tuple(TEXT_NAMES)) is not None:
        raise UserError(
            f"{table.path}, line 1: holds texts, not lists of words ({table.shape}); use --task classification for"
            f" texts and labels, or name the list with {flag}"
        )
    if len(names) != 1:
        raise UserError(f"{table.path}, line 1: not one key of {', '.join(usual)} ({table.shape}); name it with {flag}")
    return table.named(names[0], flag)


def _strings(table: Table, row: Row, index: int) -> tuple[str, ...]:
    value: Any = row.cells[index]
    if not isinstance(value, list) or not value:
        raise UserError(
            f"{table.where(row)}: {table.column(index)} must be a list of strings that is not empty; correct it"
        )
    strings = [str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in value]
    for i, item in enumerate(strings):
        if not isinstance(item, str) or not item.strip():
            raise UserError(
                f"{table.where(row)}: item {i + 1} of {table.column(index)} must be a string of characters; correct it"
            )
    return tuple(map(whole_characters, strings))


def _without_odd_tags(examples: Sequence[tuple[int, TaggedExample]], bad: BadRows) -> list[tuple[int, TaggedExample]]:
    """Return the sentences whose tags follow a scheme, if most sentences do; the others go to `bad`."""
    tags = {tag for _, example in examples for tag in example.tags or ()}
    odd = {tag for tag in tags if not is_entity_tag(tag)}
    if not odd or OUTSIDE not in tags or not any(tag.startswith("B-") for tag in tags):
        return list(examples)
    regular = []
    for line, example in examples:
        wrong = next((tag for tag in example.tags or () if tag in odd), None)
        if wrong is None:
            regular.append((line, example))
        else:
            bad.add(
                line, f"{example.location} ff.: the tag {wrong!r} is neither O nor B-, I-, ... and a type; correct it"
            )
    return regular


def _report_scheme(dataset: Dataset[TaggedExample]) -> None:
    """Log the number of tags that are invalid in their scheme."""
    sentences = [example.tags or () for example in dataset]
    scheme = scheme_of(sentences)
    if scheme is None:
        return
    wrong = [count_invalid(tags, scheme) for tags in sentences]
    if any(wrong):
        first = next(i for i, count in enumerate(wrong) if count)
        logger.warning("%s: %d tags, the first in this sentence, stand where %s does not allow them",
                       dataset.where(first), sum(wrong), scheme)  # fmt: skip

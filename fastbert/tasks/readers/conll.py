"""Words with tags: CoNLL's columns of every year, CoNLL-U, and JSON objects of two lists."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastbert.errors import UserError
from fastbert.tasks.examples import Dataset, TaggedExample
from fastbert.tasks.readers.tables import Row, Table, name_of, plain_name, read_lines, read_table
from fastbert.tasks.readers.tags import OUTSIDE, count_invalid, is_entity_tag, scheme_of
from fastbert.tasks.text_files import STDIN, whole_characters

if TYPE_CHECKING:
    from fastbert.tasks.task import Columns

logger = logging.getLogger("fastbert")
DOCUMENT = "-DOCSTART-"
CONLL_U_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
# What the columns after the word are called, by the number of columns of a file.
COLUMN_NAMES = {
    2: ("word", "tag"),
    3: ("word", "upos", "xpos"),
    4: ("word", "pos", "chunk", "ner"),  # CoNLL-2000 and -2003
    10: CONLL_U_COLUMNS,
}
# Comments of CoNLL-U. Lines like `# NN O` and `#1` are words, where blanks part the columns.
_COMMENT = re.compile(r"#\s+(newdoc|newpar)\b|#\s+[\w.:-]+\s+=(\s|$)")
_NEW_DOCUMENT = re.compile(r"#\s+newdoc\b")
_SENTENCE_ID = re.compile(r"#\s+sent_id\s*=\s*(\S.*?)\s*$")
_NO_WORD = re.compile(
    r"\d+[-.]\d+"
)  # CoNLL-U's ids of words that are several tokens, and of words that are not written
WORD_KEYS = ("words", "tokens")
TAG_KEYS = ("tags", "ner_tags", "pos_tags", "upos", "labels")


@dataclass
class _Sentence:
    """A sentence while its lines are read."""

    document: int
    line: int = 0
    name: str | None = None
    lines: list[int] = field(default_factory=list)
    cells: list[list[str]] = field(default_factory=list)


def read_conll(path: str, columns: Columns, *, labelled: bool) -> Dataset[TaggedExample]:
    """The sentences of a file: a word a line, its columns parted by TABs (by blanks where no line has one), an empty
    line between sentences. `-DOCSTART-` and `# newdoc` begin a document; without them all sentences are of one.

    The word is in the first column and the tag in the last, in CoNLL-U in `form` and `upos`. `columns.text` and
    `columns.label` name others: by number, from 1, or `upos`, `xpos`, `pos`, `chunk`, `ner` where the number of columns
    says which one it is. `.jsonl` and `.json` hold objects of lists: `words` or `tokens`, and `tags` or `ner_tags`.

    Without `labelled` tags are not looked at, and standard input or a `.txt` may have a sentence a line, its words
    parted by blanks. What the scheme of the tags does not allow is counted and reported.
    Raises UserError, with file and line, for ragged lines and damage.
    """
    if plain_name(path).endswith((".jsonl", ".json", ".ndjson")):
        dataset = _of_objects(path, columns, labelled)
    else:
        lines = read_lines(path)
        first = next((line for line in lines if line.strip()), "")
        if first.lstrip().startswith("{") and str(path) == "-":
            raise UserError("standard input, line 1: is JSON; tagging reads a word a line there, or a .jsonl file")
        is_text = str(path) == STDIN or plain_name(path).endswith(".txt")
        if not labelled and is_text and _is_running(lines, columns):
            dataset = _of_running_text(name_of(path), lines)
        else:
            dataset = _of_lines(name_of(path), lines, columns, labelled)
    if labelled:
        _check_tags(dataset)
    return dataset


def _is_running(lines: Sequence[str], columns: Columns) -> bool:
    """Whether lines are sentences to tag, and not a word each: some have several words, and none has columns."""
    return columns.text is None and not any("\t" in line for line in lines) and any(len(x.split()) > 1 for x in lines)


def _of_running_text(name: str, lines: Sequence[str]) -> Dataset[TaggedExample]:
    """A sentence a line, its words parted by blanks."""
    numbered = [(number, line.split()) for number, line in enumerate(lines, 1) if line.strip()]
    examples = [
        TaggedExample(id=str(index), place=f"line {number}", words=tuple(words))
        for index, (number, words) in enumerate(numbered)
    ]
    return Dataset(name, tuple(examples))


def _of_lines(name: str, lines: list[str], columns: Columns, labelled: bool) -> Dataset[TaggedExample]:
    has_tabs = any("\t" in line.strip() for line in lines if not line.startswith("# "))
    sentences = list(_sentences(name, lines, "\t" if has_tabs else None))
    if not sentences:
        raise UserError(f"{name}, line 1: the file has no words")
    width = len(sentences[0].cells[0])
    is_conll_u = width == 10 and has_tabs and sentences[0].cells[0][0][:1].isdecimal()
    word = 1 if is_conll_u else 0
    if columns.text is not None:
        word = _place(name, columns.text, width, "--text-column")
    tag = None
    if labelled:
        tag = CONLL_U_COLUMNS.index("upos") if is_conll_u else width - 1
        if columns.label is not None:
            tag = _place(name, columns.label, width, "--label-column")
        elif tag == word:
            raise UserError(
                f"{name}, line {sentences[0].line}: has one column, so words and no tags; add a column of tags"
            )
    names = [sentence.name for sentence in sentences]
    has_names = None not in names and len(set(names)) == len(names)
    examples: list[TaggedExample] = []
    for sentence in sentences:
        kept = [i for i, cells in enumerate(sentence.cells) if not (is_conll_u and _NO_WORD.fullmatch(cells[0]))]
        if not kept:
            continue
        for i in kept:
            for place in (word,) if tag is None else (word, tag):
                if not sentence.cells[i][place].strip():
                    raise UserError(f"{name}, line {sentence.lines[i]}: column {place + 1} is empty; fill it in")
        examples.append(
            TaggedExample(
                id=str(sentence.name) if has_names else str(len(examples)),
                place=f"line {sentence.line}",
                words=tuple(sentence.cells[i][word] for i in kept),
                tags=None if tag is None else tuple(sentence.cells[i][tag] for i in kept),
                document=sentence.document,
            )
        )
    return Dataset(name, tuple(examples))


def _sentences(name: str, lines: Sequence[str], separator: str | None) -> Iterator[_Sentence]:
    """The sentences as cells; all lines have as many as the first."""
    width, first, document, begun = 0, 0, 0, False  # `begun`: the document has sentences
    sentence = _Sentence(0)
    for number, line in enumerate(lines, 1):
        starts = not sentence.cells and _is_comment(line, separator)
        if starts and not _NEW_DOCUMENT.match(line):
            found = _SENTENCE_ID.match(line)
            sentence.name = found[1] if found else sentence.name
            continue
        cells = [] if starts else line.split(separator)
        marks_document = starts or cells[:1] == [DOCUMENT]
        if marks_document or not line.strip():
            if sentence.cells:
                yield sentence
                begun = True
                sentence = _Sentence(document)
            if marks_document and begun:
                document, begun = document + 1, False
            sentence.document = document
            continue
        if width and len(cells) != width:
            raise UserError(
                f"{name}, line {number}: has {len(cells)} columns, not {width} as line {first} has;"
                " give each word as many, and an empty line between sentences"
            )
        if not width:
            width, first = len(cells), number
        if not sentence.cells:
            sentence.line = number
        sentence.lines.append(number)
        sentence.cells.append(cells)
    if sentence.cells:
        yield sentence


def _is_comment(line: str, separator: str | None) -> bool:
    """Whether a line before a sentence's first word is a comment; `#` may also be that word."""
    if separator is not None:
        return line.startswith("# ") and separator not in line
    return _COMMENT.match(line) is not None


def _place(name: str, column: str, width: int, flag: str) -> int:
    """The place of a column that the user names by number or name."""
    if column.isascii() and column.isdecimal() and len(column) < 10 and 1 <= int(column) <= width:
        return int(column) - 1
    names = COLUMN_NAMES.get(width, ())
    if column.lower() in names:
        return names.index(column.lower())
    known = f", or {', '.join(names)}" if names else ""
    raise UserError(f"{name}, line 1: no column {column!r}; give {flag} a number from 1 to {width}{known}")


def _of_objects(path: str, columns: Columns, labelled: bool) -> Dataset[TaggedExample]:
    table = read_table(path)
    words = _key(table, columns.text, WORD_KEYS, "--text-column")
    tags = _key(table, columns.label, TAG_KEYS, "--label-column") if labelled else None
    name = table.named(columns.id, "--id-column") if columns.id is not None else table.find("id")
    examples: list[TaggedExample] = []
    ids: dict[str, int] = {}
    for i, row in enumerate(table.rows):
        own = str(i) if name is None or row.cells[name] is None else whole_characters(str(row.cells[name]))
        if own in ids:
            raise UserError(f"{table.where(row)}: the id {own!r} is also that of line {ids[own]}; give each its own")
        ids[own] = row.line
        spelled = _strings(table, row, words)
        tagged = None if tags is None else _strings(table, row, tags)
        if tagged is not None and len(tagged) != len(spelled):
            raise UserError(f"{table.where(row)}: has {len(tagged)} tags for {len(spelled)} words; give each word one")
        examples.append(TaggedExample(id=own, place=f"line {row.line}", words=spelled, tags=tagged))
    return Dataset(table.path, tuple(examples))


def _key(table: Table, named: str | None, usual: Sequence[str], flag: str) -> int:
    if named is not None:
        return table.named(named, flag)
    found = [place for place in map(table.find, usual) if place is not None]
    if len(found) != 1:
        raise UserError(f"{table.path}, line 1: not one key of {', '.join(usual)} ({table.shape}); name it with {flag}")
    return found[0]


def _strings(table: Table, row: Row, place: int) -> tuple[str, ...]:
    value: Any = row.cells[place]
    if not isinstance(value, list) or not value:
        raise UserError(f"{table.where(row)}: {table.column(place)} must be a list of strings that is not empty")
    strings = [str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in value]
    for i, item in enumerate(strings):
        if not isinstance(item, str) or not item.strip():
            raise UserError(f"{table.where(row)}: item {i + 1} of {table.column(place)} must be a string of characters")
    return tuple(map(whole_characters, strings))


def _check_tags(dataset: Dataset[TaggedExample]) -> None:
    """Refuse tags of entities among which some are of no scheme; count those that their scheme does not allow."""
    sentences = [example.tags or () for example in dataset]
    found = {tag for tags in sentences for tag in tags}
    odd = {tag for tag in found if not is_entity_tag(tag)}
    if odd and OUTSIDE in found and any(tag.startswith("B-") for tag in found):
        i = next(i for i, tags in enumerate(sentences) if odd.intersection(tags))
        tag = next(tag for tag in sentences[i] if tag in odd)
        raise UserError(f"{dataset.where(i)} ff.: the tag {tag!r} is neither O nor B-, I-, ... and a type; correct it")
    scheme = scheme_of(sentences)
    if scheme is None:
        return
    wrong = [count_invalid(tags, scheme) for tags in sentences]
    if any(wrong):
        first = next(i for i, count in enumerate(wrong) if count)
        logger.warning("%s: %d tags, the first in this sentence, stand where %s does not allow them",
                       dataset.where(first), sum(wrong), scheme)  # fmt: skip

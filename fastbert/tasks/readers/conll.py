"""Read words with tags: CoNLL's columns of every year, CoNLL-U, and JSON objects or Arrow columns of two lists.

One file: the layouts differ in a line or two each, and share the walk over lines and its errors.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastbert.errors import UserError
from fastbert.tasks.examples import Dataset, TaggedExample
from fastbert.tasks.readers.arrow_files import is_arrow
from fastbert.tasks.readers.bad_rows import BadRows
from fastbert.tasks.readers.layouts import MORE_SINGLES, SINGLES
from fastbert.tasks.readers.tables import Row, Table, name_of, opened, plain_name, read_table
from fastbert.tasks.readers.tags import OUTSIDE, count_invalid, is_entity_tag, scheme_of
from fastbert.tasks.text_files import STDIN, numbered_lines, whole_characters

if TYPE_CHECKING:
    from fastbert.tasks.settings import Columns

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
TAG_KEYS = ("ner_tags", "tags", "pos_tags", "upos", "labels")
BESIDE_ENTITIES = ("ner_tags", "pos_tags", "upos")  # of several lists of tags, those of entities are meant
# The words of a header, of columns of words and of texts, and of columns of tags.
TEXT_NAMES = frozenset((*SINGLES, *MORE_SINGLES))
WORD_NAMES = frozenset(("word", "words", "token", "tokens", "form"))
TAG_NAMES = frozenset(("tag", "tags", "label", "labels", "class", "category", "sentiment", "ner", "ner_tag", "ner_tags",
                       "pos", "pos_tag", "pos_tags", "upos", "xpos", "chunk", "chunk_tag", "entity"))  # fmt: skip
_BLANKS = re.compile(r"[ \t]+")  # no other white space separates columns
Lines = Sequence[tuple[int, str]]
Cells = list[tuple[int, list[str]]]  # of lines, by their numbers


@dataclass
class _Sentence:
    """A sentence while its lines are read."""

    document: int
    line: int = 0
    name: str | None = None
    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Columns:
    """How the lines of a file are split, and which columns count; `header` is the number of a line of names."""

    by_tabs: bool
    collapsed: bool
    width: int
    example: int
    """The first line of that width."""
    word: int
    tag: int | None
    is_conll_u: bool
    header: int | None
    split: dict[int, list[str]]
    """The cells of the lines of that width."""

    def cells(self, number: int, line: str) -> list[str]:
        """Return the cells of a line; separators that repeat count once where they would make it ragged."""
        if number in self.split:
            return self.split[number]
        cells = _split(line, self.by_tabs, self.collapsed)
        if len(cells) != self.width and self.by_tabs:
            full = _split(line, self.by_tabs, True)
            cells = full if len(full) == self.width else cells
        return cells


def read_conll(path: str, columns: Columns, *, labelled: bool, skip_bad: bool | None = None) -> Dataset[TaggedExample]:
    """The sentences of a file: a word per line, its columns separated by TABs (by blanks where most lines have none),
    an empty line between sentences. `-DOCSTART-` and `# newdoc` begin a document; without them all sentences are of
    one. Separators may repeat.

    The word is in the first column and the tag in the last, in CoNLL-U in `form` and `upos`. `columns.text` and
    `columns.label` name others: by number, from 1, or `upos`, `xpos`, `pos`, `chunk`, `ner` where the number of columns
    says which one it is. `.jsonl`, `.json`, `.parquet` and folders of `datasets` hold lists: `words` or `tokens`, and
    `tags` or `ner_tags`.

    Without `labelled` tags are not looked at, and standard input or a `.txt` may have a sentence per line, its words
    separated by blanks. Tags that the scheme does not allow are counted and reported.
    Raises UserError, with file and line, for damage and for bad lines, unless `skip_bad` leaves these out.
    """
    name = name_of(path)
    bad = BadRows(name, skip=skip_bad, unit="line")
    if is_arrow(path) or plain_name(path).endswith((".jsonl", ".json", ".ndjson")):
        examples = _of_objects(path, columns, labelled, bad)
    else:
        if plain_name(path).endswith(".csv"):
            raise UserError(
                f"{path}: tagging reads no .csv; give a word per line with its tag, or JSON lines of 'tokens' and"
                " 'tags'"
            )
        with opened(path) as stream:
            lines = list(numbered_lines(stream, name, bad.add))
        first = next((line for _, line in lines if line.strip()), "")
        if first.lstrip().startswith("{") and str(path) == STDIN:
            raise UserError("standard input, line 1: is JSON; tagging reads a word a line there, or a .jsonl file")
        is_text = str(path) == STDIN or plain_name(path).endswith(".txt")
        if not labelled and is_text and _is_running(lines, columns):
            examples = _of_running_text(lines)
        else:
            examples = _of_lines(name, lines, columns, labelled, bad)
    if labelled:
        examples = _with_right_tags(examples, bad)
    bad.settle(len(examples))
    dataset = Dataset(name, tuple(example for _, example in examples))
    if labelled:
        _report_scheme(dataset)
    return dataset


def _is_running(lines: Lines, columns: Columns) -> bool:
    """Return whether lines are sentences to tag, and not a word each: some have several words, and none has columns."""
    texts = [line for _, line in lines]
    return columns.text is None and not any("\t" in line for line in texts) and any(len(x.split()) > 1 for x in texts)


def _of_running_text(lines: Lines) -> list[tuple[int, TaggedExample]]:
    """A sentence per line, its words separated by blanks."""
    numbered = [(number, line.split()) for number, line in lines if line.strip()]
    return [
        (number, TaggedExample(id=str(index), place=f"line {number}", words=tuple(words)))
        for index, (number, words) in enumerate(numbered)
    ]


def _split(line: str, by_tabs: bool, collapsed: bool) -> list[str]:
    if not by_tabs:
        return _BLANKS.split(line.strip(" \t"))
    cells = line.split("\t")
    return [cell for cell in cells if cell.strip()] if collapsed else cells


def _is_mark(line: str) -> bool:
    """Return whether a line begins a document, however its columns are separated."""
    return line.startswith(DOCUMENT) and line.split()[0] == DOCUMENT


def _of_lines(
    name: str, lines: Lines, columns: Columns, labelled: bool, bad: BadRows
) -> list[tuple[int, TaggedExample]]:
    form = _form(name, lines, columns, labelled, bad)
    sentences = _sentences(lines, form, bad)
    names = [sentence.name for sentence in sentences]
    has_names = None not in names and len(set(names)) == len(names)
    return [
        (
            sentence.line,
            TaggedExample(
                id=str(sentence.name) if has_names else str(index),
                place=f"line {sentence.line}",
                words=tuple(sentence.words),
                tags=None if form.tag is None else tuple(sentence.tags),
                document=sentence.document,
            ),
        )
        for index, sentence in enumerate(sentences)
    ]


def _form(name: str, lines: Lines, columns: Columns, labelled: bool, bad: BadRows) -> _Columns:
    """Find out how lines are split and which columns count. Raises UserError for a file that holds no words and tags,
    such as a table of texts and labels."""
    filled = [(number, line) for number, line in lines if line.strip() and not _is_mark(line)]
    tabbed = sum("\t" in line.strip() for _, line in filled if not line.startswith("# "))
    by_tabs = 2 * tabbed >= sum(not line.startswith("# ") for _, line in filled) > 0
    numbered = [(number, line) for number, line in filled if not _is_comment(line, by_tabs)]
    if not numbered:
        bad.settle(0)
        raise UserError(f"{name}, line 1: the file has no words; name one with a word per line")
    collapsed, rows = _uniform(numbered, by_tabs)
    first, cells = rows[0]
    width = len(cells)
    is_conll_u = width == 10 and by_tabs and cells[0][:1].isdecimal()
    word = 1 if is_conll_u else 0
    # The last column, but for separators at the end of every line.
    last = max((place for place in range(width) if any(row[place].strip() for _, row in rows)), default=0)
    header = _header(name, rows, word, last, any(not line.strip() for _, line in lines))
    named = [cell.strip().lower() for cell in cells] if header is not None else ()
    if columns.text is not None:
        word = _place(name, columns.text, width, "--text-column", named)
    tag = None
    if labelled:
        tag = CONLL_U_COLUMNS.index("upos") if is_conll_u else last
        if columns.label is not None:
            tag = _place(name, columns.label, width, "--label-column", named)
        elif tag == word:
            raise UserError(f"{name}, line {first}: has one column, so words and no tags; add a column of tags")
    if by_tabs and not is_conll_u:
        _refuse_texts(name, [(number, row[word]) for number, row in rows if number != header], lines)
    return _Columns(by_tabs, collapsed, width, first, word, tag, is_conll_u, header, dict(rows))


def _uniform(numbered: Lines, by_tabs: bool) -> tuple[bool, Cells]:
    """Split lines as most of them have the same number of columns. Return whether separators that repeat count once
    for that, and the cells of those lines."""
    found: list[tuple[bool, Cells]] = []
    for collapsed in (False, True) if by_tabs else (False,):
        rows = [(number, _split(line, by_tabs, collapsed)) for number, line in numbered]
        counts = Counter(len(cells) for _, cells in rows)
        width = max(counts, key=lambda one: (counts[one], one > 1))
        found.append((collapsed, [(number, cells) for number, cells in rows if len(cells) == width]))
        if len(counts) == 1:
            break
    return max(found, key=lambda one: len(one[1]))


def _header(name: str, rows: Cells, word: int, tag: int, has_gaps: bool) -> int | None:
    """Return the number of the first line if it holds names of columns. Raises UserError for those of a table."""
    number, cells = rows[0]
    own = [cell.strip().lower() for cell in cells]
    if word == tag or own[tag] not in TAG_NAMES or any(row[tag] == cells[tag] for _, row in rows[1:]):
        return None
    if own[word] in TEXT_NAMES and not has_gaps:
        raise UserError(
            f"{name}, line {number}: {cells[word]!r} and {cells[tag]!r} are the names of a table of texts and labels;"
            " use --task classification, or give a word per line with its tag, and an empty line between sentences"
        )
    if own[word] not in WORD_NAMES | TEXT_NAMES:
        return None
    logger.warning("%s, line %d: holds names of columns (%s); left out", name, number, ", ".join(cells))
    return number


def _refuse_texts(name: str, words: Sequence[tuple[int, str]], lines: Lines) -> None:
    """Raise UserError for texts in the place of words: most have blanks inside."""
    long = [(number, word) for number, word in words if " " in word.strip()]
    # Some words have one, such as numbers and names; without an empty line all would be of one sentence.
    has_gaps = any(not line.strip() for _, line in lines)
    least = len(words) if has_gaps else 0
    blanks = sum(word.strip().count(" ") for _, word in long)
    if 2 * len(long) > len(words) and blanks >= max(2 * least, 2):
        number, text = long[0]
        raise UserError(
            f"{name}, line {number}: {text[:40]!r} is a text of several words, as most are here; use --task"
            " classification for texts and labels, or give a word per line with its tag"
        )


def _sentences(lines: Lines, form: _Columns, bad: BadRows) -> list[_Sentence]:
    """The sentences that have words; what is no line of words goes to `bad`."""
    sentences: list[_Sentence] = []
    document, begun = 0, False  # `begun`: the document has sentences
    inside = False  # of a sentence: a comment is a word there
    sentence = _Sentence(0)
    for number, line in lines:
        starts = not inside and _is_comment(line, form.by_tabs)
        if starts and not _NEW_DOCUMENT.match(line):
            found = _SENTENCE_ID.match(line)
            sentence.name = found[1] if found else sentence.name
            continue
        marks_document = starts or _is_mark(line)
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
        if number == form.header:
            continue
        inside = True
        cells = form.cells(number, line)
        problem = _problem(cells, line, form)
        if problem is not None:
            bad.add(number, f"line {number}: {problem}")
            continue
        if form.is_conll_u and _NO_WORD.fullmatch(cells[0]):
            continue
        sentence.line = sentence.line or number
        sentence.words.append(cells[form.word])
        if form.tag is not None:
            sentence.tags.append(cells[form.tag])
    if sentence.words:
        sentences.append(sentence)
    return sentences


def _problem(cells: Sequence[str], line: str, form: _Columns) -> str | None:
    """Say what is wrong with a line of words."""
    if len(cells) != form.width:
        cure = "give each word as many, and an empty line between sentences"
        if form.by_tabs and "\t" not in line and len(_BLANKS.split(line.strip())) == form.width:
            cure = "separate its columns by TABs as the others are"
        return f"has {len(cells)} columns, not {form.width} as line {form.example} has; {cure}"
    for place in (form.word,) if form.tag is None else (form.word, form.tag):
        is_unused = form.is_conll_u and _NO_WORD.fullmatch(cells[0])
        if not is_unused and not cells[place].strip():
            return f"column {place + 1} is empty; fill it in"
    return None


def _is_comment(line: str, by_tabs: bool) -> bool:
    """Return whether a line before a sentence's first word is a comment; `#` may also be that word."""
    if by_tabs:
        return line.startswith("# ") and "\t" not in line
    return _COMMENT.match(line) is not None


def _place(name: str, column: str, width: int, flag: str, named: Sequence[str] = ()) -> int:
    """The place of a column that the user names by number or name."""
    if column.isascii() and column.isdecimal() and len(column) < 10 and 1 <= int(column) <= width:
        return int(column) - 1
    names = tuple(named) or COLUMN_NAMES.get(width, ())
    if column.lower() in names:
        return names.index(column.lower())
    known = f", or {', '.join(names)}" if names else ""
    raise UserError(f"{name}, line 1: no column {column!r}; give {flag} a number from 1 to {width}{known}")


def _of_objects(path: str, columns: Columns, labelled: bool, bad: BadRows) -> list[tuple[int, TaggedExample]]:
    table = read_table(path, bad=bad)
    words = _key(table, columns.text, WORD_KEYS, "--text-column")
    tags = _key(table, columns.label, TAG_KEYS, "--label-column") if labelled else None
    name = table.named(columns.id, "--id-column") if columns.id is not None else table.find("id")
    examples: list[tuple[int, TaggedExample]] = []
    ids: dict[str, int] = {}
    for i, row in table.numbered(bad):
        own = str(i) if name is None or row.cells[name] is None else whole_characters(str(row.cells[name]))
        with bad.row(row.line):
            if own in ids:
                raise UserError(
                    f"{table.where(row)}: the id {own!r} is also that of line {ids[own]}; give each its own"
                )
            ids[own] = row.line
            spelled = _strings(table, row, words)
            tagged = None if tags is None else _strings(table, row, tags)
            if tagged is not None and len(tagged) != len(spelled):
                raise UserError(
                    f"{table.where(row)}: has {len(tagged)} tags for {len(spelled)} words; give each word one"
                )
            examples.append((row.line, TaggedExample(id=own, place=table.place(row), words=spelled, tags=tagged)))
    return examples


def _key(table: Table, named: str | None, usual: Sequence[str], flag: str) -> int:
    if named is not None:
        return table.named(named, flag)
    found = [name for name in usual if table.find(name) is not None]
    if len(found) > 1 and found[0] == BESIDE_ENTITIES[0] and set(found) <= set(BESIDE_ENTITIES):
        logger.warning("%s: tags from %r; %s takes %s", table.path, found[0], flag, " or ".join(map(repr, found[1:])))
        found = found[:1]
    if not found and table.first(tuple(TEXT_NAMES)) is not None:
        raise UserError(
            f"{table.path}, line 1: holds texts, not lists of words ({table.shape}); use --task classification for"
            f" texts and labels, or name the list with {flag}"
        )
    if len(found) != 1:
        raise UserError(f"{table.path}, line 1: not one key of {', '.join(usual)} ({table.shape}); name it with {flag}")
    return table.named(found[0], flag)


def _strings(table: Table, row: Row, place: int) -> tuple[str, ...]:
    value: Any = row.cells[place]
    if not isinstance(value, list) or not value:
        raise UserError(
            f"{table.where(row)}: {table.column(place)} must be a list of strings that is not empty; correct it"
        )
    strings = [str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in value]
    for i, item in enumerate(strings):
        if not isinstance(item, str) or not item.strip():
            raise UserError(
                f"{table.where(row)}: item {i + 1} of {table.column(place)} must be a string of characters; correct it"
            )
    return tuple(map(whole_characters, strings))


def _with_right_tags(examples: Sequence[tuple[int, TaggedExample]], bad: BadRows) -> list[tuple[int, TaggedExample]]:
    """The sentences whose tags are all of a scheme, where those of others are; the rest goes to `bad`."""
    found = {tag for _, example in examples for tag in example.tags or ()}
    odd = {tag for tag in found if not is_entity_tag(tag)}
    if not odd or OUTSIDE not in found or not any(tag.startswith("B-") for tag in found):
        return list(examples)
    kept = []
    for line, example in examples:
        wrong = next((tag for tag in example.tags or () if tag in odd), None)
        if wrong is None:
            kept.append((line, example))
        else:
            bad.add(line, f"{example.place} ff.: the tag {wrong!r} is neither O nor B-, I-, ... and a type; correct it")
    return kept


def _report_scheme(dataset: Dataset[TaggedExample]) -> None:
    """Count the tags that their scheme does not allow."""
    sentences = [example.tags or () for example in dataset]
    scheme = scheme_of(sentences)
    if scheme is None:
        return
    wrong = [count_invalid(tags, scheme) for tags in sentences]
    if any(wrong):
        first = next(i for i, count in enumerate(wrong) if count)
        logger.warning("%s: %d tags, the first in this sentence, stand where %s does not allow them",
                       dataset.where(first), sum(wrong), scheme)  # fmt: skip

"""Find how the lines of a CoNLL file are split into columns, and which columns hold words and tags."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.tasks.readers.bad_rows import BadRows
from fastbert.tasks.readers.layouts import MORE_SINGLES, SINGLES
from fastbert.tasks.settings import Columns

DOCUMENT = "-DOCSTART-"
CONLL_U_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
# Names of the columns, by the number of columns of a file.
COLUMN_NAMES: dict[int, tuple[str, ...]] = {
    2: ("word", "tag"),
    3: ("word", "upos", "xpos"),
    4: ("word", "pos", "chunk", "ner"),  # CoNLL-2000 and -2003
    10: CONLL_U_COLUMNS,
}
# Comments of CoNLL-U. Lines like `# NN O` and `#1` are words, where blanks part the columns.
_COMMENT = re.compile(r"#\s+(newdoc|newpar)\b|#\s+[\w.:-]+\s+=(\s|$)")
# The words of a header, of columns of words and of texts, and of columns of tags.
TEXT_NAMES = frozenset((*SINGLES, *MORE_SINGLES))
WORD_NAMES = frozenset(("word", "words", "token", "tokens", "form"))
TAG_NAMES = frozenset(("tag", "tags", "label", "labels", "class", "category", "sentiment", "ner", "ner_tag", "ner_tags",
                       "pos", "pos_tag", "pos_tags", "upos", "xpos", "chunk", "chunk_tag", "entity"))  # fmt: skip
BLANKS = re.compile(r"[ \t]+")  # no other white space separates columns
Lines = Sequence[tuple[int, str]]
Cells = list[tuple[int, list[str]]]  # of lines, by their numbers


@dataclass(frozen=True)
class ConllColumns:
    """The separator of lines, and the columns of words and tags; `header` is the number of a line of column names."""

    by_tabs: bool
    collapsed: bool
    width: int
    example: int
    """The first line of that width."""
    word: int
    tag: int | None
    is_conll_u: bool
    header: int | None

    def cells(self, line: str) -> list[str]:
        """Return the cells of a line; repeated separators count once if the line would be ragged otherwise."""
        cells = _split(line, self.by_tabs, self.collapsed)
        if len(cells) != self.width and self.by_tabs:
            full = _split(line, self.by_tabs, True)
            cells = full if len(full) == self.width else cells
        return cells


def _split(line: str, by_tabs: bool, collapsed: bool) -> list[str]:
    if not by_tabs:
        return BLANKS.split(line.strip(" \t"))
    cells = line.split("\t")
    return [cell for cell in cells if cell.strip()] if collapsed else cells


def is_document_mark(line: str) -> bool:
    """Return True if a line begins a document, with any separator of columns."""
    return line.startswith(DOCUMENT) and line.split()[0] == DOCUMENT


def find_columns(name: str, lines: Lines, columns: Columns, labelled: bool, bad: BadRows) -> ConllColumns:
    """Find how lines are split, and the columns of words and tags. Raises UserError for a file without words and tags,
    such as a table of texts and labels."""
    filled = [(number, line) for number, line in lines if line.strip() and not is_document_mark(line)]
    tabbed = sum("\t" in line.strip() for _, line in filled if not line.startswith("# "))
    by_tabs = 2 * tabbed >= sum(not line.startswith("# ") for _, line in filled) > 0
    numbered = [(number, line) for number, line in filled if not is_comment(line, by_tabs)]
    if not numbered:
        bad.settle(0)
        raise UserError(f"{name}, line 1: the file has no words; name one with a word per line")
    collapsed, rows = _uniform(numbered, by_tabs)
    first, cells = rows[0]
    width = len(cells)
    is_conll_u = width == 10 and by_tabs and cells[0][:1].isdecimal()
    word = 1 if is_conll_u else 0
    # The last column that is not empty in every line.
    last = max((index for index in range(width) if any(row[index].strip() for _, row in rows)), default=0)
    header = _header(name, rows, word, last, any(not line.strip() for _, line in lines))
    named = [cell.strip().lower() for cell in cells] if header is not None else ()
    if columns.text is not None:
        word = _index_of(name, columns.text, width, "--text-column", named)
    tag = None
    if labelled:
        tag = CONLL_U_COLUMNS.index("upos") if is_conll_u else last
        if columns.label is not None:
            tag = _index_of(name, columns.label, width, "--label-column", named)
        elif tag == word:
            raise UserError(f"{name}, line {first}: has one column, so words and no tags; add a column of tags")
    if by_tabs and not is_conll_u:
        _refuse_texts(name, [(number, row[word]) for number, row in rows if number != header], lines)
    return ConllColumns(by_tabs, collapsed, width, first, word, tag, is_conll_u, header)


def _uniform(numbered: Lines, by_tabs: bool) -> tuple[bool, Cells]:
    """Split lines so that most have the same number of columns. Return True if repeated separators count once for that,
    and the cells of those lines."""
    candidates: list[tuple[bool, Cells]] = []
    for collapsed in (False, True) if by_tabs else (False,):
        rows = [(number, _split(line, by_tabs, collapsed)) for number, line in numbered]
        counts = Counter(len(cells) for _, cells in rows)
        width = max(counts, key=lambda count: (counts[count], count > 1))
        candidates.append((collapsed, [(number, cells) for number, cells in rows if len(cells) == width]))
        if len(counts) == 1:
            break
    return max(candidates, key=lambda candidate: len(candidate[1]))


def _header(name: str, rows: Cells, word: int, tag: int, has_gaps: bool) -> int | None:
    """Return the number of the first line if it holds column names. Raises UserError for those of a table of texts."""
    number, cells = rows[0]
    names = [cell.strip().lower() for cell in cells]
    if word == tag or names[tag] not in TAG_NAMES or any(row[tag] == cells[tag] for _, row in rows[1:]):
        return None
    if names[word] in TEXT_NAMES and not has_gaps:
        raise UserError(
            f"{name}, line {number}: {cells[word]!r} and {cells[tag]!r} are the names of a table of texts and labels;"
            " use --task classification, or give a word per line with its tag, and an empty line between sentences"
        )
    if names[word] not in WORD_NAMES | TEXT_NAMES:
        return None
    logger.warning("%s, line %d: holds names of columns (%s); left out", name, number, ", ".join(cells))
    return number


def _refuse_texts(name: str, words: Sequence[tuple[int, str]], lines: Lines) -> None:
    """Raise UserError for texts in the column of words: most contain spaces."""
    long = [(number, word) for number, word in words if " " in word.strip()]
    # Some words contain spaces, such as numbers and names; without an empty line there would be a single sentence.
    has_gaps = any(not line.strip() for _, line in lines)
    least = len(words) if has_gaps else 0
    blanks = sum(word.strip().count(" ") for _, word in long)
    if 2 * len(long) > len(words) and blanks >= max(2 * least, 2):
        number, text = long[0]
        raise UserError(
            f"{name}, line {number}: {text[:40]!r} is a text of several words, as most are here; use --task"
            " classification for texts and labels, or give a word per line with its tag"
        )


def is_comment(line: str, by_tabs: bool) -> bool:
    """Return True if a line before a sentence's first word is a comment; `#` may also be that word."""
    if by_tabs:
        return line.startswith("# ") and "\t" not in line
    return _COMMENT.match(line) is not None


def _index_of(name: str, column: str, width: int, flag: str, named: Sequence[str] = ()) -> int:
    """Return the index of a column that the user names by number or name. Raises UserError."""
    if column.isascii() and column.isdecimal() and len(column) < 10 and 1 <= int(column) <= width:
        return int(column) - 1
    names = tuple(named) or COLUMN_NAMES.get(width, ())
    if column.lower() in names:
        return names.index(column.lower())
    known = f", or {', '.join(names)}" if names else ""
    raise UserError(f"{name}, line 1: no column {column!r}; give {flag} a number from 1 to {width}{known}")

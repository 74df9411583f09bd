"""Questions and their contexts as rows of tokens: `[CLS] question [SEP] window of the context [SEP]`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastbert.errors import UserError
from fastbert.tasks.examples import Dataset, QuestionExample
from fastbert.tasks.row_template import PairTemplate, put
from fastbert.tasks.rows import Rows, bounds, runs
from fastbert.tokenizers.tokenizer import Tokenizer

QUESTION_LENGTH = 64  # tokens to which questions are cut, as BERT's own code does
NOWHERE = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class SpanRows(Rows):
    """Rows with the position of each token in its context: the first character, and the end (exclusive); -1 for tokens
    outside the context. int32 (tokens,)."""

    begins: np.ndarray
    ends: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Contexts:
    """The tokens of all different contexts: context c has `offsets[c]` up to `offsets[c + 1]`."""

    ids: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    offsets: np.ndarray
    of_examples: np.ndarray
    """The context of each example."""
    characters: int
    """Characters of the longest context."""

    def spans(self, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and the last token that overlap the characters `starts` up to `stops` of each example, as
        indices into the tokens of all contexts; the first is after the last if no token overlaps."""
        # Character positions over all contexts increase from token to token, except where a tokenizer reorders
        # combining marks; running extremes always increase, and a search in them finds the same token.
        stride = self.characters + 2
        base = np.repeat(np.arange(len(self.offsets) - 1) * stride, np.diff(self.offsets))
        ends = np.maximum.accumulate(base + self.ends)
        begins = np.minimum.accumulate((base + self.begins)[::-1])[::-1]
        base = self.of_examples * stride
        # The searches must not reach the tokens of the next context.
        low, high = self.offsets[:-1][self.of_examples], self.offsets[1:][self.of_examples]
        first = np.searchsorted(ends, base + np.clip(starts, 0, stride - 1), side="right")
        last = np.searchsorted(begins, base + np.clip(stops, 0, stride - 1), side="left") - 1
        return np.clip(first, low, high), np.clip(last, low - 1, high - 1)


def read_contexts(dataset: Dataset[QuestionExample], tokenizer: Tokenizer) -> Contexts:
    """Tokenize the contexts of a dataset."""
    numbers: dict[str, int] = {}
    of_examples = np.fromiter(
        (numbers.setdefault(example.context, len(numbers)) for example in dataset), np.int64, len(dataset)
    )
    ids, begins, ends, _, offsets = tokenizer.encode_aligned_ragged(list(numbers))
    return Contexts(
        ids=ids,
        begins=begins,
        ends=ends,
        offsets=offsets,
        of_examples=of_examples,
        characters=max(map(len, numbers)),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Windows:
    """The window of each row, int64 (rows,): its example, the number of tokens of the question, the window's first
    token among those of all contexts, and its number of tokens."""

    examples: np.ndarray
    questions: np.ndarray
    begins: np.ndarray
    sizes: np.ndarray
    template: PairTemplate

    @property
    def contexts(self) -> np.ndarray:
        """The position in its row of each window's first token."""
        return self.questions + len(self.template.before) + len(self.template.between)

    def targets(self, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return start and end in each row of the spans from token `first` to `last` of each example; 0, [CLS], in rows
        without the whole span."""
        first, last = first[self.examples], last[self.examples]
        whole = (first <= last) & (first >= self.begins) & (last < self.begins + self.sizes)
        before = self.contexts - self.begins
        return np.where(whole, first + before, 0), np.where(whole, last + before, 0)


def cut_windows(
    dataset: Dataset[QuestionExample],
    contexts: Contexts,
    questions: np.ndarray,
    max_length: int,
    stride: int,
    template: PairTemplate,
) -> Windows:
    """Return the windows of every example; neighbours share `stride` tokens, and the last one is the remainder."""
    room = max_length - template.added - questions
    whole = np.diff(contexts.offsets)[contexts.of_examples]
    long = whole > room
    # There must be room for a token, and windows must advance.
    least = np.where(long, stride + 1, 1)
    if (room < least).any():
        index = int(np.argmax(room < least))
        left = max(int(room[index]), 0)
        raise UserError(
            f"{dataset.where(index)}: max_length={max_length} leaves {left} tokens to the context, beside"
            f" a question of {questions[index]}, but neighbouring windows must share {stride} of them: use a larger"
            " max_length, or a smaller stride"
        )
    step = np.maximum(room - stride, 1)
    counts = np.where(long, 1 - (room - whole) // step, 1)
    examples = np.repeat(np.arange(len(dataset)), counts)
    shift = (np.arange(len(examples)) - np.repeat(bounds(counts)[:-1], counts)) * step[examples]
    return Windows(
        examples=examples,
        questions=questions[examples],
        begins=contexts.offsets[contexts.of_examples][examples] + shift,
        sizes=np.minimum(room[examples], whole[examples] - shift),
        template=template,
    )


def lay_out(
    windows: Windows,
    contexts: Contexts,
    question_ids: np.ndarray,
    question_begins: np.ndarray,
    targets: dict[str, np.ndarray],
) -> SpanRows:
    """Return the rows of windows; an example's question begins at `question_begins` of `question_ids`."""
    template = windows.template
    offsets = bounds(windows.questions + windows.sizes + template.added)
    begin, context = offsets[:-1], offsets[:-1] + windows.contexts
    question, behind = begin + len(template.before), context + windows.sizes
    input_ids = np.empty(offsets[-1], dtype=np.int32)
    token_type_ids = np.empty_like(input_ids)
    special = (template.before, template.between, template.behind)
    for position, ids, types in zip((begin, question + windows.questions, behind), special, template.types[::2]):
        put(input_ids, position, ids)
        put(token_type_ids, position, types)
    to, of = runs(question, windows.questions), runs(question_begins[windows.examples], windows.questions)
    input_ids[to], token_type_ids[to] = question_ids[of], template.types[1]
    to, of = runs(context, windows.sizes), runs(windows.begins, windows.sizes)
    input_ids[to], token_type_ids[to] = contexts.ids[of], template.types[3]
    begins, ends = np.full_like(input_ids, NOWHERE), np.full_like(input_ids, NOWHERE)
    begins[to], ends[to] = contexts.begins[of], contexts.ends[of]
    return SpanRows(
        input_ids=input_ids,
        token_type_ids=token_type_ids,
        offsets=offsets,
        examples=windows.examples,
        unit_targets=targets,
        begins=begins,
        ends=ends,
    )

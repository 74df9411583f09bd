"""Questions about contexts: SQuAD 1.1 and 2.0, or JSON lines or Arrow rows of one question each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fastbert.errors import UserError
from fastbert.io.text import plain_name, whole_characters
from fastbert.tasks.examples import Answer, Dataset, QuestionExample
from fastbert.tasks.readers.arrow_files import is_arrow
from fastbert.tasks.readers.bad_rows import BadRows
from fastbert.tasks.readers.tables import name_of, read_json, read_table


@dataclass(frozen=True)
class _Question:
    """A question of a file, and its position."""

    where: str
    fields: Mapping[str, Any]
    context: str


def read_squad(
    path: str,
    *,
    labelled: bool,
    report: Callable[[str], None],
    spans: bool = True,
    skip_bad: bool | None = None,
) -> Dataset[QuestionExample]:
    """Read the questions of a file, in its order: SQuAD's JSON, or JSON lines of `id`, `question`, `context`,
    `answers`.

    With `labelled` and `spans`, every answer is the context's own text at its `start`. An answer that is not there but
    within the words it overlaps is moved, as in BERT's own reader; white space may differ. An answer that is nowhere is
    left out, with its question if none remains; one call of `report` counts them and names the first. Without `spans`
    answers stay as they are in the file, for scoring. Without `labelled` they are not read. Raises UserError, naming
    file and question, unless `skip_bad` leaves bad questions out.
    """
    name = name_of(path)
    is_lines = is_arrow(path) or plain_name(path).endswith((".jsonl", ".ndjson"))
    bad = BadRows(name, skip=skip_bad, unit="question")
    locations: dict[str, str] = {}
    examples: list[QuestionExample] = []
    lost: list[tuple[str, Answer]] = []
    without = 0
    for number, question in enumerate(_of_lines(path) if is_lines else _of_squad(name, read_json(path))):
        with bad.row(number):
            example = _example(name, question, locations, labelled)
            if example.answers and spans:
                located = [(answer, _located(example.context, answer)) for answer in example.answers]
                lost.extend((example.id, answer) for answer, span in located if span is None)
                example = replace(example, answers=tuple(span for _, span in located if span is not None))
                if not example.answers:
                    without += 1
                    continue
            examples.append(example)
    if not locations:
        bad.settle(0)
        raise UserError(f"{name}, line 1: has no questions; name a file that does")
    if lost:
        question_id, answer = lost[0]
        report(
            f"{name}: {len(lost)} answers are not in their context where `answer_start` says, the first that of"
            f" question {question_id}: {answer.text[:60]!r} at {answer.start}; left out, with {without} questions"
            " that have no other answer"
        )
    bad.settle(len(examples))
    if not examples:
        raise UserError(
            f"{name}, question {lost[0][0]} ff.: no answer is in its context; is `answer_start` in characters?"
        )
    return Dataset(name, tuple(examples))


def _example(name: str, question: _Question, locations: dict[str, str], labelled: bool) -> QuestionExample:
    """Return a question with its answers; `locations` holds those of earlier ids. Raises UserError."""
    id_ = question.fields.get("id")
    if isinstance(id_, int) and not isinstance(id_, bool):
        id_ = str(id_)
    if not isinstance(id_, str) or not id_:
        raise UserError(f"{question.where}: has no id; give every question its own")
    id_ = whole_characters(id_)
    location = f"question {id_}"
    if id_ in locations:
        raise UserError(f"{question.where}: the id {id_} is also that of {locations[id_]}; give every question its own")
    locations[id_] = question.where.removeprefix(f"{name}, ")
    text = question.fields.get("question")
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{name}, {location}: has no text under 'question'; give it one or leave it out")
    if not question.context.strip():
        raise UserError(f"{name}, {location}: its context is empty; fill it in or leave it out")
    answers = _answers(f"{name}, {location}", question.fields) if labelled else None
    return QuestionExample(
        id=id_, location=location, question=whole_characters(text), context=question.context, answers=answers
    )


def _of_squad(name: str, content: Any) -> Iterator[_Question]:
    articles = content.get("data") if isinstance(content, dict) else None
    if not isinstance(articles, list):
        raise UserError(f"{name}, line 1: is not SQuAD's JSON: an object with a list under 'data'; name such a file")
    for a, article in enumerate(articles, 1):
        paragraphs = article.get("paragraphs") if isinstance(article, dict) else None
        if not isinstance(paragraphs, list):
            raise UserError(f"{name}, article {a}: has no list under 'paragraphs'")
        for p, paragraph in enumerate(paragraphs, 1):
            where = f"{name}, article {a}, paragraph {p}"
            if not isinstance(paragraph, dict) or not isinstance(paragraph.get("context"), str):
                raise UserError(f"{where}: has no string under 'context'")
            if not isinstance(paragraph.get("qas"), list):
                raise UserError(f"{where}: has no list under 'qas'")
            context = whole_characters(paragraph["context"])
            for q, fields in enumerate(paragraph["qas"], 1):
                if not isinstance(fields, dict):
                    raise UserError(f"{where}, question {q}: must be a JSON object, not {type(fields).__name__}")
                yield _Question(f"{where}, question {q}", fields, context)


def _of_lines(path: str) -> Iterator[_Question]:
    table = read_table(path)
    for row in table.rows:
        fields = dict(zip(table.names or (), row.cells))
        context = fields.get("context")
        if not isinstance(context, str):
            raise UserError(f"{table.where(row)}: has no string under 'context'")
        yield _Question(table.where(row), fields, whole_characters(context))


def _answers(where: str, fields: Mapping[str, Any]) -> tuple[Answer, ...]:
    """Return the answers as they are in the file."""
    impossible = fields.get("is_impossible")
    raw = fields.get("answers")
    if isinstance(raw, dict):  # as the datasets library writes them: lists of texts and of starts
        texts, starts = raw.get("text"), raw.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise UserError(f"{where}: its 'answers' must hold lists of the same length, 'text' and 'answer_start'")
        raw = [{"text": text, "answer_start": start} for text, start in zip(texts, starts)]
        impossible = not raw if impossible is None else impossible
    if impossible:
        return ()
    if not isinstance(raw, list) or not raw:
        raise UserError(f'{where}: has no answers; mark a question without an answer with "is_impossible": true')
    answers = []
    for answer in raw:
        text = answer.get("text") if isinstance(answer, dict) else None
        start = answer.get("answer_start") if isinstance(answer, dict) else None
        if not isinstance(text, str) or not isinstance(start, int) or isinstance(start, bool):
            raise UserError(f"{where}: an answer must have a string 'text' and a whole number 'answer_start'")
        if not text.strip():
            raise UserError(f"{where}: an answer's text is empty")
        answers.append(Answer(whole_characters(text), start))
    return tuple(answers)


def _located(context: str, answer: Answer) -> Answer | None:
    """Return the answer with the spelling and position it has in the context; None if it is not there."""
    first, last = answer.start, answer.start + len(answer.text)
    if not 0 <= first < len(context):
        return None
    if context[first:last] == answer.text and not answer.text[0].isspace() and not answer.text[-1].isspace():
        return answer
    pattern = re.compile(r"\s+".join(map(re.escape, answer.text.split())))
    match = pattern.match(context, first + len(answer.text) - len(answer.text.lstrip()))
    if match is None:
        # The words that the span overlaps, as BERT's reader compares them.
        while first > 0 and not context[first - 1].isspace():
            first -= 1
        while last < len(context) and not context[last].isspace():
            last += 1
        match = pattern.search(context, first, last)
    return None if match is None else Answer(match[0], match.start())

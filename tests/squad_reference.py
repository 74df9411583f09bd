"""Questions for tests of span answers, and transformers' recipe for SQuAD, written out."""

import random
from typing import Any

import numpy as np
from hypothesis import strategies as st
from task_twins import some_text

from fastbert.tasks.examples import Answer, Dataset, QuestionExample
from fastbert.tasks.span.rows import QUESTION_LENGTH, SpanRows
from fastbert.tasks.span.task import SpanAnswers, SpanSettings

HOSTILE = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("한가\u0301\u302e\u0327\U0001d165中é x."), max_size=30
)


def question(context: str, *answers: tuple[str, int], asked: str = "a b c", number: int = 0) -> QuestionExample:
    spans = tuple(Answer(text, start) for text, start in answers)
    return QuestionExample(
        id=f"q{number}", location=f"question q{number}", question=asked, context=context, answers=spans
    )


def dataset(*examples: QuestionExample) -> Dataset[QuestionExample]:
    return Dataset("squad.json", examples)


def task(max_length: int = 384, stride: int = 128, **options: Any) -> SpanAnswers:
    return SpanAnswers(SpanSettings(max_length=max_length, stride=stride, **options))


def random_dataset(seed: int, reference: Any, count: int = 120) -> Dataset[QuestionExample]:
    """Questions of 0 to 30 words about contexts of 0 to 90, some shared, with an answer of whole tokens or none."""
    rng = random.Random(seed)
    examples: list[QuestionExample] = []
    for number in range(count):
        shared = examples[-1].context if examples and rng.random() < 0.4 else None
        context = some_text(rng, rng.randint(0, 90)) if shared is None else shared
        offsets = reference(context, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        answers = []
        if offsets and rng.random() < 0.8:
            first = rng.randrange(len(offsets))
            last = min(first + rng.choice([0, 1, 2, 5, 40]), len(offsets) - 1)
            # The answer may begin and end within tokens.
            begin, end = rng.randrange(*offsets[first]), rng.randrange(*offsets[last]) + 1
            if begin < end:
                answers = [(context[begin:end], begin)]
        asked = some_text(rng, rng.randint(0, 30))
        while len(reference.tokenize(asked)) > QUESTION_LENGTH:
            asked = some_text(rng, rng.randint(0, 30))
        examples.append(question(context, *answers, asked=asked, number=number))
    return dataset(*examples)


def their_rows(example: QuestionExample, reference: Any, max_length: int, stride: int) -> list[dict[str, Any]]:
    """The features of transformers' run_qa with their targets, but that a start at a window's last token is that token
    (there, the search goes on into the padding)."""
    encoded = reference(
        [example.question],  # a batch: a single empty context would be none
        [example.context],
        truncation="only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    results = []
    for row in range(len(encoded["input_ids"])):
        sequences, offsets = encoded.sequence_ids(row), encoded["offset_mapping"][row]
        positions = [position for position, sequence in enumerate(sequences) if sequence == 1]
        start = end = 0
        if example.answers and positions:
            begin_char, end_char = example.answers[0].start, example.answers[0].start + len(example.answers[0].text)
            first, last = positions[0], positions[-1]
            if offsets[first][0] <= begin_char and offsets[last][1] >= end_char:
                while first <= positions[-1] and offsets[first][0] <= begin_char:
                    first += 1
                start = first - 1
                while offsets[last][1] >= end_char and last >= positions[0]:
                    last -= 1
                end = last + 1
        results.append(
            {
                "ids": encoded["input_ids"][row],
                "types": encoded["token_type_ids"][row],
                "start": start,
                "end": end,
                "offsets": [span if sequence == 1 else None for span, sequence in zip(offsets, sequences)],
            }
        )
    return results


def their_answer(example: QuestionExample, rows: list[Any], settings: SpanSettings) -> dict[str, Any]:
    """`postprocess_qa_predictions` of transformers' example, for one question."""
    actual, null = [], None
    for features, logits in rows:
        starts, ends = logits
        score = starts[0] + ends[0]
        if null is None or null["score"] > score:
            null = {"offsets": (0, 0), "score": score}
        for start in np.argsort(starts)[-1 : -settings.n_best - 1 : -1].tolist():
            for end in np.argsort(ends)[-1 : -settings.n_best - 1 : -1].tolist():
                spans = features["offsets"]
                if spans[start] is None or spans[end] is None:
                    continue
                if end < start or end - start + 1 > settings.max_answer_length:
                    continue
                actual.append({"offsets": (spans[start][0], spans[end][1]), "score": starts[start] + ends[end]})
    if settings.unanswerable:
        actual.append(null)
    best = sorted(actual, key=lambda item: item["score"], reverse=True)[: settings.n_best]
    if settings.unanswerable and not any(answer["offsets"] == (0, 0) for answer in best):
        best.append(null)
    for answer in best:
        answer["text"] = example.context[answer["offsets"][0] : answer["offsets"][1]]
    weights = np.exp([answer["score"] - best[0]["score"] for answer in best]) if best else np.zeros(0)
    result = {"text": best[0]["text"] if best else None, "n_best": best, "probabilities": weights / weights.sum()}
    if settings.unanswerable:
        answers = [answer for answer in best if answer["text"]]
        if not answers:
            return {**result, "text": None}
        result["difference"] = null["score"] - answers[0]["score"]
        result["text"] = "" if result["difference"] > settings.null_threshold else answers[0]["text"]
    return result


def gold(rows: SpanRows) -> list[np.ndarray]:
    """Logits that say what the targets say."""
    results = []
    for index, length in enumerate(rows.lengths.tolist()):
        logits = np.zeros((2, length), dtype=np.float32)
        for side, name in enumerate(("start", "end")):
            logits[side, rows.unit_targets[name][index]] = 10
        results.append(logits)
    return results

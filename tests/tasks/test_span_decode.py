"""Answers as `postprocess_qa_predictions` of transformers' example finds them, and in any text."""

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from squad_reference import HOSTILE, dataset, gold, question, random_dataset, task, their_answer, their_rows
from task_twins import our_tokenizer, rows_of, their_tokenizer


def bare(text: str) -> str:
    """A text without the accents at its end, which transformers leaves out."""
    return text.rstrip("\u0301\u0327")


@pytest.mark.parametrize("unanswerable", [False, True])
@pytest.mark.parametrize(("n_best", "longest"), [(20, 30), (3, 4), (200, 1000)])
def test_answers_are_those_of_transformers(seed: int, unanswerable: bool, n_best: int, longest: int) -> None:
    reference = their_tokenizer()
    data = random_dataset(seed, reference)
    span = task(90, 20, n_best=n_best, max_answer_length=longest, unanswerable=unanswerable, null_threshold=-0.5)
    rows = span.encode(data, our_tokenizer(), labelled=False)
    rng = np.random.default_rng(seed)
    logits = [rng.normal(size=(2, length)).astype(np.float32) for length in rows.lengths]
    predictions = span.decode(data, rows, logits)
    assert [prediction["id"] for prediction in predictions] == [example.id for example in data]
    actual = 0
    for index, (example, prediction) in enumerate(zip(data, predictions, strict=True)):
        features = their_rows(example, reference, 90, 20)
        mine = [logits[row] for row in np.flatnonzero(rows.examples == index)]
        expected = their_answer(example, list(zip(features, mine, strict=True)), span.settings)
        text = example.context[prediction["start"] : prediction["end"]] if prediction["start"] is not None else ""
        assert prediction["text"] == text, "the text is that of the user"
        if expected["text"] is None:  # none was found: all are searched
            continue
        actual += 1
        assert bare(prediction["text"]) == bare(expected["text"])
        assert [bare(one["text"]) for one in prediction["n_best"]] == [bare(one["text"]) for one in expected["n_best"]]
        probabilities = [one["probability"] for one in prediction["n_best"]]
        assert probabilities == pytest.approx(expected["probabilities"].tolist(), abs=1e-6)
        assert prediction.get("null_score_difference") == pytest.approx(expected.get("difference"), abs=1e-6)
        json.dumps(prediction)
    assert actual > len(data) / 4


def test_the_best_of_all_spans_is_found_where_likely_starts_and_ends_make_none(seed: int) -> None:
    data = dataset(*(question("a b c d e f g h", number=number) for number in range(3)))
    span = task(n_best=2, max_answer_length=3)
    rows = span.encode(data, our_tokenizer(), labelled=False)
    logits = [
        np.random.default_rng(seed + row).normal(size=(2, len(ids))) for row, (ids, _) in enumerate(rows_of(rows))
    ]
    for one in logits[:2]:
        one[:, :4] += 100  # the question's tokens
    logits[0][0, 7], logits[0][1, 8] = 50, 51
    predictions = span.decode(data, rows, [one.astype(np.float32) for one in logits])
    assert predictions[0]["text"] == "c d"
    scores = {}
    for first in range(5, 13):
        for last in range(first, min(first + 3, 13)):
            scores[first, last] = logits[1][0, first] + logits[1][1, last]
    first, last = max(scores, key=lambda key: scores[key])
    assert predictions[1]["text"] == " ".join("abcdefgh"[first - 5 : last - 4])


@pytest.mark.parametrize(
    ("context", "answer", "start"),
    [
        pytest.param("ab cd", "cd", 3, id="at the very end"),
        pytest.param("x", "x", 0, id="one token"),
        pytest.param("the café.", "café", 4, id="accent"),
        pytest.param("the cafe\u0301.", "cafe\u0301", 4, id="combining accent"),
        pytest.param("我在中国 。", "中国", 2, id="Chinese"),
        pytest.param("see 🙂🙂 there", "🙂🙂", 4, id="emoji"),
        pytest.param("𝒳 the 𝒳", "the", 2, id="behind two code units"),
        pytest.param("a\u200bb \x00c", "c", 5, id="control characters"),
        pytest.param("say 한 x", "한", 4, id="one character of several tokens"),
    ],
)
def test_an_answer_comes_back_as_the_user_wrote_it(context: str, answer: str, start: int) -> None:
    tokenizer = our_tokenizer()
    if answer == "한":  # in parts, as its decomposition is in no vocabulary but this
        tokenizer = type(tokenizer)([*tokenizer.vocab, "\u1112", "##\u1161", "##\u11ab"])
    data, span = dataset(question(context, (answer, start))), task()
    rows = span.encode(data, tokenizer, labelled=True)
    prediction = span.decode(data, rows, gold(rows))[0]
    assert prediction["text"] == answer
    assert (prediction["start"], prediction["end"]) == (start, start + len(answer))


@given(st.lists(st.tuples(HOSTILE, HOSTILE), min_size=1, max_size=4), st.integers(0, 2**32 - 1), st.booleans())
def test_any_text_is_answered_in_its_own_characters(
    asked: list[tuple[str, str]], seed: int, unanswerable: bool
) -> None:
    data = dataset(*(question(context, asked=text, number=number) for number, (text, context) in enumerate(asked)))
    span = task(80, 4, n_best=4, unanswerable=unanswerable)
    rows = span.encode(data, our_tokenizer(), labelled=False)
    rng = np.random.default_rng(seed)
    logits = [rng.normal(size=(2, length)).astype(np.float32) for length in rows.lengths]
    for example, prediction in zip(data, span.decode(data, rows, logits), strict=True):
        for one in (prediction, *prediction["n_best"]):
            assert one["text"] == ("" if one["start"] is None else example.context[one["start"] : one["end"]])
            assert 0 <= one["probability"] <= 1
        if (rows.begins[np.repeat(rows.examples, rows.lengths) == data.examples.index(example)] >= 0).any():
            assert prediction["text"] or unanswerable
        total = sum(one["probability"] for one in prediction["n_best"])
        assert total == pytest.approx(1)


def test_a_thousand_windows_compete(seed: int) -> None:
    rng = random.Random(seed)
    letters = [rng.choice("abcdefgh") for _ in range(13990)] + ["x", "y"]
    context = " ".join(letters)
    data = dataset(question("a"), question(context, ("x y", len(context) - 3), number=1), question("b", number=2))
    span = task(25, 6, unanswerable=True)
    rows = span.encode(data, our_tokenizer(), labelled=True)
    assert len(rows) > 1000
    covered = np.unique(rows.begins[np.repeat(rows.examples, rows.lengths) == 1])
    assert len(covered) == len(letters) + 1, "every token is in a window"
    predictions = span.decode(data, rows, gold(rows))
    assert [prediction["text"] for prediction in predictions] == ["", "x y", ""]


@pytest.mark.parametrize("context", ["", "\x00\u200b", "   "])
def test_a_context_without_tokens_has_no_answer(context: str) -> None:
    data = dataset(question(context), question("a b", asked="", number=1))
    for unanswerable in (False, True):
        span = task(unanswerable=unanswerable)
        rows = span.encode(data, our_tokenizer(), labelled=False)
        logits = [np.zeros((2, length), dtype=np.float32) for length in rows.lengths]
        first, second = span.decode(data, rows, logits)
        assert (first["text"], first["start"], first["probability"]) == ("", None, 1.0)
        assert second["text"] in ("a", "b", "a b")


def test_a_null_threshold_decides_and_n_best_of_one_still_knows_the_answer() -> None:
    data = dataset(question("a b c"))
    for threshold, expected in ((9.0, "b"), (7.0, "")):
        span = task(unanswerable=True, null_threshold=threshold, n_best=1)
        rows = span.encode(data, our_tokenizer(), labelled=False)
        logits = np.zeros((2, len(rows.input_ids)), dtype=np.float32)
        logits[:, 0], logits[:, 6] = 10, 6
        # With n_best=1 the likeliest start is [CLS], so that all spans are searched.
        prediction = span.decode(data, rows, [logits])[0]
        assert (prediction["text"], prediction["null_score_difference"]) == (expected, 8.0)
        assert prediction["n_best"][0]["text"] == ""


def test_answers_have_no_white_space_at_their_ends() -> None:
    """Tokens of byte-level BPE may include the space in front of a word."""
    data = dataset(question("ab  cd ef"))
    span = task()
    rows = span.encode(data, our_tokenizer(), labelled=False)
    begins = rows.begins.tolist()
    first, last = begins.index(4), begins.index(7)
    rows.begins[first] = 2  # the two spaces, then cd
    logits = np.zeros((2, len(rows.input_ids)), dtype=np.float32)
    logits[0, first] = logits[1, last - 1] = 9
    (prediction,) = span.decode(data, rows, [logits])
    assert (prediction["text"], prediction["start"], prediction["end"]) == ("cd", 4, 6)

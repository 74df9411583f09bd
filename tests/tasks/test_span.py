"""Span answers against transformers' recipe for SQuAD, written out here: rows, targets, losses, answers."""

import json
import random
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from task_twins import (
    VOCABULARY,
    all_outputs,
    batches,
    gradient_difference,
    our_tokenizer,
    rows_of,
    some_text,
    their_tokenizer,
    twins,
)

from fastbert import BertConfig, WordPieceTokenizer
from fastbert.errors import UserError
from fastbert.tasks.examples import Answer, Dataset, QuestionExample
from fastbert.tasks.span import SpanAnswers
from fastbert.tasks.span_rows import QUESTION_LENGTH, SpanRows, read_contexts
from fastbert.tasks.task import TaskSettings


def question(context: str, *answers: tuple[str, int], asked: str = "a b c", number: int = 0) -> QuestionExample:
    found = tuple(Answer(text, start) for text, start in answers)
    return QuestionExample(id=f"q{number}", place=f"question q{number}", question=asked, context=context, answers=found)


def dataset(*examples: QuestionExample) -> Dataset[QuestionExample]:
    return Dataset("squad.json", examples)


def task(max_length: int = 384, stride: int = 128, **options: Any) -> SpanAnswers:
    return SpanAnswers(TaskSettings(max_length=max_length, stride=stride, **options))


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
    found = []
    for row in range(len(encoded["input_ids"])):
        sequences, offsets = encoded.sequence_ids(row), encoded["offset_mapping"][row]
        places = [place for place, sequence in enumerate(sequences) if sequence == 1]
        start = end = 0
        if example.answers and places:
            begin_char, end_char = example.answers[0].start, example.answers[0].start + len(example.answers[0].text)
            first, last = places[0], places[-1]
            if offsets[first][0] <= begin_char and offsets[last][1] >= end_char:
                while first <= places[-1] and offsets[first][0] <= begin_char:
                    first += 1
                start = first - 1
                while offsets[last][1] >= end_char and last >= places[0]:
                    last -= 1
                end = last + 1
        found.append(
            {
                "ids": encoded["input_ids"][row],
                "types": encoded["token_type_ids"][row],
                "start": start,
                "end": end,
                "offsets": [span if sequence == 1 else None for span, sequence in zip(offsets, sequences)],
            }
        )
    return found


@pytest.mark.parametrize(("max_length", "stride"), [(384, 128), (100, 20), (80, 0), (71, 3)])
def test_rows_and_targets_are_those_of_transformers(seed: int, max_length: int, stride: int) -> None:
    reference = their_tokenizer()
    data = random_dataset(seed, reference)
    rows = task(max_length, stride).encode(data, our_tokenizer(), labelled=True)
    expected = [
        (index, row) for index, example in enumerate(data) for row in their_rows(example, reference, max_length, stride)
    ]
    assert rows.examples.tolist() == [index for index, _ in expected]
    assert rows_of(rows) == [(row["ids"], row["types"]) for _, row in expected]
    mine = list(zip(rows.unit_targets["start"].tolist(), rows.unit_targets["end"].tolist()))
    assert mine == [(row["start"], row["end"]) for _, row in expected]
    places = list(zip(rows.begins.tolist(), rows.ends.tolist()))
    assert places == [span or (-1, -1) for _, row in expected for span in row["offsets"]]


def test_questions_are_cut_and_their_contexts_are_not() -> None:
    data = dataset(question("x y z", asked="a b " * 50), question("x y z", ("z", 4), asked="b " * 63, number=1))
    rows = task(80, 2).encode(data, our_tokenizer(), labelled=False)
    tokenizer = our_tokenizer()
    expected = [tokenizer("a b " * 32, "x y z")["input_ids"], tokenizer("b " * 63, "x y z")["input_ids"]]
    assert [ids for ids, _ in rows_of(rows)] == expected


def test_the_loss_is_that_of_transformers_whole_and_in_parts(tmp_path: Path, seed: int) -> None:
    reference = their_tokenizer()
    data = random_dataset(seed, reference, 5)
    ours, theirs = twins("BertForQuestionAnswering", tmp_path, seed)
    span = task(100, 20)
    rows = span.encode(data, our_tokenizer(), labelled=True)
    targets = [torch.from_numpy(rows.unit_targets[name]) for name in ("start", "end")]
    # Row by row, since the logits of padding count in the softmax of transformers.
    losses = [
        theirs(torch.tensor([ids]), token_type_ids=torch.tensor([types]), start_positions=start, end_positions=end).loss
        for (ids, types), start, end in zip(rows_of(rows), *(target[:, None] for target in targets), strict=True)
    ]
    expected = torch.stack(losses).mean()
    expected.backward()
    total = 0.0
    for batch in batches(rows, 5):
        assert span.items(batch) == len(batch.inputs)
        part = span.loss(ours, batch, len(rows))
        part.backward()
        total += part.item()
    assert total == pytest.approx(expected.item(), abs=1e-5)
    assert gradient_difference(ours, theirs) < 1e-4


def their_answer(example: QuestionExample, rows: list[Any], settings: TaskSettings) -> dict[str, Any]:
    """`postprocess_qa_predictions` of transformers' example, for one question."""
    found, null = [], None
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
                found.append({"offsets": (spans[start][0], spans[end][1]), "score": starts[start] + ends[end]})
    if settings.unanswerable:
        found.append(null)
    best = sorted(found, key=lambda one: one["score"], reverse=True)[: settings.n_best]
    if settings.unanswerable and not any(one["offsets"] == (0, 0) for one in best):
        best.append(null)
    for one in best:
        one["text"] = example.context[one["offsets"][0] : one["offsets"][1]]
    weights = np.exp([one["score"] - best[0]["score"] for one in best]) if best else np.zeros(0)
    result = {"text": best[0]["text"] if best else None, "n_best": best, "probabilities": weights / weights.sum()}
    if settings.unanswerable:
        answers = [one for one in best if one["text"]]
        if not answers:
            return {**result, "text": None}
        result["difference"] = null["score"] - answers[0]["score"]
        result["text"] = "" if result["difference"] > settings.null_threshold else answers[0]["text"]
    return result


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
    found = 0
    for index, (example, prediction) in enumerate(zip(data, predictions, strict=True)):
        features = their_rows(example, reference, 90, 20)
        mine = [logits[row] for row in np.flatnonzero(rows.examples == index)]
        expected = their_answer(example, list(zip(features, mine, strict=True)), span.settings)
        text = example.context[prediction["start"] : prediction["end"]] if prediction["start"] is not None else ""
        assert prediction["text"] == text, "the text is that of the user"
        if expected["text"] is None:  # none was found: all are searched
            continue
        found += 1
        assert bare(prediction["text"]) == bare(expected["text"])
        assert [bare(one["text"]) for one in prediction["n_best"]] == [bare(one["text"]) for one in expected["n_best"]]
        probabilities = [one["probability"] for one in prediction["n_best"]]
        assert probabilities == pytest.approx(expected["probabilities"].tolist(), abs=1e-6)
        assert prediction.get("null_score_difference") == pytest.approx(expected.get("difference"), abs=1e-6)
        json.dumps(prediction)
    assert found > len(data) / 4


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


HOSTILE = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("한가\u0301\u302e\u0327\U0001d165中é x."), max_size=30
)


@given(
    st.lists(st.tuples(HOSTILE, st.integers(-2, 32), st.integers(-2, 32)), min_size=1, max_size=6),
    st.sampled_from([{}, {"do_lower_case": False}, {"strip_accents": False}]),
)
def test_the_tokens_of_characters_are_found_in_any_text(
    asked: list[tuple[str, int, int]], options: dict[str, bool]
) -> None:
    parts = [
        "\u1112",
        "##\u1161",
        "##\u11ab",
        "가",
        "한",
        "##\u0301",
        "##\u302e",
        "\u302e",
        "\U0001d165",
        "##\U0001d165",
    ]
    tokenizer = WordPieceTokenizer([*VOCABULARY, *(part for part in parts if part not in VOCABULARY)], **options)
    data = dataset(*(question(context, number=number) for number, (context, _, _) in enumerate(asked)))
    contexts = read_contexts(data, tokenizer)
    starts, stops = (np.array([each[side] for each in asked]) for side in (1, 2))
    first, last = contexts.spans(starts, stops)
    for index, (_, start, stop) in enumerate(asked):
        tokens = range(*contexts.offsets[contexts.of_examples[index] :][:2].tolist())
        from_start = [token for token in tokens if contexts.ends[token] > start]
        to_stop = [token for token in tokens if contexts.begins[token] < stop]
        expected = (min(from_start, default=tokens.stop), max(to_stop, default=tokens.start - 1))
        if start >= 0:
            assert (first[index], last[index]) == expected
        assert tokens.start <= first[index] <= tokens.stop
        assert tokens.start - 1 <= last[index] < tokens.stop


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


def gold(rows: SpanRows) -> list[np.ndarray]:
    """Logits that say what the targets say."""
    found = []
    for index, length in enumerate(rows.lengths.tolist()):
        logits = np.zeros((2, length), dtype=np.float32)
        for side, name in enumerate(("start", "end")):
            logits[side, rows.unit_targets[name][index]] = 10
        found.append(logits)
    return found


def test_an_answer_longer_than_its_window_is_counted_and_named(caplog: pytest.LogCaptureFixture) -> None:
    context = " ".join("abcdefghijklmnopqrst")
    data = dataset(
        question(context, ("a", 0)),
        question(context, (context, 0), number=1),
        question(context, ("zz", 99), number=2),
        question(context, (" ", 1), number=3),
        question(context, ("", 1), number=4),
        question(context, ("a", -1), number=5),
        question(context, number=6),
    )
    rows = task(14, 2).encode(data, our_tokenizer(), labelled=True)
    held = {int(example) for example, start in zip(rows.examples, rows.unit_targets["start"]) if start}
    assert held == {0}
    outside, long, none = caplog.messages
    assert "question q2: the first of 4 questions (of 7) that have an answer outside" in outside
    assert "question q1: the first of 1 questions (of 7) that have an answer that no window of max_length=14" in long
    assert "question q6: the first of 1 questions (of 7) that have no answer" in none
    caplog.clear()
    task(14, 2, unanswerable=True).encode(dataset(data[0], data[6]), our_tokenizer(), labelled=True)
    assert not caplog.messages
    with pytest.raises(UserError, match=r"squad.json, question q1: the first of 1 questions"):
        task(14, 2, strict=True).encode(dataset(data[0], data[1]), our_tokenizer(), labelled=True)


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_length": 7, "stride": 1},
            "squad.json, question q0: max_length=7 leaves 1 tokens to the context.*larger",
        ),
        ({"max_length": 3, "stride": 0}, "max_length=3 leaves 0 tokens"),
        ({"max_length": 20, "stride": 14}, "leaves 14 tokens to the context, beside a question of 3.* share 14"),
        ({"stride": -1}, "stride=-1 must be at least 0"),
        ({"n_best": 0}, "n_best=0 must be at least 1"),
        ({"max_answer_length": 0}, "max_answer_length=0 must be at least 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        task(**options).encode(dataset(question("a " * 30)), our_tokenizer(), labelled=False)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UserError, match=r"squad.json holds no question"):
        task().encode(dataset(), our_tokenizer(), labelled=False)
    unknown = QuestionExample(id="7", place="question 7", question="x", context="y")
    with pytest.raises(UserError, match=r"squad.json, question 7: the answers are unknown"):
        task().encode(dataset(unknown), our_tokenizer(), labelled=True)


def test_a_config_of_other_labels_serves_spans() -> None:
    config = BertConfig.preset("tiny", num_labels=3, label_names=("a", "b", "c"))
    assert task().head_config(config).num_labels == 2


def test_outputs_do_not_depend_on_the_batch(tmp_path: Path, seed: int) -> None:
    reference = their_tokenizer()
    data = random_dataset(seed, reference, 8)
    model, _ = twins("BertForQuestionAnswering", tmp_path, seed)
    span = task(100, 20)
    rows = span.encode(data, our_tokenizer(), labelled=False)
    alone, together = (all_outputs(span, model, rows, tokens) for tokens in (1, 2000))
    for one, other, length in zip(alone, together, rows.lengths, strict=True):
        assert one.shape == other.shape == (2, length)
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("unanswerable", [False, True])
def test_a_file_is_read_answered_and_scored(tmp_path: Path, unanswerable: bool) -> None:
    file = tmp_path / "squad.json"
    asked: list[dict[str, Any]] = [
        {"id": "1", "question": "a?", "answers": [{"text": "b c", "answer_start": 2}]},
        {"id": "2", "question": "b?", "answers": [{"text": "d", "answer_start": 6}]},
    ]
    if unanswerable:
        asked[1] |= {"answers": [], "is_impossible": True}
    paragraphs = [{"context": "a b c d", "qas": asked}]
    file.write_text(json.dumps({"version": "2", "data": [{"title": "x", "paragraphs": paragraphs}]}))
    span = task(unanswerable=unanswerable)
    data = span.read(str(file))
    rows = span.encode(data, our_tokenizer(), labelled=True)
    predictions = span.decode(data, rows, gold(rows))
    scores = span.score(data, predictions)
    assert (scores["f1"], scores["exact_match"]) == (100.0, 100.0)
    predictions[1]["text"] = "" if not unanswerable else "b"
    assert span.score(data, predictions)["exact_match"] == 50.0
    assert span.read(str(file), labelled=False)[0].answers is None


@pytest.mark.parametrize(("file", "questions"), [("dev-v1.1.rebuilt.json", 10570), ("train-v1.1.prefix.json", 4370)])
def test_squad_comes_back_from_its_own_targets(
    data_dir: Path, released_tokenizer: Any, file: str, questions: int
) -> None:
    """What targets and windows cost: answers that begin or end within a word, or are too long."""
    with tarfile.open(data_dir / "finetune/squad.tar.xz") as archive:
        member = next(member for member in archive if Path(member.name).name == file)
        content = archive.extractfile(member)
        assert content is not None
        articles = json.load(content)["data"]
    examples = tuple(
        QuestionExample(
            id=one["id"],
            place=f"question {one['id']}",
            question=one["question"],
            context=paragraph["context"],
            answers=tuple(Answer(answer["text"], answer["answer_start"]) for answer in one["answers"]),
        )
        for article in articles
        for paragraph in article["paragraphs"]
        for one in paragraph["qas"]
    )
    data, span = Dataset(file, examples), task()
    assert len(data) == questions
    rows = span.encode(data, released_tokenizer("bert-base-uncased"), labelled=True)
    predictions = span.decode(data, rows, gold(rows))
    same = [prediction["text"] == example.answers[0].text for prediction, example in zip(predictions, data)]
    assert np.mean(same) > 0.99
    scores = span.score(data, predictions)
    assert scores["exact_match"] > 99
    assert scores["f1"] > 99.3

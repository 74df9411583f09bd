"""Span answers against transformers' recipe for SQuAD: rows, targets, losses, files."""

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from squad_reference import HOSTILE, dataset, gold, question, random_dataset, task, their_rows
from task_twins import (
    VOCABULARY,
    all_outputs,
    batches,
    gradient_difference,
    our_tokenizer,
    rows_of,
    their_tokenizer,
    twins,
)

from fastbert import BertConfig, WordPieceTokenizer
from fastbert.errors import UserError
from fastbert.tasks.examples import Answer, Dataset, QuestionExample
from fastbert.tasks.span.rows import read_contexts


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
    ranges = list(zip(rows.begins.tolist(), rows.ends.tolist()))
    assert ranges == [span or (-1, -1) for _, row in expected for span in row["offsets"]]


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
            location=f"question {one['id']}",
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

"""Tagging against transformers' recipe for token classification, written out here: rows, labels, losses, tags."""

import itertools
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
from sweeps import sweep
from task_twins import WORDS, all_outputs, batches, gradient_difference, our_tokenizer, rows_of, their_tokenizer, twins

from fastbert.errors import UserError
from fastbert.packing import IGNORE_INDEX
from fastbert.tasks.examples import Dataset, TaggedExample
from fastbert.tasks.settings import TaskSettings
from fastbert.tasks.tagging.task import Tagging, TaggingSettings, TagRows

TAGS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
ODD = ["", "\u200b", "\x00", "a" * 150, "ab" * 45, "\u0301", "\ue000"]  # words that become no token, or one, or many


def sentence(words: list[str], tags: list[str] | None = None, number: int = 0, document: int = 0) -> TaggedExample:
    return TaggedExample(
        id=str(number),
        location=f"line {10 * number + 1}",
        words=tuple(words),
        tags=None if tags is None else tuple(tags),
        document=document,
    )


def dataset(*examples: TaggedExample) -> Dataset[TaggedExample]:
    return Dataset("ner.conll", examples)


def task(max_length: int = 128, **options: Any) -> Tagging:
    return Tagging(TaggingSettings(max_length=max_length, **options), TAGS)


def random_dataset(seed: int, count: int = 80, words: int = 30) -> Dataset[TaggedExample]:
    rng = random.Random(seed)
    examples, document = [], 0
    for number in range(count):
        chosen = [rng.choice(ODD if rng.random() < 0.1 else WORDS) for _ in range(rng.randint(0, words))]
        document += rng.random() < 0.2
        examples.append(sentence(chosen, [rng.choice(TAGS) for _ in chosen], number, document))
    return dataset(*examples)


def their_rows(data: Dataset[TaggedExample], reference: Any, max_length: int) -> list[tuple[list[int], list[int]]]:
    """Ids and labels of transformers' run_ner: the first token of a word has its label, other tokens none."""
    results = []
    for example in data:
        encoded = reference([list(example.words)], is_split_into_words=True, truncation=True, max_length=max_length)
        labels, before = [], None
        for word in encoded.word_ids(0):
            new = word is not None and word != before
            labels.append(TAGS.index(example.tags[word]) if new else IGNORE_INDEX)
            before = word
        results.append((encoded["input_ids"][0], labels))
    return results


def labels_of(rows: TagRows) -> list[list[int]]:
    """A label for each token of each row."""
    flat = np.full(len(rows.input_ids), IGNORE_INDEX)
    flat[np.repeat(rows.offsets[:-1], np.diff(rows.word_offsets)) + rows.positions] = rows.labels
    return [flat[begin:end].tolist() for begin, end in zip(rows.offsets, rows.offsets[1:])]


def test_rows_and_labels_are_those_of_transformers(seed: int) -> None:
    data = random_dataset(seed)
    rows = task(100_000).encode(data, our_tokenizer(), labelled=True)
    expected = their_rows(data, their_tokenizer(), 100_000)
    # A sentence of words that are no tokens is no row.
    indices = [index for index, (_, labels) in enumerate(expected) if max(labels) >= 0]
    assert rows.examples.tolist() == indices
    assert [ids for ids, _ in rows_of(rows)] == [expected[index][0] for index in indices]
    assert labels_of(rows) == [expected[index][1] for index in indices]
    assert not rows.token_type_ids.any()


def test_the_loss_is_that_of_transformers_whole_and_in_parts(tmp_path: Path, seed: int) -> None:
    data = random_dataset(seed, 12, 20)
    reference = their_tokenizer()
    ours, theirs = twins("BertForTokenClassification", tmp_path, seed, len(TAGS))
    tagging = task(512)
    rows = tagging.encode(data, our_tokenizer(), labelled=True)
    padded = reference.pad({"input_ids": [ids for ids, _ in rows_of(rows)]}, return_tensors="pt")
    labels = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(labels) for labels in labels_of(rows)], batch_first=True, padding_value=IGNORE_INDEX
    )
    expected = theirs(**padded, labels=labels).loss
    expected.backward()
    parts = list(batches(rows, 5))
    items = sum(tagging.items(batch) for batch in parts)
    assert items == int((labels != IGNORE_INDEX).sum())
    total = 0.0
    for batch in parts:
        part = tagging.loss(ours, batch, items)
        part.backward()
        total += part.item()
    assert total == pytest.approx(expected.item(), abs=1e-5)
    assert gradient_difference(ours, theirs) < 1e-4


def test_tags_and_probabilities_are_those_of_transformers(tmp_path: Path, seed: int) -> None:
    data = random_dataset(seed, 12, 20)
    reference = their_tokenizer()
    ours, theirs = twins("BertForTokenClassification", tmp_path, seed, len(TAGS))
    tagging = task(512)
    rows = tagging.encode(data, our_tokenizer(), labelled=False)
    predictions = tagging.decode(data, rows, all_outputs(tagging, ours, rows))
    for example, prediction in zip(data, predictions, strict=True):
        encoded = reference([list(example.words)], is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            probabilities = theirs.eval()(**encoded).logits[0].softmax(-1)
        seen, expected = set(), {}
        for position, word in enumerate(encoded.word_ids(0)):
            if word is not None and word not in seen:
                seen.add(word)
                expected[word] = probabilities[position]
        assert prediction["id"] == example.id
        assert prediction["words"] == list(example.words)
        assert len(prediction["tags"]) == len(prediction["probability"]) == len(example.words)
        for word, (tag, probability) in enumerate(zip(prediction["tags"], prediction["probability"])):
            if word in expected:
                assert expected[word][TAGS.index(tag)] >= expected[word].max() - 1e-5
                assert probability == pytest.approx(float(expected[word].max()), abs=1e-5)
            else:
                assert (tag, probability) == ("O", 0.0)
        json.dumps(prediction)


@sweep("max_length", [3, 4, 5, 12, 40])
@sweep("context", [0, 1, 7, 1000])
def test_every_word_is_tagged_once_in_windows_of_any_size(seed: int, max_length: int, context: int) -> None:
    data, tokenizer = random_dataset(seed, 30), our_tokenizer()
    tagging = task(max_length, context_tokens=context)
    rows = tagging.encode(data, tokenizer, labelled=True)
    assert rows.lengths.max() <= max_length
    words = [word for example in data for word in example.words]
    tags = [tag for example in data for tag in example.tags or ()]
    firsts = [tokenizer.encode(word, add_special_tokens=False)[:1] for word in words]
    assert rows.words.tolist() == [index for index, first in enumerate(firsts) if first]
    row = np.repeat(np.arange(len(rows)), np.diff(rows.word_offsets))
    tokens = rows.input_ids[rows.offsets[row] + rows.positions]
    assert [[token] for token in tokens.tolist()] == [first for first in firsts if first]
    assert [TAGS[label] for label in rows.labels] == [tags[word] for word in rows.words]
    assert (np.diff(rows.word_offsets) > 0).all()
    assert (rows.input_ids[rows.offsets[:-1]], rows.input_ids[rows.offsets[1:] - 1]) == (
        pytest.approx(tokenizer.cls_token_id),
        pytest.approx(tokenizer.sep_token_id),
    )
    # The rows' labels are what a batch has.
    batch = rows.batch(np.arange(len(rows))[::-1])
    assert batch.inputs.masked_positions is not None
    assert batch.inputs.labels is not None
    reverse = [index for one in reversed(range(len(rows))) for index in np.flatnonzero(row == one)]
    assert batch.inputs.input_ids[batch.inputs.masked_positions].tolist() == tokens[reverse].tolist()
    assert batch.inputs.labels.tolist() == rows.labels[reverse].tolist()


@given(st.lists(st.lists(st.text(max_size=8), max_size=6), min_size=1, max_size=4), st.integers(3, 9))
def test_any_words_are_tagged(sentences: list[list[str]], max_length: int) -> None:
    data = dataset(*(sentence(words, ["O"] * len(words), number) for number, words in enumerate(sentences)))
    tagging = task(max_length, context_tokens=1)
    rows = tagging.encode(data, our_tokenizer(), labelled=True)
    logits = [np.eye(len(TAGS), dtype=np.float32)[[0] * count] for count in np.diff(rows.word_offsets)]
    tagged = 0
    for words, prediction in zip(sentences, tagging.decode(data, rows, logits), strict=True):
        assert prediction["words"] == words
        assert len(prediction["tags"]) == len(words)
        tagged += prediction["tags"].count(TAGS[0])
    assert tagged == len(rows.words) == len(np.unique(rows.words))


def test_context_is_that_of_the_document_on_both_sides() -> None:
    letters = [sentence(list(text), ["O"] * len(text), number, document) for number, (text, document) in enumerate(
        [("abc", 0), ("de", 0), ("fghi", 0), ("jk", 1), ("lmnopq", 1), ("r", 2)]
    )]  # fmt: skip
    tokenizer = our_tokenizer()

    def seen(max_length: int, context: int) -> list[str]:
        rows = task(max_length, context_tokens=context).encode(dataset(*letters), tokenizer, labelled=True)
        assert [len(ids) for ids in labels_of(rows)] == rows.lengths.tolist()
        counted = [sum(label >= 0 for label in labels) for labels in labels_of(rows)]
        assert counted == [len(letters[example].words) for example in rows.examples]
        return ["".join(tokenizer.convert_ids_to_tokens(ids[1:-1])) for ids, _ in rows_of(rows)]

    assert seen(20, 0) == ["abc", "de", "fghi", "jk", "lmnopq", "r"]
    assert seen(20, 2) == ["abcde", "bcdefg", "defghi", "jklm", "jklmnopq", "r"]
    assert seen(20, 100) == ["abcdefghi"] * 3 + ["jklmnopq"] * 2 + ["r"]
    # Where there is little room both sides have as much, or what there is.
    assert seen(8, 100) == ["abcdef", "bcdefg", "defghi", "jklmno", "lmnopq", "r"]


def test_a_long_sentence_is_tagged_where_its_words_see_most() -> None:
    words = [f"{letter}{digit}" for letter in "abcdefghij" for digit in "0123456789"]  # two tokens each
    data = dataset(sentence(words, ["O"] * len(words)))
    rows = task(42).encode(data, our_tokenizer(), labelled=True)
    assert len(rows) > 5
    assert rows.words.tolist() == list(range(100))
    margin = np.minimum(rows.positions - 1, 40 - rows.positions)
    inner = (rows.words >= 3) & (rows.words < 97)
    assert margin[inner].min() >= 3


def test_labels_are_learnt_in_sorted_order_and_kept() -> None:
    tagging = Tagging(TaskSettings())
    tagging.learn_labels(dataset(sentence(["x", "y"], ["O", "I-b"]), sentence(["z"], ["B-a"])))
    assert tagging.labels == ("B-a", "I-b", "O")
    assert tagging.main_metric == "f1"
    tagging.learn_labels(dataset(sentence(["x"], ["B-z"])))
    assert tagging.labels == ("B-a", "I-b", "O")
    assert Tagging(TaskSettings(), ("NOUN", "VERB")).main_metric == "accuracy"
    assert Tagging(TaskSettings(metric="recall"), TAGS).main_metric == "recall"


@pytest.mark.parametrize("tags", [["O", "O"], None, []])
def test_a_training_set_of_one_tag_is_refused(tags: list[str] | None) -> None:
    with pytest.raises(UserError, match=r"ner.conll holds .* nothing to learn"):
        Tagging(TaskSettings()).learn_labels(dataset(sentence(["x", "y"], tags)))


def test_a_tag_that_training_has_not_seen_is_named_by_its_line() -> None:
    data = dataset(sentence(["a"], ["O"]), sentence(["in", "Bern"], ["O", "B-GPE"], 4))
    message = r"ner.conll, line 41: the tag 'B-GPE' of word 2, 'Bern', is none of the 5 of the training set \(B-LOC, "
    with pytest.raises(UserError, match=message):
        task().check_labels(data)
    with pytest.raises(UserError, match=message):
        task().encode(data, our_tokenizer(), labelled=True)
    task().encode(data, our_tokenizer(), labelled=False)
    with pytest.raises(UserError, match="labels of tagging are not known"):
        Tagging(TaskSettings()).check_labels(data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 2}, "max_length=2 must be at least 3"),
        ({"context_tokens": -1}, "context_tokens=-1 must be at least 0"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        task(**options)


def test_sentences_without_a_token_are_predicted_all_the_same() -> None:
    data = dataset(sentence(["\u200b", ""]), sentence([], number=1))
    tagging = task()
    rows = tagging.encode(data, our_tokenizer(), labelled=False)
    assert len(rows) == 0
    first, second = tagging.decode(data, rows, [])
    assert (first["tags"], first["probability"], first["entities"]) == (["O", "O"], [0.0, 0.0], [])
    assert second == {"id": "1", "words": [], "tags": [], "entities": [], "probability": []}


def test_entities_have_the_words_of_the_user() -> None:
    data = dataset(sentence(["Dr.", "Ada", "Löwe", "saw", "São", "Paulo"]), sentence(["Ada"], number=1))
    tagging = task()
    rows = tagging.encode(data, our_tokenizer(), labelled=False)
    tags = ["O", "B-PER", "I-PER", "O", "I-LOC", "I-LOC", "I-LOC"]
    logits = np.eye(len(TAGS), dtype=np.float32)[[TAGS.index(tag) for tag in tags]]
    first, second = tagging.decode(data, rows, [logits[:6], logits[6:]])
    assert first["tags"] == tags[:6], "tags stay as they were predicted"
    assert first["entities"] == [
        {"type": "PER", "start": 1, "end": 3, "text": "Ada Löwe"},
        {"type": "LOC", "start": 4, "end": 6, "text": "São Paulo"},
    ]
    assert second["entities"] == [{"type": "LOC", "start": 0, "end": 1, "text": "Ada"}]


def test_any_sequence_of_tags_has_the_entities_of_seqeval(seed: int) -> None:
    metrics = pytest.importorskip("seqeval.metrics.sequence_labeling")
    labels = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("X", "Y-Z"))]
    rng = random.Random(seed)
    tags = [list(chosen) for size in (1, 2) for chosen in itertools.product(labels, repeat=size)]
    tags += [[rng.choice(labels) for _ in range(rng.randint(1, 12))] for _ in range(500)]
    tagging = Tagging(TaskSettings(), labels)
    data = dataset(*(sentence(["x"] * len(one)) for one in tags))
    rows = tagging.encode(data, our_tokenizer(), labelled=False)
    logits = np.eye(len(labels), dtype=np.float32)
    outputs = [logits[[labels.index(tag) for tag in one]] for one in tags]
    for one, prediction in zip(tags, tagging.decode(data, rows, outputs), strict=True):
        results = [(entity["type"], entity["start"], entity["end"] - 1) for entity in prediction["entities"]]
        assert results == metrics.get_entities(one), one


def test_a_file_is_read_tagged_and_scored(tmp_path: Path) -> None:
    file = tmp_path / "ner.conll"
    file.write_text("Ada\tB-PER\nLovelace\tI-PER\nsaw\tO\n\nParis\tB-LOC\n", encoding="utf-8")
    tagging = Tagging(TaskSettings())
    data = tagging.read(str(file))
    tagging.learn_labels(data)
    assert tagging.labels == ("B-LOC", "B-PER", "I-PER", "O")
    rows = tagging.encode(data, our_tokenizer(), labelled=True)
    logits = np.eye(4, dtype=np.float32)[rows.labels]
    right = tagging.decode(data, rows, [logits[:3], logits[3:]])
    scores = tagging.score(data, right)
    assert (scores["f1"], scores["accuracy"]) == (100.0, 100.0)
    assert set(tagging.metrics) <= set(scores)
    wrong = tagging.decode(data, rows, [logits[:3], np.roll(logits[3:], 1)])
    assert tagging.score(data, wrong)["accuracy"] == 75.0
    assert tagging.read(str(file), labelled=False)[0].tags is None


def read(data_dir: Path, archive: str, file: str) -> Dataset[TaggedExample]:
    """A file of the data folder: word and tag in a line, an empty line behind each sentence."""
    with tarfile.open(data_dir / f"finetune/{archive}.tar.xz") as opened:
        member = next(member for member in opened if Path(member.name).name == file)
        content = opened.extractfile(member)
        assert content is not None
        text = content.read().decode()
    examples = []
    for number, block in enumerate(text.strip("\n").split("\n\n")):
        columns = [line.split("\t") for line in block.split("\n") if line]
        examples.append(sentence([line[0] for line in columns], [line[-1] for line in columns], number))
    return Dataset(file, tuple(examples))


@pytest.mark.parametrize(
    ("archive", "entities"),
    [("uner-en-ewt", True), ("wnut17", True), ("ud-ewt-pos", False)],
    ids=lambda value: str(value),
)
def test_real_tags_come_back_from_their_own_labels(
    data_dir: Path, released_tokenizer: Any, archive: str, entities: bool
) -> None:
    train, test = (read(data_dir, archive, f"{part}.conll") for part in ("train", "test"))
    tagging = Tagging(TaggingSettings(max_length=64, context_tokens=20))
    tagging.learn_labels(train)
    tagging.check_labels(test)
    assert tagging.labels is not None
    rows = tagging.encode(test, released_tokenizer("bert-base-cased"), labelled=True)
    one_hot = np.eye(len(tagging.labels), dtype=np.float32)[rows.labels]
    predictions = tagging.decode(test, rows, np.split(one_hot, rows.word_offsets[1:-1]))
    gold = [list(example.tags or ()) for example in test]
    assert [prediction["tags"] for prediction in predictions] == gold
    metrics = pytest.importorskip("seqeval.metrics.sequence_labeling")
    expected = [metrics.get_entities(tags) if entities else [] for tags in gold]
    actual = [[(one["type"], one["start"], one["end"] - 1) for one in each["entities"]] for each in predictions]
    assert actual == expected
    assert any(actual) == entities
    assert tagging.score(test, predictions)[tagging.main_metric] == 100.0

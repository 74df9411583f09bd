"""Table 7: six rows, each trained on its own layers, the same every time."""

import random
from dataclasses import replace

import pytest
import torch
from embedding import LETTERS, small_model, small_tokenizer

from fastbert.errors import UserError
from fastbert.features.tagging import FeatureTraining, table7, table7_rows
from fastbert.tasks.examples import Dataset, TaggedExample

TRAINING = FeatureTraining(hidden_size=32, epochs=3, batch_size=8, lr=1e-2, dropout=0.0)


def tagged(seed: int, count: int) -> Dataset[TaggedExample]:
    """Sentences of letters; the first half of the alphabet has a tag."""
    draw, examples = random.Random(seed), []
    for index in range(count):
        words = tuple(draw.choices(LETTERS, k=draw.randint(1, 12)))
        tags = tuple("B-V" if word < "n" else "O" for word in words)
        examples.append(TaggedExample(id=str(index), location=f"line {index}", words=words, tags=tags))
    return Dataset("toy.conll", tuple(examples))


def accuracy(gold: list[list[str]], predicted: list[list[str]]) -> dict[str, float]:
    pairs = [pair for one, other in zip(gold, predicted, strict=True) for pair in zip(one, other, strict=True)]
    return {"f1": 100 * sum(a == b for a, b in pairs) / len(pairs)}


def test_rows_of_the_paper() -> None:
    rows = {name: (layers, mixed) for name, layers, mixed in table7_rows(12)}
    assert rows == {
        "Embeddings": ((0,), False),
        "Second-to-Last Hidden": ((11,), False),
        "Last Hidden": ((12,), False),
        "Weighted Sum Last Four Hidden": ((9, 10, 11, 12), True),
        "Concat Last Four Hidden": ((9, 10, 11, 12), False),
        "Weighted Sum All 12 Layers": (tuple(range(1, 13)), True),
    }


def test_rows_of_a_shallow_model_say_how_many_layers_they_have() -> None:
    assert [(name, layers) for name, layers, _ in table7_rows(2)[3:]] == [
        ("Weighted Sum Last Two Hidden", (1, 2)),
        ("Concat Last Two Hidden", (1, 2)),
        ("Weighted Sum All 2 Layers", (1, 2)),
    ]


def test_rows_are_the_best_of_their_epochs(seed: int) -> None:
    model, tokenizer = small_model(seed), small_tokenizer()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sets, seen = (tagged(seed, 60), tagged(seed + 1, 20)), []
    rows = table7(model, tokenizer, *sets, TRAINING, score=accuracy, progress=lambda *told: seen.append(told))
    assert [row.name for row in rows] == [name for name, _, _ in table7_rows(2)]
    assert len(seen) == 6 * 3
    for row in rows:
        scores = [f1 for name, _, f1 in seen if name == row.name]
        assert row.f1 == max(scores)
        assert scores[row.epoch - 1] == row.f1
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())


def test_the_same_seed_gives_the_same_rows(seed: int) -> None:
    model, tokenizer, sets = small_model(seed), small_tokenizer(), (tagged(seed, 20), tagged(seed + 1, 10))
    training, result = replace(TRAINING, epochs=1), []
    for other in (1, 2):
        torch.manual_seed(other)
        result.append(table7(model, tokenizer, *sets, training, score=accuracy))
    assert result[0] == result[1]


def test_training_needs_an_epoch() -> None:
    with pytest.raises(UserError, match="epochs=0"):
        FeatureTraining(epochs=0)

"""Taggers on static word vectors: the features of words, and the row of the table from Python and the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fastbert import cli
from fastbert.errors import UserError
from fastbert.features.static import static_features, tag_with_vectors
from fastbert.features.tagging import FeatureTraining
from fastbert.tasks.examples import Dataset, TaggedExample
from fastbert.vectors import WordVectors

VECTORS = WordVectors(["a", "b", "c"], np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]]))
TRAINING = FeatureTraining(hidden_size=16, epochs=20, batch_size=4, lr=3e-2, dropout=0.0)


def tagged(*sentences: str) -> Dataset[TaggedExample]:
    """Sentences of words and tags in turn."""
    examples = []
    for index, sentence in enumerate(sentences):
        fields = sentence.split()
        words, tags = tuple(fields[::2]), tuple(fields[1::2])
        examples.append(TaggedExample(id=str(index), location=f"line {index}", words=words, tags=tags))
    return Dataset("toy.conll", tuple(examples))


def test_a_word_has_its_vector_or_that_of_its_lower_case_form() -> None:
    features, missing = static_features(VECTORS, [["a", "B"], ["?"]], unknown="mean")
    expected = torch.tensor([[1, 0, 0], [0, 1, 0], [1 / 3, 1 / 3, 1 / 3]])
    torch.testing.assert_close(features.values, expected[:, None])
    assert features.offsets.tolist() == [0, 2, 3]
    assert missing == pytest.approx(1 / 3)
    assert not static_features(VECTORS, [["?"]])[0].values.any()


def test_the_tagger_learns_tags_that_the_words_tell_the_same_every_time() -> None:
    train = tagged("a X b Y ? Z", "B Y c Y A X", "c Y c Y", "? Z ! Z a X")
    static = tag_with_vectors(VECTORS, train, tagged("! Z a X", "C Y b Y"), TRAINING)
    assert (static.row.f1, static.row.metric, static.row.name) == (100.0, "accuracy", "Static Vectors")
    assert (static.unknown_train, static.unknown_dev) == (3 / 11, 1 / 4)
    assert tag_with_vectors(VECTORS, train, tagged("! Z a X", "C Y b Y"), TRAINING) == static


def test_vectors_of_none_of_the_words_are_an_error() -> None:
    with pytest.raises(UserError, match="no word of the training set has one of the 3 vectors"):
        tag_with_vectors(VECTORS, tagged("x X"), tagged("a X"), TRAINING)


def test_the_command_prints_the_row_and_the_share_of_unknown_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("seqeval", reason="needs seqeval")
    pytest.importorskip("tyro", reason="the command line needs tyro")
    (tmp_path / "train.conll").write_text("a B-X\nb O\n\nc O\na B-X\nd O\n\n" * 6)
    VECTORS.save(tmp_path / "v.txt")
    files = {"train": "train.conll", "eval": "train.conll", "vectors": "v.txt", "out": "run"}
    flags = [word for name, file in files.items() for word in (f"--{name}", str(tmp_path / file))]
    assert cli.main(["features", *flags, "--epochs", "2", "--hidden-size", "8"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["features", "dev", "F1"]
    assert printed[1].startswith("Static Vectors ")
    assert printed[2:] == ["words without a vector: 20.0% of --train, 20.0% of --eval"]
    result = json.loads((tmp_path / "run" / "table7.json").read_text())
    assert (result["vectors"], result["unknown_eval"]) == (str(tmp_path / "v.txt"), 0.2)
    assert cli.main(["features", "--table7", *flags, "--model", "x"]) == 2
    assert "--vectors takes the place of --model; leave one out" in capsys.readouterr().err

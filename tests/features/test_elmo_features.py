"""Taggers on the layers of an ELMo, and the baseline that learns its own word vectors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from toy_tasks import tagged

from fastbert import cli
from fastbert.features.learned import LearnedVectorTagger, tag_with_learned_vectors
from fastbert.features.tagging import FeatureTraining, elmo_rows
from fastbert.models import registry
from fastbert.models.bilstm import BiLstmConfig
from fastbert.models.elmo.config import ElmoConfig
from fastbert.tasks.readers.conll import read_conll
from fastbert.tasks.settings import Columns
from fastbert.tokenizers import WordPieceTokenizer

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the"]


def test_the_table_has_a_row_without_elmo_and_one_per_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], one_thread: None
) -> None:
    config = ElmoConfig(
        vocab_size=len(VOCABULARY), output_size=len(VOCABULARY), hidden_size=16, intermediate_size=8,
        character_embedding_size=4, filters=(4, 8), num_highways=1,
    )  # fmt: skip
    registry.head_class(config, "ForBidirectionalLM")(config).save_pretrained(tmp_path / "model")
    WordPieceTokenizer(VOCABULARY, do_lower_case=False, split_special_tokens=True).save_pretrained(tmp_path / "model")
    train, dev = str(tagged(tmp_path / "train.conll", 12)), str(tagged(tmp_path / "dev.conll", 6, seed=1))
    arguments = ["features", "--table7", "--model", str(tmp_path / "model"), "--train", train, "--eval", dev]
    assert cli.main([*arguments, "--epochs", "1", "--hidden-size", "8", "--out", str(tmp_path / "out")]) == 0
    rows = json.loads((tmp_path / "out" / "table7.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["Learned Word Vectors", *(name for name, _, _ in elmo_rows(2))]
    assert [row["layers"] for row in rows[1:]] == [[0], [1], [2], [0, 1, 2], [0, 1, 2]]
    assert [row["mixed"] for row in rows] == [False] * 5 + [True]
    assert "ELMo: Weighted Sum of 3 Layers" in capsys.readouterr().out


def test_learned_vectors_learn_the_words_that_occur_twice(tmp_path: Path, one_thread: None) -> None:
    sets = [read_conll(str(tagged(tmp_path / "tags.conll", 40)), Columns(), labelled=True)] * 2
    row = tag_with_learned_vectors(16, *sets, FeatureTraining(hidden_size=16, num_layers=1, epochs=25, lr=2e-2))
    assert row.f1 > 90
    config = BiLstmConfig(input_size=4, num_labels=3, hidden_size=8, num_layers=1)
    tagger = LearnedVectorTagger(config, 5)
    logits = tagger(torch.tensor([0, 3, 4]).reshape(3, 1, 1), torch.tensor([2, 1]))
    assert logits.shape == (3, 3)
    tagger.eval()
    logits = tagger(torch.tensor([0, 3, 4]).reshape(3, 1, 1), torch.tensor([2, 1]))
    torch.testing.assert_close(
        logits, tagger.tagger(tagger.vectors.weight[[0, 3, 4]].unsqueeze(1), torch.tensor([2, 1]))
    )


@pytest.fixture
def one_thread(threads: None) -> None:
    torch.set_num_threads(1)

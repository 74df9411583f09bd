"""Pre-training of ELMo: its vocabulary of words, both perplexities, resume, and refusals."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pretrain_runs import stop_at, timeless, weights

import fastbert
from fastbert.data.pretraining import fold_rare
from fastbert.errors import UserError
from fastbert.models.outputs import PreTrainingOutput
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.tokenizers.words import word_tokenizer
from fastbert.training.config import PretrainConfig
from fastbert.training.device_step import StepStats, StepSums
from fastbert.training.metrics import Totals, read_metrics
from fastbert.training.pretrain import pretrain
from fastbert.training.stopping import Stopped


@pytest.fixture
def elmo(config: PretrainConfig, tmp_path: Path) -> PretrainConfig:
    """A run of a small ELMo, which makes its own vocabulary."""
    model = {
        "model_type": "elmo", "vocab_size": 40, "output_size": 30, "hidden_size": 32, "intermediate_size": 32,
        "num_hidden_layers": 2, "character_embedding_size": 8, "filters": [8, 16, 32], "num_highways": 1,
    }  # fmt: skip
    (tmp_path / "elmo.json").write_text(json.dumps(model))
    return replace(config, model=str(tmp_path / "elmo.json"), tokenizer=None, objective="bilm")


def test_both_perplexities_fall_and_the_folder_loads(elmo: PretrainConfig) -> None:
    result = pretrain(replace(elmo, steps=100, lr=1e-2, eval_every=50))
    assert result.title == "neighbouring-word"
    records = read_metrics(elmo.out / "metrics.jsonl")
    first, last = records[0], records[-1]
    for record in records:
        means = [math.log(record.forward_perplexity), math.log(record.backward_perplexity)]  # type: ignore[arg-type]
        assert record.loss == pytest.approx(sum(means) / 2)
        assert record.loss == record.mlm_loss
    # Nine words in ten follow from a neighbour, in either direction.
    for name in ("forward_perplexity", "backward_perplexity"):
        assert getattr(last, name) < 0.6 * getattr(first, name)
    assert result.validation.mlm_loss < result.unigram_cross_entropy - 0.5
    model = fastbert.load(result.model)
    assert type(model).__name__ == "ElmoForBidirectionalLM"
    tokenizer = WordPieceTokenizer.from_pretrained(result.model)
    words = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    assert len(words) == model.config.vocab_size == 36
    assert model.config.output_size == 30
    assert "." in words[5:]
    assert words[5:] == sorted(words[5:], key=lambda w: (-_count(elmo, w), w))
    _, states = next(model.elmo.states_of([["any", "word"]]))
    assert states.shape == (2, 3, 32)


def _count(config: PretrainConfig, word: str) -> int:
    text = config.corpus[0].read_text()
    return text.replace(".", " . ").split().count(word)


def test_an_interrupted_run_continues_to_the_same_bits(elmo: PretrainConfig) -> None:
    elmo = replace(elmo, dropout=0.1)
    pretrain(elmo)
    other = replace(elmo, out=elmo.out.with_name("other"))
    with pytest.raises(Stopped):
        pretrain(other, stop_at(7))
    pretrain(replace(other, resume=True))
    for name, tensor in weights(elmo.out).items():
        assert torch.equal(tensor, weights(other.out)[name]), name
    assert timeless(elmo.out) == timeless(other.out)


def test_a_preset_predicts_the_most_frequent_words(elmo: PretrainConfig, caplog: pytest.LogCaptureFixture) -> None:
    config = replace(elmo, model="tiny", steps=1, vocab_size=20, objective=None, architecture="elmo")
    pretrain(config)
    model = fastbert.load(config.out / "model")
    assert (model.config.vocab_size, model.config.output_size) == (36, 20)
    assert not [record for record in caplog.records if "repeat" not in record.getMessage()]
    with caplog.at_level(logging.WARNING, logger="fastbert"):  # a corpus that is too small
        pretrain(replace(config, vocab_size=500, architecture=None, objective="bilm", overwrite=True))
    assert "only 36 of 500 words" in caplog.text
    assert fastbert.load(config.out / "model").config.output_size == 36
    # Its tokenizer, and shards made with it, serve another run.
    shards = replace(
        config, corpus=(), data=config.out / "data", architecture="elmo", out=config.out.with_name("from-shards")
    )
    pretrain(shards)
    assert fastbert.load(shards.out / "model").config.output_size == 20


def test_refusals_name_the_cure(elmo: PretrainConfig, tmp_path: Path) -> None:
    (tmp_path / "pieces.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nab\n##cd\n")
    (tmp_path / "empty.txt").write_text("   \n")
    preset = replace(elmo, model="tiny")
    for config, message in (
        (replace(preset, architecture="bert"), "cannot have it; use --objective .* or --architecture elmo"),
        (
            replace(preset, architecture="elmo", objective="mlm"),
            "a model of elmo .* cannot have it; use --objective bilm",
        ),
        (replace(elmo, architecture="gpt2"), "--architecture gpt2, but .* has model_type='elmo'"),
        (replace(elmo, tokenizer=tmp_path / "pieces.txt"), "holds '##cd', a piece of a word"),
        (replace(elmo, corpus=(tmp_path / "empty.txt",)), "no text|no words|empty"),
    ):
        with pytest.raises(UserError, match=message):
            pretrain(config)
    with pytest.raises(UserError, match="--max-length 2 must be at least 3"):
        replace(elmo, max_length=2)
    with pytest.raises(UserError, match="the corpus holds no words"):
        word_tokenizer([" "], 10)


def test_words_beyond_the_limit_are_unknown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="fastbert"):
        tokenizer = word_tokenizer(["b b a a c [UNK]", "x" * 101], 3, limit=5)
    assert tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))[5:] == ["a", "b", "UNK", "[", "]"]
    assert "6 different words" in caplog.text
    ids, offsets = tokenizer.encode_ragged(["a B b", "c", "x" * 101, "[UNK]"])
    assert np.split(ids, offsets[1:-1])[0].tolist() == [5, 1, 6]
    assert ids[3:5].tolist() == [1, 1]
    assert ids[5:].tolist() == [8, 7, 9]
    assert fold_rare(np.array([1, 2, 3, 4, 5]), 3, 1).tolist() == [1, 11, 3]


def test_sums_of_a_direction_survive_a_checkpoint_and_a_device() -> None:
    output = PreTrainingOutput(mlm_loss_sum=torch.tensor(8.0), mlm_count=torch.tensor(4), mlm_correct=torch.tensor(1))
    totals, sums = Totals(), StepSums(torch.device("cpu"))
    totals.add(output)
    assert "forward_perplexity" not in totals.read()
    output["forward_loss_sum"] = torch.tensor(6.0)
    totals = Totals()
    totals.add(output)
    sums.add(output)
    sums.finish(torch.tensor(2.5))
    read, norm = StepStats(sums.numbers, False, sums.extras).read()
    assert norm == 2.5
    of_device = Totals()
    of_device.add(read)
    expected = {"forward_perplexity": math.exp(3.0), "backward_perplexity": math.exp(1.0)}
    for each in (totals, of_device, Totals.from_state(json.loads(json.dumps(totals.to_state())))):
        values = each.read()
        assert {name: values[name] for name in expected} == pytest.approx(expected)

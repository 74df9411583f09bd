"""Models that write, from BERT's files and from those of encoder-decoders, their own and transformers'."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from writers import BEGIN, END, KINDS, SHAPE, ragged, targets, writer

from fastbert import BertConfig, BertForMaskedLM, BertModel
from fastbert.errors import CheckpointError, UserError
from fastbert.models.seq2seq.config import SECTION, SequenceConfig
from fastbert.models.seq2seq.model import BertForSequenceToSequence, EncoderDecoder, PrefixModel

NUMBERS = {name: value for name, value in SHAPE.items() if not name.endswith("token_id")}
IDS = {"begin_token_id": BEGIN, "end_token_id": END}


def bert_folder(folder: Path, seed: int, kind: Any = BertForMaskedLM) -> Path:
    torch.manual_seed(seed)
    model = kind(BertConfig(**NUMBERS))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    model.save_pretrained(folder)
    return folder


def loss(model: BertForSequenceToSequence) -> torch.Tensor:
    (ids, mask), (target, target_mask) = ragged(5), targets(5)
    value: torch.Tensor = model(ids, target, mask, target_mask).loss.detach()
    return value


@pytest.mark.parametrize("name", KINDS)
def test_a_model_is_saved_and_read_as_it_is(name: str, seed: int, tmp_path: Path) -> None:
    model = writer(name, seed)
    model.save_pretrained(tmp_path)
    again = BertForSequenceToSequence.from_pretrained(tmp_path)
    assert type(again) is type(model)
    assert again.config == SequenceConfig.from_pretrained(tmp_path)
    assert (again.config.kind, again.config.shared) == (model.config.kind, model.config.shared)
    assert torch.equal(loss(again), loss(model))
    assert not again.new_weights
    numbers = {id(parameter) for parameter in again.parameters()}
    assert len(numbers) == len({id(parameter) for parameter in model.parameters()}), "what was shared is shared again"
    less = BertForSequenceToSequence.from_pretrained(tmp_path, hidden_dropout_prob=0.25)
    assert less.config.hidden_dropout_prob == 0.25
    assert torch.equal(loss(less), loss(model))
    twice = tmp_path / "twice"
    again.save_pretrained(twice, max_shard_size=20_000)
    assert torch.equal(loss(BertForSequenceToSequence.from_pretrained(twice)), loss(model))


def test_bert_begins_both_stacks_or_one(seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = bert_folder(tmp_path, seed)
    bert = BertForMaskedLM.from_pretrained(folder).state_dict()
    with caplog.at_level(logging.WARNING):
        copied = BertForSequenceToSequence.from_pretrained(folder, kind="bert2bert", **IDS)
    assert isinstance(copied, EncoderDecoder)
    assert "crossattention" in caplog.text
    assert all(".crossattention." in name for name in copied.new_weights)
    for name, tensor in copied.state_dict().items():
        source = (
            name.removeprefix("decoder.") if name.startswith("decoder.") else f"bert.{name.removeprefix('encoder.')}"
        )
        assert ".crossattention." in name or torch.equal(tensor, bert[source]), name
    # Both change by themselves, though they begin in the same place of a mapped file.
    first, second = copied.encoder.encoder.layer[0].output.dense, copied.decoder.bert.encoder.layer[0].output.dense
    first.weight.data.add_(1.0)
    assert not torch.equal(first.weight, second.weight)
    untouched = BertForMaskedLM.from_pretrained(folder).bert.encoder.layer[0].output.dense.weight
    assert torch.equal(second.weight, untouched)

    fresh = BertForSequenceToSequence.from_pretrained(folder, kind="decoder", decoder_layers=3, **IDS)
    assert isinstance(fresh, EncoderDecoder)
    assert fresh.decoder.bert.embeddings is fresh.encoder.embeddings
    assert all(name.startswith("decoder.bert.encoder.layer.") for name in fresh.new_weights)
    assert torch.equal(fresh.head.bias, bert["cls.predictions.bias"])

    shared = BertForSequenceToSequence.from_pretrained(folder, kind="bert2bert", sharing="all", **IDS)
    assert isinstance(shared, EncoderDecoder)
    assert shared.decoder.bert.encoder.layer[1].output is shared.encoder.encoder.layer[1].output
    assert all(".crossattention." in name for name in shared.new_weights)

    prefix = BertForSequenceToSequence.from_pretrained(folder, kind="prefix", **IDS)
    assert isinstance(prefix, PrefixModel)
    assert not prefix.new_weights
    assert all(loss(model).isfinite() for model in (copied, fresh, shared, prefix))


@pytest.mark.parametrize("kind", ["decoder", "bert2bert", "prefix"])
def test_an_encoder_without_a_head_gets_one(kind: str, seed: int, tmp_path: Path) -> None:
    model = BertForSequenceToSequence.from_pretrained(bert_folder(tmp_path, seed, BertModel), kind=kind, **IDS)
    assert any("cls.predictions.transform" in name for name in model.new_weights)
    assert loss(model).isfinite()


def test_a_prefix_model_is_a_masked_language_model(seed: int, tmp_path: Path) -> None:
    writer("prefix", seed).save_pretrained(tmp_path)
    ids, mask = ragged(seed)
    actual = BertForMaskedLM.from_pretrained(tmp_path)(input_ids=ids, attention_mask=mask).logits
    expected = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(actual[mask.bool()], expected[mask.bool()], rtol=1e-4, atol=1e-4)


def test_transformers_own_encoder_decoder_is_read(seed: int, tmp_path: Path) -> None:
    shape = {name: value for name, value in NUMBERS.items() if name not in ("begin_token_id", "end_token_id")}
    torch.manual_seed(seed)
    configs = [transformers.BertConfig(**{**shape, "num_hidden_layers": layers}) for layers in (3, 2)]
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*configs)
    config.decoder_start_token_id, config.eos_token_id, config.pad_token_id = BEGIN, END, 0
    other = transformers.EncoderDecoderModel(config).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_(0.0, 0.3)
    other.save_pretrained(tmp_path)
    model = BertForSequenceToSequence.from_pretrained(tmp_path)
    assert (model.config.num_hidden_layers, model.config.decoder_layers) == (3, 2)
    assert (model.config.begin_token_id, model.config.end_token_id) == (BEGIN, END)
    (ids, mask), (target, target_mask) = ragged(seed), targets(seed)
    actual = model(ids, target, mask, target_mask, return_logits=True).logits
    read = target_mask[:, 1:]
    expected = other(
        input_ids=ids, attention_mask=mask, decoder_input_ids=target[:, :-1], decoder_attention_mask=read
    ).logits
    torch.testing.assert_close(actual[read.bool()], expected[read.bool()], rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("unchecked_folders")
def test_files_that_do_not_fit(seed: int, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    writer("decoder", seed).save_pretrained(folder)
    weights, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())

    def changed(**changes: Any) -> None:
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    with pytest.raises(CheckpointError, match="holds an encoder-decoder"):
        BertForSequenceToSequence.from_pretrained(folder, kind="prefix", decoder_layers=None)
    with pytest.raises(UserError, match="model_type='encoder-decoder' is not supported"):
        BertForMaskedLM.from_pretrained(folder)
    changed(decoder={**config["decoder"], "hidden_size": 64})
    with pytest.raises(UserError, match="the decoder has hidden_size=64, but the encoder 32"):
        BertForSequenceToSequence.from_pretrained(folder)
    changed(encoder=None)
    with pytest.raises(UserError, match="must have an encoder and a decoder"):
        BertForSequenceToSequence.from_pretrained(folder)
    changed(**{SECTION: {"kind": "poem"}})
    with pytest.raises(UserError, match="kind='poem' is not one of"):
        BertForSequenceToSequence.from_pretrained(folder)
    changed()
    name = "decoder.bert.embeddings.word_embeddings.weight"
    save_file({**weights, name: weights[name] + 1}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"decoder.bert.embeddings.word_embeddings.weight.* is not"):
        BertForSequenceToSequence.from_pretrained(folder)
    apart = BertForSequenceToSequence.from_pretrained(folder, sharing="none")
    assert torch.equal(apart.state_dict()[name], weights[name] + 1)
    del weights["decoder.bert.encoder.layer.0.crossattention.self.query.weight"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks decoder.bert.encoder.layer.0.crossattention.self.query.weight"):
        BertForSequenceToSequence.from_pretrained(folder)


@pytest.mark.usefixtures("unchecked_folders")
def test_a_decoder_that_is_not_tied_is_refused(seed: int, tmp_path: Path) -> None:
    folder = bert_folder(tmp_path, seed)
    weights = load_file(folder / "model.safetensors")
    table = weights["bert.embeddings.word_embeddings.weight"]
    save_file({**weights, "cls.predictions.decoder.weight": table + 1}, folder / "model.safetensors")
    for kind in ("decoder", "bert2bert", "prefix"):
        with pytest.raises(CheckpointError, match="is not"):
            BertForSequenceToSequence.from_pretrained(folder, kind=kind)

"""Token embeddings that grow and shrink, and models that follow an extended tokenizer."""

import json
import logging
from pathlib import Path

import pytest
import torch
from sweeps import sweep

import fastbert
from fastbert import models
from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.models import BertForMaskedLM, BertForPreTraining, BertModel
from fastbert.models.vocabulary_extension import extend_embeddings, save_like
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.tokenizers.extension import extend_vocabulary

CONFIG = BertConfig(
    vocab_size=31, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=3
)
LETTERS = "abcdefghijkl"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BASE = [*SPECIAL, "[unused0]", "[unused1]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
HEADS = sorted(name for name in models.__all__ if name.startswith("Bert"))
IDS = torch.tensor([[2, 7, 8, 9, 20, 3]])


def make(name: str, seed: int, config: BertConfig = CONFIG) -> torch.nn.Module:
    model = getattr(models, name)(config)
    model.init_weights(seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.linspace(-0.1, 0.1, len(parameter)))
    return model.eval()


def rows_of(model: torch.nn.Module) -> list[torch.Tensor]:
    tables = [model.get_input_embeddings().weight]
    if hasattr(model, "cls") and hasattr(model.cls, "predictions"):
        assert model.cls.predictions.decoder.weight is tables[0]
        assert model.cls.predictions.decoder.bias is model.cls.predictions.bias
        tables.append(model.cls.predictions.bias)
    return tables


@sweep("name", HEADS)
@sweep(("size", "multiple", "rows"), [(40, None, 40), (31, 64, 64), (None, 8, 32), (12, None, 12), (31, None, 31)])
def test_rows_that_stay_are_kept(name: str, size: int | None, multiple: int | None, rows: int, seed: int) -> None:
    model = make(name, seed)
    before = [table.detach().clone() for table in rows_of(model)]
    embedding = model.resize_token_embeddings(size, pad_to_multiple_of=multiple)
    assert embedding is model.get_input_embeddings()
    assert embedding.num_embeddings == rows
    for old, new in zip(before, rows_of(model), strict=True):
        assert len(new) == rows
        assert new.requires_grad
        assert torch.equal(old[:rows], new[:31])
        assert not new[31:].isnan().any()
    assert float(embedding.weight[31:].detach().abs().sum()) > 0 or rows <= 31
    configs = {module.config.vocab_size for module in model.modules() if hasattr(module, "config")}
    assert configs == {rows}


def test_a_resized_model_computes_what_it_did(seed: int) -> None:
    model = make("BertForPreTraining", seed)
    before = model(input_ids=IDS).prediction_logits
    model.resize_token_embeddings(50)
    after = model(input_ids=IDS).prediction_logits
    torch.testing.assert_close(after[..., :31], before)
    assert after.shape[-1] == 50
    model.train()
    loss = model(input_ids=torch.tensor([[2, 49, 3]]), labels=torch.tensor([[-100, 49, -100]])).loss
    loss.backward()
    assert float(model.bert.embeddings.word_embeddings.weight.grad[49].abs().sum()) > 0
    assert model.cls.predictions.bias.grad.shape == (50,)


def test_frozen_and_half_precision_tables_stay_so() -> None:
    model = make("BertModel", 0).to(torch.bfloat16)
    model.get_input_embeddings().weight.requires_grad_(False)
    weight = model.resize_token_embeddings(33).weight
    assert weight.dtype == torch.bfloat16
    assert not weight.requires_grad


def test_resized_folders_load_in_transformers(tmp_path: Path, seed: int) -> None:
    transformers = pytest.importorskip("transformers")
    model = make("BertForMaskedLM", seed)
    model.resize_token_embeddings(44)
    model.save_pretrained(tmp_path)
    reference = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert reference.config.vocab_size == 44
    torch.testing.assert_close(reference(input_ids=IDS).logits, model(input_ids=IDS).logits, atol=1e-5, rtol=1e-5)
    again = BertForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(again.cls.predictions.bias, model.cls.predictions.bias)


def test_sizes_that_are_none() -> None:
    model = make("BertModel", 0)
    for size in (0, -1):
        with pytest.raises(UserError, match=f"vocab_size={size}"):
            model.resize_token_embeddings(size)
    with pytest.raises(UserError, match="pad_to_multiple_of=0"):
        model.resize_token_embeddings(40, pad_to_multiple_of=0)
    padded = make("BertModel", 0, BertConfig.from_dict({**CONFIG.to_dict(), "pad_token_id": 20}))
    with pytest.raises(UserError, match="pad_token_id=20"):
        padded.resize_token_embeddings(20)
    assert len(padded.get_input_embeddings().weight) == padded.config.vocab_size == 31


@pytest.mark.parametrize("keep_unused", [False, True])
@pytest.mark.parametrize(
    "name", ["BertModel", "BertForPreTraining", "BertForMaskedLM", "BertLMHeadModel", "BertForTokenClassification"]
)
def test_new_rows_are_the_mean_of_their_pieces(name: str, keep_unused: bool, seed: int) -> None:
    model = make(name, seed)
    before = [table.detach().clone() for table in rows_of(model)]
    extension = extend_vocabulary(WordPieceTokenizer(BASE), ["abc", "dd", "efgh"], keep_unused=keep_unused)
    extend_embeddings(model, extension)
    places = {"abc": 31, "dd": 32, "efgh": 33} if keep_unused else {"abc": 5, "dd": 6, "efgh": 31}
    ids = {token: index for index, token in enumerate(BASE)}
    pieces = {"abc": ["a", "##b", "##c"], "dd": ["d", "##d"], "efgh": ["e", "##f", "##g", "##h"]}
    for old, new in zip(before, rows_of(model), strict=True):
        assert len(new) == len(extension.tokenizer) == (34 if keep_unused else 32)
        for word, place in places.items():
            torch.testing.assert_close(new[place], old[[ids[piece] for piece in pieces[word]]].mean(0))
        untouched = [index for index in range(31) if index not in places.values()]
        assert torch.equal(new[untouched], old[untouched])


def test_nothing_new_changes_nothing(seed: int) -> None:
    model = make("BertForMaskedLM", seed)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    extend_embeddings(model, extend_vocabulary(WordPieceTokenizer(BASE), ["a"]))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("size", [30, 33, 48 + 128, 30522])
def test_a_model_of_another_vocabulary_is_refused(size: int) -> None:
    model = make("BertModel", 0, BertConfig.from_dict({**CONFIG.to_dict(), "vocab_size": size}))
    with pytest.raises(UserError, match=f"vocabulary of {size:,}, but the tokenizer has 31 entries"):
        extend_embeddings(model, extend_vocabulary(WordPieceTokenizer(BASE), ["abc"]))


def test_padding_rows_are_used_up_first() -> None:
    model = make("BertModel", 0, BertConfig.from_dict({**CONFIG.to_dict(), "vocab_size": 40}))
    old = model.get_input_embeddings().weight.detach().clone()
    extension = extend_vocabulary(WordPieceTokenizer(BASE), ["abc", "dd", "efgh"])
    extend_embeddings(model, extension)
    new = model.get_input_embeddings().weight
    assert len(new) == 40
    torch.testing.assert_close(new[31], old[list(extension.entries[2].pieces)].mean(0))
    assert torch.equal(new[32:], old[32:])


@pytest.mark.parametrize("name", HEADS)
def test_a_folder_is_loaded_with_all_its_weights(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make(name, 0).save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING, logger="fastbert"):
        model = fastbert.load(tmp_path)
    assert type(model).__name__ == name
    assert caplog.text == ""


@pytest.mark.usefixtures("unchecked_folders")
def test_an_extended_folder_keeps_what_config_json_said(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    make("BertForPreTraining", 0).save_pretrained(source)
    config = json.loads((source / "config.json").read_text())
    config |= {"architectures": ["BertForMaskedLM"], "id2label": {"0": "good", "1": "bad", "2": "ugly"}, "my_note": 1}
    (source / "config.json").write_text(json.dumps(config))
    model = fastbert.load(source)
    assert isinstance(model, BertForPreTraining)
    extension = extend_vocabulary(WordPieceTokenizer(BASE), ["abc", "dd", "efgh"])
    extend_embeddings(model, extension)
    save_like(model, source, out)
    assert json.loads((out / "config.json").read_text()) == {**config, "vocab_size": 32}
    again = BertForPreTraining.from_pretrained(out)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert BertModel.from_pretrained(out).config.num_labels == 3

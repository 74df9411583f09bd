"""From files into models: what is missing, extra or another model's; dtypes; memory."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints.toy import CONFIG, configured, header_of, save, write

from fastbert import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
    models,
)
from fastbert.errors import CheckpointError, UserError
from fastbert.models.loading import outline

pytestmark = pytest.mark.usefixtures("unchecked_folders")


def renamed(folder: Path, names: dict[str, str]) -> None:
    """Other names for tensors: each `old` in a name becomes `new`."""
    header, data = header_of(folder / "model.safetensors")
    for old, new in names.items():
        header = {name.replace(old, new): value for name, value in header.items()}
    write(folder / "model.safetensors", header, data)


def without(folder: Path, part: str) -> None:
    """The weights without those that have `part` in their names."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if part not in name}, file)


def with_more(folder: Path, **tensors: torch.Tensor) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    save_file({**load_file(file), **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}, file)


@pytest.mark.parametrize("form", ["safetensors", "shards", "zip", "stream", "tensorflow"])
def test_all_forms_hold_the_same_model(form: str, tmp_path: Path) -> None:
    expected = BertForPreTraining.from_pretrained(save(tmp_path / "whole")).state_dict()
    model = BertForPreTraining.from_pretrained(save(tmp_path / form, form), pickles=True)
    assert [name for name, value in model.state_dict().items() if not torch.equal(value, expected[name])] == []
    assert model.new_weights == ()
    assert not model.training
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight


@pytest.mark.parametrize(
    "names",
    [
        pytest.param({"bert.": ""}, id="no-prefix"),
        pytest.param({"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}, id="gamma-and-beta"),
        pytest.param({"cls.predictions.bias": "cls.predictions.decoder.bias"}, id="decoders-bias"),
    ],
)
def test_old_and_other_names_are_understood(names: dict[str, str], tmp_path: Path) -> None:
    expected = BertForPreTraining.from_pretrained(save(tmp_path / "model"), mapped=False).state_dict()
    renamed(tmp_path / "model", names)
    model = BertForPreTraining.from_pretrained(tmp_path / "model")
    assert model.new_weights == ()
    assert [name for name, value in model.state_dict().items() if not torch.equal(value, expected[name])] == []


def test_a_missing_head_is_new_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path)
    without(tmp_path, "pooler")
    with caplog.at_level(logging.INFO, logger="fastbert"):
        model = BertForSequenceClassification.from_pretrained(tmp_path, num_labels=5)
    new = ("bert.pooler.dense.bias", "bert.pooler.dense.weight", "classifier.bias", "classifier.weight")
    assert model.new_weights == new
    assert f"new weights for {', '.join(new)}" in caplog.text
    assert "not used by BertForSequenceClassification: cls.predictions.bias" in caplog.text
    assert float(model.classifier.weight.detach().abs().max()) <= 2 * CONFIG.initializer_range
    assert model.classifier.bias.tolist() == [0.0] * 5


@pytest.mark.parametrize("part", ["embeddings.LayerNorm.bias", "layer.1.attention.self.key", "position_embeddings"])
def test_a_missing_weight_of_the_encoder_is_an_error(part: str, tmp_path: Path) -> None:
    save(tmp_path)
    without(tmp_path, part)
    with pytest.raises(CheckpointError, match=rf"lacks weights of the encoder: .*{part}"):
        BertModel.from_pretrained(tmp_path)


def test_layers_that_are_left_out_are_said_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path)
    model = BertModel.from_pretrained(tmp_path, num_hidden_layers=1)
    assert len(model.encoder.layer) == 1
    assert "not used by BertModel: bert.encoder.layer.1.attention" in caplog.text


def test_position_ids_are_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path)
    with_more(tmp_path, bert__embeddings__position_ids=torch.arange(16))
    with caplog.at_level(logging.INFO, logger="fastbert"):
        BertForPreTraining.from_pretrained(tmp_path)
    assert caplog.text == ""


def test_a_decoder_of_its_own_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    words = BertForPreTraining.from_pretrained(tmp_path).bert.embeddings.word_embeddings.weight.detach()
    with_more(tmp_path, cls__predictions__decoder__weight=words.clone())
    assert BertForMaskedLM.from_pretrained(tmp_path).new_weights == ()
    with_more(tmp_path, cls__predictions__decoder__weight=words + 1)
    with pytest.raises(CheckpointError, match="is not the token embedding, but this model ties them"):
        BertForMaskedLM.from_pretrained(tmp_path)
    assert BertModel.from_pretrained(tmp_path).new_weights == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("form", ["safetensors", "tensorflow"])
def test_dtypes_are_converted_as_torch_converts_them(form: str, dtype: torch.dtype, tmp_path: Path) -> None:
    folder = save(tmp_path / "model", form)
    exact = BertForPreTraining.from_pretrained(folder).state_dict()
    model = BertForPreTraining.from_pretrained(folder, dtype=dtype)
    assert model.dtype == dtype
    for name, value in model.state_dict().items():
        assert torch.equal(value, exact[name].to(dtype)), name


def test_tables_longer_than_a_piece_are_converted(tmp_path: Path) -> None:
    model = BertModel(BertConfig.preset("tiny", vocab_size=20_011, num_hidden_layers=1))
    model.save_pretrained(tmp_path)
    low = BertModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert torch.equal(low.embeddings.word_embeddings.weight, model.embeddings.word_embeddings.weight.bfloat16())
    again = BertModel.from_pretrained(tmp_path)
    assert torch.equal(again.embeddings.word_embeddings.weight, model.embeddings.word_embeddings.weight)


@pytest.mark.parametrize("name", [name for name in models.__all__ if name.startswith("Bert")])
def test_an_outline_has_every_name_and_no_memory(name: str) -> None:
    kind = getattr(models, name)
    outlined, model = outline(kind, CONFIG), kind(CONFIG)
    assert all(parameter.is_meta for parameter in outlined.parameters())
    assert {key: value.shape for key, value in outlined.state_dict().items()} == {
        key: value.shape for key, value in model.state_dict().items()
    }
    assert len(list(outlined.parameters())) == len(list(model.parameters()))


def test_what_else_a_configuration_says_is_kept(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "id2label": {"0": "no", "1": "yes", "2": "perhaps"},
        "label2id": {"no": 0, "yes": 1, "perhaps": 2},
        "problem_type": "single_label_classification",
        "custom": {"a": [1, None]},
    }
    save(tmp_path / "a")
    configured(**fields, torch_dtype="float16", auto_map={"AutoModel": "code.Model"})(tmp_path / "a")
    model = BertForSequenceClassification.from_pretrained(tmp_path / "a")
    assert model.config.num_labels == 3
    model.save_pretrained(tmp_path / "b")
    written = json.loads((tmp_path / "b/config.json").read_text())
    assert {name: written[name] for name in fields} == fields
    assert written["architectures"] == ["BertForSequenceClassification"]
    assert not {"torch_dtype", "auto_map"} & written.keys()
    assert BertConfig.from_pretrained(tmp_path / "b").extra == model.config.extra
    fewer = BertConfig.from_dict({**model.config.to_dict(), "num_labels": 2})
    assert fewer.to_dict()["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}


def test_the_number_of_heads_is_not_guessed(tmp_path: Path) -> None:
    BertModel(BertConfig.preset("tiny", vocab_size=50, hidden_size=24, num_attention_heads=4)).save_pretrained(tmp_path)
    configured(num_attention_heads=...)(tmp_path)
    with pytest.raises(UserError, match="num_attention_heads is missing"):
        BertModel.from_pretrained(tmp_path)


MEASURED = """
import resource, sys, torch
from fastbert import BertModel
BertModel.from_pretrained(sys.argv[2], dtype=getattr(torch, sys.argv[3]))  # what is loaded once and for all
def peak(): return int(next(x for x in open("/proc/self/status") if x.startswith("VmHWM")).split()[1]) * 1024
open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
before = peak()
model = BertModel.from_pretrained(sys.argv[1], dtype=getattr(torch, sys.argv[3]))
print(peak() - before, sum(x.nbytes for x in model.parameters()))
"""


@pytest.mark.parametrize(("form", "dtype"), [("safetensors", "float32"), ("tensorflow", "bfloat16")])
def test_loading_takes_little_more_memory_than_the_weights(form: str, dtype: str, tmp_path: Path) -> None:
    small = save(tmp_path / "small", form)
    BertModel(BertConfig.preset("small")).save_pretrained(tmp_path / "large")
    folder = tmp_path / "large"
    if form == "tensorflow":
        from fastbert.checkpoints.convert import Options, convert

        folder = tmp_path / "converted"
        convert(tmp_path / "large", folder, Options(to="tensorflow"))
    command = [sys.executable, "-P", "-c", MEASURED, str(folder), str(small), dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    taken, weights = map(int, done.stdout.split())
    assert taken < 1.1 * weights + (24 << 20)  # the allocators of threads keep a few megabytes, however large the model

"""An architecture is added by a record: one line in the registry, and every part of the package has its models."""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from safetensors import safe_open

import fastbert
import fastbert.errors
from fastbert.checkpoints.convert import convert
from fastbert.config import BertConfig, config_class
from fastbert.embeddings.folder import load_embedder
from fastbert.models import registry
from fastbert.models.architecture import Architecture
from fastbert.models.bert.architecture import BERT, bert_spec
from fastbert.models.encoder import EncoderModel
from fastbert.models.heads.pretraining import ForMaskedLM
from fastbert.models.heads.sequence import ForSequenceClassification
from fastbert.models.key_map import KeyMap

transformers = pytest.importorskip("transformers")
HOME = "throw_away.modeling_odd"


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> Any:
    """transformers' BERT under another name, with modules of other names inside."""
    from transformers.models.bert import modeling_bert

    source = inspect.getsource(modeling_bert).replace("Bert", "Odd").replace("OddConfig", "BertConfig")
    for line in (
        "self.dense = nn.Linear(config.hidden_size, config.intermediate_size)",
        "hidden_states = self.dense(hidden_states)\n        hidden_states = self.intermediate_act_fn(hidden_states)",
    ):
        assert source.count(line) == 1
        source = source.replace(line, line.replace("self.dense", "self.widen"))
    module = ModuleType(HOME)
    module.__package__, module.__file__ = modeling_bert.__package__, modeling_bert.__file__
    monkeypatch.setitem(sys.modules, HOME, module)
    exec(compile(source, str(modeling_bert.__file__), "exec"), vars(module))
    return module


def test_a_record_makes_an_encoder_known(odd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=40,
    )  # fmt: skip
    model = odd.OddModel(config).eval()
    ids, mask = torch.randint(0, 50, (3, 9)), torch.ones(3, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
    with pytest.raises(fastbert.errors.UserError, match="OddModel"):
        fastbert.accelerate(model)
    layout = replace(
        BERT.layouts[0], model="OddModel", module=HOME, intermediate="intermediate.widen", prediction_head=None
    )
    monkeypatch.setitem(registry.ARCHITECTURES, "odd", replace(BERT, name="odd", layouts=(layout,)))
    fastbert.accelerate(model)
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(found[mask == 1], expected[mask == 1], rtol=1e-4, atol=1e-5)
    assert not found[mask == 0].any(), "computed by the packed encoder, whose padding is zeros"
    spec = registry.architecture("odd").spec(config)
    assert len(spec.layers) == 2
    assert spec.layers[0].self_attention.heads == 2
    fastbert.restore(model)


@config_class
class PlainConfig(BertConfig):
    """The config of a throw-away architecture: BERT without segments, under other names."""

    model_type: ClassVar[str] = "plain"
    attribute_map: ClassVar[dict[str, str]] = {"hidden_size": "d_model"}
    constants: ClassVar[frozenset[str]] = frozenset({"type_vocab_size"})
    type_vocab_size: int = 0


def test_a_record_makes_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Architecture(
        name="plain", title="Plain", spec=bert_spec, layouts=(), config=PlainConfig, class_prefix="Plain",
        base_model_prefix="plain", key_map=KeyMap((("encoder.layer.", "blocks."),)),
        heads=(ForMaskedLM, ForSequenceClassification),
    )  # fmt: skip
    monkeypatch.setitem(registry.ARCHITECTURES, "plain", record)  # the one line in the registry
    config = PlainConfig(vocab_size=34, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_labels=3)
    model = fastbert.PlainForSequenceClassification(config)
    assert type(model).__doc__.startswith("The Plain encoder with a classifier")
    model.save_pretrained(tmp_path / "a")
    with safe_open(tmp_path / "a" / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert "plain.blocks.1.output.dense.weight" in names
    assert not any("encoder" in name for name in names)
    saved = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (saved["model_type"], saved["d_model"], saved["architectures"]) == ("plain", 32, [type(model).__name__])

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(97, 123)), "the", "cat", "sat"]
    (tmp_path / "a" / "vocab.txt").write_text("\n".join(words) + "\n")
    loaded = fastbert.load(tmp_path / "a")
    assert type(loaded) is type(model)
    report = convert(tmp_path / "a", tmp_path / "b")
    assert (report.model_class, report.left_out, report.missing) == (type(model).__name__, {}, [])
    batch = fastbert.WordPieceTokenizer.from_pretrained(tmp_path / "a").pack(["the cat", "sat"])
    with torch.no_grad():
        assert torch.equal(fastbert.load(tmp_path / "b")(batch).logits, model.eval()(batch).logits)
    encoder, tokenizer, _ = load_embedder(tmp_path / "b")
    assert type(encoder) is fastbert.PlainModel
    assert encoder.embed(["the cat"], tokenizer).shape == (1, 32)
    with pytest.raises(fastbert.errors.UserError, match="'plain' has no ForTokenClassification; it has ForMaskedLM, "):
        registry.head_class(config, "ForTokenClassification")
    unsupported = replace(record, spec=lambda config: replace(bert_spec(config), shares_layers=True))
    with pytest.raises(AssertionError, match="plain: no modules for shared layers"):
        unsupported.model_class(EncoderModel)(config)


def test_specs_follow_transformers_configs() -> None:
    roberta = registry.architecture("roberta").spec(transformers.RobertaConfig())
    assert roberta.embeddings.position_offset == 2
    distilbert = registry.architecture("distilbert").spec(transformers.DistilBertConfig())
    assert (distilbert.embeddings.token_types, distilbert.pooler, len(distilbert.layers)) == (0, False, 6)
    assert distilbert.layers[0].unfused is None
    with pytest.raises(fastbert.errors.UserError, match="'odd' is not one of bert"):
        registry.architecture("odd")

"""A throw-away architecture: BERT without segments, under other names."""

from additions import Addition, Edit

ARCHITECTURE = Addition(
    new={
        "fastbert/models/plain/__init__.py": '"""Plain."""\n',
        "fastbert/models/plain/config.py": '''
"""The configuration of Plain."""

from __future__ import annotations

from typing import ClassVar

from fastbert.config import BertConfig, config_class


@config_class
class PlainConfig(BertConfig):
    """A Plain encoder: BERT without segments, under other names."""

    model_type: ClassVar[str] = "plain"
    attribute_map: ClassVar[dict[str, str]] = {"hidden_size": "d_model"}
    constants: ClassVar[frozenset[str]] = frozenset({"type_vocab_size"})
    type_vocab_size: int = 0
''',
        "fastbert/models/plain/architecture.py": '''
"""Plain as an architecture record."""

from __future__ import annotations

from fastbert.models.architecture import Architecture
from fastbert.models.bert.architecture import bert_spec
from fastbert.models.heads.pretraining import ForMaskedLM
from fastbert.models.heads.sequence import ForSequenceClassification
from fastbert.models.key_map import KeyMap
from fastbert.models.plain.config import PlainConfig

PLAIN = Architecture(
    name="plain",
    title="Plain",
    spec=bert_spec,
    layouts=(),
    config=PlainConfig,
    class_prefix="Plain",
    base_model_prefix="plain",
    key_map=KeyMap((("encoder.layer.", "blocks."),)),
    heads=(ForMaskedLM, ForSequenceClassification),
)
''',
        "tests/test_plain.py": '''
"""Every part of the package has the models of a new architecture."""

import inspect
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import fastbert
from fastbert.checkpoints.convert import convert
from fastbert.embeddings.folder import load_embedder
from fastbert.errors import UserError
from fastbert.models import registry
from fastbert.models.bert.architecture import bert_spec
from fastbert.models.encoder import EncoderModel
from fastbert.models.plain.architecture import PLAIN
from fastbert.models.plain.config import PlainConfig

CONFIG = PlainConfig(vocab_size=34, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_labels=3)


def test_its_models_are_saved_loaded_converted_and_embed(tmp_path: Path) -> None:
    model = fastbert.PlainForSequenceClassification(CONFIG)
    assert inspect.getdoc(model).startswith("The Plain encoder with a classifier")
    model.save_pretrained(tmp_path / "a")
    with safe_open(tmp_path / "a" / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert "plain.blocks.1.output.dense.weight" in names
    assert not any("encoder" in name for name in names)
    saved = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (saved["model_type"], saved["d_model"], saved["architectures"]) == ("plain", 32, [type(model).__name__])

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(97, 123)), "the", "cat", "sat"]
    (tmp_path / "a" / "vocab.txt").write_text("\\n".join(words) + "\\n")
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


def test_what_it_lacks_is_named() -> None:
    with pytest.raises(UserError, match="'plain' has no ForTokenClassification; it has ForMaskedLM, "):
        registry.head_class(CONFIG, "ForTokenClassification")
    layers = (replace(bert_spec(CONFIG).layers[0], output_norm=None),)
    unsupported = replace(PLAIN, spec=lambda config: replace(bert_spec(config), layers=layers))
    with pytest.raises(AssertionError, match="plain: no modules for layers without a norm"):
        unsupported.model_class(EncoderModel)(CONFIG)
''',
    },
    edits={
        "fastbert/models/registry.py": (
            Edit(
                "from fastbert.models.roberta.architecture import",
                "from fastbert.models.plain.architecture import PLAIN\n"
                "from fastbert.models.roberta.architecture import",
            ),
            Edit("    BERT, ROBERTA, ", "    BERT, PLAIN, ROBERTA, "),
        ),
    },
)

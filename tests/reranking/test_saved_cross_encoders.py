"""Cross-encoders that are saved with their settings: the same scores in sentence-transformers and transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from reranking_models import cross_encoder, model_folder
from saved_models import LONG, saved, texts_of, tokenizer_of

import fastbert
from fastbert import CrossEncoder
from fastbert.errors import CheckpointError, UserError
from fastbert.models import registry
from fastbert.reranking.settings import CrossEncoderSettings, read_settings
from fastbert.retrieval.saving import save_with_settings


@pytest.mark.parametrize(("family", "activation"), [("Bert", "identity"), ("Roberta", "sigmoid"), ("DistilBert", None)])
def test_scores_are_the_same_everywhere(tmp_path: Path, family: str, activation: str | None, seed: int) -> None:
    library, transformers = pytest.importorskip("sentence_transformers"), pytest.importorskip("transformers")
    lower_case = activation == "sigmoid"
    settings = CrossEncoderSettings(activation=activation, max_length=31, prompt="z y ", lower_case=lower_case)
    name = f"{family}ForSequenceClassification"
    folder = saved(tmp_path, name, seed, settings, cased=lower_case, num_labels=1)
    pairs = [("a b C d e f", text) for text in texts_of(seed)] + [(LONG, "a b"), ("", "a"), ("", "")]
    ours, theirs = CrossEncoder(folder, device="cpu", dtype="fp32"), library.CrossEncoder(str(folder), device="cpu")
    assert (ours.max_length, ours.prompt, theirs.max_seq_length) == (31, "z y ", 31)
    scores = ours.predict(pairs)
    torch.testing.assert_close(scores, torch.from_numpy(theirs.predict(pairs)), rtol=1e-5, atol=2e-6)
    is_probability = activation != "identity"
    assert bool((scores > 0).logical_and(scores < 1).all()) == is_probability
    # Elsewhere config.json has the activation.
    plain = fastbert.load(folder)
    ranked = plain.rank("z y a b", ["c", "d e"], fastbert.load_tokenizer(folder), max_length=31)
    expected = ours.predict([("a b", "c"), ("a b", "d e")])
    torch.testing.assert_close(torch.tensor([one.score for one in sorted(ranked, key=lambda r: r.index)]), expected)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    lowered = [(query.lower(), text.lower()) for query, text in pairs]
    rows = tokenizer(
        [f"z y {query}" for query, _ in lowered], [text for _, text in lowered], padding=True, max_length=31,
        truncation="longest_first", return_tensors="pt",
    )  # fmt: skip
    with torch.no_grad():
        logits = model(**{key: rows[key] for key in tokenizer.model_input_names if key in rows}).logits[:, 0]
    torch.testing.assert_close(logits.sigmoid() if is_probability else logits, scores, rtol=1e-5, atol=2e-6)


def test_settings_beside_a_saved_model(tmp_path: Path, seed: int) -> None:
    """`save` alone keeps what config.json has, and needs a classifier with one label."""
    folder = cross_encoder(tmp_path / "m", "Bert", seed, sentence_transformers={"version": "5.0.0"})
    CrossEncoderSettings(activation="torch.nn.Identity").save(folder)
    identity = "torch.nn.modules.linear.Identity"
    config = json.loads((folder / "config.json").read_text())
    assert config["sentence_transformers"] == {"version": "5.0.0", "activation_fn": identity}
    assert read_settings(folder) == CrossEncoderSettings(activation=identity)
    prompted = CrossEncoder(folder, dtype="fp32").predict([("q ", "b")])
    CrossEncoderSettings(prompt="q ").save(folder)  # the activation of config.json stays
    assert read_settings(folder) == CrossEncoderSettings(prompt="q ")
    assert torch.equal(CrossEncoder(folder, dtype="fp32").predict([("", "b")]), prompted)
    assert "activation_fn" not in json.loads((folder / "config_sentence_transformers.json").read_text())
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json: no such file"):
        CrossEncoderSettings().save(tmp_path / "empty")
    with pytest.raises(UserError, match="has 2 labels"):
        CrossEncoderSettings().save(cross_encoder(tmp_path / "two", "Bert", seed, num_labels=2))
    assert not (tmp_path / "two/modules.json").exists()


def test_a_classifier_that_was_new_is_saved_as_trained(tmp_path: Path, seed: int) -> None:
    """A model that was loaded without a classifier is a cross-encoder once it is trained."""
    plain = model_folder(tmp_path / "plain", "BertModel", seed)
    model = registry.load_with_head(plain, "ForSequenceClassification", num_labels=1)
    assert model.new_weights
    save_with_settings(model, CrossEncoderSettings(), tmp_path / "out")
    tokenizer_of().save_pretrained(tmp_path / "out")
    assert len(CrossEncoder(tmp_path / "out", dtype="fp32").predict([("a", "b")])) == 1


@pytest.mark.parametrize("wrong", [{"max_length": 3}, {"max_length": "9"}, {"prompt": None}])
def test_settings_are_checked_when_they_are_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        CrossEncoderSettings(**wrong)

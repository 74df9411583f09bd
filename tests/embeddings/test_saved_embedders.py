"""Embedders that are saved with their settings: the same vectors in sentence-transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from reranking_models import model_folder
from saved_models import OUT, PROMPTS, layer, saved, texts_of, tokenizer_of

from fastbert import load_embedder
from fastbert.embeddings.settings import Dense, EmbedSettings
from fastbert.errors import UserError
from fastbert.retrieval.saving import save_with_settings


@pytest.mark.parametrize(("family", "before"), [("Bert", False), ("Roberta", True), ("DistilBert", False)])
def test_vectors_are_the_same_in_both_libraries(tmp_path: Path, family: str, before: bool, seed: int) -> None:
    library = pytest.importorskip("sentence_transformers")
    settings = EmbedSettings(
        pooling="cls" if before else "mean", normalize=True, max_length=30, prompts=PROMPTS, default_prompt="document",
        dense=(layer(seed), Dense(layer(seed, OUT, 9).weight, torch.randn(9), "Tanh")), similarity="dot",
    )  # fmt: skip
    folder = saved(tmp_path, f"{family}Model", seed, settings, before=before)
    model, tokenizer, again = load_embedder(folder, dtype=torch.float32)
    assert (again.similarity, again.default_prompt, dict(again.prompts)) == ("dot", "document", PROMPTS)
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    assert (theirs.similarity_fn_name, theirs.max_seq_length, theirs.default_prompt_name) == ("dot", 30, "document")
    texts = texts_of(seed)
    for prompt in (None, "query"):
        expected = torch.from_numpy(theirs.encode(texts, prompt_name=prompt, show_progress_bar=False))
        vectors = model.embed(texts, tokenizer, prompt=prompt)
        torch.testing.assert_close(vectors, expected, rtol=0, atol=2e-6)
        assert (1 - torch.nn.functional.cosine_similarity(vectors, expected)).max() < 1e-6


def test_lower_case_goes_into_the_tokenizer(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedder whose folder lower-cases texts for a cased tokenizer is saved with one that does so itself."""
    library = pytest.importorskip("sentence_transformers")
    folder = saved(tmp_path, "BertModel", seed, EmbedSettings(normalize=True), cased=True)
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "do_lower_case": True}))
    monkeypatch.setenv("FASTBERT_VERIFY", "0")
    texts = ["A b É C", "a b e c", *texts_of(seed)]
    expected = torch.from_numpy(library.SentenceTransformer(str(folder), device="cpu").encode(texts))
    model, tokenizer, settings = load_embedder(folder, dtype=torch.float32)
    save_with_settings(model, settings, tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    again, own, _ = load_embedder(tmp_path / "again", dtype=torch.float32)
    theirs = library.SentenceTransformer(str(tmp_path / "again"), device="cpu").encode(texts)
    for vectors in (model.embed(texts, tokenizer), again.embed(texts, own), torch.from_numpy(theirs)):
        torch.testing.assert_close(vectors, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("stored", [None, "cosine", "manhattan", "maxsim", 3, ["dot"]])
def test_the_similarity(tmp_path: Path, stored: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of other kinds count as none, as in sentence-transformers."""
    known = stored if stored in ("cosine", "manhattan") else None
    model_folder(tmp_path, "BertModel", seed)
    model, _, _ = load_embedder(tmp_path)
    model.embed_settings = EmbedSettings(similarity=known)
    model.save_pretrained(tmp_path)
    tokenizer_of().save_pretrained(tmp_path)
    path = tmp_path / "config_sentence_transformers.json"
    values = json.loads(path.read_text())
    assert values["similarity_fn_name"] == known
    monkeypatch.setenv("FASTBERT_VERIFY", "0")
    path.write_text(json.dumps({**values, "similarity_fn_name": stored}))
    assert load_embedder(tmp_path)[2].similarity == known


def test_an_unknown_similarity_is_refused() -> None:
    with pytest.raises(UserError, match="similarity='cos' must be one of cosine, dot, euclidean, manhattan"):
        EmbedSettings(similarity="cos")

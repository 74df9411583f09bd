"""Sparse vectors beside sentence-transformers' SparseEncoder."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from embedding import random_texts
from reranking_models import PIECES, model_folder

from fastbert import SparseEncoder
from fastbert.errors import UserError
from fastbert.retrieval import sparse

pytestmark = pytest.mark.usefixtures("unchecked_folders")

LONG = " ".join("abcdefgh" * 12)
TEXTS = ["", "a, b. c!", LONG, ", ."]


def splade(folder: Path, family: str, seed: int, pooling: str = "max", activation: str = "relu") -> Any:
    """Save and return a model of sentence-transformers."""
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    plain = model_folder(folder / "plain", f"{family}ForMaskedLM", seed)
    transformer = Transformer(str(plain), transformer_task="fill-mask", max_seq_length=50)
    modules = [transformer, SpladePooling(pooling_strategy=pooling, activation_function=activation)]
    model = library.SparseEncoder(modules=modules, prompts={"query": "q ", "document": ""}, device="cpu")
    model.save_pretrained(str(folder))
    return library.SparseEncoder(str(folder), device="cpu")


@pytest.mark.parametrize(
    ("family", "pooling", "activation"),
    [
        pytest.param("Bert", "max", "relu", id="splade"),
        pytest.param("Bert", "sum", "log1p_relu", id="sum"),
        pytest.param("Roberta", "max", "log1p_relu", id="opensearch"),
        pytest.param("DistilBert", "max", "relu", id="distilled"),
    ],
)
@pytest.mark.parametrize("most_logits", [None, 3 * len(PIECES)])
def test_weights_are_those_of_sentence_transformers(
    tmp_path: Path, family: str, pooling: str, activation: str, most_logits: int | None, seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With all logits at once, and with those of three tokens."""
    if most_logits is not None:
        monkeypatch.setattr(sparse, "MOST_LOGITS", most_logits)
    theirs = splade(tmp_path, family, seed, pooling, activation)
    ours = SparseEncoder(tmp_path, device="cpu", dtype="fp32")
    texts = [*TEXTS, *random_texts(seed, 12, most=45)]
    for role, encode in (("query", theirs.encode_query), ("document", theirs.encode_document)):
        expected = encode(texts).to_dense()
        actual = ours.encode(texts, role=role)
        torch.testing.assert_close(actual.to_torch().to_dense(), expected, rtol=1e-5, atol=1e-5)
        assert (actual.weights > 0).all()
        dense = actual.to_torch().to_dense()[1].tolist()
        assert actual[1] == {index: weight for index, weight in enumerate(dense) if weight}
    assert not torch.equal(expected[0], expected[1])


def test_options_of_a_plain_folder(tmp_path: Path, seed: int) -> None:
    """The largest weights alone, the sum, the same bits in every batch, and the head of pre-training."""
    model_folder(tmp_path, "BertForMaskedLM", seed)
    encoder = SparseEncoder(tmp_path, device="cpu", dtype="fp32")
    texts = [*TEXTS, *random_texts(seed, 10)]
    whole = encoder.encode(texts)
    one = encoder.encode(iter(texts), batch_tokens=1)
    assert torch.equal(one.weights, whole.weights)
    assert torch.equal(one.token_ids, whole.token_ids)
    best = encoder.encode(texts, top_k=7)
    assert best.offsets.tolist() == list(range(0, 7 * len(texts) + 1, 7))
    for index in range(len(texts)):
        kept = sorted(whole[index].items(), key=lambda entry: (-entry[1], entry[0]))[:7]
        assert list(best[index].items()) == sorted(kept)
    summed = encoder.encode(texts, pooling="sum").to_torch().to_dense()
    assert (summed - whole.to_torch().to_dense()).min() >= -1e-5
    assert len(encoder.encode([])) == 0


def test_equal_weights_keep_the_smaller_ids() -> None:
    ids, weights = sparse._entries(torch.tensor([0.0, 2.0, 1.0, 2.0, 0.0, 2.0]), 2)
    assert (ids.tolist(), weights.tolist()) == ([1, 3], [2.0, 2.0])


def test_what_is_refused(tmp_path: Path, seed: int) -> None:
    encoder = SparseEncoder(model_folder(tmp_path / "m", "BertForMaskedLM", seed), dtype="fp32")
    for message, options in {
        "pooling='mean' must be 'max' or 'sum' for sparse": {"pooling": "mean"},
        "top_k=0 must be a whole number, at least 1": {"top_k": 0},
        "role=None must be 'query' or 'document'": {"role": None},
    }.items():
        with pytest.raises(UserError, match=message):
            encoder.encode(["a"], **options)
    with pytest.raises(UserError, match="holds no masked-LM head, so sparse vectors would be random"):
        SparseEncoder(model_folder(tmp_path / "encoder", "BertModel", seed))
    modules = [{"path": "", "type": "st.Transformer"}, {"path": "1", "type": "st.Pooling"}]
    (tmp_path / "m" / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UserError, match="the module 'Pooling' cannot be used here; supported are a Transformer with a"):
        SparseEncoder(tmp_path / "m")

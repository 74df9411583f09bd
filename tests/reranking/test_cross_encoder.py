"""Scores of cross-encoders beside sentence-transformers', rankings, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedding import random_texts, saved
from reranking_models import PIECES, POSITIONS, cross_encoder
from toys import FAMILIES

import fastbert
from fastbert import BertConfig, CrossEncoder, WordPieceTokenizer
from fastbert.benchmarks.cpu.rerank_contender import random_cross_encoder
from fastbert.errors import UserError
from fastbert.models import registry

pytestmark = pytest.mark.usefixtures("unchecked_folders")

IDENTITY = "torch.nn.modules.linear.Identity"
QUERY = "a b c d e f"
# An empty text, one that is truncated, and the query itself.
EDGES = ["", " ", " ".join("abcdefgh" * 12), QUERY]


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_sentence_transformers(tmp_path: Path, family: str, seed: int) -> None:
    library = pytest.importorskip("sentence_transformers")
    if registry.architecture(registry_name(family)).config is None:
        pytest.skip(f"{family} is accelerated, but no model of its own yet")
    keys = {"sentence_transformers": {"activation_fn": IDENTITY, "version": "5.0.0"}}
    folder = cross_encoder(tmp_path / "m", family, seed, **keys)
    pairs = [(QUERY, text) for text in [*EDGES, *random_texts(seed, 20)]]
    pairs += [(" ".join("hgfedcba" * 12), "a b"), ("", "a b"), ("", "")]
    theirs = library.CrossEncoder(str(folder), device="cpu")
    ours = CrossEncoder(folder, device="cpu", dtype="fp32")
    expected = torch.from_numpy(theirs.predict(pairs))
    torch.testing.assert_close(ours.predict(pairs), expected, rtol=1e-5, atol=1e-5)
    sigmoid = ours.predict(pairs, activation="sigmoid")
    torch.testing.assert_close(sigmoid, expected.sigmoid(), rtol=0, atol=1e-5)
    assert sigmoid.std() > 0.02


def registry_name(family: str) -> str:
    names = {"XLMRoberta": "xlm-roberta"}
    return names.get(family, family.lower())


def test_settings_of_every_release(tmp_path: Path, seed: int) -> None:
    """The activation is found where releases 6, 4 and 3 of sentence-transformers write it, and so are the length, the
    prompt and lower case; `save_pretrained` keeps the activation."""
    library = pytest.importorskip("sentence_transformers")
    pairs = [(QUERY, text) for text in [*EDGES, *random_texts(seed, 10)]]
    old = {"sbert_ce_default_activation_function": IDENTITY}
    foreign = {"sentence_transformers": {"activation_fn": "my.Softplus"}}
    folders: dict[str, Any] = {"old": (old, False), "plain": ({}, True), "foreign": (foreign, True)}
    for name, (keys, is_sigmoid) in folders.items():
        folder = cross_encoder(tmp_path / name, "Bert", seed, **keys)
        scores = CrossEncoder(folder, dtype="fp32").predict(pairs)
        torch.testing.assert_close(scores, torch.from_numpy(library.CrossEncoder(str(folder)).predict(pairs)))
        assert (scores > 0).logical_and(scores < 1).all() == is_sigmoid, name
    theirs = library.CrossEncoder(
        str(tmp_path / "plain"), activation_fn=torch.nn.Identity(), prompts={"q": "z y "}, default_prompt_name="q"
    )
    theirs.save_pretrained(str(tmp_path / "new"))
    config = tmp_path / "new" / "sentence_bert_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_seq_length": 21}))
    theirs = library.CrossEncoder(str(tmp_path / "new"))
    ours = CrossEncoder(tmp_path / "new", dtype="fp32")
    assert (ours.prompt, ours.max_length) == ("z y ", 21)
    expected = torch.from_numpy(theirs.predict(pairs))
    torch.testing.assert_close(ours.predict(pairs), expected, rtol=1e-5, atol=1e-5)
    ours.model.save_pretrained(tmp_path / "again")
    ours.tokenizer.save_pretrained(tmp_path / "again")
    again = CrossEncoder(tmp_path / "again", dtype="fp32")
    torch.testing.assert_close(again.predict([("z y " + q, t) for q, t in pairs], max_length=21), expected)
    config.write_text(json.dumps({"do_lower_case": True}))
    (tmp_path / "new" / "config_sentence_transformers.json").unlink()
    upper = [(QUERY.upper(), text.upper()) for _, text in pairs]
    cased = tmp_path / "new"
    WordPieceTokenizer(PIECES, model_max_length=POSITIONS, do_lower_case=False).save_pretrained(cased)
    lowered = CrossEncoder(cased, dtype="fp32").predict(upper)
    assert torch.equal(lowered, CrossEncoder(tmp_path / "plain", dtype="fp32").predict(pairs))


def test_a_ranking(tmp_path: Path, seed: int) -> None:
    """Best first, equal scores in the order of the texts; the same bits in every batch and from `model.rank`."""
    folder = cross_encoder(tmp_path / "m", "Bert", seed)
    model = CrossEncoder(folder, dtype="fp32")
    texts = [*random_texts(seed, 30), *EDGES, *random_texts(seed, 30)]
    scores = model.predict([(QUERY, text) for text in texts]).tolist()
    ranked = model.rank(QUERY, texts)
    assert [one.index for one in ranked] == sorted(range(len(texts)), key=lambda index: (-scores[index], index))
    assert [one.score for one in ranked] == [scores[one.index] for one in ranked]
    assert [one.text for one in ranked] == [texts[one.index] for one in ranked]
    assert model.rank(QUERY, texts, top=5) == ranked[:5]
    done: list[int] = []
    assert model.rank(QUERY, texts, top=999, batch_tokens=1, progress=done.append) == ranked
    assert done == list(range(1, len(texts) + 1))
    loaded, tokenizer = fastbert.load(folder), fastbert.load_tokenizer(folder)
    loaded.train()
    assert loaded.rank(QUERY, texts, tokenizer) == ranked
    assert loaded.training
    assert model.rank(QUERY, []) == []
    assert len(model.predict([])) == 0


def test_scores_of_models_in_16_bits_differ(tmp_path: Path, seed: int) -> None:
    """bf16 has 256 numbers from 1 to 2: logits in it would make many texts equal."""
    folder = cross_encoder(tmp_path / "m", "Roberta", seed)
    pairs = [(QUERY, text) for text in random_texts(seed, 60)]
    exact = CrossEncoder(folder, dtype="fp32").predict(pairs, activation="identity")
    model = CrossEncoder(folder, dtype="bf16")
    rounded = model.predict(pairs, activation="identity")
    torch.testing.assert_close(rounded, exact, rtol=0, atol=0.05)
    assert len(rounded.unique()) == len(exact.unique())
    assert torch.equal(model.predict(pairs, activation="identity", batch_tokens=1), rounded)


def test_what_is_refused(tmp_path: Path, seed: int) -> None:
    model = CrossEncoder(cross_encoder(tmp_path / "m", "Bert", seed), dtype="fp32")
    calls: dict[str, Any] = {
        "query='  ' is empty: give the words": lambda: model.rank("  ", ["a"]),
        "query='a.ud800' holds a lone surrogate": lambda: model.rank("a\ud800", ["a"]),
        "query must be a string, not NoneType": lambda: model.rank(None, ["a"]),  # type: ignore[arg-type]
        "texts must be a list of strings, not str": lambda: model.rank("a", "b"),
        r"texts\[1\] must be a string, not int": lambda: model.rank("a", ["b", 1]),  # type: ignore[list-item]
        r"pairs\[1\] must be a query and a text": lambda: model.predict([("a", "b"), "ab"]),  # type: ignore[list-item]
        "top=0 must be a whole number, at least 1": lambda: model.rank("a", ["b"], top=0),
        "max_length=3 must be a whole number, at least 4": lambda: model.rank("a", ["b"], max_length=3),
        "max_length=4 leaves no room for text: 4 tokens of a pair are special": lambda: model.model.rank(
            "a", ["b"], WordPieceTokenizer(PIECES, row_format="roberta"), max_length=4
        ),
        "max_length=65 is more than the 64 positions": lambda: model.rank("a", ["b"], max_length=65),
        "activation='softmax' must be 'sigmoid' or": lambda: model.rank("a", ["b"], activation="softmax"),
    }
    for message, call in calls.items():
        with pytest.raises(UserError, match=message):
            call()
    with torch.no_grad():
        model.model.classifier.bias.fill_(float("nan"))
    with pytest.raises(UserError, match=r"classifier.bias"):
        model.rank("a", ["b"])


def test_folders_that_are_refused(tmp_path: Path, seed: int) -> None:
    def embedder(folder: Path) -> None:
        cross_encoder(folder, "Bert", seed)
        modules = [{"path": "", "type": "st.Transformer"}, {"path": "1", "type": "st.Pooling"}]
        (folder / "modules.json").write_text(json.dumps(modules))

    def activated(folder: Path) -> None:
        keys = {"activation_fn": "torch.nn.modules.activation.Tanh"}
        cross_encoder(folder, "Bert", seed, sentence_transformers=keys)

    folders: dict[str, Any] = {
        "has 2 labels, and ranking needs": lambda folder: cross_encoder(folder, "Bert", seed, num_labels=2),
        "its files hold no classifier": lambda folder: headless(folder, seed),
        "the module 'Pooling' cannot be used here; name a cross-encoder": embedder,
        "the activation 'torch.nn.modules.activation.Tanh' is not supported": activated,
    }
    for index, (message, make) in enumerate(folders.items()):
        make(tmp_path / str(index))
        with pytest.raises(UserError, match=message):
            CrossEncoder(tmp_path / str(index))
    model, tokenizer = fastbert.load(saved(tmp_path / "encoder", seed)), fastbert.load_tokenizer(tmp_path / "encoder")
    with pytest.raises(UserError, match="is a BertModel, and ranking needs"):
        fastbert.rank_texts(model, "a", ["b"], tokenizer)


def headless(folder: Path, seed: int) -> None:
    """An encoder whose config.json promises one label."""
    saved(folder, seed)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "id2label": {"0": "LABEL_0"}}))


def test_int8_keeps_the_order(seed: int) -> None:
    """Kendall's tau of int8 and fp32 in MiniLM-L6's shape. Weights are random, so the classifier reads the direction in
    which the texts differ most, as a trained one does; in a random direction they hardly differ at all."""
    stats = pytest.importorskip("scipy.stats")
    config = BertConfig(
        vocab_size=len(PIECES), hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
        max_position_embeddings=64, num_labels=1,
    )  # fmt: skip
    tokenizer = WordPieceTokenizer(PIECES, model_max_length=64)
    texts = random_texts(seed, 80, most=16)
    model = random_cross_encoder(config, tokenizer, QUERY, texts, seed)

    def scores() -> np.ndarray:
        ranked = model.rank(QUERY, texts, tokenizer, activation="identity")
        return np.array([one.score for one in sorted(ranked, key=lambda one: one.index)])

    exact = scores()
    model.quantize("int8")
    for dtype in (torch.float32, torch.bfloat16):  # of the activations between the matmuls
        model.to(dtype)
        rounded = scores()
        assert not np.array_equal(exact, rounded)
        assert stats.kendalltau(exact, rounded).statistic >= 0.99, dtype

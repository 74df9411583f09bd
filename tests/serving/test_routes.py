"""Answers are those of the library, bit for bit, whatever shares their batch; wrong requests get one line."""

from __future__ import annotations

import base64
import http.client
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedding import random_texts
from pydantic import ValidationError
from served_models import KINDS, ask

import fastbert
from fastbert import _C
from fastbert.embeddings.folder import load_embedder
from fastbert.features.attention import attention_probabilities
from fastbert.ops.native import matmul_table
from fastbert.serving.http import cohere, openai, tei
from fastbert.serving.operations import texts
from fastbert.tasks.fill_mask import fill_mask

Served = tuple[str, Any]


def floats(rows: Any) -> np.ndarray:
    return np.array(rows, dtype=np.float32)


def test_embeddings_have_the_bits_of_the_library(server: Served, folders: dict[str, Path], seed: int) -> None:
    """Alone and in a crowd: requests of 1 to 40 texts at the same time, which are packed together."""
    address, _ = server
    model, tokenizer, _ = load_embedder(folders["embedder"], dtype=torch.float32)
    texts = random_texts(seed, 300)
    expected = fastbert.BertModel.embed(model, texts, tokenizer, pooling="mean", normalize=True).numpy()
    plain = fastbert.BertModel.embed(model, texts[:3], tokenizer).numpy()
    answers: dict[int, Any] = {}

    def send(first: int, count: int) -> None:
        answers[first] = ask(address, "/embed", {"inputs": texts[first : first + count], "truncate": True})

    threads, first = [], 0
    for count in (1, 40, 1, 7, 1, 1, 64, 2, 1, 30, 1, 64, 1, 1, 64, 20):
        threads.append(threading.Thread(target=send, args=(first, count)))
        first += count
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for begin, (status, vectors, _) in answers.items():
        assert status == 200, vectors
        assert np.array_equal(floats(vectors), expected[begin : begin + len(vectors)])
    assert sum(len(vectors) for _, vectors, _ in answers.values()) == min(first, len(texts))
    body = {"inputs": texts[:3], "normalize": False, "truncate": True}
    assert np.array_equal(floats(ask(address, "/embed", body)[1]), plain)


def test_other_forms_of_embeddings(server: Served, folders: dict[str, Path]) -> None:
    address, _ = server
    model, tokenizer, _ = load_embedder(folders["embedder"], dtype=torch.float32)
    texts = ["a b c", "d"]
    expected = fastbert.BertModel.embed(model, texts, tokenizer, normalize=True).numpy()
    _, answer, _ = ask(address, "/v1/embeddings", {"input": texts, "model": "embedder", "encoding_format": "base64"})
    decoded = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in answer["data"]]
    assert np.array_equal(np.stack(decoded), expected)
    assert answer["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
    assert [row["index"] for row in answer["data"]] == [0, 1]
    ids = [tokenizer.encode(text) for text in texts]
    for of_ids in (ids, [row[1:-1] for row in ids]):  # with special tokens and without
        assert np.array_equal(floats(ask(address, "/embed", {"inputs": of_ids})[1]), expected)
    assert np.array_equal(floats(ask(address, "/embed", {"inputs": ids[0]})[1]), expected[:1])
    short = floats(ask(address, "/embed", {"inputs": texts, "dimensions": 8})[1])
    assert np.allclose(short, expected[:, :8] / np.linalg.norm(expected[:, :8], axis=1, keepdims=True), atol=1e-6)
    body = {"model": "embedder", "texts": texts, "embedding_types": ["float", "ubinary", "base64"]}
    _, answer, _ = ask(address, "/v2/embed", body)
    assert np.array_equal(floats(answer["embeddings"]["float"]), expected)
    assert answer["embeddings"]["ubinary"] == np.packbits(expected > 0, axis=1).tolist()
    similar = ask(address, "/similarity", {"inputs": {"source_sentence": texts[0], "sentences": texts}})[1]
    assert np.allclose(similar, expected @ expected[0], atol=1e-6)
    states = floats(ask(address, "/embed_all", {"inputs": texts[1], "model": "embedder"})[1][0])
    with torch.no_grad(), matmul_table.same_in_every_batch():
        assert np.array_equal(states, model.encode(tokenizer.pack(texts[1:]))[0].numpy())


def test_long_texts(server: Served, folders: dict[str, Path]) -> None:
    """Truncated by default, as text-embeddings-inference does, on either side, or refused."""
    address, context = server
    model, tokenizer, _ = load_embedder(folders["embedder"], dtype=torch.float32)
    most = context.models["embedder"].max_length
    words = [chr(97 + index % 26) for index in range(3 * most)]
    body = {"inputs": ["a", " ".join(words)]}
    default = ask(address, "/embed", body)[1]
    assert np.array_equal(default, ask(address, "/embed", body | {"truncate": True})[1])
    status, answer, _ = ask(address, "/embed", body | {"truncate": False})
    assert (status, answer["error_type"]) == (413, "Validation")
    assert f"inputs[1] has more than {most} tokens" in answer["error"]
    for side, part in (("right", words[: most - 2]), ("Left", words[2 - most :])):
        body = {"inputs": " ".join(words), "truncate": True, "truncation_direction": side}
        expected = fastbert.BertModel.embed(model, [" ".join(part)], tokenizer, normalize=True).numpy()
        assert np.array_equal(floats(ask(address, "/embed", body)[1]), expected)


def test_kinds(server: Served, folders: dict[str, Path]) -> None:
    """Each kind answers its routes with what the library computes."""
    address, context = server
    assert {name: served.kind for name, served in context.models.items()} == KINDS
    texts = ["a b", "c", "d e f"]
    ranked = fastbert.CrossEncoder(folders["reranker"], dtype="fp32").rank("a", texts)
    answer = ask(address, "/rerank", {"query": "a", "texts": texts, "return_text": True})[1]
    assert [(row["index"], row["text"]) for row in answer] == [(row.index, row.text) for row in ranked]
    assert floats([row["score"] for row in answer]).tolist() == floats([row.score for row in ranked]).tolist()
    raw = ask(address, "/rerank", {"query": "a", "texts": texts, "raw_scores": True})[1]
    assert np.allclose(
        1 / (1 + np.exp(-floats([row["score"] for row in raw]))), [row.score for row in ranked], atol=1e-6
    )

    expected = fastbert.predict(folders["classifier"], texts, task="classification", dtype="fp32")
    answer = ask(address, "/predict", {"model": "classifier", "inputs": texts})[1]
    for row, prediction in zip(answer, expected, strict=True):
        assert row[0]["label"] == prediction["label"]
        assert {each["label"]: round(each["score"], 5) for each in row} == {
            label: round(value, 5) for label, value in prediction["probabilities"].items()
        }
    single = ask(address, "/predict", {"model": "classifier", "inputs": texts[0]})[1]
    assert single == answer[0]
    pair = ask(address, "/predict", {"model": "classifier", "inputs": ["a", "b"]})[1]
    mixed = ask(address, "/predict", {"model": "classifier", "inputs": [["a", "b"], ["a b"]]})[1]
    assert mixed == [pair, single]

    expected = fastbert.predict(folders["reader"], [("who", "a b c d")], task="span", dtype="fp32")
    assert ask(address, "/predict", {"model": "reader", "inputs": [["who", "a b c d"]]})[1] == expected
    expected = fastbert.predict(folders["tagger"], ["a b c"], task="tagging", dtype="fp32")
    assert ask(address, "/predict", {"model": "tagger", "inputs": ["a b c"]})[1] == expected
    entities = ask(address, "/token_classification", {"inputs": ["a b, c", ""]})[1]
    assert entities[1] == []
    assert all("a b, c"[each["start"] : each["end"]] == each["word"] for each in entities[0])
    joined = fastbert.predict(folders["tagger"], [["a", "b", ",", "c"]], task="tagging", dtype="fp32")[0]
    assert [each["entity_group"] for each in entities[0]] == [each["type"] for each in joined["entities"]]

    model, tokenizer = fastbert.load(folders["masked"]), fastbert.load_tokenizer(folders["masked"])
    text = "good [MASK] film [MASK]"
    expected = fill_mask(model, tokenizer, text, 3)
    answer = ask(address, "/fill_mask", {"inputs": text, "top_k": 3})[1]
    assert [[each["sequence"] for each in blank] for blank in answer] == [
        [each.text for each in blank] for blank in expected
    ]
    assert np.allclose([[each["score"] for each in blank] for blank in answer],
                       [[each.probability for each in blank] for blank in expected], atol=1e-6)  # fmt: skip

    vectors = fastbert.SparseEncoder(folders["splade"], dtype="fp32").encode(texts)
    answer = ask(address, "/embed_sparse", {"inputs": texts})[1]
    for index, row in enumerate(answer):
        entries = slice(*vectors.offsets[index : index + 2].tolist())
        assert [each["index"] for each in row] == vectors.token_ids[entries].tolist()
        assert np.array_equal(floats([each["value"] for each in row]), vectors.weights[entries].numpy())
    tokens = fastbert.TokenEncoder(folders["colbert"], dtype="fp32").encode(texts, role="query")
    answer = ask(address, "/embed_all", {"model": "colbert", "inputs": texts, "prompt_name": "query"})[1]
    assert all(np.array_equal(floats(row), tokens[index].numpy()) for index, row in enumerate(answer))


def test_pipelines(server: Served) -> None:
    """The addresses of Hugging Face's inference API, whose answers depend on the model's kind."""
    address, _ = server
    assert np.array_equal(ask(address, "/", {"inputs": "a"})[1], ask(address, "/embed", {"inputs": "a"})[1])
    assert len(ask(address, "/models/masked", {"inputs": "good [MASK]", "parameters": {"top_k": 2}})[1]) == 2
    assert ask(address, "/models/classifier", {"inputs": "a"})[1][0][0].keys() == {"label", "score"}
    assert ask(address, "/models/tagger", {"inputs": "a"})[1][0]["word"] == "a"
    body = {"inputs": {"source_sentence": "a", "sentences": ["a", "b"]}}
    assert ask(address, "/models/embedder/pipeline/sentence-similarity", body)[1][0] == pytest.approx(1, abs=1e-6)
    assert ask(address, "/models/reranker/rerank", {"query": "a", "texts": ["b"]})[0] == 200


def test_texts_and_tokens(server: Served, folders: dict[str, Path]) -> None:
    address, _ = server
    model, tokenizer, _ = load_embedder(folders["embedder"], dtype=torch.float32)
    text = "ab c"
    tokens = ask(address, "/tokenize", {"inputs": text})[1][0]
    assert [token["id"] for token in tokens] == tokenizer.encode(text)
    assert [text[token["start"] : token["stop"]] for token in tokens if not token["special"]] == ["a", "b", "c"]
    assert [token["start"] for token in tokens if token["special"]] == [None, None]
    assert ask(address, "/decode", {"ids": [token["id"] for token in tokens]})[1] == ["ab c"]
    maps = attention_probabilities(model, tokenizer.pack([text]), 0)
    for head, expected in ((None, maps.mean(0)), (1, maps[1])):
        answer = ask(address, "/attention", {"inputs": text, "layer": 0, "head": head})[1]
        assert np.allclose(answer["attention"], expected.numpy(), atol=1e-5)
    assert np.allclose(maps.sum(-1).numpy(), 1, atol=1e-5)


def test_status(server: Served) -> None:
    address, _ = server
    assert ask(address, "/health")[:2] == (200, b"")
    head = http.client.HTTPConnection(address.removeprefix("http://"), timeout=20)
    head.request("HEAD", "/health")
    assert head.getresponse().status == 200
    head.close()
    info = ask(address, "/info")[1]
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert {model["name"]: model["kind"] for model in info["models"]} == KINDS
    assert [model["id"] for model in ask(address, "/v1/models")[1]["data"]] == list(KINDS)
    ask(address, "/embed", {"inputs": "a"})
    metrics = ask(address, "/metrics")[1].decode()
    assert 'fastbert_requests_total{route="/embed",status="200"}' in metrics
    for name in ("queue_seconds", "request_tokens", "batch_fill", "batch_tokens", "request_seconds"):
        assert f"fastbert_{name}_bucket" in metrics
    stats = ask(address, "/stats")[1]
    assert stats["requests"] > 0
    assert stats["queued_tokens"] == stats["running_requests"] == 0
    paths = ask(address, "/openapi.json")[1]["paths"]
    assert {"/embed", "/rerank", "/predict", "/v1/embeddings", "/v2/rerank", "/health", "/metrics"} <= paths.keys()


WRONG: tuple[tuple[str, Any, int, str], ...] = (
    ("/embed", b"{", 422, "not JSON"),
    ("/embed", b"", 422, "not JSON"),
    ("/embed", {}, 422, "inputs must be"),
    ("/embed", {"inputs": 5}, 422, "inputs must be"),
    ("/embed", {"inputs": [["a"]]}, 422, "inputs must be"),
    ("/embed", b'{"inputs": "\\ud800"}', 422, "not JSON"),
    ("/embed", {"inputs": []}, 400, "inputs is empty"),
    ("/embed", {"inputs": "a", "dimensions": 0}, 422, "dimensions"),
    ("/embed", b'{"inputs": "a", "dimensions": NaN}', 422, "dimensions"),
    ("/embed", {"inputs": "a", "dimensions": 33}, 422, "more than the 32"),
    ("/embed", {"inputs": "a", "prompt_name": "x"}, 422, "prompt_name='x' is unknown"),
    ("/embed", {"inputs": "a", "model": "nobody"}, 404, "model 'nobody' is not served here"),
    ("/embed", {"inputs": "a", "model": "reranker"}, 424, "kind reranker"),
    ("/embed", {"inputs": [[4, 99999]]}, 422, "token id 99999"),
    ("/embed", {"inputs": [[-1]]}, 422, "inputs must be"),
    ("/embed", {"inputs": ["a"] * 65}, 413, "the limit is 64"),
    ("/embed", {"inputs": "a" * 300_000}, 413, "larger than 200000 bytes"),
    ("/embed", {"inputs": [[1]] * 30_000}, 413, "the body has 30002 lists and objects and 29999 commas"),
    ("/embed", {"inputs": "a", "normalize": "yes"}, 422, "normalize"),
    ("/rerank", {"query": " ", "texts": ["a"]}, 422, "query is empty"),
    ("/rerank", {"query": "a", "texts": []}, 400, "texts is empty"),
    ("/rerank", {"query": "a", "texts": [1]}, 422, "texts must be"),
    ("/predict", {"inputs": [["a", "b", "c"]], "model": "classifier"}, 422, "inputs[0] must be"),
    ("/predict", {"inputs": [1], "model": "reader"}, 422, "item 0 is 1"),
    ("/fill_mask", {"inputs": "good"}, 422, "no [MASK] in 'good'"),
    ("/fill_mask", {"inputs": "good [MASK]", "top_k": 0}, 422, "top_k"),
    ("/fill_mask", {"inputs": "good [MASK]", "top_k": 1000}, 422, "top_k=1000"),
    ("/fill_mask", {"inputs": ["[MASK] " * 60] * 64, "top_k": 6}, 413, "23040 candidates"),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 400, "empty"),
    ("/decode", {"ids": [10**6]}, 422, "ids holds 1000000"),
    ("/attention", {"inputs": "a", "layer": 7}, 422, "layer=7"),
    ("/attention", {"inputs": "a", "head": 7}, 422, "head=7"),
    ("/attention", {"inputs": "a " * 300}, 413, "attention is computed of at most"),
    ("/embed/", {"inputs": "a"}, 404, "/embed/ is not a path"),
    ("/nowhere", {"inputs": "a"}, 404, "/nowhere is not a path"),
    ("/embed", None, 405, "/embed is for POST"),
)


def test_wrong_requests(server: Served) -> None:
    address, _ = server
    for path, body, expected, message in WRONG:
        status, answer, _ = ask(address, path, body)
        shown = str(body)[:60]
        assert status == expected, (path, shown, answer)
        assert message in answer["error"], (path, shown, answer)
        assert "\n" not in answer["error"]
        assert len(answer["error"]) <= 400
    status, answer, _ = ask(address, "/v1/embeddings", {"input": "a", "model": "gpt"})
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    status, answer, _ = ask(address, "/v2/embed", {"texts": ["a"], "embedding_types": ["int8"]})
    assert (status, answer.keys()) == (422, {"message"})
    status, answer, _ = ask(address, "/embed", b'{"inputs": "a"}', {"Content-Type": "text/plain"})
    assert status == 415
    assert json.dumps(answer).count("application/json") == 1


def test_structure_is_what_is_outside_of_strings() -> None:
    for text, counts in (
        (b"", (0, 0)), (b'[1, [2, {"a": "[,{"}]]', (3, 2)), (b'["\\"[,", "\\\\", []]', (2, 2)), (b'["[,', (1, 0)),
        (b'["\\', (1, 0)),
    ):  # fmt: skip
        assert _C.json_structure(text) == counts, text


def test_wrong_lists_are_described_once() -> None:
    """A list's first mistake ends it: a description of each would take the event loop seconds and gigabytes."""
    for schema, field in (
        (tei.EmbedRequest, "inputs"), (tei.EmbedTokensRequest, "inputs"), (tei.TokenizeRequest, "inputs"),
        (tei.FillMaskRequest, "inputs"), (tei.TagRequest, "inputs"), (tei.DecodeRequest, "ids"),
        (tei.RerankRequest, "texts"), (openai.EmbeddingsRequest, "input"), (cohere.CohereEmbedRequest, "texts"),
        (cohere.CohereEmbedRequest, "embedding_types"), (cohere.CohereRerankRequest, "documents"),
    ):  # fmt: skip
        for item in (1.5, None, [None], {}):
            body = {"query": "a", field: [item] * 1000}
            if schema is cohere.CohereRerankRequest and item == {}:
                continue  # an object, whose text the handler looks for
            with pytest.raises(ValidationError) as caught:
                schema.model_validate_json(json.dumps(body))
            assert caught.value.error_count() <= 8, (schema, item)
    with pytest.raises(ValidationError) as caught:
        tei.SimilarityRequest.model_validate_json('{"inputs": {"source_sentence": "a", "sentences": [1, 2, 3]}}')
    assert caught.value.error_count() == 1


def test_vectors_of_tokens_are_limited(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer with a vector per token is some hundred times as long as its request."""
    address, _ = server
    monkeypatch.setattr(texts, "MOST_NUMBERS", 600)
    for model in ("embedder", "colbert"):
        status, answer, _ = ask(address, f"/models/{model}/embed_all", {"inputs": ["a b c"] * 8})
        assert (status, "where each has a vector" in answer["error"]) == (413, True), model
        assert ask(address, f"/models/{model}/embed_all", {"inputs": "a b c"})[0] == 200

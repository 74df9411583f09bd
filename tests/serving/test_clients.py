"""The public clients of each wire format, unchanged, get the library's results, and errors as their own exceptions."""

from __future__ import annotations

import base64
import dataclasses
import importlib.util
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastbert
from fastbert.embeddings.folder import load_embedder
from fastbert.serving.config import BearerTokens
from fastbert.tasks.fill_mask import fill_mask

TOKEN = "0123456789abcdef-client"
TEXTS = ["a b c", "d", "e f a b"]
Served = tuple[str, Any]


@pytest.fixture(scope="module")
def embedder(folders: dict[str, Path]) -> Any:
    """The model and tokenizer of the served embedder."""
    return load_embedder(folders["embedder"], dtype=torch.float32)[:2]


def embedded(embedder: Any, texts: list[str], **options: Any) -> np.ndarray:
    """Return the library's vectors, (texts, 32)."""
    model, tokenizer = embedder
    vectors: np.ndarray = fastbert.BertModel.embed(model, texts, tokenizer, **{"normalize": True, **options}).numpy()
    return vectors


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Hugging Face's client send requests, of which all go to this machine."""
    if importlib.util.find_spec("huggingface_hub") is not None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


@pytest.fixture
def guarded(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """The server, which requires a token."""
    path = tmp_path / "tokens"
    path.write_text(TOKEN)
    path.chmod(0o600)
    monkeypatch.setattr(server[1], "tokens", BearerTokens.read(path))
    return server


@pytest.fixture
def full(server: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """The server, whose queue is full."""
    scheduler = server[1].scheduler
    monkeypatch.setattr(scheduler, "limits", dataclasses.replace(scheduler.limits, max_queue_jobs=0))
    return server


def test_openai(server: Served, embedder: Any) -> None:
    """The client asks for base64 by default and decodes it."""
    openai = pytest.importorskip("openai")
    address, context = server
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    create = client.embeddings.create
    expected = embedded(embedder, TEXTS)
    for options in ({}, {"encoding_format": "float"}):
        answer = create(model="embedder", input=TEXTS, user="someone", **options)
        assert np.array_equal(np.array([row.embedding for row in answer.data], dtype=np.float32), expected)
        assert [row.index for row in answer.data] == [0, 1, 2]
        assert (answer.model, answer.object) == ("embedder", "list")
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, map(embedder[1].encode, TEXTS)))
    assert np.array_equal(np.float32(create(model="embedder", input="d").data[0].embedding), expected[1])
    ids = [embedder[1].encode(text, add_special_tokens=False) for text in TEXTS]
    for sent, rows in ((ids, expected), (ids[0], expected[:1])):
        answer = create(model="embedder", input=sent)
        assert np.array_equal(np.array([row.embedding for row in answer.data], dtype=np.float32), rows)
    short = np.float32(create(model="embedder", input="d", dimensions=8).data[0].embedding)
    assert np.allclose(short, expected[1, :8] / np.linalg.norm(expected[1, :8]), atol=1e-6)
    assert [model.id for model in client.models.list()] == [name for name, _ in context.names]
    for sent, kind, message in (
        ({"model": "gpt", "input": "a"}, openai.NotFoundError, "model 'gpt' is not served here"),
        ({"model": "embedder", "input": []}, openai.BadRequestError, "input is empty"),
        ({"model": "embedder", "input": "a", "dimensions": 33}, openai.UnprocessableEntityError, "dimensions=33"),
        ({"model": "embedder", "input": "a" * 900_000}, openai.APIStatusError, "larger than 200000 bytes"),
    ):
        with pytest.raises(kind, match=message) as problem:
            create(**sent)
        assert problem.value.body["message"] in str(problem.value)
    assert problem.value.status_code == 413
    assert create(model="embedder", input="d").data  # on a new connection


def test_openai_refused(guarded: Served, full: Served) -> None:
    openai = pytest.importorskip("openai")
    address, _ = guarded
    for key, kind in (("wrong", openai.AuthenticationError), (TOKEN, openai.RateLimitError)):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)
        with pytest.raises(kind) as problem:
            client.embeddings.create(model="embedder", input="a")
    assert int(problem.value.response.headers["retry-after"]) >= 1


def addresses(server: Served, name: str) -> Iterator[Any]:
    """Yield clients of the server's address, for its first model, and of a model's address."""
    hub = pytest.importorskip("huggingface_hub")
    address, context = server
    yield hub.InferenceClient(f"{address}/models/{name}")
    if name == next(iter(context.models)):
        yield hub.InferenceClient(address)


def test_hub_embeddings(server: Served, embedder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, context = server
    monkeypatch.setitem(context.models["embedder"].prompts, "question", "e f ")
    most = context.models["embedder"].max_length
    long = " ".join("abcdef"[index % 6] for index in range(most + 40))
    expected = embedded(embedder, TEXTS)
    count = 0
    for client in addresses(server, "embedder"):
        count += 1
        assert np.array_equal(client.feature_extraction(TEXTS[0]), expected[:1])
        assert np.array_equal(client.feature_extraction(TEXTS), expected)  # what LangChain does
        plain = client.feature_extraction(TEXTS[1], normalize=False)
        assert np.array_equal(plain, embedded(embedder, TEXTS[1:2], normalize=False))
        prompted = client.feature_extraction("a b", prompt_name="question")
        assert np.array_equal(prompted, embedded(embedder, TEXTS[2:]))
        assert client.feature_extraction("a b", dimensions=5).shape == (1, 5)
        for side, words in (("right", long.split()[: most - 2]), ("left", long.split()[2 - most :])):
            vectors = client.feature_extraction(long, truncate=True, truncation_direction=side)
            assert np.array_equal(vectors, embedded(embedder, [" ".join(words)])), side
        scores = client.sentence_similarity(TEXTS[0], other_sentences=TEXTS)
        assert np.allclose(scores, expected @ expected[0], atol=1e-6)
        with pytest.raises(Exception, match="413") as problem:
            client.feature_extraction(long, truncate=False)
        assert "has more than" in problem.value.server_message
    assert count == 2


def test_hub_tasks(server: Served, folders: dict[str, Path]) -> None:
    """Options that would change the answer are applied or refused, never ignored."""
    for client in addresses(server, "classifier"):
        expected = fastbert.predict(folders["classifier"], TEXTS[:1], task="classification", dtype="fp32")[0]
        answer = client.text_classification(TEXTS[0])
        assert answer[0].label == expected["label"]
        assert {each.label: each.score for each in answer} == pytest.approx(expected["probabilities"], abs=1e-5)
        assert [each.label for each in client.text_classification(TEXTS[0], top_k=2)] == [
            each.label for each in answer[:2]
        ]
        raw = {each.label: each.score for each in client.text_classification(TEXTS[0], function_to_apply="none")}
        apart = {each.label: each.score for each in client.text_classification(TEXTS[0], function_to_apply="sigmoid")}
        assert apart == pytest.approx({label: 1 / (1 + np.exp(-score)) for label, score in raw.items()}, abs=1e-6)
        joined = client.text_classification(TEXTS[0], function_to_apply="softmax")
        assert [each.score for each in joined] == pytest.approx([each.score for each in answer], abs=1e-6)
        with pytest.raises(Exception, match="422"):
            client.text_classification(TEXTS[0], top_k=0)
    for client in addresses(server, "tagger"):
        text = "a b, c"
        entities = client.token_classification(text)
        expected = fastbert.predict(folders["tagger"], [["a", "b", ",", "c"]], task="tagging", dtype="fp32")[0]
        assert [each.entity_group for each in entities] == [each["type"] for each in expected["entities"]]
        assert all(text[each.start : each.end] == each.word for each in entities)
        assert client.token_classification(text, aggregation_strategy="simple") == entities
        assert client.token_classification(text, ignore_labels=["PER"]) == []
        with pytest.raises(Exception, match="422") as problem:
            client.token_classification(text, aggregation_strategy="none")
        assert "aggregation_strategy" in problem.value.server_message
    for client in addresses(server, "masked"):
        model, tokenizer = fastbert.load(folders["masked"]), fastbert.load_tokenizer(folders["masked"])
        blank = fill_mask(model, tokenizer, "good [MASK]", 3)[0]
        answer = client.fill_mask("good [MASK]", top_k=3)
        assert [each.sequence for each in answer] == [each.text for each in blank]
        assert [each.token for each in answer] == [each.token_id for each in blank]
        assert [each.score for each in answer] == pytest.approx([each.probability for each in blank], abs=1e-6)
        assert len(client.fill_mask("good [MASK]")) == 5
        with pytest.raises(Exception, match="422") as problem:
            client.fill_mask("good [MASK]", targets=["bad"])
        assert "targets" in problem.value.server_message


def test_hub_refused(guarded: Served) -> None:
    hub = pytest.importorskip("huggingface_hub")
    address, _ = guarded
    assert hub.InferenceClient(address, token=TOKEN).feature_extraction("a").shape == (1, 32)
    with pytest.raises(hub.errors.HfHubHTTPError, match="401"):
        hub.InferenceClient(address, token="hf_wrong").feature_extraction("a")


def test_cohere(server: Served, embedder: Any, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    cohere = pytest.importorskip("cohere")
    address, context = server
    client = cohere.ClientV2("none", base_url=address)
    expected = embedded(embedder, TEXTS)
    kinds = ["float", "base64", "ubinary", "binary"]
    answer = client.embed(model="embedder", texts=TEXTS, input_type="search_document", embedding_types=kinds)
    vectors = answer.embeddings
    assert np.array_equal(np.array(vectors.float_, dtype=np.float32), expected)
    decoded = [np.frombuffer(base64.b64decode(row), "<f4") for row in vectors.base64]
    assert np.array_equal(np.stack(decoded), expected)
    bits = np.packbits(expected > 0, axis=1)
    assert vectors.ubinary == bits.tolist()
    assert vectors.binary == (bits.astype(int) - 128).tolist()
    assert answer.texts == TEXTS
    assert answer.meta.billed_units.input_tokens > 0
    monkeypatch.setitem(context.models["embedder"].prompts, "query", "e f ")
    answer = client.embed(model="embedder", texts=["a b"], input_type="search_query", output_dimension=8)
    part = expected[2, :8]
    assert np.allclose(answer.embeddings.float_, part / np.linalg.norm(part), atol=1e-6)
    contents = [{"content": [{"type": "text", "text": TEXTS[0]}]}]
    answer = client.embed(model="embedder", inputs=contents, input_type="classification", embedding_types=["float"])
    assert np.array_equal(np.array(answer.embeddings.float_, dtype=np.float32), expected[:1])

    ranked = fastbert.CrossEncoder(folders["reranker"], dtype="fp32").rank("a", TEXTS)
    answer = client.rerank(model="reranker", query="a", documents=TEXTS, top_n=2)
    assert [row.index for row in answer.results] == [row.index for row in ranked[:2]]
    scores = [row.relevance_score for row in answer.results]
    assert scores == pytest.approx([row.score for row in ranked[:2]], abs=1e-6)
    assert answer.meta.billed_units.search_units == 1
    for kind, call, options in (
        (cohere.NotFoundError, client.rerank, {"model": "nobody", "documents": TEXTS, "query": "a"}),
        (cohere.BadRequestError, client.rerank, {"model": "reranker", "documents": [], "query": "a"}),
        (cohere.UnprocessableEntityError, client.rerank, {"model": "reranker", "documents": TEXTS, "query": " "}),
        (
            cohere.UnprocessableEntityError, client.embed,
            {"model": "embedder", "texts": TEXTS, "input_type": "search_query", "embedding_types": ["int8"]},
        ),
    ):  # fmt: skip
        with pytest.raises(kind) as problem:
            call(**options, request_options={"max_retries": 0})
        assert problem.value.body["message"]


def test_cohere_refused(guarded: Served, full: Served) -> None:
    cohere = pytest.importorskip("cohere")
    for key, kind in (("wrong", cohere.UnauthorizedError), (TOKEN, cohere.TooManyRequestsError)):
        client = cohere.ClientV2(key, base_url=guarded[0])
        with pytest.raises(kind):
            client.rerank(model="reranker", query="a", documents=TEXTS, request_options={"max_retries": 0})


def test_langchain(server: Served, embedder: Any) -> None:
    """LangChain's class takes names of the Hub alone: its client is replaced by one for the server's address."""
    langchain = pytest.importorskip("langchain_huggingface")
    hub = pytest.importorskip("huggingface_hub")
    embeddings = langchain.HuggingFaceEndpointEmbeddings(model="some/model", huggingfacehub_api_token="none")
    embeddings.client = hub.InferenceClient(server[0])
    expected = embedded(embedder, TEXTS)
    assert np.array_equal(np.float32(embeddings.embed_documents([f"{TEXTS[0]}\n", *TEXTS[1:]])), expected)
    assert np.array_equal(np.float32(embeddings.embed_query(TEXTS[0])), expected[0])


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(server: Served, embedder: Any) -> None:
    address, _ = server

    def curl(*options: str, body: str = "") -> tuple[int, str]:
        command = ["curl", "-sS", "-m", "20", "-w", "\n%{http_code}", *options]
        done = subprocess.run(command, input=body, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        answer, _, status = done.stdout.rpartition("\n")
        return int(status), answer

    json_body = ["-H", "Content-Type: application/json", "-d"]
    expected = embedded(embedder, TEXTS)
    for options in (
        [],
        ["--http1.0"],
        ["--http2"],
        ["-H", "Expect: 100-continue"],
        ["-H", "Transfer-Encoding: chunked"],
    ):
        status, answer = curl(f"{address}/embed", *options, *json_body, json.dumps({"inputs": TEXTS}))
        assert status == 200, (options, answer)
        assert np.array_equal(np.float32(json.loads(answer)), expected), options
    assert curl(f"{address}/embed", "-d", '{"inputs": "a"}')[0] == 415
    status, answer = curl(f"{address}/embed", *json_body, "@-", body='{"inputs": "%s"}' % ("a" * 3_000_000))
    assert (status, json.loads(answer)["error_type"]) == (413, "Validation")
    assert curl(f"{address}/health") == (200, "")
    assert curl("-I", f"{address}/health")[0] in (200, 405)

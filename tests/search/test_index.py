"""`fastbert.search.Index`: building, querying, rescoring, damage, and models that are not the index's."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from embedding import random_texts, saved
from reranking_models import cross_encoder

import fastbert
from fastbert import CrossEncoder
from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import CheckpointError, UserError
from fastbert.search import Hit, Index, faiss_files, top_k
from fastbert.search import index as index_module
from fastbert.search.documents import Documents
from fastbert.search.fingerprint import model_fingerprint
from fastbert.tasks.readers.documents import read_texts

TEXTS = [text for text in random_texts(0, 150, most=20) if text]
WIDTH = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("model"), seed=0)


def cosines(model: Path, queries: list[str]) -> torch.Tensor:
    """Return the similarities of queries and TEXTS, as `embed` computes their vectors."""
    encoder, tokenizer = fastbert.load(model), fastbert.load_tokenizer(model)
    texts, words = (encoder.embed(part, tokenizer, normalize=True) for part in (TEXTS, queries))
    return words @ texts.T


def clustered(count: int, seed: int) -> torch.Tensor:
    """Return vectors round a few centres."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(20, WIDTH, generator=generator)
    return centres[torch.arange(count) % 20] + 0.5 * torch.randn(count, WIDTH, generator=generator)


def recall(indices: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the part of the exact indices (q, k) that are among others of that shape."""
    return (indices[:, :, None] == exact[:, None]).any(2).float().mean().item()


@pytest.mark.parametrize("store", ["fp32", "fp16", "int8"])
def test_finds_the_nearest_texts(tmp_path: Path, model: Path, store: str) -> None:
    queries = ["a b c", "x y", "m"]
    expected = cosines(model, queries)
    with Index.build(tmp_path / "index", TEXTS, model, store=store, device="cpu", dtype="fp32") as index:
        assert len(index) == len(TEXTS)
        several = index.query(queries, top=7)
        assert index.query(queries[1], top=7) == several[1]
    for row, hits in enumerate(several):
        assert [hit.rank for hit in hits] == list(range(1, 8))
        assert [hit.text for hit in hits] == [TEXTS[hit.index] for hit in hits]
        assert [hit.id for hit in hits] == [str(hit.index) for hit in hits]
        scores = torch.tensor([hit.score for hit in hits])
        torch.testing.assert_close(scores, expected[row].topk(7).values, rtol=0, atol=1e-3)
        torch.testing.assert_close(scores, expected[row, [hit.index for hit in hits]], rtol=0, atol=1e-3)


def test_int8_is_rescored(tmp_path: Path) -> None:
    """The scores are those of fp16, and at least 99 % of the ten nearest are found."""
    vectors, queries = clustered(3000, 1), clustered(40, 2)
    texts = [f"text {number}" for number in range(3000)]
    stores = {store: Index.from_vectors(tmp_path / store, vectors, texts, store=store) for store in ("int8", "fp16")}
    results = {store: index.search(queries, 10) for store, index in stores.items()}
    exact = top_k(*(torch.nn.functional.normalize(part) for part in (queries, vectors)), 10)[1]
    for _, indices in results.values():
        assert recall(indices, exact) >= 0.99
    same = results["int8"][1] == results["fp16"][1]
    assert torch.equal(results["int8"][0][same], results["fp16"][0][same])
    plain = Index.from_vectors(tmp_path / "plain", vectors, texts, store="int8", rescore=False)
    assert not (tmp_path / "plain" / "vectors.fp16.npy").exists()
    assert len(plain.query(queries[:1], top=5)[0]) == 5


def test_dot_products_keep_lengths_and_equal_scores_their_order(tmp_path: Path) -> None:
    vectors = torch.eye(3).repeat(4, 1) * torch.tensor([1.0, 2, 2, 1]).repeat_interleave(3)[:, None]
    pairs = [(f"id{number}", f"text {number}") for number in range(12)]
    with Index.from_vectors(tmp_path / "index", vectors, pairs, similarity="dot", store="fp32") as index:
        (hits,) = index.query(torch.tensor([[1.0, 0.0, 0.0]]), top=4)
        assert hits[0] == Hit(1, 2.0, "id3", "text 3", 3)
        assert [hit.index for hit in hits] == [3, 6, 0, 9]
        assert len(index.query(np.ones((2, 3), np.float32), top=100)[0]) == 12


def test_prompts_precede_texts_and_queries(tmp_path: Path, model: Path) -> None:
    prompted = tmp_path / "model"
    shutil.copytree(model, prompted)
    settings = EmbedSettings(prompts={"query": "q ", "passage": "p ", "other": "o "}, default_prompt="other")
    settings.save(prompted, 32)
    with Index.build(tmp_path / "index", TEXTS, prompted, store="fp32") as index:
        assert (index.settings.document_prompt, index.settings.query_prompt) == ("passage", "query")
        hits = index.query("a b", top=1)
        assert hits != index.query("a b", top=1, prompt="other")
    with Index.build(tmp_path / "plain", [f"p {text}" for text in TEXTS], model, store="fp32") as index:
        assert index.query("q a b", top=1)[0].score == hits[0].score
        expected = index.query("a b", top=1)[0].score
    # The default prompt is that of another use.
    EmbedSettings(prompts={"passage": "p ", "other": "o "}, default_prompt="other").save(prompted, 32)
    with Index.build(tmp_path / "default", TEXTS, prompted, store="fp32") as index:
        assert index.settings.query_prompt is None
        assert index.query("a b", top=1)[0].score == expected


def test_a_reranker_orders_the_candidates(tmp_path: Path, model: Path) -> None:
    ranker = CrossEncoder(cross_encoder(tmp_path / "ranker", "Bert", 3), device="cpu", dtype="fp32")
    with Index.build(tmp_path / "index", TEXTS, model) as index:
        first = index.query("a b c", top=20)
        hits = index.query("a b c", top=4, reranker=ranker, candidates=20)
        expected = ranker.rank("a b c", [hit.text for hit in first], top=4)
        assert [(hit.score, hit.text) for hit in hits] == [(one.score, one.text) for one in expected]
        assert [TEXTS[hit.index] for hit in hits] == [hit.text for hit in hits]
        with pytest.raises(UserError, match="a reranker reads the texts of queries"):
            index.query(torch.ones(1, 32), reranker=ranker)


def test_another_model_is_refused_by_its_hash(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Index.build(tmp_path / "index", TEXTS, model).close()
    monkeypatch.chdir(tmp_path)
    Index.build("relative", TEXTS[:3], os.path.relpath(model)).close()
    monkeypatch.chdir("/")
    assert Index.open(tmp_path / "relative").query("a")[0].rank == 1
    moved = tmp_path / "moved"
    shutil.copytree(model, moved)
    (moved / "README.md").write_text("other files do not count")
    assert model_fingerprint(moved) == model_fingerprint(model)
    assert Index.open(tmp_path / "index", model=moved).query("a")[0].rank == 1
    other = saved(tmp_path / "other", seed=1)
    with pytest.raises(UserError, match=r"was made by another model \(SHA-256 \w{12}\) than .*other \(\w{12}\)"):
        Index.open(tmp_path / "index", model=other).query("a")
    record = json.loads((tmp_path / "index" / "index.json").read_text())
    record["model"]["source"] = str(tmp_path / "gone")
    (tmp_path / "index" / "index.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"index\.json: damaged: it does not match its own checksum"):
        Index.open(tmp_path / "index")
    del record["sha256"]  # as in an older index
    (tmp_path / "index" / "index.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"its model is missing .* name its folder with --model"):
        Index.open(tmp_path / "index").query("a")


def test_an_index_of_vectors_takes_no_texts(tmp_path: Path) -> None:
    index = Index.from_vectors(tmp_path / "index", torch.ones(2, 3), ["a", "b"])
    with pytest.raises(UserError, match="was made of vectors, without a model"):
        index.query("a")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_vectors_that_are_not_finite_are_named(tmp_path: Path, value: float) -> None:
    vectors = torch.ones(40, 3)
    vectors[17, 1] = value
    with pytest.raises(UserError, match=r"texts\[17\] holds a NaN or an infinity"):
        Index.from_vectors(tmp_path / "index", vectors, [str(row) for row in range(40)])
    assert not (tmp_path / "index").exists()
    index = Index.from_vectors(tmp_path / "index", torch.ones(40, 3), [str(row) for row in range(40)])
    with pytest.raises(UserError, match=r"queries\[17\] holds a NaN or an infinity"):
        index.query(vectors)


def test_vectors_beyond_fp16_are_refused(tmp_path: Path) -> None:
    vectors = torch.ones(4, 3)
    vectors[2, 0] = 1e5
    with pytest.raises(UserError, match=r"the vector of texts\[2\] is beyond the range of fp16: choose fp32"):
        Index.from_vectors(tmp_path / "index", vectors, list("abcd"), similarity="dot")


def test_refuses_what_is_no_index(tmp_path: Path, model: Path) -> None:
    with pytest.raises(UserError, match="there is no text to index"):
        Index.build(tmp_path / "index", [], model)
    with pytest.raises(UserError, match="2 vectors and 1 texts"):
        Index.from_vectors(tmp_path / "index", torch.ones(2, 3), ["a"])
    with pytest.raises(UserError, match=r"texts\[1\] must be an id and a text"):
        Index.from_vectors(tmp_path / "index", torch.ones(2, 3), ["a", 5])  # type: ignore[list-item]
    with pytest.raises(UserError, match="no option of an index; there are store, rescore"):
        Index.from_vectors(tmp_path / "index", torch.ones(2, 3), ["a", "b"], stores="int8")
    assert not (tmp_path / "index").exists()
    with pytest.raises(UserError, match="no such folder"):
        Index.open(tmp_path / "index")
    with pytest.raises(UserError, match=r"holds no index\.json"):
        Index.open(tmp_path)


def test_an_index_is_replaced_only_when_asked(tmp_path: Path) -> None:
    out = tmp_path / "index"
    Index.from_vectors(out, torch.ones(2, 3), ["a", "b"], store="int8")
    with pytest.raises(UserError, match="already holds an index"):
        Index.from_vectors(out, torch.ones(2, 3), ["c", "d"])
    opened = Index.open(out)
    Index.from_vectors(out, torch.ones(2, 3), ["c", "d"], store="fp32", overwrite=True)
    assert sorted(path.name for path in out.iterdir()) == [
        "index.json", "texts.jsonl", "texts.offsets.npy", "vectors.fp32.npy",
    ]  # fmt: skip
    assert opened.query(torch.ones(1, 3))[0][0].text == "a"  # which reads the files that it opened


def test_files_that_are_not_an_index_are_kept(tmp_path: Path) -> None:
    """A folder's own texts are not replaced, and only an index's files are superseded."""
    (tmp_path / "texts.jsonl").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(UserError, match=r"holds texts\.jsonl, which an index would replace"):
            Index.from_vectors(tmp_path, torch.ones(2, 3), ["a", "b"], overwrite=overwrite)
    assert (tmp_path / "texts.jsonl").read_text() == "mine"
    out = tmp_path / "index"
    Index.from_vectors(out, torch.ones(2, 3), ["a", "b"], store="int8")
    for name in ("texts.txt", "vectors.bin"):
        (out / name).write_text("mine")
    Index.from_vectors(out, torch.ones(2, 3), ["a", "b"], store="fp32", overwrite=True)
    assert {path.name for path in out.iterdir()} >= {"texts.txt", "vectors.bin", "vectors.fp32.npy"}
    assert not (out / "vectors.int8.npy").exists()


def test_repeated_ids_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pairs = [("x", "a"), ("y", "b"), ("z", "c"), ("y", "d"), ("x", "e")]
    Index.from_vectors(tmp_path / "index", torch.eye(5), pairs)
    assert "2 of 5 texts have the id of an earlier text, the first of them 'y'" in caplog.text
    caplog.clear()
    Index.from_vectors(tmp_path / "other", torch.eye(5), list("abcde"))
    assert not caplog.records


def test_the_titles_of_beir_precede_its_texts(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"_id": "a", "title": "Oak", "text": "a tree"}\n{"_id": "b", "title": "", "text": "bread"}\n')
    assert list(Documents(path).with_ids()) == [("a", "Oak a tree"), ("b", "bread")]
    assert read_texts(path).texts == ("Oak a tree", "bread")
    assert [text for _, text in Documents(path, "title").with_ids()] == ["Oak"]


def test_lone_surrogates_are_replaced(tmp_path: Path) -> None:
    index = Index.from_vectors(tmp_path / "index", torch.eye(2), [("\ud800", "a \udfff"), ("b", "c")])
    hit = index.query(torch.eye(2)[:1], top=1)[0][0]
    assert (hit.id, hit.text) == ("\ufffd", "a \ufffd")


@pytest.mark.filterwarnings("error")
def test_queries_may_be_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = clustered(30, 2)
    array = queries.numpy().copy()
    array.flags.writeable = False
    texts = list(map(str, range(300)))
    with Index.from_vectors(tmp_path / "index", clustered(300, 1), texts, store="int8") as index:
        expected = index.search(queries, 5)
        monkeypatch.setattr(index_module, "MOST_CANDIDATES", 250)  # two queries at a time
        for values, same in zip(index.search(array, 5), expected, strict=True):
            assert torch.equal(values, same)
        for wrong, problem in (
            (np.array(["a", "b"]), "queries has dtype <U1: it must be float32"),
            (array.astype(np.float64), "queries has dtype float64: it must be float32"),
            (array[0], r"queries has shape \(24,\)"),
        ):
            with pytest.raises(UserError, match=problem):
                index.query(wrong)


def test_damage_is_found(tmp_path: Path) -> None:
    out = tmp_path / "index"
    Index.from_vectors(out, torch.eye(3), ["a", "b", "c"], store="fp32")
    content = (out / "vectors.fp32.npy").read_bytes()
    (out / "vectors.fp32.npy").write_bytes(content[:-4])
    with pytest.raises(CheckpointError, match=r"vectors\.fp32\.npy: has \d+ bytes, not \d+"):
        Index.open(out)
    (out / "vectors.fp32.npy").write_bytes(content[:-2] + b"\xc0\x7f")  # a NaN
    with pytest.raises(CheckpointError, match="damaged: its checksum differs"):
        Index.open(out)
    with pytest.raises(UserError, match=r"rows\[2\] has a score that is not finite"):
        Index.open(out, verify=False).query(torch.ones(1, 3))
    (out / "vectors.fp32.npy").write_bytes(b"x" * len(content))
    with pytest.raises(CheckpointError, match="damaged: not an array"):
        Index.open(out, verify=False)
    (out / "vectors.fp32.npy").unlink()
    with pytest.raises(CheckpointError, match=r"vectors\.fp32\.npy: is missing"):
        Index.open(out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"format_version": 2}, "has format_version 2, and 1 is supported", id="newer"),
        pytest.param({"format": "other"}, "is not of an index of vectors", id="other"),
        pytest.param({"width": -3}, "damaged: not written by fastbert", id="width"),
        pytest.param({"store": "int4"}, "damaged: not written by fastbert", id="store"),
        pytest.param({"model": {"source": "a"}}, "damaged: not written by fastbert", id="model"),
        pytest.param({"count": 4}, r"holds int64 \(4,\), not int64 \(5,\)", id="count"),
    ],
)
def test_refuses_other_settings(tmp_path: Path, change: dict[str, object], message: str) -> None:
    out = tmp_path / "index"
    Index.from_vectors(out, torch.eye(3), ["a", "b", "c"])
    record = json.loads((out / "index.json").read_text())
    assert record.pop("sha256")
    (out / "index.json").write_text(json.dumps(record | change))
    with pytest.raises(UserError, match=message):
        Index.open(out)


@pytest.mark.parametrize(("factory", "least"), [("Flat", 0.99), ("IVF8,SQ8", 0.99), ("HNSW16", 0.9)])
def test_faiss(tmp_path: Path, factory: str, least: float) -> None:
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    vectors, queries = clustered(1000, 1), clustered(20, 2)
    index = Index.from_vectors(
        tmp_path / "index", vectors, [str(row) for row in range(1000)], store="faiss", faiss=factory
    )
    assert (tmp_path / "index" / "vectors.fp16.npy").exists() == (factory != "Flat")
    exact = top_k(*(torch.nn.functional.normalize(part) for part in (queries, vectors)), 10)[1]
    _, indices = index.search(queries, 10, probes=64)
    assert recall(indices, exact) >= least
    assert len(index.query(queries[:2], top=3)[0]) == 3


@pytest.mark.parametrize("factory", ["Flat", "HNSW32", "IVF4096,PQ48", "OPQ32,IVF8,PQ48", "PCA64,IVF16,SQ8", "SQ8"])
def test_factory_strings_of_faiss_are_checked_before_anything_is_read(factory: str) -> None:
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    faiss_files.check("faiss", factory)
    for wrong in ("PQ0", "IVF99999999999999,Flat", ""):
        with pytest.raises(UserError, match="FAISS has no such index"):
            faiss_files.check("faiss", wrong)


def test_faiss_says_what_is_missing(tmp_path: Path) -> None:
    try:
        import faiss  # noqa: F401
    except ImportError:
        with pytest.raises(UserError, match="a FAISS index needs the package faiss-cpu"):
            Index.from_vectors(tmp_path / "index", torch.eye(3), list("abc"), store="faiss")
        return
    with pytest.raises(UserError, match="--faiss IVX: FAISS has no such index"):
        Index.from_vectors(tmp_path / "index", torch.eye(3), list("abc"), store="faiss", faiss="IVX")
    with pytest.raises(UserError, match="--faiss IVF16,Flat: FAISS refuses 3 vectors of width 3"):
        Index.from_vectors(tmp_path / "index", torch.eye(3), list("abc"), store="faiss", faiss="IVF16,Flat")

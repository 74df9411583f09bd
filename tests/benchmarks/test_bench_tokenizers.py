"""The benchmark of BPE and Unigram tokenizers from end to end on small texts: its peers, its texts, its rows."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastbert.benchmarks import bench_tokenizers, peers
from fastbert.benchmarks.bench_tokenizers import KIND, Options
from fastbert.benchmarks.harness.texts import Family
from fastbert.benchmarks.tokenizer import families, hostile
from fastbert.errors import UserError

pytest.importorskip("tokenizers", reason="the reference, and what trains the tokenizers here")
SENTENCES = ["The function returns a list.", "", " two  spaces, it's", "Ünïcödé and 中文 한국어 of 2026", "a\nb"]
MODELS = ("BPE", "Unigram")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Family]:
    """Small tokenizers of both kinds, trained on Python's own documentation."""
    folder = tmp_path_factory.mktemp("families")
    return {
        workload.vocabulary.name: workload.vocabulary
        for workload in families.python_workloads(folder, MODELS, 30_000, 10_000)
    }


@pytest.mark.parametrize("name", peers.names(KIND))
def test_every_adapter_gives_the_ids_of_the_reference(name: str, folders: dict[str, Family]) -> None:
    if peers.missing(KIND, name):
        pytest.skip(f"{name} is not installed")
    compared = 0
    for family in folders.values():
        reference = peers.load(KIND, "huggingface")(family.path, threads=1)
        try:
            tokenizer = peers.load(KIND, name)(family.path, threads=1)
        except Exception:  # each package has its own
            if name == "fastbert":
                raise
            continue
        tokenizer.forget()
        ids, offsets = tokenizer.rows(tokenizer.encode(SENTENCES))
        expected_ids, expected_offsets = reference.rows(reference.encode(SENTENCES))
        if name == "fastbert" or family.name == "BPE":
            assert ids.tolist() == expected_ids.tolist()
        assert len(offsets) == len(expected_offsets) == len(SENTENCES) + 1
        assert offsets[-1] == len(ids)
        compared += 1
    assert compared or name == "sentencepiece", "no tokenizer could be loaded"


def test_ids_of_tiktoken_are_those_of_the_vocabulary(folders: dict[str, Family], tmp_path: Path) -> None:
    """A vocabulary in another order than its merges, as RoBERTa's is, and NFC with added tokens, as in ModernBERT's."""
    pytest.importorskip("tiktoken")
    content = json.loads((folders["BPE"].path / "tokenizer.json").read_text())
    count = len(content["model"]["vocab"])
    content["model"]["vocab"] = {token: count - 1 - index for token, index in content["model"]["vocab"].items()}
    content["normalizer"] = {"type": "NFC"}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    content["added_tokens"] = [{"id": count, "content": "   ", **flags}]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    texts = ["a   b", "the list e\u0301", *SENTENCES]
    rows = []
    for name in ("huggingface", "tiktoken", "fastbert"):
        tokenizer = peers.load(KIND, name)(tmp_path, threads=1)
        rows.append([values.tolist() for values in tokenizer.rows(tokenizer.encode(texts))])
    assert rows[0] == rows[1] == rows[2]
    assert count in rows[0][0], "the added token occurs"


def test_sentencepiece_has_the_ids_of_its_pieces(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    texts = [f"the {word} returns a {other}" for word in ("list", "tuple", "value") for other in ("name", "type")] * 5
    model = tmp_path / "spiece.model"
    with model.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=file, vocab_size=20, minloglevel=2
        )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    pieces = [processor.id_to_piece(index) for index in range(processor.get_piece_size())]
    vocab = [[piece, 0.0] for piece in ["<pad>", *pieces]]  # shifted by one, as XLM-R's
    content = {"model": {"type": "Unigram", "unk_id": 1, "vocab": vocab}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = peers.load(KIND, "sentencepiece")(tmp_path, threads=1)
    ids, offsets = tokenizer.rows(tokenizer.encode(texts[:2]))
    assert ids[: offsets[1]].tolist() == [index + 1 for index in processor.encode(texts[0])]


def test_all_measures_on_the_text_inside_of_python(tmp_path: Path) -> None:
    names = ("fastbert", "huggingface")
    kinds = len(hostile.PIECE_KINDS)
    options = Options(python_text=True, megabytes=0.02, rounds=1, contenders=names, isolate=False, quick=True)
    messages: list[str] = []
    steps: list[tuple[int, int]] = []
    rows = bench_tokenizers.run(options, messages.append, lambda done, total, name: steps.append((done, total)))
    assert [done for done, _ in steps] == [0, 1, 2, 3, 4]
    by_workload: dict[str, list[Any]] = {}
    for row in rows:
        assert row.agrees, (row.workload, row.contender, row.outputs)
        by_workload.setdefault(row.workload, []).append(row.contender)
    assert all(contenders == list(names) for contenders in by_workload.values())
    for model in MODELS:
        texts = (f"{model}: {text}, {measure}" for text in ("Python docs, sentences", "one document")
                 for measure in ("cold", "warm"))  # fmt: skip
        assert {*texts, f"{model}: {kinds} hostile texts of 0.01 MB"} <= set(by_workload)
        assert sum(name.startswith(f"load {model}, ") for name in by_workload) == 1
    [warm] = [
        row for row in rows if row.workload == "BPE: Python docs, sentences, warm" and row.contender == "fastbert"
    ]
    assert set(warm.details["memory_megabytes_per_thread"]) == {1}
    lines = list(bench_tokenizers.ratios(rows))
    assert len(lines) == len(by_workload)
    ratio = next(row.median_ms for row in rows if row.workload == warm.workload and row is not warm) / warm.median_ms
    [line] = [line for line in lines if line.startswith(warm.workload)]
    assert f"{ratio:,.3g}x huggingface" in line
    assert "MB per thread with 1" in line
    bench_tokenizers.publish(rows, options, tmp_path / "rows.json", None)
    record = json.loads((tmp_path / "rows.json").read_text())
    assert (record["benchmark"], len(record["rows"])) == (KIND, len(rows))
    assert "tokenizers" in record["versions"]


def test_a_folder_of_ones_own_and_a_peer_that_cannot_read_it(folders: dict[str, Family], tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("the list\n\nthe tuple\n")
    names = ("fastbert", "sentencepiece")
    options = Options(
        folder=folders["BPE"].path, text=path, contenders=names, measures=("warm",), rounds=1, isolate=False
    )
    messages: list[str] = []
    rows = bench_tokenizers.run(options, messages.append)
    assert [(row.workload, row.contender) for row in rows] == [
        ("BPE: lines.txt, lines, warm", "fastbert"),
        ("BPE: one document, warm", "fastbert"),
    ]
    assert len([line for line in messages if line.startswith("sentencepiece: ")]) == 1, "said once"


def test_tokens_are_spelled_as_in_a_vocab_txt(tmp_path: Path) -> None:
    def tokens(vocab: Any) -> list[str]:
        (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
        return hostile.read_tokens(tmp_path)

    assert tokens({"\u0120the": 0, "ing": 1, "\u0120": 2, "\u00c3\u00a9": 3}) == ["the", "##ing", ""]
    assert tokens([["<unk>", 0.0], ["\u2581the", -1.0], ["é", -2.0]]) == ["##<unk>", "the", "##é"]


@pytest.mark.parametrize("kind", [kind for kind in hostile.PIECE_KINDS if kind not in hostile.KINDS])
def test_hostile_text_for_pieces_is_seeded_and_as_big_as_asked(kind: str, seed: int) -> None:
    vocab = ["ab", "##cd", "efg"]
    text = hostile.hostile_text(kind, 3000, seed % 2**32, vocab)
    assert text == hostile.hostile_text(kind, 3000, seed % 2**32, vocab)
    assert 2900 < len(text.encode()) <= 3000


def test_the_data_folder_gives_every_family_and_language(data_dir: Path, tmp_path: Path) -> None:
    if not (data_dir / "tokenizers").is_dir():
        pytest.skip("the data folder has no tokenizers")
    messages: list[str] = []
    names = ("gpt2", "albert-base-v2", "absent")
    result = families.data_workloads(data_dir, tmp_path, names, 20_000, 10_000, messages.append)
    assert [workload.name for workload in result] == [
        "gpt2: wiki-en sentences",
        "gpt2: one document",
        "albert-base-v2: wiki-en sentences",
        "albert-base-v2: one document",
        "albert-base-v2: 24 languages",
    ]
    assert [workload.vocabulary.entries for workload in (result[0], result[2])] == [50_257, 30_000]
    assert messages == [f"{data_dir}: no tokenizers/absent; it is left out"]
    firsts: Iterator[str] = families.all_languages(data_dir / families.NEWS)
    assert len({next(firsts) for _ in range(24)}) == 24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"text": Path("a")}, "--text and --folder belong together", id="text-alone"),
        pytest.param({"contenders": ("nano",)}, "unknown contender 'nano'", id="contender"),
        pytest.param({"measures": ("hot",)}, "unknown measure 'hot'", id="measure"),
        pytest.param({"threads": 0}, "--threads 0 must be at least 1", id="threads"),
        pytest.param({"hostile": 0}, "--hostile 0 must be at least 1", id="hostile"),
        pytest.param({"megabytes": 0.0}, "--megabytes 0.0 must be above 0", id="megabytes"),
        pytest.param(
            {"text": Path("a"), "folder": Path("b"), "families": ("gpt2",)}, "--families selects", id="families"
        ),
    ],
)
def test_wrong_options_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Options(**options)


def test_a_folder_without_such_a_tokenizer_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no tokenizer\.json; give the folder"):
        families.folder_workloads(tmp_path, "lines", ["a"], 10)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordPiece", "vocab": {}}}')
    with pytest.raises(UserError, match=r"its model is WordPiece; .*`fastbert bench tokenizer` WordPiece"):
        families.folder_workloads(tmp_path, "lines", ["a"], 10)
    with pytest.raises(UserError, match="no family name contains bert; there are BPE, Unigram"):
        bench_tokenizers.run(Options(python_text=True, megabytes=0.01, families=("bert",)), lambda line: None)


def test_the_command_prints_tables_and_ratios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    from fastbert.cli import main

    argv = ["bench", "tokenizers", "--quick", "--contenders", "fastbert", "--measures", "warm", "--families", "BPE"]
    empty = tmp_path / "data"
    empty.mkdir()
    written = ["--megabytes", "0.01", "--data", str(empty), "--json", str(tmp_path / "rows.json")]
    assert main([*argv, *written]) == 0
    printed = capsys.readouterr()
    assert "BPE: one document, warm" in printed.out
    assert "BPE: Python docs, sentences, warm: " in printed.out.splitlines()[-2]
    assert "no tokenizers; Python's own documentation is used" in printed.err
    assert len(json.loads((tmp_path / "rows.json").read_text())["rows"]) == 2

"""The tokenizer benchmark from end to end on small texts, its peers, its texts, and `fastbert bench`."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import sweep

from fastbert.benchmarks import bench_tokenizer, peers
from fastbert.benchmarks.bench_tokenizer import Options
from fastbert.benchmarks.harness import texts
from fastbert.benchmarks.harness.texts import Vocabulary, Workload
from fastbert.benchmarks.tokenizer import hostile, measures
from fastbert.errors import UserError
from fastbert.tokenizers import WordPieceTokenizer

PEERS = ("nanotoken", "flash_tokenizer", "huggingface")
SENTENCES = ["The cat sat on the mat.", "Another sentence, of other words!", "", "Ünïcödé and 中文 and 한국어"]


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.,!", "the", "##at", "cat"]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*tokens, *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]) + "\n")
    return path


def workload(vocab: Path) -> Workload:
    return Workload("sentences", SENTENCES, Vocabulary("small", vocab, True))


@pytest.mark.parametrize("name", peers.names("tokenizer"))
def test_every_adapter_gives_rows_and_padded_arrays(name: str, vocab: Path) -> None:
    if peers.missing("tokenizer", name):
        pytest.skip(f"{name} is not installed")
    fastbert_tokenizer = peers.load("tokenizer", "fastbert")(vocab, lower_case=True, threads=1)
    expected = fastbert_tokenizer.tokenizer(
        SENTENCES[:2], padding="max_length", truncation=True, max_length=9, return_tensors="np"
    )
    tokenizer = peers.load("tokenizer", name)(vocab, lower_case=True, threads=1)
    tokenizer.forget()
    ids, offsets = tokenizer.rows(tokenizer.encode(SENTENCES[:2]))
    expected_ids, expected_offsets = fastbert_tokenizer.rows(fastbert_tokenizer.encode(SENTENCES[:2]))
    assert ids.tolist() == expected_ids.tolist()
    assert offsets.tolist() == expected_offsets.tolist()
    arrays = tokenizer.encode_padded(SENTENCES[:2], 9)
    for key in ("input_ids", "token_type_ids", "attention_mask"):
        assert arrays[key].dtype == np.int64
        assert arrays[key].tolist() == expected[key].tolist()


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UserError, match="unknown tokenizer 'nano'; there are fastbert, nanotoken"):
        peers.load("tokenizer", "nano")
    with pytest.raises(UserError, match="unknown kind of contender 'car'"):
        peers.names("car")


def test_a_peer_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vocab: Path) -> None:
    entry = peers.REGISTRY["tokenizer"]["nanotoken"]
    monkeypatch.setitem(peers.REGISTRY["tokenizer"], "nanotoken", entry._replace(needs=("no_such_module",)))
    messages: list[str] = []
    rows = bench_tokenizer.run(small(tmp_path, vocab, contenders=("fastbert", "nanotoken")), messages.append)
    assert {row.contender for row in rows} == {"fastbert"}
    assert [line for line in messages if "nanotoken" in line] == [
        "nanotoken: not installed (no module no_such_module); left out"
    ]


class Wrong:
    """An adapter whose ids are wrong in one text."""

    dtype = "int32"

    def __init__(self, vocab: Path, *, lower_case: bool, threads: int) -> None:
        self.peer = peers.load("tokenizer", "fastbert")(vocab, lower_case=lower_case, threads=threads)

    def encode(self, lines: list[str]) -> Any:
        ids, offsets = self.peer.encode(lines)
        ids = ids.copy()
        if len(lines) > 1:
            ids[offsets[1]] += 1
        return ids, offsets

    def rows(self, encoded: Any) -> Any:
        return encoded

    def encode_padded(self, lines: list[str], length: int) -> None:
        return None

    def forget(self) -> None:
        pass


def small(tmp_path: Path, vocab: Path, **options: Any) -> Options:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(SENTENCES * 20), encoding="utf-8")
    chosen: dict[str, Any] = {"text": path, "vocab": vocab, "rounds": 1, "isolate": False, "measures": ("cold", "warm")}
    return Options(**(chosen | {"megabytes": 0.01, "workloads": ("lines",)} | options))


def test_a_wrong_contender_is_timed_but_marked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vocab: Path) -> None:
    monkeypatch.setattr(peers, "Wrong", Wrong, raising=False)
    monkeypatch.setitem(peers.REGISTRY["tokenizer"], "wrong", peers.Entry("", "Wrong", ("json",), ()))
    load = peers.load
    monkeypatch.setattr(peers, "load", lambda kind, name: Wrong if name == "wrong" else load(kind, name))
    messages: list[str] = []
    rows = bench_tokenizer.run(small(tmp_path, vocab, contenders=("fastbert", "wrong")), messages.append)
    lines = len([line for line in SENTENCES * 20 if line])
    verdicts = {(row.workload, row.contender): row.outputs for row in rows}
    assert verdicts == {
        ("lines.txt, lines, cold", "fastbert"): "equal",
        ("lines.txt, lines, cold", "wrong"): f"ids differ in 1 of {lines} texts",
        ("lines.txt, lines, warm", "fastbert"): "equal",
        ("lines.txt, lines, warm", "wrong"): f"ids differ in 1 of {lines} texts",
    }
    assert [row.max_abs_difference for row in rows] == [0.0, 1.0, 0.0, 1.0]
    [line] = [line for line in messages if line.startswith("wrong: ")]
    assert "the first is number 1: 'Another sentence" in line


def test_all_measures_on_the_text_inside_of_python(tmp_path: Path) -> None:
    options = Options(python_text=True, megabytes=0.05, rounds=1, hostile=26, quick=True, isolate=False)
    messages: list[str] = []
    steps: list[tuple[int, int]] = []
    rows = bench_tokenizer.run(options, messages.append, lambda done, total, name: steps.append((done, total)))
    assert steps[-1][0] == steps[-1][1]
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    names = {row.workload for row in rows}
    for text in ("sentences", "paragraphs"):
        assert {f"Python docs, {text}, cold", f"Python docs, {text}, warm"} <= names
    assert {"one long document, cold", "source code, warm", "hostile mixture, cold"} <= names
    assert any("padded to 512" in name for name in names)
    assert any(name.startswith("load python, ") for name in names)
    for row in rows:
        if row.contender in ("fastbert", "nanotoken", "huggingface"):
            assert row.agrees, (row.workload, row.contender, row.outputs)
    fastbert_rows = {row.workload: row for row in rows if row.contender == "fastbert"}
    assert fastbert_rows["Python docs, sentences, warm, 2 threads"].threads == 2
    assert fastbert_rows["Python docs, sentences, warm, 2 threads"].details["speed_up"] > 0
    [worst] = [row for row in fastbert_rows.values() if "hostile texts" in row.workload]
    assert len(worst.details["worst_over_plain_by_kind"]) == len(hostile.KINDS)
    assert worst.details["worst_over_plain"] == max(worst.details["worst_over_plain_by_kind"].values())
    bench_tokenizer.publish(rows, Options(), tmp_path / "rows.json", None)
    assert len(json.loads((tmp_path / "rows.json").read_text())["rows"]) == len(rows)


def test_isolated_contenders_agree_with_local_ones(tmp_path: Path, vocab: Path) -> None:
    options = {"contenders": ("fastbert", "nanotoken"), "measures": ("warm", "memory"), "threads": 2}
    rows = bench_tokenizer.run(small(tmp_path, vocab, isolate=True, **options), lambda line: None)
    assert all(row.outputs == "equal" for row in rows)
    [fastbert_row] = [row for row in rows if row.contender == "fastbert"]
    assert set(fastbert_row.details["memory_megabytes_per_thread"]) <= {1, 2}


def test_a_contender_that_breaks_sits_out(tmp_path: Path, vocab: Path) -> None:
    messages: list[str] = []
    with measures.Lineup(["fastbert"], 1, isolate=False, folder=tmp_path, say=messages.append) as lineup:
        lineup.open(workload(tmp_path / "absent.txt"))
        assert lineup.active == []
        assert messages[0].startswith("fastbert: left out of sentences: ")
        lineup.open(workload(vocab))
        assert lineup.active == ["fastbert"], "it is started anew"
        lineup.compare()
        assert lineup.tokens == sum(
            map(len, lineup.members["fastbert"].subject.tokenizer.tokenizer(SENTENCES).input_ids)
        )


@sweep("kind", list(hostile.KINDS))
def test_hostile_text_is_seeded_and_as_big_as_asked(kind: str, seed: int) -> None:
    vocab = ["[PAD]", "ab", "##cd", "efg", "##h"]
    text = hostile.hostile_text(kind, 5000, seed % 2**32, vocab)
    assert text == hostile.hostile_text(kind, 5000, seed % 2**32, vocab)
    assert 4000 < len(text.encode()) <= 5000


def test_hostile_mixture_holds_every_kind(vocab: Path) -> None:
    assert len(hostile.hostile_mixture(vocab, 26_000)) == len(hostile.KINDS)


def test_texts_are_cut_between_texts_and_characters(seed: int) -> None:
    rng = random.Random(seed)
    lines = ["é" * rng.randint(0, 20) for _ in range(50)]
    selected = list(texts.up_to(300, lines))
    assert selected == lines[: len(selected)]
    assert sum(len(line.encode()) for line in selected) <= 300
    assert list(texts.up_to(1, ["long", "short"])) == ["long"]
    assert texts.as_one_document(["é", "é"], 4) == "é\n"


def test_the_data_folder_gives_every_language(data_dir: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    result = texts.data_workloads(data_dir, tmp_path, 20_000, False, messages.append)
    names = [workload.name for workload in result]
    assert not messages
    assert names[0] == texts.ENGLISH
    assert {"books-en paragraphs", "wiki-zh paragraphs", *(f"news {language}" for language in texts.LANGUAGES)} <= set(
        names
    )
    assert all(workload.text_bytes <= 26_000 for workload in result if len(workload.texts) > 1)
    quick = [workload.name for workload in texts.data_workloads(data_dir, tmp_path, 20_000, True, messages.append)]
    assert set(quick) < set(names)


def test_what_a_data_folder_lacks_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    messages: list[str] = []
    assert texts.data_workloads(tmp_path, tmp_path, 1000, True, messages.append) == []
    assert len(messages) == len(texts.LOWER_CASE)
    with pytest.raises(UserError, match=r"--data .*nowhere: no such folder"):
        texts.find_data(tmp_path / "nowhere")
    monkeypatch.setenv("FASTBERT_DATA", str(tmp_path))
    assert texts.find_data(None) == tmp_path
    monkeypatch.setenv("FASTBERT_DATA", str(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"^FASTBERT_DATA .*gone: no such folder"):
        texts.find_data(None)


def test_offsets_are_measured_where_our_tokenizer_has_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vocab: Path
) -> None:
    calls: list[tuple[int, int]] = []

    def encode_aligned_ragged(self: WordPieceTokenizer, lines: list[str], *, threads: int) -> Any:
        calls.append((len(lines), threads))
        return self.encode_ragged(lines, True, threads=threads)

    monkeypatch.setattr(WordPieceTokenizer, "encode_aligned_ragged", encode_aligned_ragged, raising=False)
    rows = bench_tokenizer.run(small(tmp_path, vocab, measures=("aligned",)), lambda line: None)
    assert [row.contender for row in rows] == ["fastbert", "fastbert, offsets and words"]
    assert rows[1].workload == "lines.txt, lines, offsets and words"
    assert set(calls) == {(60, 1)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"text": Path("a")}, "--text and --vocab belong together", id="text-alone"),
        pytest.param({"contenders": ("nano",)}, "unknown contender 'nano'", id="contender"),
        pytest.param({"measures": ("hot",)}, "unknown measure 'hot'", id="measure"),
        pytest.param({"threads": 1}, "--threads 1 must be at least 2", id="threads"),
        pytest.param({"megabytes": 0.0}, "--megabytes 0.0 must be above 0", id="megabytes"),
    ],
)
def test_wrong_options_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Options(**options)


def test_the_command_prints_a_table_and_writes_files(
    tmp_path: Path, vocab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    pytest.importorskip("matplotlib", reason="charts need matplotlib")
    from fastbert.cli import main

    text = tmp_path / "lines.txt"
    text.write_text("the cat sat.\n" * 50)
    argv = ["bench", "tokenizer", "--quick", "--contenders", "fastbert", "--text", str(text), "--vocab", str(vocab)]
    written = ["--json", str(tmp_path / "rows.json"), "--chart", str(tmp_path / "chart.png")]
    assert main([*argv, *written]) == 0
    printed = capsys.readouterr()
    assert "lines.txt, lines, cold" in printed.out
    assert "50 texts" in printed.err
    assert json.loads((tmp_path / "rows.json").read_text())["rows"][0]["contender"] == "fastbert"
    assert "chart-1.png to chart-2.png" in printed.err, "more than eight panels"
    assert all((tmp_path / f"chart-{page}.png").stat().st_size > 10_000 for page in (1, 2))
    assert main(["bench", "tokenizer", "--text", str(text)]) == 2
    assert "--text and --vocab belong together" in capsys.readouterr().err

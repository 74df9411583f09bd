"""The encoder benchmark's workloads beyond BERT on fixed batches: lengths of real texts, and growth."""

import io
import json
import lzma
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from fastbert import _C
from fastbert.benchmarks import bench_encoder
from fastbert.benchmarks.bench_encoder import Options
from fastbert.benchmarks.cpu import contender, growth, lineup, peak, real_lengths
from fastbert.config import BertConfig
from fastbert.errors import UserError

pytestmark = pytest.mark.usefixtures("threads")

TOY = BertConfig(vocab_size=99, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=96)


def write_data(folder: Path) -> Path:
    """A data folder of three sentences of Wikipedia, and of SQuAD two paragraphs of 600 and 2 words and a question."""
    for name in ("wiki-en", "finetune", "vocab"):
        (folder / name).mkdir(parents=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    (folder / real_lengths.VOCABULARY).write_bytes(lzma.compress("".join(f"{word}\n" for word in words).encode()))
    (folder / real_lengths.WIKIPEDIA).write_bytes(lzma.compress(b"a\n\na a\na a a\n"))
    paragraphs = [{"context": "a " * count, "qas": [{"question": " a a a a"}]} for count in (600, 2)]
    content = json.dumps({"data": [{"paragraphs": paragraphs}]}).encode()
    with tarfile.open(folder / real_lengths.SQUAD, "w:xz") as archive:
        member = tarfile.TarInfo(real_lengths.SQUAD_MEMBER)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return folder


def test_real_lengths_are_those_of_texts_over_the_whole_file(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    made = {work.name: work for work in real_lengths.batches(BertConfig.preset("tiny"), data, quick=True)}
    lengths = {name: work.arrays["lengths"].tolist() for name, work in made.items()}
    assert lengths == {
        "wiki-en sentences": [3, 3, 4, 5],
        "squad paragraphs": [512, 512, 4, 4],  # the first is cut
        "queries": [6, 6, 6, 6],
    }
    assert made["squad paragraphs"].note == "1,032 real tokens, 50% of 4 x 512; lengths of 4 paragraphs of SQuAD"
    full = real_lengths.batches(BertConfig.preset("tiny"), data)
    assert [len(work.arrays["lengths"]) for work in full] == [32, 8, 32]


def test_real_lengths_need_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_data(tmp_path / "data")
    (data / real_lengths.SQUAD).unlink()
    names = [work.name for work in Options(quick=True, data=data).chosen()]
    assert names[5:] == ["wiki-en sentences"]
    monkeypatch.setattr(bench_encoder, "find_data", lambda named: None)
    assert [work.name for work in Options(quick=True).chosen()] == names[:5]
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"--data .*none: no such folder"):
        Options(quick=True, data=tmp_path / "none")


def test_growth_goes_through_batches_widths_and_threads() -> None:
    works = {work.name: work for work in growth.workloads("base", threads=6)}
    sizes = [name for name in works if "," not in name]
    assert (sizes[0], sizes[-1], len(sizes)) == ("1x8", "32x64", 17)
    assert all(works[name].tokens <= growth.MOST_TOKENS for name in sizes)
    others = [(name, work.preset, work.threads) for name, work in works.items() if name not in sizes]
    assert others == [
        ("8x128, tiny", "tiny", 6),
        ("8x128, mini", "mini", 6),
        ("8x128, small", "small", 6),
        ("8x128, medium", "medium", 6),
        ("8x128, 1 thread", "base", 1),
        ("8x128, 2 threads", "base", 2),
        ("8x128, 4 threads", "base", 4),
    ]
    assert works["8x128, tiny"].operations < works["8x128"].operations == works["8x128, 1 thread"].operations
    assert works["8x128, small"].note == "1,024 tokens, 4 layers of width 512"


def test_growth_is_measured_with_its_model_and_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peak, "COPY_BYTES", 1 << 20)
    monkeypatch.setattr(contender, "MOST_CALLS", 1)
    monkeypatch.setattr(_C, "cpu_peak", lambda dtype, threads, seconds: 1e11, raising=False)
    presets = {"tiny": TOY, "mini": replace(TOY, hidden_size=32)}
    monkeypatch.setattr(BertConfig, "preset", classmethod(lambda cls, name: presets[name]))
    monkeypatch.setitem(lineup.REFERENCES, "encoder", ("fastbert fp32",))
    steps: list[str] = []
    options = Options(sweep=True, quick=True, rounds=1, threads=2, isolate=False, contenders=("fastbert fp32",))
    result = bench_encoder.run(options, lambda _: None, lambda done, total, name: steps.append(name))
    assert steps == ["1x8", "1x32", "8x8", "8x32", "8x32, mini", "8x32, 1 thread", ""]
    assert [(row.workload, row.threads) for row in result.rows] == [
        (name, 1 if "thread" in name else 2) for name in steps[:-1]
    ]
    work = {row.workload: row.details["gflops"] * row.median_ms for row in result.rows}
    assert work["8x32, mini"] < 0.6 * work["8x32"]
    bench_encoder.publish(result, options, tmp_path / "rows.json", None)
    assert json.loads((tmp_path / "rows.json").read_text())["benchmark"] == "encoder-growth"

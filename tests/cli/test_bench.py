"""`fastbert bench`: the list of workloads, a sub-command with its own flags for each, and wrong ones in one line."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cpu_rows import row

pytest.importorskip("tyro", reason="the command line needs tyro")

from fastbert import cli
from fastbert.benchmarks import (
    bench_embed,
    bench_encoder,
    bench_generation,
    bench_kernels,
    bench_loading,
    bench_rerank,
    bench_scaling,
    bench_serving,
    bench_tokenizer,
    bench_tokenizers,
    bench_training,
)
from fastbert.benchmarks.cpu.lineup import Result, with_ratios
from fastbert.benchmarks.harness import quietness
from fastbert.cli.bench import BENCHMARKS, SUBCOMMANDS

MODULES = {
    "tokenizer": bench_tokenizer, "encoder": bench_encoder, "training": bench_training, "embed": bench_embed,
    "rerank": bench_rerank, "generation": bench_generation, "tokenizers": bench_tokenizers, "serving": bench_serving,
    "kernels": bench_kernels, "loading": bench_loading, "scaling": bench_scaling,
}  # fmt: skip


@pytest.fixture(autouse=True)
def brief_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The load of the machine is measured before each benchmark, in less time than by default."""
    monkeypatch.setattr(quietness, "BRIEF_SECONDS", 0.001)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options with which a benchmark would have been run."""
    seen: list[Any] = []
    for module in MODULES.values():
        monkeypatch.setattr(module, "run", lambda options, say, progress: seen.append(options))
        monkeypatch.setattr(module, "show", lambda result: None)
        monkeypatch.setattr(module, "publish", lambda result, options, json, chart: None)
    return seen


@pytest.mark.parametrize(
    ("words", "code"),
    [(["bench"], 2), (["bench", "--help"], 0), (["bench", "-h"], 0), (["help", "bench"], 0)],
    ids=["bare", "help", "h", "help-first"],
)
def test_alone_it_lists_the_workloads_and_the_shortest_useful_call(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == code
    captured = capsys.readouterr()
    printed = captured.err if code else captured.out
    assert [name for name in SUBCOMMANDS if f"\n  {name} " not in printed] == []
    assert "fastbert bench tokenizer --quick" in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize(
    "words",
    [["bench", "{}", "--help"], ["--help", "bench", "{}"], ["help", "bench", "{}"]],
    ids=["flag", "flag-first", "help"],
)
@pytest.mark.parametrize("what", [name for name in SUBCOMMANDS if name != "record"])
def test_every_workload_has_its_own_help(what: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([word.format(what) for word in words]) == 0
    printed = capsys.readouterr().out
    assert f"fastbert bench {what}" in printed
    assert ("--matmuls" in printed) == (what == "encoder")
    assert ("--loss-curve" in printed) == (what == "training")
    assert ("--vocab" in printed) == (what in ("tokenizer", "training"))
    assert ("--folder" in printed) == (what in ("embed", "rerank", "tokenizers"))
    assert ("--shape" in printed) == (what == "embed")
    assert ("--only" in printed) == (what == "all")
    assert ("--compare" in printed) == (what != "compare")
    assert "--module" not in printed.lower()
    assert "None" not in printed
    assert "\nFlags:" not in printed
    titles = [line for line in printed.splitlines() if line in ("Measurement:", "Output:", "Machine:")]
    assert titles == ([] if what == "compare" else ["Measurement:", "Output:", "Machine:"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "bench nope",
            "bench 'nope': is not a workload; choose one of tokenizer, tokenizers, kernels, encoder, ",
        ),
        ("bench tokenzer", "did you mean `fastbert bench tokenizer`?"),
        ("bench --quick", "bench '--quick': comes before the workload; choose one of tokenizer, "),
        (
            "bench encoder --vocab x",
            "unknown flag --vocab, which `fastbert bench tokenizer` and `fastbert bench training` have",
        ),
        ("bench embed --folders x", "unknown flag --folders; did you mean --folder?"),
        ("bench encoder --chart rows.txt", "--chart rows.txt must end in .png"),
        ("bench tokenizer --measures lukewarm", "unknown measure 'lukewarm'; there are cold, warm"),
        ("bench training --model enormous", "--model enormous: choose one of tiny, mini"),
        ("bench encoder training", "unexpected argument 'training'"),
        ("bench encoder --compare nope.json", "--compare nope.json: no such file"),
        ("bench compare nope.json", "FILES nope.json: must be two, the earlier and the later one"),
        ("bench compare nope.json other.json", "FILES nope.json: no such file"),
        ("bench all --only nope", "--only nope: is not a benchmark; choose from tokenizer, tokenizers, kernels,"),
        ("bench all --only all", "--only all: is not a benchmark; choose from tokenizer, tokenizers, kernels,"),
        ("bench all --compare nope", "--compare nope: no such file or folder"),
        ("bench all --rounds 0", "--rounds 0 must be at least 1"),
        ("bench sreve", "did you mean `fastbert bench serve`?"),
    ],
)
def test_wrong_words_are_named(
    words: str, message: str, measured: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words.split()) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert not measured


@pytest.mark.parametrize("what", BENCHMARKS)
def test_flags_reach_the_options_and_the_rest_has_its_defaults(what: str, measured: list[Any]) -> None:
    options = MODULES[what].Options
    assert cli.main(["bench", what]) == 0
    assert cli.main(["bench", what, "--quick", "--threads", "3", "--rounds", "2"]) == 0
    assert measured == [options(), options(quick=True, threads=3, rounds=2)]


def test_own_flags_reach_the_options(measured: list[Any]) -> None:
    for words in (
        "tokenizer --measures cold load --megabytes 0.5 --contenders fastbert",
        "encoder --matmuls --model tiny --workloads 512",
        "training --loss-curve 5 --model mini",
        "embed --texts 7",
        "rerank --pairs 7",
        "serving --overload --seconds 2 --workloads overload",
    ):
        assert cli.main(["bench", *words.split()]) == 0, words
    assert measured == [
        bench_tokenizer.Options(measures=("cold", "load"), megabytes=0.5, contenders=("fastbert",)),
        bench_encoder.Options(matmuls=True, model="tiny", workloads=("512",)),
        bench_training.Options(loss_curve=5, model="mini"),
        bench_embed.Options(texts=7),
        bench_rerank.Options(pairs=7),
        bench_serving.Options(overload=True, seconds=2, workloads=("overload",)),
    ]


def test_serve_is_another_name_of_serving(measured: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "serve", "--quick"]) == 0
    assert measured == [bench_serving.Options(quick=True)]
    assert cli.main(["bench", "serve", "--help"]) == 0
    assert "--overload" in capsys.readouterr().out


def test_an_earlier_file_is_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 1 if something became slower; a file of another benchmark is refused before any timing."""

    def rows(milliseconds: float, options: object = None, say: object = None, progress: object = None) -> Result:
        made = row("fastbert fp32", milliseconds)
        rates = replace(made, tokens_per_second=1e6 / milliseconds, details={"gflops": 100 / milliseconds})
        return Result(with_ratios([rates]))

    old = tmp_path / "old.json"
    bench_rerank.publish(rows(100.0), bench_rerank.Options(), old, None)
    for milliseconds, code, verdict in ((100.0, 0, "0 slower"), (200.0, 1, "1 slower")):
        for module in (bench_rerank, bench_embed):
            monkeypatch.setattr(module, "run", partial(rows, milliseconds))
        assert cli.main(["bench", "rerank", "--compare", str(old)]) == code
        assert verdict in capsys.readouterr().out
        new = tmp_path / "new.json"
        assert cli.main(["bench", "rerank", "--compare", str(old), "--json", str(new)]) == code
        assert cli.main(["bench", "compare", str(old), str(new)]) == code
        capsys.readouterr()
    assert cli.main(["bench", "embed", "--compare", str(old)]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"fastbert: error: {old}: measured rerank, not embed\n"
    assert not captured.out
    for words, name in (("training --loss-curve 5", "loss-curves"), ("encoder --matmuls", "matmuls")):
        assert cli.main(["bench", *words.split(), "--compare", str(old)]) == 2
        assert capsys.readouterr().err.endswith(f"measured rerank, not {name}\n")

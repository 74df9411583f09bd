"""`fastbert bench all`: a process per benchmark, failures that do not stop the others, the table, earlier files."""

import os
from pathlib import Path
from typing import Any

import pytest

from fastbert import cli
from fastbert.benchmarks import bench_all
from fastbert.benchmarks.bench_all import Options, Outcome
from fastbert.benchmarks.harness import records, texts
from fastbert.errors import UserError

MACHINE = {"cpu": "Example 9000", "features": ["avx2"], "cpu_capability": "avx2", "usable_cores": 2.0}


def rows(**times: float) -> list[dict[str, Any]]:
    return [
        {"workload": "toy", "contender": name.replace("_", " "), "median_ms": ms, "p20": ms, "p80": ms,
         "outputs": "close", "dtype": "fp32", "threads": 1, "details": {"rounds": 7}}
        for name, ms in times.items()
    ]  # fmt: skip


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that were run: `encoder` fails, `embed` has a wrong row, others succeed."""
    seen: list[list[str]] = []

    def run(words: list[str], environment: dict[str, str]) -> int:
        assert environment.get(texts.DATA_VARIABLE) == os.environ.get(texts.DATA_VARIABLE)
        seen.append(words[words.index("bench") + 1 :])
        name, file = seen[-1][0], Path(words[words.index("--json") + 1])
        if name != "encoder":
            made = rows(fastbert=10.0, fastbert_int8=5.0, other=20.0, wrong=1.0, absent=1.0)
            made[3]["outputs"] = "cosine 0.1"
            made[4] |= {"median_ms": None, "outputs": "not measured", "details": {"reason": "not installed (no x)"}}
            if name == "embed":
                made[1]["outputs"] = "cosine 0.2"
            record = {"schema": 1, "benchmark": name, "machine": MACHINE, "versions": {}, "commit": "abc"}
            records.write(file, record | {"rows": made})
        return 2 if name == "encoder" else 0

    monkeypatch.setattr(bench_all.termination, "run", run)
    monkeypatch.setattr(records, "machine", lambda: MACHINE)
    return seen


def test_all_run_and_failures_are_named(
    commands: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "rows"
    words = ["--only", "embed", "encoder", "serve", "--threads", "1", "--contenders", "fastbert"]
    assert cli.main(["bench", "all", "--quick", *words, "--json", str(folder)]) == 1
    # In the order of the list, and under the benchmark's name.
    assert [command[0] for command in commands] == ["encoder", "embed", "serving"]
    for command in commands:
        assert command[1] == "--quick"
        assert " ".join(command[-6:]).endswith(f"--threads 1 --json {folder / command[0]}.json")
        assert "--contenders fastbert" in " ".join(command)
    assert sorted(path.name for path in folder.iterdir()) == ["embed.json", "serving.json"]
    printed = capsys.readouterr().out
    assert "encoder: FAILED: exit code 2" in printed
    assert "embed: FAILED: toy, fastbert int8: cosine 0.2" in printed
    assert "serving: wrong: cosine 0.1" in printed
    assert "not installed" not in printed
    cells = {line.split()[0]: line.split() for line in printed.splitlines() if line[:1].isalpha()}
    assert cells["serving"][2:5] == ["4", "4.00", "4.00"], "rows with a time; the wrong one does not count as a rival"
    assert cells["embed"][2:5] == ["4", "2.00", "2.00"]
    assert cli.main(["bench", "all", "--only", "serving"]) == 0


def test_earlier_files_are_compared(
    commands: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier, record = tmp_path / "earlier", {"schema": 1, "benchmark": "rerank", "machine": MACHINE, "versions": {}}
    records.write(earlier / "rerank.json", record | {"commit": "old", "rows": rows(fastbert=5.0, other=20.0)})
    # As in benchmarks/results.
    records.write(
        earlier / "loading" / "avx2.json",
        record | {"benchmark": "loading", "commit": "old", "rows": rows(fastbert=20.0, other=20.0)},
    )
    words = ["bench", "all", "--only", "rerank", "loading", "serving", "--compare", str(earlier)]
    assert cli.main(words) == 1
    printed = capsys.readouterr().out
    assert printed.count("\ncompared: ") + printed.startswith("compared: ") == 2
    assert "1 slower, 0 faster, 0 within noise" in printed
    assert "0 slower, 1 faster, 0 within noise" in printed
    assert "serving: not compared: " in printed
    assert cli.main(["bench", "all", "--only", "loading", "--compare", str(earlier)]) == 0


def test_wrong_options_are_named(tmp_path: Path, commands: list[list[str]]) -> None:
    with pytest.raises(UserError, match="--threads 0 must be at least 1"):
        Options(threads=0)
    with pytest.raises(UserError, match="is not a folder; name the folder of an earlier --json"):
        Options(compare=tmp_path / "none")
    with pytest.raises(UserError, match=r"--data .*none: no such folder"):
        Options(data=tmp_path / "none")
    assert not commands


def test_a_data_folder_reaches_every_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(bench_all.termination, "run", lambda words, environment: seen.append(environment) or 2)
    assert cli.main(["bench", "all", "--only", "embed", "kernels", "--data", str(tmp_path)]) == 1
    assert [environment[texts.DATA_VARIABLE] for environment in seen] == [str(tmp_path)] * 2


@pytest.mark.parametrize("bf16", [True, False])
def test_the_quick_selection_names_workloads_that_exist(bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of `all --quick` is one that its benchmark accepts."""
    from importlib import import_module

    from fastbert.cli.bench import BENCHMARKS, subcommand
    from fastbert.cli.flags import parse

    monkeypatch.setattr(records, "machine_class", lambda machine: "amx" if bf16 else "avx2")
    assert bench_all.QUICK_WITHOUT_BF16.keys() <= bench_all.QUICK.keys() <= BENCHMARKS.keys()
    emulated = [word for name in BENCHMARKS for word in bench_all.flags(name, Options(quick=True)) if "bf16" in word]
    assert bool(emulated) == bf16
    for name in BENCHMARKS:
        words = bench_all.flags(name, Options(quick=True, threads=1, rounds=2))
        config = parse(subcommand(name), f"bench {name}", words)
        import_module(f"fastbert.benchmarks.{config.MODULE}").Options(**config.options())


def test_ratios_are_of_the_fastest_that_agree() -> None:
    assert Outcome(benchmark="x", code=0, seconds=1.0, rows=rows(fastbert=2.0, a=3.0, b=1.0)).ratios == [0.5]
    assert Outcome(benchmark="x", code=0, seconds=1.0, rows=rows(fastbert=2.0)).ratios == []

"""The benchmark of the migration guides: which contenders and interpreters reach which benchmark, and its rows."""

import json
from pathlib import Path

import pytest

from fastbert.benchmarks import bench_migration, peers
from fastbert.benchmarks.bench_migration import CONTENDERS, EMBED, ENCODER, Options
from fastbert.benchmarks.cpu.lineup import Absent, Result
from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.measure import Row
from fastbert.errors import UserError


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_migration, "find_data", lambda _: None)


def test_contenders_exist_and_bf16_takes_part_where_processors_multiply_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, names in CONTENDERS.items():
        assert set(names) <= set(peers.names(kind))
    monkeypatch.setattr(records, "machine_class", lambda _: "amx")
    assert Options().names(ENCODER) == CONTENDERS[ENCODER]
    monkeypatch.setattr(records, "machine_class", lambda _: "avx2")
    emulated = [name for kind in CONTENDERS for name in Options().names(kind) if "bf16" in name]
    assert emulated == ["fastbert bf16", "fastbert bf16"]
    assert Options(contenders=("ipex",)).names(ENCODER) == ("ipex fp32", "ipex bf16")


def test_a_selection_reaches_the_benchmarks_that_have_it() -> None:
    pythons = ("ipex=a/python", "infinity=b/python", "nobody=c/python")
    parts = Options(peer_python=pythons, threads=1).parts()
    assert {kind: part.peer_python for kind, part in parts.items()} == {
        ENCODER: ("ipex=a/python", "nobody=c/python"),
        EMBED: ("infinity=b/python",),
    }
    assert parts[ENCODER].workloads == bench_migration.BATCHES
    assert (parts[EMBED].count, parts[EMBED].thread_count) == (1000, 1)
    assert list(Options(workloads=("query",)).parts()) == [EMBED]
    assert list(Options(contenders=("ctranslate2",)).parts()) == [ENCODER]
    assert Options(quick=True).parts()[EMBED].count == 200
    with pytest.raises(UserError, match="no contender is called nobody"):
        bench_migration.run(Options(peer_python=("nobody=c/python",)), print)
    with pytest.raises(UserError, match="no workload has 'chess' in its name; there are encoder, lognormal; "):
        Options(workloads=("chess",))


def test_rows_of_both_benchmarks_are_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(part: object, say: object, progress: object) -> Result:
        row = Row(
            workload="toy", contender="fastbert fp32", median_ms=1.0, p20=1.0, p80=1.0, tokens_per_second=1.0,
            ratio_to_fastbert=1.0, max_abs_difference=0.0, dtype="fp32", threads=1,
        )  # fmt: skip
        progress(0, 1, "toy")  # type: ignore[operator]
        return Result([row], [Absent("toy", "ipex fp32", "fp32", "not installed")])

    steps: list[str] = []
    monkeypatch.setattr(bench_migration, "RUNS", {ENCODER: measured, EMBED: measured})
    options = Options(contenders=("fp32",), threads=1)
    result = bench_migration.run(options, print, lambda step, count, name: steps.append(name))
    assert steps == ["encoder, toy", "embed, toy"]
    bench_migration.publish(result, options, tmp_path / "rows.json", None)
    record = json.loads((tmp_path / "rows.json").read_text())
    assert record["benchmark"] == "migration"
    named = [(row["workload"], row["outputs"]) for row in record["rows"]]
    assert named == [(f"{kind}, toy", outputs) for outputs in ("equal", "not measured") for kind in (ENCODER, EMBED)]

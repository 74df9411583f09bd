"""docs/performance.md: the committed page is that of the records, and pages of a few synthetic ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastbert.benchmarks import bench_encoder, performance_page
from fastbert.benchmarks.harness import records
from fastbert.benchmarks.performance import figures, sections
from fastbert.benchmarks.performance.figures import CLASSES
from fastbert.benchmarks.performance.goals import GOALS, Goal, Verdict, detail, judge, milliseconds, of_peak, over
from fastbert.config import BertConfig

ROOT = Path(__file__).resolve().parents[2]
MACHINES = {name: {"cpu": f"a processor with {name}", "usable_cores": 2.0} for name in CLASSES}


def row(
    contender: str, ms: float, workload: str = "full-128", outputs: str = "close", **details: Any
) -> dict[str, Any]:
    dtype = next((name for name in figures.DTYPES if name in contender), "int32")
    times = {"median_ms": ms, "p20": ms * 0.9, "p80": ms * 1.1}
    return {
        "workload": workload, "contender": contender, **times, "tokens_per_second": None, "outputs": outputs,
        "dtype": dtype, "details": details,
    }  # fmt: skip


def record(*rows: dict[str, Any], machine_class: str = "avx2", **changes: Any) -> dict[str, Any]:
    versions = {"python": "3.11.7", "fastbert-engine": "0.1.0", "torch": "2.13.0"}
    base = {"schema": 1, "machine": MACHINES[machine_class], "versions": versions, "commit": "0123456789ab"}
    return {**base, "rows": list(rows), **changes}


def lines_with(page: str, *words: str) -> list[str]:
    return [line for line in page.splitlines() if all(word in line for word in words)]


ENCODER = {
    "avx2": record(
        row("fastbert fp32", 100.0, share_of_peak=0.955, peak_gflops=190.2),
        row("fastbert int8", 60.0, share_of_model=0.876),
        row("torch fp32", 120.0),
        row("openvino fp32", 110.0),
        row("openvino int8", 20.0, outputs="cosine 0.9 is below 0.98"),
        row("onnxruntime int8", 50.0),
        row("torch bf16", 0.0, outputs="not measured", reason="not installed (no module torch)"),
    ),
    "amx": record(
        row("fastbert bf16", 10.0),
        row("torch bf16", 25.0),
        machine_class="amx",
        commit=None,
        note="A busy morning.",
        settings={"busy": {"cores": 2, "busy_cores": 0.7, "stolen_cores": 0.1, "load_average": 1.0}},
    ),
}


def goal(**changes: Any) -> Goal:
    values: dict[str, Any] = {"what": "a toy", "benchmark": "encoder", "workload": "full-128", "bound": 0.9}
    return Goal(**{"quantity": of_peak, "unit": "%", **values, **changes})


def test_the_page_is_that_of_the_records(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # The package may be installed, away from the tree with the page.
    monkeypatch.setattr(performance_page, "ROOT", ROOT)
    monkeypatch.setattr(performance_page, "PAGE", ROOT / "docs" / "performance.md")
    assert performance_page.main(["--check"]) == 0, capsys.readouterr().err


def test_a_page_that_differs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(performance_page, "PAGE", tmp_path / "performance.md")
    monkeypatch.setattr(performance_page, "ROOT", tmp_path)
    records.write(tmp_path / records.RESULTS / "encoder" / "avx2.json", ENCODER["avx2"])
    assert performance_page.main(["--check"]) == 1
    assert "differs from the records: run python benchmarks/performance_page.py" in capsys.readouterr().err
    assert performance_page.main([]) == 0
    assert performance_page.main(["--check"]) == 0
    records.write(tmp_path / records.RESULTS / "encoder" / "neon.json", ENCODER["avx2"])
    assert performance_page.main(["--check"]) == 1


def test_rows_stand_beside_the_best_peers_that_agree() -> None:
    page = sections.render({"encoder": ENCODER}, ())
    assert lines_with(page, "| fastbert fp32 |") == [
        "| **avx2** | fastbert fp32 | 100 (90-110) | 96 % of 190 GFLOP/s | openvino fp32, 110 (99-121) | 1.10x ✓ |"
        " onnxruntime int8, 50 (45-55) | 0.50x |"
    ]
    assert lines_with(page, "| fastbert int8 |") == [
        "|  | fastbert int8 | 60 (54-66) | 88 % of the model | onnxruntime int8, 50 (45-55) | 0.83x ✗ | the same |"
        " 0.83x ✗ |"
    ]
    assert '- Outputs differ, avx2, openvino int8: cosine 0.9 is below 0.98: "full-128" (20 ms, faster)' in page
    assert "- Not measured, avx2: torch bf16: not installed (no module torch)" in page
    # Red figures and classes that nobody measured are in the summary too.
    assert lines_with(page, "| encoder | full-128 |") == [
        "| encoder | full-128 | 2.50x ✓ | unmeasured | unmeasured | unmeasured | unmeasured | 0.83x ✗ | unmeasured |"
    ]
    assert lines_with(page, "**zen5, avx512-bf16, avx512-vnni, avx512, neon** | unmeasured") != []
    assert "unmeasured: zen5, avx512-bf16, avx512-vnni, avx512, neon." in page


def test_a_busy_machine_is_marked_and_the_records_are_listed() -> None:
    page = sections.render({"encoder": ENCODER}, ())
    assert "| **amx** ‡ | fastbert bf16 |" in page
    assert "- ‡ amx: other processes used 0.8 of 2 cores, so the ratios are disturbed" in page
    link = "[encoder](../benchmarks/results/encoder/{}.json)"
    versions = "python 3.11.7, torch 2.13.0"
    assert lines_with(page, link.format("avx2")) == [
        f"| {link.format('avx2')} | avx2 | a processor with avx2, 2 usable | 0123456789ab | {versions} |  |"
    ]
    assert lines_with(page, link.format("amx"))[-1].endswith(f"| unknown | {versions} | A busy morning. |")


def test_many_workloads_share_a_table_with_a_column_per_class() -> None:
    rows = [row(name, ms, f"text {index}") for index in range(9) for name, ms in (("fastbert", 2.0), ("other", 3.0))]
    page = sections.render({"tokenizer": {"avx2": record(*rows), "amx": record(*rows[:2], machine_class="amx")}}, ())
    assert "| text 0 | fastbert | 2 (1.8-2.2), 1.50x ✓ other | 2 (1.8-2.2), 1.50x ✓ other |" in page
    assert "| text 8 | fastbert | 2 (1.8-2.2), 1.50x ✓ other | unmeasured |" in page


def test_processes_on_shared_cores_and_threads_show_what_they_are_judged_by() -> None:
    rows = [
        row("fastbert fp32", 5.0, "two processes, latency-16", relative_time=1.234),
        row("fastbert fp32", 9.0, "all cores, full-128", scaling=0.876),
    ]
    page = sections.render({"scaling": {"avx2": record(*rows)}})
    assert "| 1.23x the time of one after the other |" in lines_with(page, "| **avx2** | fastbert fp32 | 5 ")[0]
    assert "| 88 % of linear scaling |" in lines_with(page, "| **avx2** | fastbert fp32 | 9 ")[0]
    assert "avx2 1.23x ✗" in lines_with(page, "- Goal: two processes on shared cores, latency-16")[0]
    assert "avx2 88 % ✗" in lines_with(page, "- Goal: threads, to all cores, full-128")[0]


def test_a_benchmark_alone_has_no_peer_and_one_without_times_a_generic_table() -> None:
    scores = record(
        {"workload": "a|b", "score": 0.123456, "steps": 1200, "seeds": [1, 2], "device": "cpu", "quick": True},
        {"workload": "c", "score": 12345.6, "steps": 1300, "seeds": [1, 2], "device": "cpu", "quick": False},
    )
    page = sections.render(
        {"serving": {"avx2": record(row("fastbert", 1.0, "single"))}, "scores": {"avx2": scores}}, ()
    )
    assert lines_with(page, "| serving | single |")[0].count("no peer") == 1
    after = page.partition("## Other measurements")[2].splitlines()
    begin = after.index("**avx2**: device cpu")
    assert after[begin + 2 : begin + 6] == [
        "| workload | score | steps | quick |",
        "| --- | --- | --- | --- |",
        "| a/b | 0.123 | 1,200 | yes |",
        "| c | 12,346 | 1,300 | no |",
    ]


@pytest.mark.parametrize(
    ("changes", "machine_class", "expected"),
    [
        pytest.param({}, "avx2", None, id="of-a-dtype-without-the-figure"),
        pytest.param({"contender": "fastbert fp32"}, "avx2", Verdict(mark="✓", value="96 %"), id="met"),
        pytest.param({"contender": "fastbert fp32", "bound": 0.97}, "avx2", Verdict(mark="✗", value="96 %"), id="red"),
        pytest.param({"contender": "fastbert fp32"}, "neon", None, id="no-record"),
        pytest.param({"workload": "none"}, "avx2", None, id="no-workload"),
        pytest.param(
            {"quantity": over("torch"), "bound": 3.0, "unit": "x"}, "amx", Verdict(mark="✗", value="2.50x"), id="ratio"
        ),
        pytest.param(
            {"quantity": milliseconds, "bound": 60.0, "unit": "ms", "least": False},
            "avx2",
            Verdict(mark="✓", value="60 ms"),
            id="most",
        ),
        pytest.param({"quantity": detail("p99_ms")}, "avx2", None, id="no-detail"),
    ],
)
def test_goals_are_met_missed_or_unmeasured(
    changes: dict[str, Any], machine_class: str, expected: Verdict | None
) -> None:
    verdict = judge(goal(**changes), {"encoder": ENCODER}, machine_class)
    assert verdict == (expected or Verdict(mark="unmeasured"))


def test_a_goal_is_for_its_classes_and_stands_on_the_page_red_or_not() -> None:
    toy = goal(contender="fastbert fp32", bound=0.97, classes=("avx2", "neon"))
    assert judge(toy, {"encoder": ENCODER}, "amx") is None
    page = sections.render({"encoder": ENCODER}, (toy,))
    assert "| a toy | >= 97 % |  |  |  |  |  | 96 % ✗ | unmeasured |" in page
    assert "- Goal: a toy >= 97 %: avx2 96 % ✗; unmeasured: neon" in page
    assert "Verdicts: 0 ✓, 1 ✗, 1 unmeasured." in page


def test_a_short_text_is_beside_the_bandwidth_of_a_copy() -> None:
    latency = row("fastbert bf16", 10.0, "latency-16", copy_gigabytes_per_second=34.0)
    assert figures.share_of_copy(latency) == pytest.approx(12 * 7077888 * 2 / 0.010 / 34e9)
    assert figures.share_of_copy({**latency, "workload": "full-128"}) is None


def test_every_goal_is_for_classes_that_exist() -> None:
    assert [goal.what for goal in GOALS if not set(goal.classes) <= set(CLASSES)] == []
    assert len({goal.what for goal in GOALS}) == len(GOALS)


@pytest.mark.parametrize(("measured", "kind"), [("encoder", "encoder"), ("matmuls", "matmul")])
def test_goals_name_what_the_benchmark_measures(measured: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = replace(BertConfig.preset("base"), num_hidden_layers=1)
    monkeypatch.setattr(bench_encoder.Options, "config", shape)
    options = bench_encoder.Options(matmuls=kind == "matmul")
    known = {(workload.name, contender) for workload in options.chosen() for contender in ("", *options.names())}
    named = {(goal.workload, goal.contender) for goal in GOALS if goal.benchmark == measured}
    assert named
    assert named <= known

"""The GPU benchmark's goals: every one has its case, and how rows are judged by it."""

from typing import Any

import pytest
from gpu_rows import row

from fastbert.benchmarks.gpu import attention as gpu_attention
from fastbert.benchmarks.gpu import fused as gpu_fused
from fastbert.benchmarks.gpu import goals as gpu_goals
from fastbert.benchmarks.gpu import layer as gpu_layer
from fastbert.benchmarks.gpu import linear as gpu_linear
from fastbert.benchmarks.gpu import loss as gpu_loss
from fastbert.benchmarks.gpu import models as gpu_models
from fastbert.benchmarks.gpu import positions as gpu_positions
from fastbert.benchmarks.gpu import report as gpu_report
from fastbert.benchmarks.gpu import softmax as gpu_softmax
from fastbert.benchmarks.gpu import steps as gpu_steps


def test_every_goal_has_its_case() -> None:
    names = {
        "attention": gpu_attention.headline_names(False),
        "attention-rest": gpu_attention.other_names(False),
        "linear": gpu_linear.case_names(False),
        "resources": ["compiled"],
        "softmax": gpu_softmax.case_names(False),
        "positions": gpu_positions.case_names(False),
        "fused": gpu_fused.case_names(False),
        "loss": gpu_loss.case_names(False),
        "layer": gpu_layer.case_names(False),
        "encoder": gpu_models.encoder_names(False),
        "pretraining": gpu_steps.pretraining_names(False),
    }
    assert all(len(set(name)) == len(name) for name in names.values())
    failed = {
        section: {"rows": [], "failures": [{"case": name, "reason": "x"} for name in one]}
        for section, one in names.items()
    }
    failed["resources"]["reason"] = "x"
    verdicts = gpu_goals.verdicts(failed, False)
    assert len({verdict["goal"] for verdict in verdicts}) == len(verdicts) == 20 + 34 + 6 + 4 + 20 + 4 + 6 + 8 + 3
    assert {verdict["verdict"] for verdict in verdicts} == {"unmeasured: x"}


@pytest.mark.parametrize(
    ("rows", "measured", "verdict"),
    [
        pytest.param(
            [row("fastbert", 1.0), row("sdpa flash", 1.5), row("sdpa cudnn", 1.25), row("eager", 0.1)],
            "1.25x sdpa cudnn (1 ms, 100 TFLOP/s)",
            "met",
            id="the-fastest-fused-rival-counts",
        ),
        pytest.param([row("fastbert", 1.0), row("sdpa flash", 0.9)], None, "missed", id="slower"),
        pytest.param(
            [row("fastbert", 1.0, host_bound=True), row("sdpa flash", 0.9)], None, "missed (Python-bound)", id="python"
        ),
        pytest.param(
            [row("fastbert", 1.0, outputs="wrong: dq is off by 3, eager torch by 0.1"), row("sdpa flash", 2.0)],
            None,
            "wrong: dq is off by 3, eager torch by 0.1",
            id="wrong-is-never-met",
        ),
        pytest.param(
            [row("fastbert", 1.0), row("sdpa flash", 2.0), row("sdpa cudnn", 0.1, outputs="wrong: output")],
            "2.00x sdpa flash (1 ms, 100 TFLOP/s)",
            "met",
            id="a-wrong-rival-does-not-count",
        ),
        pytest.param(
            [row("fastbert", 1.0), row("sdpa cudnn, no dropout", 0.1)],
            "1 ms",
            "unmeasured: no rival ran: No available kernel",
            id="no-rival",
        ),
        pytest.param([row("sdpa flash", 0.9)], "-", "unmeasured: out of memory", id="ours-is-missing"),
    ],
)
def test_verdicts(rows: list[dict[str, Any]], measured: str | None, verdict: str) -> None:
    workload = rows[0]["workload"]
    unmeasured = [
        {"workload": workload, "contender": "sdpa flash", "reason": "No available kernel"},
        {"workload": workload, "contender": "fastbert", "reason": "out of memory"},
    ]
    table = gpu_goals.verdicts({"attention": {"rows": rows, "unmeasured": unmeasured}}, False)
    (actual,) = (row for row in table if row["goal"] == "forward 128 full, dropout 0.1")
    assert actual["verdict"] == verdict
    assert measured in (None, actual["measured"])
    assert {row["verdict"] for row in table if "softmax" in row["goal"]} == {"unmeasured: section softmax was not run"}


def test_ratios_are_those_to_the_fastest_that_does_the_same() -> None:
    rows = [row("fastbert", 2.0), row("eager", 3.0), row("nested flash", 2.5), row("sdpa cudnn, no dropout", 1.0)]
    (actual,) = gpu_goals.ratios({"attention": {"rows": rows}})
    assert (actual["best"], actual["ratio"]) == ("nested flash", 1.25)
    (alone,) = gpu_goals.ratios({"attention": {"rows": rows[:1]}})
    assert (alone["best"], alone["ratio"]) == (None, None)


def test_cases_without_a_goal_get_a_line_of_their_own() -> None:
    names = [name for name in gpu_attention.case_names(False) if not gpu_goals.has_goal(name)]
    assert len(names) == 24
    rows = [row("fastbert", 2.0, workload=name) for name in names]
    sections = {"attention": {"status": "ok", "rows": rows}}
    lines = gpu_report.text(sections, gpu_goals.ratios(sections), []).splitlines()
    assert "attention forward 2048 full dropout 0 causal: 2 ms, 100 TFLOP/s, no other contender; close" in lines


def test_softmax_is_judged_by_the_copy_that_was_measured() -> None:
    details = {"details": {"backend": "triton"}, "workload": "softmax forward 128"}
    rows = [row("fastbert", 1.0, gigabytes_per_second=3600.0, **details), row("eager", 3.0, **details)]
    copy = {"rows": [{"workload": "copy", "gigabytes_per_second": 4000.0}]}
    table = gpu_goals.verdicts({"softmax": {"rows": rows}, "ceilings": copy}, False)
    results = {row["goal"]: (row["measured"], row["verdict"]) for row in table}
    assert results["softmax 128 / copy bandwidth"] == ("90% (3,600 GB/s, triton)", "met")
    assert results["softmax 128 / eager"][1] == "met"
    (unmeasured,) = {row["verdict"] for row in gpu_goals.verdicts({"softmax": {"rows": rows}}, False)
                     if row["goal"] == "softmax 128 / copy bandwidth"}  # fmt: skip
    assert unmeasured == "unmeasured: the copy was not measured"


def row_of(workload: str, contender: str, milliseconds: float, **others: Any) -> dict[str, Any]:
    details = {"backend": "triton", **others.pop("details", {})}
    return row(contender, milliseconds, workload=workload, details=details, **{"tflops": None, **others})


def test_steps_have_the_goals_of_their_gpu() -> None:
    name = "pretraining base 128 full"
    rows = [
        row_of(name, "fastbert", 40.0, details={"sequences": 256}),
        row_of(name, "fastbert graphs", 38.0, details={"sequences": 256}),
        row_of(name, "eager", 114.0),
    ]
    results = {}
    for gpu in ("NVIDIA H100 80GB HBM3", "NVIDIA H200"):
        sections = {"pretraining": {"rows": rows}, "environment": {"gpu": {"name": gpu}}}
        results[gpu] = {each.goal: each for each in gpu_goals.figures(sections)}
    h100, h200 = results.values()
    first, tuned = (f"{name}, sequences/s, {stage}" for stage in ("first run", "tuned"))
    assert (h100[first].target, h100[first].measured) == (">= 6,200", "6,737 (fastbert graphs)")
    assert [h100[first].verdict, h100[tuned].verdict, h200[first].verdict] == ["met", "missed", "missed"]
    assert h200[tuned].target == ">= 7,700"
    assert h100[f"{name} / eager bf16"].measured == "3.00x eager (38 ms, fastbert graphs)"
    assert h100[f"{name} / torch.compile"].verdict.startswith("unmeasured: no rival ran: ")


def test_the_slowest_of_the_layer_norms_counts() -> None:
    rows = [
        row_of(f"{operation} {direction} 768", "fastbert", 1.0, gigabytes_per_second=3600.0)
        for operation in gpu_goals.NORMS
        for direction in ("forward", "backward")
    ]
    rows[3]["gigabytes_per_second"] = 3000.0
    goal = "LayerNorm family 768 / copy bandwidth, the lowest"
    assert judged(goal, fused=rows, ceilings=COPY) == (f"75% ({rows[3]['workload']})", "missed")
    assert judged(goal, fused=rows[1:], ceilings=COPY)[1].startswith("unmeasured")


def test_compiled_kernels_are_judged_by_their_instructions() -> None:
    kernels = [{"kernel": "forward_long", "per_score": 12.0, "programs": 2}]
    results = {each.goal: each.verdict for each in gpu_goals.figures({"resources": {"kernels": kernels}})}
    assert results["instructions per score, forward_long with dropout"] == "met"
    assert results["programs per multiprocessor, forward_long with dropout"] == "missed"
    assert results["instructions per score, backward_keys with dropout"] == "unmeasured: no such kernel"


def judged(goal: str, **sections: list[dict[str, Any]]) -> tuple[str, str]:
    table = gpu_goals.verdicts({name: {"rows": rows} for name, rows in sections.items()}, False)
    (actual,) = (row for row in table if row["goal"] == goal)
    return actual["measured"], actual["verdict"]


COPY = [{"workload": "copy", "gigabytes_per_second": 4000.0}]


@pytest.mark.parametrize(
    ("rate", "eager", "verdict"),
    [
        pytest.param(3600.0, 3.0, "met", id="both"),
        pytest.param(3100.0, 3.0, "missed", id="slower-than-a-copy"),
        pytest.param(3600.0, 2.0, "missed", id="eager-is-fast"),
    ],
)
def test_a_pattern_meets_both_of_its_goals_or_misses(rate: float, eager: float, verdict: str) -> None:
    name = "gelu_layer_norm backward 768"
    rows = [row_of(name, "fastbert", 1.0, gigabytes_per_second=rate), row_of(name, "eager", eager)]
    measured = f"{rate / 4000:.0%} ({rate:,.0f} GB/s, triton), {eager:.2f}x eager"
    assert judged(name, fused=rows, ceilings=COPY) == (measured, verdict)
    assert judged(name, fused=rows)[1] == "unmeasured: the copy was not measured"
    assert judged(name, fused=rows[1:], ceilings=COPY)[1] == "unmeasured: no such case"


def test_products_are_judged_by_their_operations() -> None:
    name = "linear_gelu forward 768"
    rows = [
        row_of(name, "fastbert", 1.0, tflops=610.0),
        row_of(name, "matmul, bias_gelu", 1.25),
        row_of(name, "eager", 1.5),
    ]
    assert judged(name, linear=rows) == ("610, 1.25x matmul, bias_gelu, 1.50x eager", "met")
    measured = "1.25x matmul, bias_gelu (1 ms, 610 TFLOP/s)"
    assert judged(f"{name} / matmul and one pass", linear=rows) == (measured, "met")


def test_a_loss_is_judged_by_time_and_memory() -> None:
    details = {"extra_bytes": 100_000_000, "logits_bytes": 2_000_000_000}
    rows = [row_of("loss 10000", "fastbert", 1.0, details=details), row_of("loss 10000", "eager", 0.9)]
    assert judged("loss 10000 / eager", loss=rows) == ("0.90x eager (1 ms)", "missed")
    assert judged("loss 10000, extra memory", loss=rows) == ("5.0% (100 MB)", "met")
    few = [
        row_of("loss 4096", "fastbert", 1.0, details=details),
        row_of("loss 4096", "eager", 1.5, details={"extra_bytes": 900_000_000}),
    ]
    assert judged("loss 4096 / eager, at its memory", loss=few) == ("1.50x at 11.1%", "missed")
    rows[0]["details"]["extra_bytes"] = None
    assert judged("loss 10000, extra memory", loss=rows)[1] == "unmeasured: the device does not count memory"


def test_a_layer_has_two_rivals() -> None:
    name = "layer large 512 half"
    rows = [row_of(name, "fastbert", 1.0), row_of(name, "eager", 2.5), row_of(name, "eager compiled", 1.1)]
    assert judged(f"{name} / eager", layer=rows) == ("2.50x eager (1 ms)", "met")
    assert judged(f"{name} / eager compiled", layer=rows) == ("1.10x eager compiled (1 ms)", "missed")


def test_the_faster_of_ours_counts_if_it_is_right() -> None:
    name = "encoder base 16 latency"
    rows = [row_of(name, "fastbert", 2.0), row_of(name, "fastbert graphs", 0.5), row_of(name, "torch padded", 3.0)]
    goal = f"{name} / transformers"
    assert judged(goal, encoder=rows) == ("6.00x torch padded (0.5 ms, fastbert graphs)", "met")
    rows[1]["outputs"] = "wrong: states"
    assert judged(goal, encoder=rows) == ("1.50x torch padded (2 ms)", "missed")
    name = "pretraining large 512 packed"
    steps = [row_of(name, "fastbert", 120.0, details={"tokens": 32576})]
    assert judged(f"{name}, tokens/s", pretraining=steps) == ("271,467 (fastbert)", "met")

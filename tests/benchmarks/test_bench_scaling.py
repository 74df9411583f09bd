"""The benchmark of threads and shared cores: several processes, divisions by hand, the model and its table."""

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cpu_rows import row

pytest.importorskip("rich", reason="the tables need rich")

from rich.console import Console

from fastbert.benchmarks import bench_scaling
from fastbert.benchmarks.bench_scaling import Options
from fastbert.benchmarks.cpu import lineup
from fastbert.benchmarks.cpu.lineup import Result, with_ratios
from fastbert.benchmarks.harness.isolation import Local
from fastbert.benchmarks.harness.measure import ContenderFailed
from fastbert.benchmarks.scaling import lineups, model, partition, regions, report
from fastbert.benchmarks.scaling.lineups import Pair, Run, SeveralLineup, ThreadCounts, counts_to
from fastbert.benchmarks.scaling.partition import KERNELS, Division, Kernel, Matmul, Partition
from fastbert.benchmarks.scaling.regions import RegionCost
from fastbert.config import BertConfig
from fastbert.errors import UserError

BASE = BertConfig()
GEMM = Path(__file__).resolve().parents[2] / "csrc" / "cpu"


class Scripted:
    """A process whose answers are known."""

    def __init__(self, answer: Callable[[str, dict[str, Any]], Any]) -> None:
        self.answer, self.methods = answer, []

    def call(self, method: str, **arguments: Any) -> Any:
        self.methods.append(method)
        return self.answer(method, arguments)

    def close(self) -> None:
        self.methods.append("close")


# Several processes


def clocked(seconds_by_calls: Mapping[int, float], calls: int = 2) -> Scripted:
    """A process that takes so long for so many calls."""

    def answer(method: str, arguments: dict[str, Any]) -> Any:
        if method == "several":
            seconds = seconds_by_calls[arguments["calls"]]
            return list(Run(arguments["at"], arguments["at"] + seconds, 2 * seconds))
        return {"calls_per_round": calls} if method == "open" else 7

    return Scripted(answer)


def test_a_pair_is_done_when_both_are() -> None:
    first, second = clocked({12: 12.0, 6: 9.0}), clocked({12: 14.0, 6: 15.0})
    pair = Pair([first, second])
    assert pair.call("open", path="x") == {"calls_per_round": 2}
    assert pair.calls == 6
    timings = [pair.call("time") for _ in range(2)]
    assert [timing.seconds for timing in timings] == pytest.approx([15 / 12] * 2)
    assert timings[0].processor_seconds == pytest.approx(2 * (9 + 15) / 12)
    # Alone by turns: 12 and 14 seconds.
    details = pair.measured(2)
    assert details["relative_time"] == pytest.approx(15 / 13, rel=1e-3)
    assert (details["alone_ms"], details["calls"], details["processes"]) == (pytest.approx(1083), 6, 2)
    assert details["relative_time_p20"] < details["relative_time"] < details["relative_time_p80"]
    assert pair.measured(1)["relative_time"] == pytest.approx(15 / 14, rel=1e-3), "the last rounds, without the warm-up"
    assert pair.call("peak_memory") == 14
    assert pair.call("save", path="x") == 7
    assert "save" not in first.methods
    pair.close()
    assert first.methods[-1] == second.methods[-1] == "close"


def test_the_speed_over_threads_is_relative_to_one() -> None:
    members = [Scripted(lambda method, _, s=s: [s, s] if method == "time" else {}) for s in (9.0, 6.0, 3.0)]
    counts = ThreadCounts(members, [1, 2, 4])
    counts.call("open", path="x")
    assert [counts.call("time").seconds for _ in range(3)] == [3.0] * 3
    details = counts.measured(2)
    assert (details["speed_up"], details["scaling"]) == (3.0, 0.75)
    assert details["ms_by_threads"] == {"1": 9000.0, "2": 6000.0, "4": 3000.0}
    assert details["rounds_ms_by_threads"]["2"] == [6000.0, 6000.0]


@pytest.mark.parametrize(
    ("threads", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9])]
)
def test_counts_are_powers_of_two_and_all(threads: int, counts: list[int]) -> None:
    assert counts_to(threads) == counts


# How the kernels divide work


def constants(path: str) -> dict[str, int]:
    """The integer constants and initialisers of a C++ file."""
    text = (GEMM / path).read_text(encoding="utf-8")
    found = re.findall(r"\b(k\w+)(?:\{| = |, k\w+ = )(?:std::size_t\{)?(\d+)\}?(?: << (\d+))?", text)
    return {name: int(value) << int(shift or 0) for name, value, shift in found}


@pytest.mark.skipif(not GEMM.is_dir(), reason="compares with the C++ sources")
def test_the_constants_are_those_of_the_sources() -> None:
    gemm = (GEMM / "gemm/gemm.cpp").read_text(encoding="utf-8")
    assert f"kMinPanels = {partition.MIN_PANELS}, kMinDynamicPanels = 4 * kMinPanels;" in gemm
    assert "time *= 1.1" in gemm
    assert "std::clamp<std::size_t>((1U << 20) / (depth * 4), 56, 256)" in gemm
    assert "std::size_t memory_rows = 16;" in (GEMM / "gemm/gemm.h").read_text(encoding="utf-8")
    header, attention = constants("gemm/gemm.h"), constants("attention/attention.h")
    assert (header["kColumns"], header["kStep"]) == (partition.COLUMNS, partition.STEP)
    assert attention["kAttentionChunk"] == partition.ATTENTION_CHUNK
    assert attention["kAttentionTiles"] == partition.ATTENTION_TILES
    assert constants("encoder_layer/encoder_layer.cpp")["kChunk"] == partition.LAYER_CHUNK
    assert constants("encoder_layer/short_stack.cpp")["kMostTokens"] == partition.MOST_SHORT_TOKENS
    grouped = constants("encoder_layer/grouped_stack.cpp")
    assert (grouped["kMostTokens"], grouped["kLeastTokens"]) == (
        partition.MOST_GROUP_TOKENS,
        partition.LEAST_GROUP_TOKENS,
    )
    assert (grouped["kGroupRows"], grouped["kLongest"]) == (partition.GROUP_ROWS, partition.LONGEST_IN_GROUP)
    assert "kMostUneven = 1.1;" in (GEMM / "encoder_layer/grouped_stack.cpp").read_text(encoding="utf-8")
    assert constants("gemm/quantize.cpp")["kGrain"] == partition.QUANTIZE_GRAIN
    assert "kMinParallelWork = 1e6" in (GEMM / "gemm/kernel_table.h").read_text(encoding="utf-8")
    for name, kernel in KERNELS.items():
        text = (GEMM / f"gemm/{name}.cpp").read_text(encoding="utf-8")
        pairs = name in ("int8_avx2", "int8_avx512")  # whose kernel is in a header
        shared = (GEMM / "gemm/int8_madd.h").read_text(encoding="utf-8") if pairs else text
        rows = re.search(r"kRows = (2 \* kTileRows|\d+)|\.rows = (\d+)", text)
        assert rows is not None
        assert kernel.rows == (32 if "kTileRows" in rows[0] else int(rows[1] or rows[2])), name
        step = re.search(r"\.row_step = (\w+)", shared)
        assert kernel.row_step == ({"2": 2, "kTileRows": 16}[step[1]] if step else 1), name
        memory = re.search(r"\.memory_rows = ([\w: *]+)", shared)
        meaning = {"I::kRows": kernel.rows, "kRows": kernel.rows, "2 * kRows": 2 * kernel.rows, "kMemoryRows": 128}
        assert kernel.memory_rows == (meaning[memory[1]] if memory else 16), name
        assert bool(kernel.chunk_bytes) == (".chunk_bytes" in text), name
    amx = constants("gemm/amx.cpp")
    assert (amx["kChunkBytes"], amx["kBf16ChunkRows"]) == (KERNELS["amx"].chunk_bytes, KERNELS["amx"].bf16_chunk_rows)
    assert "kInt8ChunkRows = 512" in (GEMM / "gemm/amx.cpp").read_text(encoding="utf-8")
    assert "std::size_t chunk_rows = 512;" in (GEMM / "gemm/gemm.h").read_text(encoding="utf-8")


def test_the_kernel_is_that_of_the_capability() -> None:
    found = {
        (dtype, capability, *flags): partition.kernel_name(dtype, capability, dict.fromkeys(flags, True))
        for dtype, capability, *flags in (
            ("fp32", "avx2"), ("int8", "avx2"), ("bf16", "avx512"), ("bf16", "avx512", "avx512_bf16"),
            ("int8", "avx512"), ("int8", "avx512", "avx512_vnni"), ("fp32", "amx"), ("bf16", "amx"), ("int8", "amx"),
            ("int8", "portable"), ("fp32", "portable"),
        )
    }  # fmt: skip
    assert list(found.values()) == [
        "avx2", "int8_avx2", "avx512", "avx512_bf16", "int8_avx512", "int8_vnni", "avx512", "amx", "amx",
        "int8_portable", "portable",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("matmul", "kernel", "threads", "expected"),
    [
        pytest.param(Matmul("", 100, 768, 768), Kernel(6), 1, Division(2400, 2400), id="one-thread"),
        pytest.param(Matmul("", 10, 300, 300), Kernel(6), 4, Division(100, 100), id="too-small"),
        # 1.1 * 12 * (16 + 16) is less than 24 * (8 + 16).
        pytest.param(Matmul("", 16, 768, 768), Kernel(6), 2, Division(384, 192, 2), id="columns"),
        pytest.param(Matmul("", 16, 3072, 32), Kernel(6), 2, Division(16, 8), id="rows"),
        # 50 rows are four steps of 16: three groups would be no faster than two.
        pytest.param(Matmul("", 50, 768, 64), Kernel(32, row_step=16, memory_rows=4), 3, Division(128, 64), id="steps"),
        # Steps of 54, 36, 30, 24 (the least), 24, 24, 8 rows: 54 + 24 + 24 and 36 + 30 + 24 + 8.
        pytest.param(Matmul("", 200, 768, 96), Kernel(6), 2, Division(600, 306), id="dynamic"),
    ],
)
def test_matmuls_divided_by_hand(matmul: Matmul, kernel: Kernel, threads: int, expected: Division) -> None:
    assert partition.divide(matmul, kernel, 4, threads) == expected


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("lengths", [[16], [64] * 8, [128] * 32, [512] * 8, [1], [3, 500]], ids=str)
def test_no_thread_has_less_than_an_even_share(name: str, lengths: list[int]) -> None:
    dtype = "int8" if name.startswith("int8") else "fp32"
    for threads in (1, 2, 3, 5, 8, 32, 61):
        divided = partition.divide_pass(BASE, lengths, dtype, KERNELS[name], threads)
        assert 0 < divided.balance <= 1.0 + 1e-9
        assert set(divided.operations) == {"projections", "attention output", "intermediate", "output", "attention"}
        if threads == 1:
            assert divided.barriers == 0
            assert sum(lengths) > partition.MOST_SHORT_TOKENS or divided.balance == pytest.approx(1.0)


def test_attention_is_taken_longest_first() -> None:
    assert partition.divide_attention([100, 384, 100], 4, 2) == Division(
        4 * (400**2 + 2 * 116**2), 2 * 400**2 + 4 * 116**2
    )
    # Few items are cut: four of 96 queries on three threads, two of them on one.
    assert partition.divide_attention([100] * 4, 1, 3) == Division(4 * 116 * 116, 2 * 112 * 116)
    # Below the cost of waking threads.
    assert partition.divide_attention([4], 12, 2).balance(2) == pytest.approx(1 / 2)


def test_few_tokens_wait_once_more_where_heads_do_not_divide() -> None:
    assert partition.divide_pass(BASE, [16], "fp32", KERNELS["avx2"], 2).barriers == 4 * 12
    uneven = partition.divide_pass(BASE, [16], "fp32", KERNELS["avx2"], 8)
    assert (uneven.regions, uneven.barriers) == (1, 5 * 12)
    assert uneven.operations["attention"] == pytest.approx(12 / 16)
    assert uneven.operations["intermediate"] == 1.0
    # int8 quantizes the rows of each of the four matmuls in a job of its own; two barriers each, and one at the end.
    fp32, int8 = (partition.divide_pass(BASE, [64] * 3, dtype, KERNELS["avx2"], 2) for dtype in ("fp32", "int8"))
    assert (fp32.regions, int8.regions) == (1, 1)
    assert (fp32.barriers, int8.barriers) == (2 * 5 * 12 + 1, 2 * 9 * 12 + 1)


def test_groups_of_sequences() -> None:
    kernel = Kernel(32, row_step=16)
    assert partition.sequence_groups([64] * 8, kernel, 2) == [[64] * 4] * 2
    # 150 and 106 are 160 and 112 rows, 256 are as many; 90 and 6 fill 96.
    assert partition.sequence_groups([150, 106, 90, 6, 160], kernel, 2) == [[150, 106], [90, 6, 160]]
    assert partition.sequence_groups([380, 100, 300], kernel, 2) == [[380], [100], [300]]
    assert partition.sequence_groups([0, 300, 0], kernel, 1) == [[0, 300, 0]]
    assert partition.sequence_groups([400, 20, 3], kernel, 2) is None, "uneven"
    assert partition.sequence_groups([385] * 4, kernel, 2) is None, "long"
    assert partition.sequence_groups([64] * 3, kernel, 2) is None, "few tokens per thread"
    # Three groups on two threads: the next layer begins on the thread that has none left.
    for layers, balance in ((1, 0.75), (2, 1.0)):
        divided = partition.divide_pass(replace(BASE, num_hidden_layers=layers), [128] * 6, "bf16", kernel, 2)
        assert divided.balance == pytest.approx(balance)
        assert (divided.regions, divided.barriers) == (1, 3)


# The model

EVEN = Partition(balance=0.8, regions=10, barriers=20, operations={"output": 0.8})
COST = RegionCost(1e-4, 2e-4)


def test_the_serial_part_is_that_of_times_which_have_one() -> None:
    serial, work = 0.3, 2.0
    two = serial + work / (2 * 0.8) + 10 * 1e-4 + 20 * 2e-4
    assert model.serial_seconds(serial + work, two, EVEN, COST) == pytest.approx(serial)
    assert model.serial_seconds(1.0, 0.1, EVEN, COST) == 0.0
    assert model.serial_seconds(1.0, 5.0, EVEN, COST) == 1.0
    assert model.serial_seconds(1.0, 0.9, replace(EVEN, balance=0.5), COST) == 1.0


def described(**changes: Any) -> dict[str, Any]:
    costs = {2: RegionCost(1e-6, 2e-6), 8: RegionCost(1e-3, 2e-3), 32: RegionCost(1e-2, 2e-2)}
    values: dict[str, Any] = {"cores": 2, "bytes_seconds": 0.0, **changes}
    rounds = {"1": [2300.0, 2300.0, 2400.0], "2": [1550.0, 1550.0, 1800.0]}
    return model.describe(rounds, lambda threads: EVEN, costs, **values)


def test_more_threads_than_cores_are_marked_as_emulated() -> None:
    details = described()
    assert list(details["threads"]) == ["2", "8", "32"]
    assert [terms["emulated"] for terms in details["threads"].values()] == [False, True, True]
    eight = details["threads"]["8"]
    serial = (1.55 - 10e-6 - 40e-6 - 2.3 / 1.6) / (1 - 1 / 1.6)
    assert details["serial_ms"] == pytest.approx(serial * 1e3, rel=1e-3)
    # The costs of two threads grow fourfold.
    assert (eight["region_us"], eight["barrier_us"]) == (4.0, 8.0)
    expected = serial + (2.3 - serial) / (8 * 0.8) + 10 * 4e-6 + 20 * 8e-6
    assert eight["predicted_ms"] == pytest.approx(expected * 1e3, rel=1e-3)
    assert eight["scaling"] == pytest.approx(2.3 / (8 * expected), rel=1e-3)
    turns = expected + 10 * (1e-3 - 4e-6) + 20 * (2e-3 - 8e-6)
    assert eight["scaling_emulated"] == pytest.approx(2.3 / (8 * turns), rel=1e-3)
    assert eight["scaling_range"][0] < eight["scaling"] <= eight["scaling_range"][1]
    assert described(cores=32)["threads"]["8"]["region_us"] == 1000.0
    json.dumps(details, allow_nan=False)


def test_reading_the_weights_limits_many_threads() -> None:
    slow = described(bytes_seconds=0.5)["threads"]
    free = described()["threads"]
    assert slow["2"]["predicted_ms"] == free["2"]["predicted_ms"]
    assert slow["32"]["predicted_ms"] - free["32"]["predicted_ms"] > 300


@pytest.mark.usefixtures("threads")
def test_a_region_takes_time() -> None:
    for _ in range(5):
        answer = regions.child("2")
        assert 0 <= answer["barrier"] < 0.1
        assert 0 <= answer["region"] < 0.1
        if answer["region"]:  # on a busy machine the call alone may have taken longer
            return
    pytest.fail("a region of two threads takes no longer than a call")


# The benchmark


def threaded_row(contender: str = "fastbert fp32", dtype: str = "fp32") -> Any:
    times = {"1": 40.0, "2": 20.0}
    details = {
        "gflops": 1.0, "scaling": 1.0, "speed_up": 2.0, "ms_by_threads": times,
        "rounds_ms_by_threads": {count: [ms, ms] for count, ms in times.items()},
    }  # fmt: skip
    return replace(row(contender, 20.0, dtype), workload="all cores, latency-16", details=details)


def test_models_follow_the_rows_or_say_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    options, said = Options(threads=2), []
    [workload] = Options(workloads=("all cores, latency-16",)).chosen()
    monkeypatch.setattr(bench_scaling, "cores", lambda: 2)
    monkeypatch.setattr(bench_scaling, "_cost", lambda threads: RegionCost(threads * 1e-6, threads * 1e-6))
    rows = [threaded_row(), threaded_row("fastbert int8", "int8")]
    made = bench_scaling.with_models(rows, workload, options, said.append)
    assert [list(row.details["model"]["threads"]) for row in made] == [["2", "8", "32"]] * 2
    assert not said
    printed = io.StringIO()
    report.show(Result(with_ratios(made)), Console(file=printed, width=150))
    assert "all cores, latency-16; 1 threads" in printed.getvalue()
    assert re.search(r"fastbert fp32 +2 .*\n +8 .*\n +32 ", printed.getvalue())
    assert "(an emulated topology)" in printed.getvalue()

    # Other processes that use the cores make barriers take milliseconds.
    assert "notes" not in made[0].details
    monkeypatch.setattr(bench_scaling, "_cost", lambda threads: RegionCost(1e-2, 1e-3))
    [disturbed] = bench_scaling.with_models(rows[:1], workload, options, said.append)
    assert disturbed.details["notes"] == ["the model has 78 ms for 2 threads, 20 measured: the machine was not steady"]

    def fails(threads: int) -> RegionCost:
        raise ContenderFailed("no OpenMP runtime")

    monkeypatch.setattr(bench_scaling, "_cost", fails)
    assert bench_scaling.with_models(rows, workload, options, said.append) == rows
    assert said == ["all cores, latency-16: no model of more threads: no OpenMP runtime"]


def test_bf16_takes_part_where_the_processor_multiplies_it_or_if_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(multiplies: bool, *contenders: str) -> list[str]:
        monkeypatch.setattr(bench_scaling, "multiplies_bf16", lambda: multiplies)
        return Options(contenders=contenders).names()

    assert {name for name in names(False) if "bf16" in name} == set()
    assert {"fastbert bf16", "transformers sdpa bf16"} <= set(names(True))
    assert names(False, "fastbert") == ["fastbert fp32", "fastbert int8"]
    assert names(False, "fastbert bf16") == ["fastbert bf16"]
    assert "openvino fp32" in names(False, "openvino")
    assert "openvino fp32" not in names(False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"isolate": False}, "--no-isolate: every contender needs several processes"),
        ({"workloads": ("nope",)}, "no workload has 'nope' in its name; there are two processes, latency-16"),
        ({"contenders": ("nope",)}, "no contender has 'nope' in its name"),
    ],
)
def test_wrong_options_are_named(changes: dict[str, Sequence[str]], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        Options(**changes)


@pytest.mark.usefixtures("threads")
def test_two_contenders_at_once_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two threads of this process; starting two would take most of the time."""
    monkeypatch.setattr(lineups, "Isolated", lambda class_path, arguments, *_: Local(class_path, arguments))
    monkeypatch.setitem(lineup.REFERENCES, "encoder", ("fastbert fp32",))
    monkeypatch.setattr(SeveralLineup, "_peak", lambda self: {})
    file = tmp_path / "rows.json"
    words = ["--quick", "--model", "tiny", "--rounds", "1", "--threads", "1", "--contenders", "fastbert fp32"]
    assert bench_scaling.main([*words, "--workloads", "two processes, latency", "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    assert record["benchmark"] == "scaling"
    [measured] = record["rows"]
    assert (measured["workload"], measured["contender"]) == ("two processes, latency-16", "fastbert fp32")
    assert measured["outputs"] == "equal"
    details = measured["details"]
    assert details["processes"] == 2
    assert details["calls"] >= 2
    assert 0.1 < details["relative_time"] < 20
    assert details["relative_time"] == pytest.approx(measured["median_ms"] / details["alone_ms"], rel=0.01)

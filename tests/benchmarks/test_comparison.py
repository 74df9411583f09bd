"""Comparing two measurements: noise, the machine's own change, what cannot be compared, and files of both kinds."""

import io
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from cpu_rows import row
from rich.console import Console

from fastbert.benchmarks.harness import comparison, records
from fastbert.benchmarks.harness.comparison import FASTER, SAME, SLOWER
from fastbert.errors import UserError

MACHINE = {"cpu": "Example 9000", "features": ["avx2", "avx512f"], "cpu_capability": "avx512", "usable_cores": 2.0}
VERSIONS = {"python": "3.11.7", "torch": "2.13.0", "openvino": "2026.4.1"}
Save = Callable[..., Path]


def timed(contender: str, ms: float, *, spread: float = 0.01, rounds: int = 7, **more: Any) -> dict[str, Any]:
    """A row whose 20th and 80th percentile are `spread` away from its median."""
    details = {"rounds": rounds, **more.pop("details", {})}
    made = replace(row(contender, ms), p20=ms * (1 - spread), p80=ms * (1 + spread), details=details)
    # Of a thousand tokens per call, whatever its time.
    return asdict(replace(made, tokens_per_second=1e6 / ms)) | more


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Write a record of some rows under a name."""

    def write(name: str, *rows: dict[str, Any], **more: Any) -> Path:
        record = {"schema": 1, "benchmark": "encoder", "machine": MACHINE, "versions": VERSIONS, "commit": name}
        records.write(tmp_path / f"{name}.json", {**record, "rows": list(rows), **more})
        return tmp_path / f"{name}.json"

    return write


def compared(old: Path, new: Path) -> comparison.Comparison:
    return comparison.compare(comparison.read(old), comparison.read(new))


def verdicts(old: Path, new: Path) -> dict[str, str]:
    return {change.key[2]: change.verdict for change in compared(old, new).changes}


PEER = "transformers eager fp32"


@pytest.mark.parametrize(
    ("now", "spread", "rounds", "verdict"),
    [
        pytest.param(100.0, 0.01, 7, SAME, id="equal"),
        pytest.param(102.0, 0.001, 50, SAME, id="below-the-floor"),
        pytest.param(108.0, 0.01, 7, SLOWER, id="slower"),
        pytest.param(92.0, 0.01, 7, FASTER, id="faster"),
        pytest.param(108.0, 0.10, 7, SAME, id="noisy"),
        pytest.param(108.0, 0.02, 3, SAME, id="three-rounds-know-less"),
        pytest.param(108.0, 0.02, 50, SLOWER, id="fifty-rounds-know-more"),
        pytest.param(108.0, 0.00, 1, SAME, id="one-round-has-no-spread"),
        pytest.param(130.0, 0.00, 1, SLOWER, id="one-round-but-far"),
    ],
)
def test_what_is_beyond_noise(now: float, spread: float, rounds: int, verdict: str, save: Save) -> None:
    peer = timed(PEER, 500.0, spread=0.001, rounds=50)
    old = save("old", timed("fastbert fp32", 100.0, spread=spread, rounds=rounds), peer)
    new = save("new", timed("fastbert fp32", now, spread=spread, rounds=rounds), peer)
    assert verdicts(old, new) == {"fastbert fp32": verdict}
    assert compared(old, new).exit_code == (verdict == SLOWER)


def test_the_machines_own_change_is_taken_out(save: Save) -> None:
    """On a machine that is 20 % slower, a row that takes as long as before has become faster."""
    peers = {PEER: 500.0, "openvino fp32": 300.0, "torch.compile fp32": 400.0}
    before = {"fastbert fp32": 100.0, "fastbert bf16": 50.0, **peers}
    old = save("old", *(timed(name, ms) for name, ms in before.items()))
    now = {"fastbert fp32": 120.0, "fastbert bf16": 50.0, **{name: ms * 1.2 for name, ms in peers.items()}}
    new = save("new", *(timed(name, ms) for name, ms in now.items()))
    assert verdicts(old, new) == {"fastbert fp32": SAME, "fastbert bf16": FASTER}
    [change, _] = compared(old, new).changes
    assert change.net == pytest.approx(0.0, abs=1e-9)
    assert change.source == "peers"


def test_where_the_machines_change_comes_from(save: Save) -> None:
    own, peer = timed("fastbert fp32", 100.0), timed(PEER, 500.0)
    elsewhere = peer | {"workload": "another"}
    peak = {"details": {"peak_gflops": 100.0}}
    fallbacks = {
        "peers": [own, peer],
        "peers of other workloads": [own, elsewhere],
        "peak_gflops": [timed("fastbert fp32", 100.0, **peak)],
        "": [own],
    }
    for source, rows in fallbacks.items():
        path = save("same", *rows)
        [change] = compared(path, path).changes
        assert change.source == source
    # A peak that halved explains a time that doubled, and nothing explains it without one.
    slow = {"details": {"peak_gflops": 50.0}}
    old, new = save("old", timed("fastbert fp32", 100.0, **peak)), save("new", timed("fastbert fp32", 200.0, **slow))
    assert verdicts(old, new) == {"fastbert fp32": SAME}
    assert verdicts(save("bare", own), new) == {"fastbert fp32": SLOWER}


def test_a_peer_of_another_version_does_not_stand_for_the_machine(save: Save) -> None:
    def rows(factor: float) -> list[dict[str, Any]]:
        times = {"fastbert fp32": 100.0, PEER: 500.0 * factor, "openvino fp32": 300.0}
        return [timed(name, ms) for name, ms in times.items()]

    old = save("old", *rows(1.0))
    new = save("new", *rows(0.5), versions=VERSIONS | {"transformers": "6.0"})
    assert [change.source for change in compared(old, new).changes] == ["peers"], "its version before is not known"
    old = save("old", *rows(1.0), versions=VERSIONS | {"transformers": "5.0"})
    # OpenVINO's adapter exports the model of transformers, so it is left out too.
    assert [change.source for change in compared(old, new).changes] == [""]
    assert "for their versions: transformers 5.0 -> 6.0" in compared(old, new).notes[-1]


def test_a_row_that_fails_now_is_a_failure(save: Save) -> None:
    old = save("old", timed("fastbert fp32", 100.0), timed("fastbert int8", 50.0), timed(PEER, 500.0))
    failing = timed("fastbert int8", 50.0) | {"median_ms": None, "outputs": "not measured", "details": {"reason": "no"}}
    wrong = timed("fastbert fp32", 90.0) | {"outputs": "cosine 0.5 is below 0.98"}
    new = save("new", wrong, failing, timed(PEER, 500.0))
    result = compared(old, new)
    assert result.failures == [
        "toy, fastbert fp32: cosine 0.5 is below 0.98",
        "toy, fastbert int8: not measured (no)",
    ]
    assert (result.exit_code, compared(old, old).exit_code) == (1, 0)
    # What was wrong before is not compared, and what was left out now is only mentioned.
    with pytest.raises(UserError, match="no row of fastbert can be compared"):
        compared(new, old)
    less = compared(old, save("less", timed("fastbert fp32", 100.0)))
    assert less.exit_code == 0
    assert less.notes == ["not measured now: toy, fastbert int8"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": "bf16"}, "a different dtype (fp32 before, bf16 now)"),
        ({"threads": 2}, "a different number of threads (1 before, 2 now)"),
        ({"tokens_per_second": 2e4}, "a different model or size (1,000 tokens per call before, 2,000 now)"),
        (
            {"details": {"rounds": 7, "gflops": 1.0}},
            "a different model or size (2e+08 operations per call before, 1e+08",
        ),
        ({"details": {"rounds": 7, "gflops": 2.0, "model": "base"}}, "a different model (tiny before, base now)"),
    ],
)
def test_rows_of_other_work_are_refused_in_one_line(change: dict[str, Any], reason: str, save: Save) -> None:
    first = timed("fastbert fp32", 100.0, details={"gflops": 2.0, "model": "tiny"})
    second = timed("fastbert bf16", 100.0)
    result = compared(save("old", first, second), save("new", first | change, second))
    assert [change.key[2] for change in result.changes] == ["fastbert bf16"]
    [note] = result.notes
    assert note.startswith(f"not compared, {reason}")
    assert note.endswith(": toy, fastbert fp32")
    with pytest.raises(UserError, match="no row of fastbert can be compared"):
        compared(save("old", first), save("new", first | change))


def test_other_classes_and_benchmarks_are_refused(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    own = timed("fastbert fp32", 100.0)
    old, amx = save("old", own), save("amx", own, machine=MACHINE | {"features": ["amx_tile"]})
    with pytest.raises(UserError, match=r"amx.json: measured on a machine of class amx, not avx512"):
        compared(amx, old)
    with pytest.raises(UserError, match=r"old.json: measured encoder, .*other.json embed"):
        compared(old, save("other", own, benchmark="embed"))
    monkeypatch.setattr(records, "machine", lambda: MACHINE)
    assert comparison.read_for(old, "encoder").benchmarks == {"encoder"}
    with pytest.raises(UserError, match="measured encoder, not embed"):
        comparison.read_for(old, "embed")
    with pytest.raises(UserError, match="class amx"):
        comparison.read_for(amx, "encoder")
    moved = compared(old, save("new", own, machine=MACHINE | {"cpu": "Example 1000"}))
    assert moved.notes == [
        "a different processor: Example 9000 before, Example 1000 now; only changes relative to the machine's count"
    ]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": []}', '{"rows": [{"workload": "toy", "loss": 1}]}', "\xff"])
def test_files_that_are_no_measurements_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"file\.json: (not a JSON file|holds no rows|none of its rows has a time)"):
        comparison.read(file)


def test_every_record_with_times_compares_with_itself() -> None:
    folder = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
    count = 0
    for path in sorted(folder.glob("*/*.json")):
        try:
            measured = comparison.read(path)
        except UserError:
            continue
        if not any(comparison.is_own(contender) and row["median_ms"] for (*_, contender), row in measured.rows.items()):
            continue
        result = comparison.compare(measured, measured)
        assert (result.exit_code, result.notes) == (0, []), path
        assert all(change.net == 0 for change in result.changes)
        count += bool(result.changes)
    assert count > 20


def pytest_file(tmp_path: Path, factor: float = 1.0, data: bool = True) -> Path:
    seconds = [factor * value for value in (0.098, 0.099, 0.1, 0.101, 0.102)]
    stats = {"median": seconds[2], "q1": seconds[1], "q3": seconds[3], "rounds": 5, "data": seconds if data else None}
    extra = {"benchmark": "encoder", "workload": "toy", "contender": "fastbert fp32", "dtype": "fp32", "threads": 1}
    extra |= {"tokens_per_second": 1000.0 / seconds[2], "commit": "abc", "details": {"matmul_gflops": 50.0}}
    about = {"machine": MACHINE, "versions": VERSIONS}
    others = {"name": "test_unrelated", "stats": stats, "extra_info": {}}
    content = {
        "machine_info": {"fastbert": about},
        "benchmarks": [{"name": "test_it", "stats": stats, "extra_info": extra}, others],
    }
    file = tmp_path / f"pytest-{factor}-{data}.json"
    file.write_text(json.dumps(content))
    return file


def test_files_of_pytest_benchmark_compare_with_each_other_and_with_records(tmp_path: Path, save: Save) -> None:
    old, new = pytest_file(tmp_path), pytest_file(tmp_path, 1.2)
    assert verdicts(old, new) == {"fastbert fp32": SLOWER}
    assert verdicts(old, pytest_file(tmp_path, 1.01)) == {"fastbert fp32": SAME}
    # Quartiles alone give nearly the same noise.
    [measured], [estimated] = (compared(old, pytest_file(tmp_path, 1.2, data)).changes for data in (True, False))
    assert measured.noise == pytest.approx(estimated.noise, rel=0.2)
    record = save("record", timed("fastbert fp32", 100.0))
    assert verdicts(record, new) == {"fastbert fp32": SLOWER}
    assert comparison.read(old).commit == "abc"


def test_the_table_says_what_changed(save: Save) -> None:
    peer = timed(PEER, 500.0)
    old = save("old", timed("fastbert fp32", 100.0), timed("fastbert bf16", 100.0), peer)
    new = save("new", timed("fastbert fp32", 150.0), timed("fastbert bf16", 50.0), peer)
    console = Console(file=io.StringIO(), width=100)
    comparison.show(compared(old, new), console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert printed.startswith(f"compared: {old} (old) -> new")
    lines = {line.split("  ")[0]: line for line in printed.splitlines()}
    assert lines["toy, fastbert fp32"].endswith("SLOWER")
    assert "+50.0%" in lines["toy, fastbert fp32"]
    assert "faster" in lines["toy, fastbert bf16"]
    assert "1 slower, 1 faster, 0 within noise" in printed

"""The record of compiled kernels belongs to the tree's kernels and tables, nothing in it spills, and it is no fiction.

Launches are recorded, and a sample of them compiled, in one process of its own: this one interprets kernels.
"""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="needs triton")
import triton

from fastbert.benchmarks import kernel_resources
from fastbert.errors import UserError
from fastbert.kernels.configs.defaults import DEFAULTS, SIZES
from fastbert.kernels.tuning import resource_record
from fastbert.kernels.tuning.resource_record import VERSIONS, Entry, Row
from fastbert.kernels.tuning.resource_table import table
from fastbert.kernels.tuning.resources import SHARED_MEMORY, TARGETS, Body, Resources

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "kernel_resources.json"
DOCUMENT = Path(__file__).parents[2] / "docs" / "performance-gpu.md"
SAME_FOR_ALL = {"drop_tokens", "sum_columns"}
# Bytes per thread that are spilled by choice.
KNOWN = {
    # Outside of its loop; with three programs per multiprocessor it takes 6 % less time on an H100.
    *((f"backward_queries, bf16 64 dropout, sm_90, triton {version}", 8) for version in VERSIONS),
}
OUTDATED = f"the record is outdated: run `{resource_record.COMMAND}`"


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return resource_record.read(RECORD)


def row(**changes: object) -> Row:
    loop = Body(loop=True, instructions=553, scores=32, matmuls=2.0, kinds={"matmul": 8, "exp2": 36})
    masked = Body(loop=True, instructions=629, scores=32, matmuls=2.0, kinds={"matmul": 8})
    resources = Resources(
        kernel="forward_long", case="bf16 64 dropout", target="sm_90", warps=8, registers=169, spills=0, shared=65536,
        programs=1, copies={16: 24, 4: 2}, tma=0, loads={16: 4, 8: 1}, instructions=1845, bodies=(masked, loop),
    )  # fmt: skip
    return Row("3.6.0", "0123456789ab", replace(resources, **changes))  # type: ignore[arg-type]


def test_the_record_is_that_of_the_kernels_and_is_reproduced() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-P", "-m", resource_record.__name__, str(RECORD), "--check"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{OUTDATED}\n{done.stdout}{done.stderr}"


def test_what_is_missing_or_outdated_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    case: Any = "bf16 64"
    launched = [Entry("0123456789ab", "forward_long", case, "sm_90", 0), Entry("cd", "forward_short", case, "sm_80", 1)]
    monkeypatch.setattr(resource_record, "shipped", lambda: launched)
    stale = replace(row(), key="ef")
    assert resource_record.problems([row(), stale]) == [
        "not compiled by triton 3.6.0: forward_short, bf16 64, sm_80",
        "differs from what is launched: forward_long, bf16 64 dropout, sm_90, triton 3.6.0",
        "triton 3.7.1 is absent",
    ]
    both = [replace(row(), triton=version, key=entry.key) for entry in launched for version in VERSIONS]
    assert resource_record.problems(both) == []
    assert resource_record.problems([*both, replace(row(), triton="2.0")]) == ["triton 2.0 is none of 3.6.0, 3.7.1"]


def test_an_interrupted_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case: Any = "bf16 64"
    launched = [Entry(key, "forward_long", case, "sm_90", 0) for key in ("1", "2", "3")]
    monkeypatch.setattr(resource_record, "shipped", lambda: launched)
    monkeypatch.setattr(resource_record, "first", lambda: launched)
    compiled: list[str] = []

    def compile_all(pending: list[Entry], processes: int | None, report: Callable[[list[Row]], object]) -> list[Row]:
        rows = [replace(row(), triton=triton.__version__, key=entry.key) for entry in pending]
        compiled.extend(each.key for each in rows)
        report(rows[:2])
        if len(rows) == 3:
            raise KeyboardInterrupt
        return rows

    monkeypatch.setattr(resource_record, "compile_all", compile_all)
    path = tmp_path / "record.json"
    other, outdated = replace(row(), triton="2.0"), replace(row(), triton=triton.__version__, key="4")
    resource_record.write(path, [outdated, other])
    with pytest.raises(KeyboardInterrupt):
        resource_record.update(path)
    assert [each.key for each in resource_record.update(path) if each.triton == triton.__version__] == ["1", "2", "3"]
    assert compiled == ["1", "2", "3", "3"]
    assert [each.triton for each in resource_record.read(path)].count("2.0") == 1


def test_no_kernel_spills_with_any_version(rows: list[Row]) -> None:
    assert {(row.triton, row.resources.target) for row in rows} == {(v, t) for v in VERSIONS for t in TARGETS}
    unfit = [row for row in rows if not row.resources.fits and (str(row), row.resources.spills) not in KNOWN]
    assert unfit == [], "\n".join(resource_record.unfit(unfit))
    # An entry leaves with its spill.
    assert {(str(row), row.resources.spills) for row in rows} >= KNOWN


def test_every_kernel_is_compiled_for_every_target(rows: list[Row]) -> None:
    # Those whose configuration a table holds, and those that have one for all GPUs; entries that choose among libraries
    # are no kernels.
    tabled = {kernel for kernel, entries in DEFAULTS["sm_90"].items() if "LIBRARY" not in SIZES[kernel]}
    expected = {*tabled, *SAME_FOR_ALL}
    for version, target in itertools.product(VERSIONS, TARGETS):
        kernels = {row.resources.kernel for row in rows if (row.triton, row.resources.target) == (version, target)}
        assert kernels == expected, f"triton {version}, {target}"


def test_eight_warps_of_short_attention_run_on_a_multiprocessor(rows: list[Row]) -> None:
    short = [row for row in rows if row.resources.kernel.endswith("_short") and row.resources.target == "sm_90"]
    assert short
    assert [str(row) for row in short if row.resources.programs * row.resources.warps < 8] == []


def test_attention_has_counts_per_score(rows: list[Row]) -> None:
    attention = [row for row in rows if row.resources.target == "sm_90" and row.resources.case == "bf16 64 dropout"]
    assert {row.triton for row in attention} == set(VERSIONS)
    for row in attention:
        inner = row.resources.inner
        assert inner is not None
        assert inner.scores, row
        assert inner.matmuls in (2, 3, 4, 5), f"{row}: {inner.matmuls} matmuls per score: is the loop unrolled?"
        assert 5 < inner.instructions / inner.scores < 100, row


def test_the_page_shows_the_record(rows: list[Row]) -> None:
    text = DOCUMENT.read_text()
    assert kernel_resources.with_section(text, rows) == text, OUTDATED


def test_a_page_without_markers_is_reported() -> None:
    with pytest.raises(UserError, match="lacks the lines <!-- compiled resources -->"):
        kernel_resources.with_section("# A page", [row()])


def test_rows_survive_a_file(tmp_path: Path) -> None:
    written = row()
    resource_record.write(tmp_path / "record.json", [written])
    read = resource_record.read(tmp_path / "record.json")
    assert [(each.triton, each.key) for each in read] == [("3.6.0", "0123456789ab")]
    assert read[0].resources.inner == written.resources.inner
    assert replace(read[0].resources, bodies=()) == replace(written.resources, bodies=())
    assert len(read[0].resources.bodies) == 2


def test_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(json.dumps({"format": 0, "rows": []}))
    with pytest.raises(UserError, match=r"has format 0, not 1: delete it and run `python benchmarks/kernel_resources"):
        resource_record.read(tmp_path / "record.json")


def test_spills_and_too_much_shared_memory_are_unfit() -> None:
    too_much = SHARED_MEMORY["sm_90"][0] + 1
    messages = resource_record.unfit([row(), row(spills=8), row(shared=too_much)])
    assert len(messages) == 2
    assert messages[0].startswith("forward_long, bf16 64 dropout, sm_90, triton 3.6.0: spills 8 bytes")
    assert f"{too_much} bytes of shared memory" in messages[1]


def test_the_inner_loop_is_that_of_whole_tiles() -> None:
    resources = row().resources
    assert resources.inner is not None
    assert (resources.inner.instructions, resources.per_score) == (553, 553 / 32)
    assert replace(resources, bodies=()).per_score is None


def test_the_table_fits_a_terminal() -> None:
    # Names as long as the longest.
    long = row(kernel="matmul_gelu_backward", case="bf16 1024 wide sum dropout fp32 weights").resources
    lines = table([row().resources, replace(long, spills=8, copies={}, tma=4)], loops=False).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == "sm_90:"
    assert lines[2].split()[-3:] == ["24+2", "553", "17.3"]
    assert lines[3].split()[-3] == "4T"
    assert lines[4].strip() == "DOES NOT FIT"
    assert "loop: 553 instructions, 32 scores, 17.3 per score, 2 matmuls: 8 matmul, 36 exp2" in table(
        [row().resources], loops=True
    )

"""Results that come back from a GPU machine: the record, the page, and what tests and profiler report."""

import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from gpu_rows import row

from fastbert.benchmarks.gpu import page, profiling, testing
from fastbert.benchmarks.gpu import record as gpu_record
from fastbert.benchmarks.gpu.estimates import ESTIMATES
from fastbert.benchmarks.harness import records
from fastbert.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
DEVICE = "h100-80gb-hbm3"


def timed(workload: str, contender: str, milliseconds: float, **others: Any) -> dict[str, Any]:
    values = {
        "p20": milliseconds,
        "p80": milliseconds,
        "tokens_per_second": 1e6,
        "ratio_to_fastbert": 1.0,
        "max_abs_difference": 0.0,
        "dtype": "bf16",
        "threads": 1,
        "threads_used": None,
        "gigabytes_per_second": None,
        "megabytes_per_second": None,
        "details": {"sequences": 256},
    }
    return row(contender, milliseconds, workload=workload, **{**values, **others})


@pytest.fixture
def returned(tmp_path: Path) -> Path:
    """A results.json as a GPU machine returns it, of a run that ended early."""
    name = "pretraining base 128 full"
    rows = [timed(name, "fastbert", 42.0), timed(name, "fastbert graphs", 40.0), timed(name, "eager", 120.0)]
    wrong = timed(
        "linear_gelu forward 768", "eager", 1.0, outputs="wrong: output is off by nan", max_abs_difference=float("nan")
    )
    sections = {
        "build": {"status": "ok", "lines": ["pip"]},
        "environment": {
            "status": "ok",
            "gpu": {"name": "NVIDIA H100 80GB HBM3", "architecture": "sm_90"},
            "nvidia_smi": {"driver_version": "580.1"},
            "machine": {"cpu": "a processor", "features": ["avx2"]},
            "versions": {"torch": "2.11.0"},
        },
        "pretraining": {"status": "running", "rows": rows, "failures": [{"case": "x", "reason": "y", "lines": ["z"]}]},
        "linear": {"rows": [wrong]},
    }
    path = tmp_path / "results.json"
    results = {"command": "measure", "commit": "0123456789ab", "versions": {"python": "3.12"}, "sections": sections}
    path.write_text(json.dumps(results))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A clone's documentation without measurements, but with an explanation."""
    folder = tmp_path / "clone"
    (folder / "docs" / "images").mkdir(parents=True)
    text = f"# By hand\n\n{page.BEGIN}\nold\n{page.END}\n\n- attention at 128, H100: because.\n"
    (folder / page.PAGE).write_text(text)
    return folder


def test_returned_results_become_a_record_tables_and_charts(returned: Path, root: Path) -> None:
    pytest.importorskip("matplotlib", reason="draws charts")
    tests = returned.with_name("tests.json")
    tests.write_text(json.dumps({"sections": {"tests": {"counts": {"passed": 3}}}}))
    lines, unexplained = gpu_record.keep([returned, tests], root)
    assert lines == [
        f"wrote benchmarks/results/gpu/{DEVICE}.json",
        f"wrote docs/images/gpu_{DEVICE}_throughput.png",
        "wrote docs/performance-gpu.md",
    ]
    record = json.loads((root / page.RECORDS / f"{DEVICE}.json").read_text())
    assert records.problems(record, "gpu", DEVICE) == []
    assert (record["commit"], record["versions"]) == ("0123456789ab", {"python": "3.12", "torch": "2.11.0"})
    assert record["machine"]["driver"] == "580.1"
    assert record["settings"]["sections"]["tests"] == {"counts": {"passed": 3}}
    assert record["settings"]["sections"]["pretraining"]["failures"] == [{"case": "x", "reason": "y"}]
    assert [each["section"] for each in record["rows"]] == ["pretraining"] * 3 + ["linear"]
    assert record["rows"][3]["max_abs_difference"] is None
    text = (root / page.PAGE).read_text()
    assert text.startswith("# By hand\n")
    assert "old" not in text
    assert "| pretraining base 128 full, sequences/s, first run | >= 6,200 | 6,400 (fastbert graphs): met |" in text
    assert "| pretraining base 128 full / eager bf16 | >= 2.5x | 3.00x eager (40 ms, 100 TFLOP/s, fastbert gra" in text
    assert "| a step at 128 | H100 | 41 ms | 40 ms | off by -2% |" in text
    assert "| a step at 128 | H200 | 37 ms | unmeasured |  |" in text
    assert "| pretraining base 128 full | 40 (graphs) | 6,400 sequences/s, 100 TFLOP/s | eager 3.00x |" in text
    assert "| linear_gelu forward 768 | - |  | eager 1 ms (wrong) |" in text
    assert f"](images/gpu_{DEVICE}_throughput.png)" in text
    assert unexplained == []
    gpu_record.write_page(root)
    assert (root / page.PAGE).read_text() == text, "the same again"


def test_an_estimate_that_is_far_off_must_be_explained(returned: Path, root: Path) -> None:
    results = json.loads(returned.read_text())
    rows = results["sections"]["pretraining"]["rows"]
    for each in rows:
        each["median_ms"] *= 2
    rows += [timed(name, "fastbert", 1.0) for _, name in ESTIMATES[2].cases]
    returned.write_text(json.dumps(results))
    record = {DEVICE: gpu_record.make_record([returned])}
    explanations = page.explanations_on((root / page.PAGE).read_text())
    assert list(explanations) == ["attention at 128, H100"]
    (line,) = page.unexplained(record, explanations)
    assert line.startswith("docs/performance-gpu.md: the estimate of a step at 128, H100 is off by +95%: explain it")
    text = page.render(record, explanations, {})
    assert "| a step at 128 | H100 | 41 ms | 80 ms | off by +95%, **to be explained** |" in text
    assert "| attention at 128 | H100 | 4 ms | 18 ms | off by +350%, explained below |" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "cannot read", id="absent"),
        pytest.param("{", "is not a file that benchmarks/gpu.py writes: Expecting", id="cut-off"),
        pytest.param("[]", "it has no sections", id="something-else"),
        pytest.param('{"sections": {}, "dry_run": true}', "is of a dry run, whose figures mean nothing", id="dry-run"),
        pytest.param('{"sections": {"build": {}}}', "does not name its GPU", id="ended-before-it-began"),
        pytest.param('{"sections": {"environment": {"gpu": {"name": "L4"}}}}', "no measurements", id="no-rows"),
        pytest.param("[" * 100_000, "nested too deeply", id="nested"),
        pytest.param('{"sections": {"x": [1]}}', "section 'x' must be an object", id="section"),
        pytest.param('{"sections": {"environment": 1}}', "section 'environment' must be an object", id="environment"),
        pytest.param('{"sections": {"environment": {"gpu": "L4"}}}', "gpu must be an object, not 'L4'", id="gpu"),
        pytest.param('{"sections": {"environment": {"gpu": {"name": 4}}}}', "name must be a string of", id="gpu-name"),
        pytest.param('{"sections": {"x": {"rows": {}}}}', "rows must be a list", id="rows-object"),
        pytest.param('{"sections": {"x": {"rows": [1]}}}', "rows must hold objects alone", id="rows-of-numbers"),
        pytest.param('{"sections": {}, "versions": []}', "versions must be an object", id="versions"),
        pytest.param('{"sections": {}, "commit": 12}', "commit must be a string of one line, not 12", id="commit"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_in_one_line(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message) as refused:
        gpu_record.make_record([path])
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def files_in(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


BAD_ROWS = [
    pytest.param({"median_ms": float("nan")}, "median_ms must be a finite number above 0, not nan", id="nan"),
    pytest.param({"median_ms": float("inf")}, "median_ms must be a finite number above 0, not inf", id="infinite"),
    pytest.param({"median_ms": 0}, "median_ms must be a finite number above 0, not 0", id="zero"),
    pytest.param({"median_ms": "fast"}, "median_ms must be a finite number above 0, not 'fast'", id="text"),
    pytest.param({"median_ms": None}, "median_ms must be a finite number above 0, not None", id="missing"),
    pytest.param({"tflops": -1.0}, "tflops must be a finite number from 0 on", id="negative-rate"),
    pytest.param({"outputs": None}, "outputs of a row must be a string", id="outputs"),
    pytest.param({"details": []}, "details must be an object", id="details"),
    pytest.param({"dry_run": True}, "is of a dry run", id="dry-run"),
    pytest.param({"details": {"sequences": "many"}}, "cannot be shown|cannot be drawn", id="sequences"),
]


@pytest.mark.parametrize(("values", "message"), BAD_ROWS)
def test_a_bad_row_is_refused_before_anything_is_written(
    values: dict[str, Any], message: str, returned: Path, root: Path
) -> None:
    pytest.importorskip("matplotlib", reason="draws charts")
    results = json.loads(returned.read_text())
    results["sections"]["pretraining"]["rows"][1] |= values
    returned.write_text(json.dumps(results))
    before = files_in(root)
    with pytest.raises(UserError, match=message) as refused:
        gpu_record.keep([returned], root)
    assert str(returned) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert files_in(root) == before


@pytest.mark.parametrize(("values", "message"), BAD_ROWS)
def test_a_bad_record_that_is_stored_is_named_with_the_cure(
    values: dict[str, Any], message: str, returned: Path, root: Path
) -> None:
    record = gpu_record.make_record([returned])
    record["machine"]["device"] = "other"
    record["rows"][1] |= values
    path = root / page.RECORDS / "other.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match=message) as refused:
        gpu_record.write_page(root)
    assert str(path) in str(refused.value)
    assert str(refused.value).endswith("delete that file, and import its results again")
    path.write_text("{")
    with pytest.raises(UserError, match=r"other.json is not a record \(delete that file"):
        gpu_record.stored(root)
    assert gpu_record.stored(root, "other") == {}, "its successor replaces it"


@pytest.mark.parametrize("blocked", ["docs/images", f"{page.RECORDS}/{DEVICE}.json", "benchmarks/results"])
def test_an_import_that_cannot_write_leaves_everything_as_it_was(blocked: str, returned: Path, root: Path) -> None:
    pytest.importorskip("matplotlib", reason="draws charts")
    path = root / blocked
    if path.suffix:
        path.mkdir(parents=True)
    else:  # a file where a folder must be, which not even root can write into
        if path.exists():
            path.rmdir()
        path.parent.mkdir(exist_ok=True)
        path.touch()
    before = files_in(root)
    with pytest.raises(UserError, match=f"cannot write .*{blocked}.*nothing was imported$"):
        gpu_record.keep([returned], root)
    assert files_in(root) == before


@pytest.mark.parametrize(
    ("gpu", "commit", "message"),
    [
        pytest.param("NVIDIA H200", None, "results.json is of GPU NVIDIA H100 80GB HBM3, but .*b.json of", id="gpu"),
        pytest.param(None, "ba9876543210", "results.json is of commit 0123456789ab, but .*b.json of", id="commit"),
        pytest.param(None, None, None, id="unknown"),
    ],
)
def test_files_of_different_gpus_or_commits_are_not_merged(
    gpu: str | None, commit: str | None, message: str | None, returned: Path
) -> None:
    other = returned.with_name("b.json")
    other.write_text(json.dumps({"commit": commit, "sections": {"environment": {"gpu": {"name": gpu}}}}))
    if message is None:
        assert gpu_record.make_record([other, returned])["commit"] == "0123456789ab"
        return
    with pytest.raises(UserError, match=message):
        gpu_record.make_record([returned, other])


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    with pytest.raises(UserError, match="is a named pipe"):
        gpu_record.make_record([path])


def test_the_page_shows_what_the_records_say() -> None:
    """Every figure is unmeasured without a record; what is far off an estimate has an explanation."""
    text = (ROOT / page.PAGE).read_text()
    stored = gpu_record.stored(ROOT)
    explanations = page.explanations_on(text)
    charts = {device: page.charts_of(ROOT, device) for device in stored}
    assert page.measured_part(text) == page.render(stored, explanations, charts).strip()
    assert page.unexplained(stored, explanations) == []
    if not stored:
        rows = re.findall(r"^\|.*\|$", page.measured_part(text), flags=re.MULTILINE)
        assert sum("unmeasured" in line for line in rows) == len(page.goals.figures({})) + len(ESTIMATES)


def test_names_of_gpus_become_names_of_files() -> None:
    names = ("NVIDIA H200", "NVIDIA A100-SXM4-40GB", "NVIDIA GeForce RTX 4090", "AMD Instinct MI300X")
    assert [gpu_record.device_of(name) for name in names] == ["h200", "a100-sxm4-40gb", "geforce-rtx-4090", "mi300x"]


def test_the_package_keeps_its_name_beside_the_program() -> None:
    package = importlib.import_module("fastbert.benchmarks.gpu")
    assert package.__file__ is not None
    assert Path(package.__file__).name == "__init__.py"
    assert (Path(package.__file__).parents[1] / "gpu.py").is_file()


def test_tests_that_were_stopped_are_named(tmp_path: Path) -> None:
    entries = [
        {"started": "tests/a.py::good"},
        {"test": "tests/a.py::good", "outcome": "passed", "seconds": 0.5, "message": "", "text": ""},
        {"started": "tests/a.py::bad"},
        {"test": "tests/a.py::bad", "outcome": "failed", "seconds": 0.1, "message": "assert 1 == 2", "text": "E <&>"},
        {"test": "tests/a.py::bad", "outcome": "passed", "seconds": 0.0, "message": "", "text": ""},
        {"test": "tests/b.py", "outcome": "failed", "seconds": 0.0, "message": "ImportError", "text": ""},
        {"started": "tests/a.py::hangs"},
    ]
    result = testing.summary(entries)
    assert result["counts"] == {"passed": 1, "failed": 2}
    assert result["failures"] == [
        {"test": "tests/a.py::bad", "message": "assert 1 == 2"},
        {"test": "tests/b.py", "message": "ImportError"},
    ]
    assert [test["test"] for test in result["unfinished"]] == ["tests/a.py::hangs"]
    testing.write_junit(tmp_path / "tests.xml", [*result["tests"], *result["unfinished"]])
    text = (tmp_path / "tests.xml").read_text()
    assert 'tests="4" failures="2" errors="1" skipped="0"' in text
    failure = '<failure message="assert 1 == 2">E &lt;&amp;&gt;</failure>'
    assert f'<testcase classname="tests/a.py" name="bad" time="0.1">{failure}' in text
    assert testing.judged(result, [0, None], [])["reason"] == "out of time"
    assert testing.judged(result, [0, 5], [])["status"] == "ok"
    assert testing.judged(result, [0, 1], ["x"])["reason"] == "pytest ended with code 1"


def test_without_xdist_files_are_shared_out() -> None:
    files = testing.gpu_files(ROOT)
    assert "tests/ops/attention/test_attention_kernel.py" in files
    shards = testing.commands(files, 3, xdist=False)
    assert sorted(word for shard in shards for word in shard if word.endswith(".py")) == sorted(files)
    (parallel,) = testing.commands(files, 3, xdist=True)
    assert parallel[parallel.index("-n") + 1] == "3"


def test_a_report_of_the_profiler_is_read() -> None:
    text = (
        "==PROF== Connected to process 7\n"
        '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
        '"0","forward_long","Duration","us","1,234"\n'
        '"0","forward_long","Achieved Occupancy","%","23.5"\n'
        '"1","sums","Duration","us","5"\n'
    )
    assert profiling.read_report(text.splitlines()) == {
        "forward_long": {"Duration": "1,234 us", "Achieved Occupancy": "23.5 %"},
        "sums": {"Duration": "5 us"},
    }

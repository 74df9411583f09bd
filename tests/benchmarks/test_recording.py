"""`fastbert bench record`: its plan, the age of records, and runs of fake benchmarks."""

import json
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fastbert.benchmarks.harness import quietness, record_plan, recording, records, staleness
from fastbert.benchmarks.harness.quietness import Load
from fastbert.benchmarks.harness.record_plan import PLAN, Elsewhere, Planned
from fastbert.benchmarks.harness.recording import Options
from fastbert.benchmarks.harness.staleness import CURRENT, MISSING, OLDER, UNKNOWN
from fastbert.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
CLASSES = {name for _, name in records.CPU_CLASSES}
HERE = records.machine_class(records.machine())

# A benchmark as a program: what it does is its first argument.
PROGRAM = """
import argparse, json, os, pathlib, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("what")
parser.add_argument("--json", type=pathlib.Path)
flags = parser.parse_args()
if flags.what == "fail":
    sys.exit("error: no figures today")
if flags.what == "die":
    os.kill(os.getpid(), signal.SIGSEGV)
if flags.what == "slow":
    time.sleep(600)
# The form of a right record, which costs an import of torch to make, is beside the program.
record = json.loads((pathlib.Path(__file__).parent / "record.json").read_text())
record["benchmark"] = "another" if flags.what == "wrong" else flags.what
flags.json.write_text(json.dumps(record))
"""


def planned(name: str, **changes: Any) -> Planned:
    values: dict[str, Any] = {"module": "fake", "arguments": (name,), "minutes": 1.0, "measures": ("code",)}
    return Planned(benchmark=name, **{**values, **changes})


def load(cores: float) -> Load:
    return Load(cores=2, busy_cores=cores, stolen_cores=0.0, load_average=cores)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for records, on a quiet machine whose benchmarks are the program above."""
    package = tmp_path / "toybench"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "fake.py").write_text(PROGRAM)
    rows = [{"workload": "toy", "contender": "fastbert", "median_ms": 2.0, "outputs": "equal"}]
    record = {**records.record("toy", rows), "commit": "0123456789ab"}
    (package / "record.json").write_text(json.dumps(record))
    monkeypatch.setattr(recording, "PACKAGE", "toybench")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.getenv("PYTHONPATH")])]))
    monkeypatch.delenv("FASTBERT_CPU", raising=False)
    # The package may be installed, away from the repository.
    monkeypatch.setattr(records, "repository", lambda: ROOT)
    monkeypatch.setattr(quietness, "measure_load", lambda seconds=0.0: load(0.0))
    return tmp_path / "results"


def made(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*.json"))


# The plan


def test_every_benchmark_with_records_of_processors_is_planned_or_says_why_not() -> None:
    by_class = {path.parent.name for path in (ROOT / records.RESULTS).glob("*/*.json") if path.stem in CLASSES}
    names = [planned.benchmark for planned in PLAN]
    assert sorted(by_class - set(names) - set(record_plan.BY_HAND)) == []
    assert len(set(names)) == len(names)
    assert not set(names) & set(record_plan.BY_HAND)


@pytest.mark.parametrize("entry", PLAN, ids=lambda entry: entry.benchmark)
def test_an_entry_names_code_and_a_program_that_exist(entry: Planned) -> None:
    assert [path for path in entry.measures if not (ROOT / path).exists()] == []
    assert find_spec(f"fastbert.benchmarks.{entry.module}") is not None
    assert 0 < entry.minutes <= Options().minutes, "fits into one call"


def test_peers_that_emulate_bf16_are_left_out_by_class_and_an_environment_is_passed(tmp_path: Path) -> None:
    entry = planned("toy", with_bf16=("--all",), without_bf16=("--some",), needs=(record_plan.INFINITY,))
    elsewhere = Elsewhere(tmp_path)
    assert entry.words("amx", elsewhere) == ["toy", "--all", f"--infinity={tmp_path}"]
    assert entry.words("avx2", elsewhere)[:2] == ["toy", "--some"]
    assert entry.lacking(None) == [record_plan.INFINITY]
    assert entry.lacking(None, elsewhere) == []


def test_interpreters_reach_the_benchmarks_that_have_their_contenders() -> None:
    needing = planned("toy", kind="encoder", needs=("openvino", "no_such_module"))
    elsewhere = Elsewhere(None, ("openvino=there/python", "sentence-transformers=here/python", "open=x"))
    assert needing.words("amx", elsewhere) == ["toy", "--peer-python", "openvino=there/python"]
    assert planned("toy").words("amx", elsewhere) == ["toy"]
    assert needing.lacking(None, elsewhere) == ["no_such_module"]
    assert Options(plan=[needing], peer_python=elsewhere.pythons[:1]).elsewhere.pythons == ("openvino=there/python",)


def test_needs_are_named_with_their_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = planned("toy", needs=(record_plan.DATA, "numpy", "no_such_module", "openvino"))
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert record_plan.cures(entry.lacking(None)) == (
        "the data folder (--data or FASTBERT_DATA), packages no_such_module"
    )


# The age of records


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A repository with three commits, to code, other files, and code again; and their names."""
    root = tmp_path_factory.mktemp("repository")
    git("init", "-q", root=root)
    commits = []
    for name, text in (("code", "a"), ("other", "b"), ("code", "c")):
        (root / name).write_text(text)
        git("add", name, root=root)
        git("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", name, root=root)
        commits.append(git("rev-parse", "--short=12", "HEAD", root=root))
    return root, commits


def git(*words: str, root: Path) -> str:
    return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, text=True).stdout.strip()


def age(tmp_path: Path, root: Path | None, commit: str | None, *rows: str) -> tuple[str, str]:
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"commit": commit, "rows": [{"commit": row} for row in rows] or [{}]}))
    found = staleness.age_of(path, ("code",), root)
    return found.state, found.reason


def test_a_record_is_older_after_a_commit_to_the_code_it_measured(
    tmp_path: Path, history: tuple[Path, list[str]]
) -> None:
    root, (first, second, third) = history
    assert staleness.age_of(tmp_path / "none.json", ("code",), root).state == MISSING
    assert age(tmp_path, root, third) == (CURRENT, "")
    assert age(tmp_path, root, f"{third}-dirty") == (CURRENT, "of a changed tree")
    assert age(tmp_path, root, second) == (OLDER, f"1 commit since {second}")
    assert age(tmp_path, root, third, third, first) == (OLDER, f"1 commit since {first}"), "the oldest row decides"
    assert age(tmp_path, root, None) == (OLDER, "names no commit")
    assert age(tmp_path, root, "0123456789ab") == (OLDER, "its commit 0123456789ab is not in this repository")
    assert age(tmp_path, None, third)[0] == UNKNOWN


def test_other_code_and_other_branches_do_not_make_a_record_older(
    tmp_path: Path, history: tuple[Path, list[str]]
) -> None:
    root, (first, _, third) = history
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"commit": first, "rows": [{}]}))
    assert staleness.age_of(path, ("elsewhere",), root).state == CURRENT
    (root / "code").write_text("changed")
    try:
        assert age(tmp_path, root, third) == (OLDER, "uncommitted changes")
    finally:
        (root / "code").write_text("c")


def test_a_tree_whose_records_alone_changed_is_not_dirty(history: tuple[Path, list[str]]) -> None:
    root, (*_, third) = history
    record = root / records.RESULTS / "toy" / "avx2.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    git("add", "-f", str(record), root=root)
    assert records.commit_of(root) == third
    (root / "other").write_text("changed")
    try:
        assert records.commit_of(root) == f"{third}-dirty"
    finally:
        (root / "other").write_text("b")
        git("rm", "-q", "--cached", str(record), root=root)


def test_missing_records_come_first_then_the_oldest() -> None:
    ages = {
        planned("current"): staleness.Age(CURRENT, "", 1),
        planned("newer"): staleness.Age(OLDER, "", 9),
        planned("missing"): staleness.Age(MISSING),
        planned("oldest"): staleness.Age(OLDER, "", 3),
        planned("unknown"): staleness.Age(UNKNOWN),
    }
    assert [entry.benchmark for entry in recording.in_order(ages)] == ["missing", "oldest", "newer"]


# Runs


def test_failures_leave_the_old_record_and_the_run_goes_on(place: Path) -> None:
    names = ("right", "fail", "die", "wrong")
    for name in names:
        records.write(place / name / f"{HERE}.json", {"commit": None, "rows": [{"workload": "w"}]})
    said: list[str] = []
    plan = [planned(name) for name in (*names[1:], "right")]
    assert recording.run(Options(out=place, plan=plan), said.append) == 1
    text = "\n".join(said)
    assert "fail: failed: ended with code 1\n  -m toybench.fake fail --json" in text
    assert "error: no figures today" in text
    assert "die: failed: ended by signal SIGSEGV" in text
    assert "wrong: failed: its record is wrong\n  benchmark another must be wrong, the folder's name" in text
    assert "right: done: " in text
    new = {name: "benchmark" in json.loads((place / name / f"{HERE}.json").read_text()) for name in names}
    assert new == {"right": True, "fail": False, "die": False, "wrong": False}


def test_a_new_record_is_right_and_quiet_runs_hold_no_load(place: Path) -> None:
    said: list[str] = []
    assert recording.run(Options(out=place, plan=[planned("toy")]), said.append) == 0
    assert made(place) == [f"toy/{HERE}.json"]
    record = json.loads((place / "toy" / f"{HERE}.json").read_text())
    assert records.problems(record, "toy", HERE) == []
    assert "settings" not in record


def test_what_does_not_fit_is_left_and_what_overruns_is_stopped(place: Path) -> None:
    said: list[str] = []
    plan = [planned("long", minutes=2.0), planned("slow", minutes=0.01), planned("toy", minutes=0.01)]
    assert recording.run(Options(out=place, plan=plan, minutes=0.05), said.append) == 1
    text = "\n".join(said)
    assert "long: skipped: takes about 2 minutes, and 0 are left of --minutes" in text
    assert "slow: failed: stopped after 0 minutes, the end of --minutes" in text
    assert "toy: skipped: " in text
    assert made(place) == []


def test_a_busy_machine_is_refused_with_its_figures_or_kept_in_the_record(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quietness, "measure_load", lambda seconds=0.0: load(0.75))
    with pytest.raises(UserError, match=r"busy: other processes use 0\.75 of 2 cores, load average 0\.75; .*--busy"):
        recording.run(Options(out=place, plan=[planned("toy")]), lambda line: None)
    assert made(place) == []
    assert recording.run(Options(out=place, plan=[planned("toy")], busy=True), lambda line: None) == 0
    settings = json.loads((place / "toy" / f"{HERE}.json").read_text())["settings"]
    assert settings == {"busy": {"cores": 2, "busy_cores": 0.75, "stolen_cores": 0.0, "load_average": 0.75}}


def test_a_machine_that_becomes_busy_keeps_the_old_records_of_the_rest(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = [load(0.0), load(1.0), load(0.0)]
    monkeypatch.setattr(quietness, "measure_load", lambda seconds=0.0: loads.pop(0))
    said: list[str] = []
    assert recording.run(Options(out=place, plan=[planned(name) for name in ("a", "b", "c")]), said.append) == 1
    assert made(place) == [f"a/{HERE}.json", f"c/{HERE}.json"]
    assert any(line.startswith("b: failed: the machine is busy: other processes use 1.00 of 2 cores") for line in said)


def test_without_a_repository_what_may_be_older_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "repository", lambda: None)
    records.write(place / "toy" / f"{HERE}.json", {"commit": None, "rows": []})
    said: list[str] = []
    assert recording.run(Options(out=place, plan=[planned("toy")]), said.append) == 0
    assert said == [
        "without a repository these may be older than their code; --only measures them: toy",
        f"{HERE}: no record is missing",
    ]


def test_a_load_that_cannot_be_measured_is_said(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quietness, "measure_load", lambda seconds=0.0: None)
    said: list[str] = []
    assert recording.run(Options(out=place, plan=[planned("toy")]), said.append) == 0
    assert quietness.UNCHECKED in said


def test_only_and_the_list(place: Path) -> None:
    plan = [planned("toy"), planned("fail", needs=("no_such_module",))]
    said: list[str] = []
    assert recording.run(Options(out=place, plan=plan, list=True), said.append) == 0
    assert said[1:] == [
        f"toy        {MISSING:<11}        1",
        f"fail       {MISSING:<11}        1  packages no_such_module",
        "2 of 2 records are missing or older than their code; 1 of them can be made here, in about 1 minutes on two"
        " cores",
    ]
    assert made(place) == []
    # An unmet need is a failure of what was asked for by name alone.
    assert recording.run(Options(out=place, plan=plan, only=("fail",)), said.append) == 1
    assert recording.run(Options(out=place, plan=plan), said.append) == 0
    assert made(place) == [f"toy/{HERE}.json"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"minutes": 0.0}, "--minutes 0 must be more than 0"),
        ({"only": ("nope",)}, "--only nope is not a benchmark of the plan; choose from encoder, "),
        ({"peer_python": ("nope=x",)}, "--peer-python nope=x must be NAME=PATH for a contender of .*: .*openvino"),
        ({"peer_python": ("openvino=x",), "only": ("loading",)}, "--peer-python openvino=x must .*: they have none"),
        ({"only": ("adaptation",)}, "--only adaptation is recorded by hand: scores of training"),
    ],
)
def test_wrong_options_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Options(**values)


def test_an_installed_copy_needs_a_folder_and_a_forced_capability_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(records, "repository", lambda: None)
    with pytest.raises(UserError, match="name a folder for the records with --out"):
        recording.run(Options(list=True), print)
    monkeypatch.setenv("FASTBERT_CPU", "avx2")
    with pytest.raises(UserError, match="FASTBERT_CPU=avx2: the record would not be of this processor's class"):
        recording.run(Options(out=tmp_path), print)


def test_a_note_names_what_a_new_record_lost(tmp_path: Path) -> None:
    def record(*contenders: str, commit: str = "0123") -> dict[str, Any]:
        return {"commit": commit, "rows": [{"workload": "w", "contender": c, "median_ms": 1.0} for c in contenders]}

    path = tmp_path / "old.json"
    records.write(path, record("fastbert", "peer"))
    wrong = {"workload": "w", "contender": "other", "median_ms": 1.0, "outputs": "ids differ in 1 of 2 texts"}
    new = record("fastbert", commit="0123-dirty")
    new["rows"].append(wrong)
    assert recording.notes_of(new, path) == [
        "made from a changed tree: 0123-dirty",
        "w, other: ids differ in 1 of 2 texts",
        "no longer measured: w, peer",
    ]

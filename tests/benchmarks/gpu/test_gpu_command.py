"""The command line of `benchmarks/gpu.py`: its plan, flags, folders and mistakes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fastbert.benchmarks.gpu import command, plan
from fastbert.benchmarks.gpu import sections as gpu_sections

ROOT = Path(__file__).resolve().parents[3]


def test_the_plan_has_three_commands_of_nine_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--plan"]) == 0
    printed = capsys.readouterr().out
    commands = plan.commands("0123456789ab-dirty")
    assert all(len(line) < 2000 and "--commit 0123456789ab-dirty" in line for line in commands)
    for line in commands:
        budgets = [int(seconds) for seconds in re.findall(r"--budget-seconds (\d+)", line)]
        assert 0 < sum(budgets) < plan.SECONDS == 540
        for call in re.findall(r"benchmarks/gpu\.py ([^;]*)", line):
            words = call.replace('"$OUT"', "out").replace(f"{plan.CARRIED}/tuning.json", str(ROOT / "setup.py")).split()
            assert command.parse(words).command in command.RESULTS
    assert printed.count("python3 benchmarks/gpu.py") == 4
    assert "--tuning gpu-carry/tuning.json --profile" in printed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param([], "give one of measure, tests, tune, sanitize, --plan and --import", id="nothing"),
        pytest.param(["measure", "--plan"], "give one of", id="two-at-a-time"),
        pytest.param(["measure"], "measure needs --out DIR", id="no-folder"),
        pytest.param(["measure", "--out", ""], "measure needs --out DIR, which is empty", id="empty-folder"),
        pytest.param(["--import", "x.json", "--dry-run"], "--import keeps figures, and those of --dry-run", id="dry"),
        pytest.param(["tune", "--out", "x", "--budget-seconds", "0"], "--budget-seconds 0 must be a finite", id="time"),
        pytest.param(["tune", "--out", "x", "--budget-seconds", "inf"], "-seconds inf must be a finite", id="infinite"),
        pytest.param(["measure", "--out", "x", "--seconds-per-measure", "nan"], "measure nan must be a", id="nan"),
        pytest.param(["measure", "--out", "x", "--tuning", "/no.json"], "--tuning /no.json does not exist", id="table"),
        pytest.param(["measure", "--out", "x", "--tuning", "/"], "--tuning / is a folder: name the", id="folder"),
        pytest.param(["tune", "--out", "x", "--tuning", "/a"], "--tuning has no effect with tune: omit", id="tuning"),
        pytest.param(["tests", "--out", "x", "--profile"], "--profile has no effect with tests", id="profile"),
        pytest.param(["tests", "--out", "x", "--only", "build"], "--only has no effect with tests", id="only-tests"),
        pytest.param(["--plan", "--only", "build"], "--only has no effect with --plan", id="only-plan"),
        pytest.param(["--import", "x.json", "--out", "x"], "--out has no effect with --import", id="out-import"),
        pytest.param(["measure", "--out", "x", "--only", "typo"], "--only names typo: choose among build", id="typo"),
        pytest.param(["measure", "--out", "x", "--only", " ,"], "--only ' ,' names no section", id="no-section"),
        pytest.param(["measure", "--out", "x", "--fast"], "unrecognized arguments: --fast", id="unknown-flag"),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(flags)
    assert refused.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_sections_are_those_that_run_and_empty_names_are_ignored() -> None:
    for name, sections in command.SECTIONS.items():
        assert list(sections) == [section.name for section in gpu_sections.COMMANDS[name]]
    arguments = command.parse(["measure", "--out", "x", "--only", "build,, charts ,"])
    assert (arguments.only, arguments.budget_seconds, arguments.seconds_per_measure) == (("build", "charts"), 520, 0.4)


@pytest.fixture
def unchanged_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what the command changes in its process for itself."""
    monkeypatch.setattr(command, "leave_the_tree", lambda: None)
    monkeypatch.setattr(command, "commit", lambda: "0123456789ab")


@pytest.mark.usefixtures("unchanged_process")
@pytest.mark.parametrize(
    ("earlier", "kept"),
    [
        pytest.param('{"sections": {"attention": {"rows": [{}]}}}', True, id="rows"),
        pytest.param('{"sections": {"tune": {"trials": [{}]}}}', True, id="trials"),
        pytest.param('{"sections": {"attention": {"ro', True, id="cut-off"),
        pytest.param('{"sections": {"build": {}, "attention": {"rows": []}}}', False, id="nothing-measured"),
        pytest.param("", False, id="empty"),
    ],
)
def test_earlier_measurements_are_never_lost(
    earlier: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "run", lambda *arguments: 1)  # as without a GPU
    path = tmp_path / "results.json"
    path.write_text(earlier)
    (tmp_path / "results-1.json").write_text("older")
    assert command.main(["measure", "--out", str(tmp_path)]) == 1
    assert json.loads(path.read_text())["command"] == "measure"
    assert (tmp_path / "results-1.json").read_text() == "older"
    assert (tmp_path / "results-2.json").exists() == kept
    if kept:
        assert (tmp_path / "results-2.json").read_text() == earlier
        assert capsys.readouterr().out == f"{path} has measurements of an earlier run: kept as results-2.json\n"


@pytest.mark.usefixtures("unchanged_process")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(["--out", "file"], "error: --out file is a file: name a folder", id="file"),
        pytest.param(["--out", "file/below"], "error: --out file/below cannot be written: Not a", id="below-a-file"),
        pytest.param(["--out", "/proc/x"], "error: --out /proc/x cannot be written: ", id="read-only"),
        pytest.param(["--out", "odd"], "error: odd/results.json is not a regular file", id="folder-for-results"),
        pytest.param(["--out", "new", "--tuning", "file"], "error: file is not a tuning table", id="tuning"),
        pytest.param(["--out", "new", "--tuning", "old"], "was measured with other kernels", id="old-tuning"),
        pytest.param(["--out", "log"], "error: cannot write {}/log/log.txt: Is a directory", id="folder-for-log"),
    ],
)
def test_folders_and_tables_that_cannot_be_used_are_refused_in_one_line(
    flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("{}")
    Path("old").write_text('{"format": 1, "kernels": "other", "entries": {}}')
    Path("odd/results.json").mkdir(parents=True)
    Path("log/log.txt").mkdir(parents=True)
    assert command.main(["measure", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message.format(tmp_path) in line
    assert not Path("new").exists()


@pytest.mark.usefixtures("unchanged_process")
def test_an_interrupt_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", interrupted)
    assert command.main(["tune", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == f"interrupted: what was measured before is in {tmp_path}\n"


@pytest.mark.usefixtures("unchanged_process")
def test_an_import_that_is_refused_ends_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "absent.json"
    assert command.main(["--import", str(path)]) == 2
    assert capsys.readouterr().err == f"error: cannot read {path}: No such file or directory\n"

"""The workflows: pinned actions, least rights, limits of time, commands that exist. CI checks their schemas."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from sweeps import sweep

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".github"
WORKFLOWS = sorted((FOLDER / "workflows").glob("*.yml"))
WRITES = {"docs.yml": {"pages", "id-token"}, "release.yml": {"id-token", "contents"}}

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="needs the source tree")


def load(file: Path) -> Any:
    return pytest.importorskip("yaml", reason="workflows are YAML").safe_load(file.read_text(encoding="utf-8"))


@sweep("file", WORKFLOWS or [None], ids=lambda file: str(file and file.name))
def test_workflows_are_pinned_limited_and_may_little(file: Path) -> None:
    text, workflow = file.read_text(encoding="utf-8"), load(file)
    for action, pin in re.findall(r"uses: ([\w/.-]+)@(.*)", text):
        assert re.fullmatch(r"[0-9a-f]{40} # v\d+\.\d+\.\d+", pin), f"{action}@{pin}"
    assert workflow["permissions"] == {"contents": "read"}
    assert "group" in workflow["concurrency"]
    assert "pull_request_target" not in text
    assert "secrets." not in text, "nothing is published with a stored secret"
    granted = set()
    for name, job in workflow["jobs"].items():
        assert "uses" in job or 0 < job["timeout-minutes"] <= 90, name
        granted |= {right for right, level in job.get("permissions", {}).items() if level == "write"}
        for step in job.get("steps", []):
            if "actions/checkout@" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False, name
            # An expression in a script is a way to inject commands.
            assert "${{" not in step.get("run", ""), name
    assert granted == WRITES.get(file.name, set())


def test_what_workflows_run_exists() -> None:
    named = {name for file in WORKFLOWS for name in re.findall(r"(?:\.ci|docs|tests)/[\w./-]*\w", file.read_text())}
    assert {".ci/run", ".ci/release", "tests/smoke.py"} <= named
    # The site's builder stands beside its pages.
    assert {name for name in named if not (ROOT / name).exists()} <= {"docs/build_site.py"}


def test_publishing_waits_for_a_person_and_for_everything_built() -> None:
    release = load(FOLDER / "workflows" / "release.yml")
    publish = release["jobs"]["publish"]
    assert publish["environment"] == "pypi"
    assert publish["permissions"] == {"id-token": "write"}
    needed, queue = set(), ["publish"]
    while queue:
        needed.add(queue[0])
        needs = release["jobs"][queue.pop(0)].get("needs", [])
        queue += [needs] if isinstance(needs, str) else needs
    assert needed == {"publish", "build", "check"}
    assert release["jobs"]["announce"]["needs"] == "publish"
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML reads the key `on` as true


def test_wheels_are_built_for_every_python_of_the_project() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheels = pyproject["tool"]["cibuildwheel"]
    named = re.findall(r"Python :: 3\.(\d+)$", "\n".join(pyproject["project"]["classifiers"]), flags=re.MULTILINE)
    assert {f"cp3{minor}-*" for minor in named} <= set(wheels["build"].split())
    assert wheels["linux"]["manylinux-x86_64-image"] == wheels["linux"]["manylinux-aarch64-image"] == "manylinux_2_28"


def test_reports_bring_what_doctor_says() -> None:
    for name in ("bug", "wrong-result", "performance"):
        fields = {field.get("id"): field for field in load(FOLDER / "ISSUE_TEMPLATE" / f"{name}.yml")["body"]}
        assert fields["doctor"]["validations"] == {"required": True}, name

"""`.ci/release`, on small trees: each check finds what it is for, and the install block is switched both ways."""

import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from sweeps import sweep

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / ".ci" / "release"
README = "# A\n\n<!-- install -->\nsome text\n<!-- end -->\n\n<!-- test command -->\npytest\n<!-- end -->\n"
CHANGELOG = """# Changelog

## [1.2.0] - 2026-01-31

### Added

- One thing ([page](docs/a.page.md#a-head-line)) that is described
  on two lines, see [elsewhere](https://example.org/).
- Another.

## [1.1.0] - 2025-12-01

- Old.
"""
TREE = {
    "pyproject.toml": '[project]\nname = "fastbert-engine"\nversion = "1.2.0"\n',
    "CHANGELOG.md": CHANGELOG,
    "CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.0\nlicense: Apache-2.0\n",
    "README.md": README,
    "docs/a.page.md": "# A head, line!\n\n[up](../README.md#a), [here](#a-head-line), `benchmarks/results/x/y.json`\n",
    "benchmarks/results/x/y.json": "{}\n",
}

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="needs the source tree")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("release_script", str(SCRIPT))
    spec = importlib.util.spec_from_loader("release_script", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["release_script"] = module  # where dataclasses look for the types of their fields
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    for name, text in TREE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def outcome(script: ModuleType, tree: Path, name: str) -> tuple[str, str]:
    state, line = script.perform(script.Release(tree), script.CHECKS[name])
    assert "\n" not in line
    return state, line


def git(tree: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false")
    subprocess.run(["git", *identity, *words], cwd=tree, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_is_asked_for_tree_branch_and_tag(script: ModuleType, tree: Path) -> None:
    git(tree, "init", "-q", "-b", "main")
    assert outcome(script, tree, "tree") == ("failed", "6 files are not committed, such as CHANGELOG.md")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "all")
    assert outcome(script, tree, "tree")[0] == "passed"
    assert outcome(script, tree, "branch") == ("passed", "main")
    assert outcome(script, tree, "tag") == ("passed", "v1.2.0 is free")
    git(tree, "tag", "v1.2.0")
    assert outcome(script, tree, "tag")[0] == "failed"
    git(tree, "checkout", "-q", "-b", "other")
    assert outcome(script, tree, "branch") == ("failed", "the branch is other: releases are made from main")


# Check, file, what is replaced by what, and the beginning of the line.
MISTAKES = [
    ("version", "CITATION.cff", "\nversion: 1.2.0", "\nversion: 1.1.0", "pyproject.toml says 1.2.0, but CITATION.cff"),
    ("version", "CITATION.cff", "\nversion: 1.2.0", "", "pyproject.toml says 1.2.0, but CITATION.cff says none"),
    ("version", "CHANGELOG.md", "## [1.2.0]", "## [1.3.0]", "pyproject.toml says 1.2.0, but CHANGELOG.md says 1.3.0"),
    ("version", "CHANGELOG.md", "## [", "## ", "CHANGELOG.md has no heading of the form `## [1.2.3] - 2026-01-31`"),
    ("version", "pyproject.toml", "1.2.0", "1.2.dev1", "1.2.dev1 in pyproject.toml is not a version such as 1.2.3"),
    ("date", "CHANGELOG.md", "2026-01-31", "unreleased", "CHANGELOG.md: 1.2.0 has the date 'unreleased': write"),
    ("date", "CHANGELOG.md", " - 2026-01-31", "", "CHANGELOG.md: 1.2.0 has the date 'none'"),
    ("date", "CHANGELOG.md", "2026-01-31", "2999-01-31", "CHANGELOG.md: 1.2.0 is dated 2999-01-31, which is in the"),
    ("install", "README.md", "<!-- install -->", "", "README.md has no block between `<!-- install -->` and"),
    ("records", "docs/a.page.md", "y.json", "z.json", "1 records that documents name are missing, such as benchmarks/"),
    ("links", "docs/a.page.md", "(../README.md#a)", "(../README.md#b)", "1 broken, such as docs/a.page.md: ../README"),
    ("links", "docs/a.page.md", "(../README.md#a)", "(READ.md)", "1 broken, such as docs/a.page.md: READ.md"),
    ("links", "CHANGELOG.md", "#a-head-line", "#a-head", "1 broken, such as CHANGELOG.md: docs/a.page.md#a-head"),
    ("wheels", "README.md", "A", "A", "dist/ holds no fastbert_engine-1.2.0-*.whl: run the check wheels"),
    ("external", "README.md", "A", "A", "the check docs makes the environment of this one: run both"),
    ("twine", "README.md", "A", "A", "dist/ holds no fastbert_engine-1.2.0-*.whl: run the check wheels"),
]  # fmt: skip


@sweep("name, file, before, after, message", MISTAKES)
def test_each_check_finds_what_it_is_for(
    script: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str, before: str, after: str,
    message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(script.Release, "log", lambda *words, **options: "")
    for each, text in TREE.items():
        (tree / each).write_text(text)
    assert script.main(["--switch-install", "released"], root=tree) == 0
    for each in ("version", "date", "install", "records", "links"):
        assert outcome(script, tree, each)[0] == "passed"
    text = (tree / file).read_text()
    assert before in text
    (tree / file).write_text(text.replace(before, after))
    state, line = outcome(script, tree, name)
    assert (state, line[: len(message)]) == ("failed", message)


def test_a_missing_file_is_a_line(script: ModuleType, tree: Path) -> None:
    (tree / "CITATION.cff").unlink()
    assert outcome(script, tree, "version") == ("failed", f"{tree}/CITATION.cff: No such file or directory")


def test_wheels_have_a_policy_a_size_and_every_python(
    script: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.Release, "log", lambda *words, **options: "")
    (tree / "dist").mkdir()
    name = "dist/fastbert_engine-1.2.0-cp3{}-cp3{}-manylinux_2_28_x86_64.whl"
    for minor in (11, 12):
        (tree / name.format(minor, minor)).write_bytes(b"x")
    (tree / "dist/fastbert_engine-1.1.0-cp311-cp311-linux_x86_64.whl").touch()
    assert outcome(script, tree, "wheels") == (
        "person", "2 built and tried; no Python 3.13 here, but in wheels.yml"
    )  # fmt: skip
    (tree / name.format(13, 13)).write_bytes(b"x" * 100)
    assert outcome(script, tree, "wheels") == ("passed", "3 built and tried, at most 100 bytes")
    with (tree / name.format(13, 13)).open("wb") as file:
        file.truncate(8_000_001)
    state, line = outcome(script, tree, "wheels")
    assert state == "failed"
    assert line.endswith("has 8,000,001 bytes; at most 8,000,000 are allowed")
    (tree / "dist/fastbert_engine-1.2.0-cp311-cp311-linux_x86_64.whl").touch()
    assert "is not tagged manylinux_2_28" in outcome(script, tree, "wheels")[1]


def test_only_interpreters_that_run_build_wheels(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"3.11": "echo Python 3.11.9", "3.12": "echo not found >&2; exit 127", "3.13": "echo Python 3.1.3"}
    for version, answer in answers.items():
        (tmp_path / f"python{version}").write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / f"python{version}").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert script.find_pythons() == [str(tmp_path / "python3.11")]
    monkeypatch.setenv("PATH", "")
    assert script.find_pythons() == []


def test_a_failing_command_is_one_line_and_a_log(script: ModuleType, tree: Path) -> None:
    (tree / ".ci").mkdir()
    (tree / ".ci/run").write_text("echo first; echo '3 failed'; exit 3\n")
    assert outcome(script, tree, "tests") == ("failed", "3 failed (exit code 3; build/release/tests.log)")
    assert (tree / "build/release/tests.log").read_text() == "$ bash .ci/run\nfirst\n3 failed\n"
    (tree / ".ci/run").write_text("echo 'all passed in 3 s'\n")
    assert outcome(script, tree, "tests") == ("passed", "all passed in 3 s")


def test_the_install_block_is_switched_both_ways(script: ModuleType, tree: Path) -> None:
    released, unreleased = (script.switch_install(README, state, "1.2.0") for state in ("released", "unreleased"))
    assert "<!-- install -->\n```sh\npip install fastbert-engine\n```\n<!-- end -->\n" in released
    assert "pip install .  " in unreleased
    assert "fastbert_engine-1.2.0-*.whl" in unreleased
    for text in (released, unreleased):
        assert text.startswith("# A\n\n<!-- install -->\n```sh\n")
        assert text.endswith("<!-- end -->\n\n<!-- test command -->\npytest\n<!-- end -->\n")
        assert "some text" not in text
        for state, expected in (("released", released), ("unreleased", unreleased)):
            assert script.switch_install(text, state, "1.2.0") == expected
    assert script.switch_install("no block\n", "released", "1.2.0") == "no block\n"
    assert script.main(["--switch-install", "unreleased"], root=tree) == 0
    assert (tree / "README.md").read_text() == unreleased
    assert outcome(script, tree, "install")[1].startswith("README.md installs from a clone: run `.ci/release --switch")
    (tree / script.INSTALL_FILES[1]).write_text(README)
    assert script.main(["--switch-install", "released"], root=tree) == 0
    assert (tree / script.INSTALL_FILES[1]).read_text() == released
    assert outcome(script, tree, "install") == ("passed", ", ".join(script.INSTALL_FILES))


def test_documents_of_this_tree_hold_a_block_of_the_script(script: ModuleType) -> None:
    for name in script.INSTALL_FILES:
        text = (ROOT / name).read_text() if (ROOT / name).exists() else ""
        if script.BLOCK.search(text):
            version = script.Release(ROOT).version
            assert text in [script.switch_install(text, state, version) for state in script.INSTALL], name


def test_notes_are_the_first_section(
    script: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://host")
    monkeypatch.setenv("GITHUB_REPOSITORY", "owner/name")
    assert script.main(["--notes"], root=tree) == 0
    page = "https://host/owner/name/blob/v1.2.0/docs/a.page.md#a-head-line"
    assert capsys.readouterr().out.strip() == (
        f"### Added\n\n- One thing ([page]({page})) that is described on two lines, see [elsewhere](https://example.org/)."
        "\n- Another."
    )
    assert script.main(["--version"], root=tree) == 0
    assert capsys.readouterr().out == "1.2.0\n"


def test_the_table_ends_with_what_a_person_does(
    script: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--only", "version", "date", "tests", "publisher", "--dry-run"], root=tree) == 0
    text = capsys.readouterr().out
    assert re.search(r"^version +passed +1\.2\.0 ", text, re.MULTILINE)
    assert re.search(r"^tests +not run +\.ci/run", text, re.MULTILINE)
    assert "2 passed, 0 failed, 1 left to a person, 16 not run\n" in text
    assert '    git tag -s v1.2.0 -m "fastbert 1.2.0"\n    git push origin main v1.2.0\n' in text
    (tree / "CITATION.cff").write_text("version: 2\n")
    assert script.main(["--only", "version", "date", "--skip", "date"], root=tree) == 1
    text = capsys.readouterr().out
    assert "0 passed, 1 failed, 0 left to a person, 18 not run\nMend what failed" in text
    assert "git tag" not in text
    with pytest.raises(SystemExit):
        script.main(["--only", "version", "--skip", "version", "date"], root=tree)
    printed = capsys.readouterr()
    assert "error: --skip leaves nothing to check; name fewer" in printed.err
    assert "git tag" not in printed.out
    assert script.main(["--list"], root=tree) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(script.CHECKS) == 19


@pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("readelf")), reason="needs GCC and binutils")
def test_wheels_name_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, str(ROOT / ".ci" / "wheels"), "--out", str(tmp_path / "file")]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}  # it imports old_glibc.py
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    last = f"wheels: error: --out {tmp_path / 'file'}: File exists; name a folder that can be written"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, last)


def test_the_script_runs_and_the_workflow_calls_what_it_has(script: ModuleType) -> None:
    assert os.access(SCRIPT, os.X_OK)
    workflow = ROOT / ".github/workflows/release.yml"
    if not workflow.exists():
        pytest.skip("needs the workflows")
    calls = re.findall(r"\.ci/release (--[^\n>)\"]+)", workflow.read_text())
    assert len(calls) == 3
    for words in (call.split() for call in calls):
        assert words in (["--version"], ["--notes"]) or set(words[1:]) <= set(script.CHECKS)

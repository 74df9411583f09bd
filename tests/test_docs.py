"""The Python in README and docs runs, the commands exist, and every link leads somewhere."""

import dataclasses
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fastbert.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PYTHON = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a small model in runs/mine/model, where the pages expect one."""
    from fastbert import BertConfig, BertForPreTraining, WordPieceTokenizer

    base = tmp_path_factory.mktemp("docs")
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), "."]
    BertForPreTraining(BertConfig.preset("tiny", vocab_size=len(vocabulary))).save_pretrained(base / "runs/mine/model")
    WordPieceTokenizer(vocabulary).save_pretrained(base / "runs/mine/model")
    return base


@pytest.mark.parametrize("block", PYTHON)
def test_python_blocks_run(block: str, folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", block], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_links_exist(page: Path) -> None:
    text = page.read_text()
    for command in re.findall(r"^(?:\S*/)?fastbert ([a-z-]+)", text, re.M):
        assert command in COMMANDS, f"{page.name} shows `fastbert {command}`"
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_shown_in_pages_exist(page: Path) -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    for command, rest in re.findall(r"^(?:\S*/)?fastbert ([a-z-]+)([^\n#]*)", page.read_text(), re.M):
        module = importlib.import_module(f"fastbert.cli.{COMMANDS[command][0]}")
        known = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(module.Config)}
        for flag in re.findall(r"(?<!\S)--[a-z-]+", rest):
            assert flag in known | {"--help", "--quiet", "--debug"}, f"{page.name}: {command} has no {flag}"

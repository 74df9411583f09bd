"""README and docs: what they tell a reader to run, runs."""

import inspect
import re
import shlex
import textwrap
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from sweeps import sweep

import fastbert
from fastbert import BertConfig, BertForPreTraining, BertForSequenceClassification, WordPieceTokenizer
from fastbert.cli import COMMANDS
from fastbert.models import GPT2LMHeadModel
from fastbert.models.gpt2.config import GPT2Config
from fastbert.tokenizers import train_tokenizer

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = (".py", ".pyi", ".cpp", ".h", ".md")
README = (ROOT / "README.md").read_text()


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """The words of every `fastbert COMMAND ...` in the shell blocks of a document."""
    lines = "".join(blocks(text, "sh")).replace("\\\n", " ").splitlines()
    calls = [re.search(r"(?:^|/|&& )fastbert (\w.*)", line) for line in lines]
    return [shlex.split(call[1], comments=True) for call in calls if call]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small trained model where the documents have theirs."""
    folder = tmp_path_factory.mktemp("documents")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "short", "one", "."]
    WordPieceTokenizer(vocabulary).save_pretrained(folder / "runs/mine/model")
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    BertForPreTraining(config).save_pretrained(folder / "runs/mine/model")
    WordPieceTokenizer(vocabulary).save_pretrained(folder / "runs/ranker/model")
    BertForSequenceClassification(replace(config, num_labels=1)).save_pretrained(folder / "runs/ranker/model")
    WordPieceTokenizer(vocabulary).save_pretrained(folder / "runs/task/model")
    classes = replace(config, num_labels=2, label_names=("long", "short"))
    BertForSequenceClassification(classes).save_pretrained(folder / "runs/task/model")
    pieces = train_tokenizer(["a short film was one"] * 2, "bpe", 270)
    pieces.save_pretrained(folder / "runs/gpt2/model")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    GPT2LMHeadModel(GPT2Config(vocab_size=len(pieces), **sizes)).save_pretrained(folder / "runs/gpt2/model")
    return folder


WITH_PYTHON = [file for file in DOCUMENTS if blocks(file.read_text(), "python")]


@pytest.mark.parametrize("document", WITH_PYTHON, ids=name_of)
def test_python_blocks_run(document: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model_folder)
    names: dict[str, object] = {}
    for block in blocks(document.read_text(), "python"):
        exec(compile(block, str(document), "exec"), names)


def examples() -> dict[str, str]:
    """The code of the `Example:` sections in the docstrings of public classes, their methods, and functions."""
    found = {}
    for name in fastbert.__all__:
        value = getattr(fastbert, name)
        members = {name: value}
        if inspect.isclass(value):
            members |= {f"{name}.{key}": getattr(value, key) for key in vars(value)}
        for key, member in members.items():
            _, section, code = (inspect.getdoc(member) or "").partition("\nExample:\n")
            if section:
                found[key] = textwrap.dedent(code)
    return found


@pytest.mark.parametrize("name", ["Embedder", "Classifier", "TextEmbedder", "TextClassifier"])
def test_examples_in_docstrings_run(name: str, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model_folder)
    own = {key: code for key, code in examples().items() if key.partition(".")[0] == name}
    assert len(own) >= 3
    for key, code in own.items():
        exec(compile(code, f"the example of {key}", "exec"), {})


@sweep("document", DOCUMENTS, ids=name_of)
def test_shell_blocks_name_commands_and_flags_that_exist(document: Path) -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    from fastbert.cli.flags import parse

    for command, *flags in commands(document.read_text()):
        module = import_module(f"fastbert.cli.{COMMANDS[command][0]}")
        if hasattr(module, "SUBCOMMANDS") and flags:
            what, *flags = flags
            parse(module.subcommand(what), f"{command} {what}", flags)
        elif not hasattr(module, "SUBCOMMANDS"):
            parse(module.Config, command, flags)


def test_documents_that_code_names_exist() -> None:
    folders = ("fastbert", "kernels", "csrc", "benchmarks", "tests", "docs")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in CODE]
    named = {(name, file) for file in files for name in re.findall(r"\bdocs/[\w/-]+\.md\b", file.read_text())}
    assert len(named) > 10
    assert [f"{file}: {name}" for name, file in sorted(named) if not (ROOT / name).exists()] == []


def test_the_readme_lists_every_command() -> None:
    listed = re.findall(r"^\| `fastbert ([\w-]+)` \|", README, flags=re.MULTILINE)
    assert listed == list(COMMANDS)

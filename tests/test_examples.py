"""Examples: every public name has one in its docstring, and it runs.

An example stands under `Example:`, as an interactive session, whose output is compared, or as plain code. It finds in
the working folder what those of the documentation find: models in runs/mine, runs/ranker and runs/task, small texts.
"""

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastbert import BertConfig, BertForPreTraining, BertForSequenceClassification, WordPieceTokenizer, finetune
from fastbert.models import registry

PUBLIC_MODULES = ("fastbert", "fastbert.ops", "fastbert.losses", "fastbert.models", "fastbert.tokenizers")
EXAMPLE = re.compile(r"^Example:$\n((?:^    .*\n|^\n)+)", flags=re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "short", "one", "."]


def public_names() -> Iterator[tuple[str, Any]]:
    """Yield the names that the public packages list in `__all__`, each object once."""
    seen: set[int] = set()
    for package in PUBLIC_MODULES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if id(value) not in seen:
                seen.add(id(value))
                yield f"{package}.{name}", value


def example_of(value: Any) -> str:
    """Return the text of the example in a docstring, "" without one."""
    example = EXAMPLE.search(f"{inspect.cleandoc(value.__doc__ or '')}\n")
    return inspect.cleandoc(example[1]) if example else ""


def failures(name: str, text: str) -> str:
    """Run an example; return what differs from it, "" if nothing does. Plain code fails by its errors alone."""
    if ">>> " not in text:
        try:
            exec(compile(text, name, "exec"), {})
        except Exception as error:  # noqa: BLE001
            return f"{name}: {type(error).__name__}: {error}"
        return ""
    test = doctest.DocTestParser().get_doctest(text + "\n", {}, name, None, None)
    report: list[str] = []
    doctest.DocTestRunner(verbose=False, optionflags=FLAGS).run(test, out=report.append)
    return "".join(report)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with small models and texts."""
    folder = tmp_path_factory.mktemp("examples")
    config = BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    ranker = BertForSequenceClassification(replace(config, num_labels=1))
    for name, model in (("mine", BertForPreTraining(config)), ("ranker", ranker)):
        WordPieceTokenizer(VOCABULARY).save_pretrained(folder / "runs" / name / "model")
        model.save_pretrained(folder / "runs" / name / "model")
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text("text\tlabel\n" + "a short one.\tgood\none\tbad\n" * 4)
    (folder / "my-text.txt").write_text("A short one. And one.\nAnother short one.\n\n" * 20)
    finetune(
        task="classification",
        model=str(folder / "runs/mine/model"),
        train=folder / "train.tsv",
        eval=folder / "dev.tsv",
        out=folder / "runs/task",
        steps=1,
        device="cpu",
        quiet=True,
    )
    return folder


def test_every_public_name_has_an_example_that_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="examples of acceleration load models of transformers")
    monkeypatch.chdir(folder)
    wrong = []
    for name, value in public_names():
        text = example_of(value)
        named = name.rpartition(".")[2] in text
        wrong.append(failures(name, text) if named else f"{name}: has no example that names it")
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_examples_of_other_architectures_name_their_own_class() -> None:
    for record in registry.ARCHITECTURES.values():
        for name, model in registry.model_classes(record).items():
            named = set(re.findall(r"fastbert\.(\w+)\.from_pretrained", example_of(model)))
            assert named <= {name}, f"{name}: {named}"


def test_a_wrong_example_is_reported() -> None:
    assert not failures("right", ">>> 1 + 1\n2")
    assert "Expected:\n    3\nGot:\n    2\n" in failures("wrong", ">>> 1 + 1\n3")
    assert "ZeroDivisionError" in failures("broken", ">>> 1 / 0")
    assert not failures("plain", "print(1 + 1)")
    assert "ZeroDivisionError" in failures("plain", "1 / 0")

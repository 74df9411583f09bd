"""transformers' own ModelTesterMixin over the accelerated families: what passes plain passes accelerated.

Optional: `FASTBERT_TRANSFORMERS_SOURCE` names the unpacked source distribution of the installed transformers, whose
`tests/test_modeling_common.py` holds the mixin; it needs the package parameterized. A family takes minutes, hence
`pytest --slow`.
"""

import importlib
import inspect
import os
import sys
import types
import unittest
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers")
pytest.importorskip("parameterized", reason="transformers' tests need parameterized")

import transformers
from toys import FAMILIES

import fastbert

pytestmark = pytest.mark.slow

PACKAGE = "transformers_source_tests"
# Modules that the mixin imports and the source distribution leaves out, with the one class asked of each.
LEFT_OUT = {"exporters.test_export": "ExportTesterMixin", "generation.test_utils": "GenerationTesterMixin"}
BATCH, COLUMNS, CHOICES, VOCABULARY = 5, 7, 3, 99
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 48,
    "pad_token_id": 1,
}
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37}


@pytest.fixture(scope="module")
def mixin() -> Any:
    """The class of the source distribution."""
    source = os.environ.get("FASTBERT_TRANSFORMERS_SOURCE")
    if not source:
        pytest.skip("FASTBERT_TRANSFORMERS_SOURCE names no source distribution of transformers")
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(Path(source) / "tests")]
    made = {PACKAGE: package}
    for name, kind in LEFT_OUT.items():
        parent, _, _ = name.partition(".")
        made[f"{PACKAGE}.{parent}"] = types.ModuleType(f"{PACKAGE}.{parent}")
        made[f"{PACKAGE}.{name}"] = types.ModuleType(f"{PACKAGE}.{name}")
        setattr(made[f"{PACKAGE}.{name}"], kind, type(kind, (), {}))
    with mock.patch.dict(sys.modules, made):
        yield importlib.import_module(f"{PACKAGE}.test_modeling_common").ModelTesterMixin


def model_classes(family: str) -> tuple[type, ...]:
    """The encoder of a family and its heads."""
    home = inspect.getmodule(getattr(transformers, f"{family}Model"))
    results = [getattr(transformers, name) for name in dir(transformers) if name.startswith(family)]
    models = [kind for kind in results if inspect.isclass(kind) and issubclass(kind, transformers.PreTrainedModel)]
    return tuple(kind for kind in models if inspect.getmodule(kind) is home and "PreTrained" not in kind.__name__)


class Tester:
    """Config and inputs, under the names that the mixin asks for."""

    batch_size, seq_length, num_choices, num_labels, is_training = BATCH, COLUMNS, CHOICES, 3, True
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4

    def __init__(self, family: str) -> None:
        self.family = family

    def get_config(self) -> Any:
        shape = {name: SHAPE[name] for name in ("vocab_size", "max_position_embeddings", "pad_token_id")} | DISTILBERT
        return getattr(transformers, f"{self.family}Config")(**(shape if self.family == "DistilBert" else SHAPE))

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, torch.Tensor]]:
        ids = torch.randint(2, VOCABULARY, (BATCH, COLUMNS))
        mask = torch.ones_like(ids)
        mask[-1, -2:] = 0
        return self.get_config(), {"input_ids": ids, "attention_mask": mask}


@contextmanager
def accelerated(kinds: tuple[type, ...]) -> Iterator[None]:
    """Accelerate each model of these classes as soon as it is constructed."""
    depth = 0

    def constructing(original: Any) -> Any:
        def construct(self: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal depth
            depth += 1
            try:
                original(self, *args, **kwargs)
            finally:
                depth -= 1
            if not depth:  # not a part of another model
                fastbert.accelerate(self)

        construct.__wrapped__ = original  # type: ignore[attr-defined]
        return construct

    with ExitStack() as patches:
        for kind in kinds:
            patches.enter_context(mock.patch.object(kind, "__init__", constructing(kind.__init__)))  # type: ignore[misc]
        yield


class Outcomes(unittest.TestResult):
    """The names of the tests that pass, and why others do not."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: set[str] = set()
        self.failed: dict[str, str] = {}

    def addSuccess(self, test: Any) -> None:
        self.passed.add(test._testMethodName)

    def addSubTest(self, test: Any, subtest: Any, error: Any) -> None:
        if error is not None:
            self.addFailure(test, error)

    def addFailure(self, test: Any, error: Any) -> None:
        self.failed[test._testMethodName] = f"{error[0].__name__}: {error[1]}"
        self.passed.discard(test._testMethodName)

    addError = addFailure


def labelled(mixin: Any) -> Any:
    """The mixin, which knows the labels of all heads but those of pre-training."""

    class Labelled(mixin):
        all_generative_model_classes = ()  # generation is another mixin's

        def _prepare_for_class(self, inputs: Any, kind: Any, return_labels: bool = False) -> Any:
            arguments = super()._prepare_for_class(inputs, kind, return_labels=return_labels)
            if return_labels and kind.__name__.endswith("ForPreTraining"):
                arguments["labels"] = torch.zeros(BATCH, COLUMNS, dtype=torch.int64)
                if kind.__name__.startswith("Bert"):
                    arguments["next_sentence_label"] = torch.zeros(BATCH, dtype=torch.int64)
            return arguments

    return Labelled


def outcomes(mixin: Any, family: str, kinds: tuple[type, ...]) -> Outcomes:
    """Run all tests of the mixin over a family."""
    case: Any = types.new_class(
        f"{family}ModelTest",
        (labelled(mixin), unittest.TestCase),
        exec_body=lambda space: space.update(
            all_model_classes=kinds, setUp=lambda self: setattr(self, "model_tester", Tester(family))
        ),
    )
    result = Outcomes()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    return result


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_what_passes_plain_passes_accelerated(family: str, mixin: Any, record_property: Any) -> None:
    kinds = model_classes(family)
    plain = outcomes(mixin, family, kinds)
    with accelerated(kinds):
        actual = outcomes(mixin, family, kinds)
    record_property("plain", len(plain.passed))
    record_property("accelerated", len(actual.passed))
    print(f"{family}: {len(kinds)} classes, {len(plain.passed)} tests pass plain, {len(actual.passed)} accelerated")
    assert plain.passed, f"nothing passes plain: {plain.failed}"
    assert actual.passed == plain.passed, {
        name: (plain.failed.get(name, "passes"), actual.failed.get(name, "passes"))
        for name in actual.passed ^ plain.passed
    }

"""The generated Unicode tables are what the reference does today, and what generate.py would write."""

import importlib.util
from pathlib import Path

import pytest

from fastbert import _C

CSRC = Path(__file__).resolve().parents[2] / "csrc"


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate_unicode_tables", CSRC / "unicode" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def answers(generate):
    tokenizers = pytest.importorskip("tokenizers")
    if tokenizers.__version__ != generate.REFERENCE_VERSION:
        pytest.skip(f"the tables come from tokenizers {generate.REFERENCE_VERSION}, here is {tokenizers.__version__}")
    return generate.query_reference()


def test_built_tables_equal_the_reference(generate, answers):
    assert generate.fingerprint(*answers) == _C.UNICODE_FINGERPRINT


def test_committed_file_is_what_the_generator_writes(generate, answers):
    assert generate.render(*answers) == (CSRC / "unicode" / "tables.cpp").read_text()

"""Fixtures of the tests of `attn_implementation="fastbert"`."""

import pytest


@pytest.fixture
def attention_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interface is registered, and has logged nothing yet."""
    from fastbert.integrations.transformers import attention

    attention.register_attention()
    monkeypatch.setattr(attention, "_logged", set())

"""A toy model without a masked-LM head, and a corpus for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from domain_text import write_corpus
from toy_tasks import toy_folder


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adaptation")
    toy_folder(folder / "model")
    write_corpus(folder / "corpus.txt", 40)
    return folder

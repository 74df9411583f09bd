"""A toy model and files of examples for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_tasks import moods, sentiment, toy_folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    toy_folder(folder / "model")
    sentiment(folder / "train.tsv", 192, seed=1)
    sentiment(folder / "dev.tsv", 64, seed=2)
    sentiment(folder / "other.tsv", 40, seed=3)
    moods(folder / "pairs.tsv", 256, seed=4)
    moods(folder / "pairs-dev.tsv", 64, seed=5)
    return folder

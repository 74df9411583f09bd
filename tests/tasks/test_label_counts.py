"""A column of texts that is taken for labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastbert.errors import UserError
from fastbert.tasks.registry import make_task


def test_a_column_of_texts_is_not_one_of_classes(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\n" + "".join(f"a\tthe text number {i}\n" for i in range(60)))
    task = make_task("classification")
    with pytest.raises(UserError, match=r"train\.tsv: 60 different labels for 60 examples, .* --label-column"):
        task.learn_labels(task.read(str(path)))
    path.write_text("text\tlabel\n" + "".join(f"a\tclass {i}\n" for i in range(60)))  # one example each
    task.learn_labels(task.read(str(path)))
    assert len(task.known_labels) == 60


def test_a_file_of_texts_is_not_one_of_tags(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"1\tthe text number {i}\n" for i in range(60)))
    task = make_task("tagging")
    with pytest.raises(UserError, match=r"60 different labels for 60 words, 'the text number"):
        task.learn_labels(task.read(str(path)))

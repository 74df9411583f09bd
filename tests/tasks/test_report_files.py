"""The files of a report: tables, pictures and the summary on the terminal."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from report_data import labelled, texts

pytest.importorskip("sklearn", reason="metrics need scikit-learn")
pytest.importorskip("seqeval", reason="metrics need seqeval")

from fastbert.cli.checks import check_new_folder
from fastbert.errors import UserError
from fastbert.io.figures import font_families
from fastbert.tasks.registry import make_task
from fastbert.tasks.reports import classes
from fastbert.tasks.reports.files import contents, read_contents, write_report
from fastbert.tasks.reports.picture import MAX_CLASSES, draw_confusion, most_confused
from fastbert.tasks.reports.report import Table, shortened
from fastbert.tasks.reports.summary import WIDTH, class_lines, score_lines, warning_lines


def test_cells_stay_in_their_row_and_column() -> None:
    table = Table(("a", "b"), [("x\ty\nz\r\\", None), (0.5, 3)])
    assert table.to_tsv() == "a\tb\nx\\ty\\nz\\r\\\\\t\n0.5000\t3\n"


def test_control_characters_are_escaped_everywhere(tmp_path: Path) -> None:
    labels = ["\x1b[31mred\x9b", "a\tb\nc", "x\u202ey\u2066\x7f"]
    values = written(tmp_path, labels, 2)
    texts = [path.read_text("utf-8") for path in tmp_path.iterdir() if path.suffix in (".tsv", ".json")]
    assert len(texts) == 5
    assert all(character.isprintable() or character in "\t\n" for text in texts for character in text)
    assert all(line.isprintable() for line in class_lines(values))
    assert read_contents(tmp_path) == json.loads(json.dumps(values))
    for name in (r"\x1b[31mred\x9b", r"a\tb\nc", r"x\u202ey\u2066\x7f"):
        assert name in (tmp_path / "confusion.tsv").read_text("utf-8")
        assert any(name in line for line in class_lines(values))
    assert shortened("ab\x1bcd", 7) == r"ab\x1b…"
    assert shortened("ab\x1bcd", 6) == "ab…"
    assert shortened("ab\x1bcd", 8) == r"ab\x1bcd"


def written(folder: Path, labels: Sequence[str], wrong: int) -> dict[str, Any]:
    """Write the report on an example per class, of which the first `wrong` are predicted as the next class."""
    predicted = [labels[(i + (i < wrong)) % len(labels)] for i in range(len(labels))]
    task, dataset = make_task("classification", labels=tuple(labels)), texts(labels)
    report = task.report(dataset, labelled(predicted))
    scores = task.score(dataset, labelled(predicted))
    values = contents(task, report, len(dataset), scores, task.baselines(dataset))
    write_report(folder, report, values)
    return values


def test_files_of_a_report(tmp_path: Path) -> None:
    values = written(tmp_path / "report", ["good", "bad", "$x^"], 2)
    names = {"per_class.tsv", "confusion.tsv", "confusion.png", "confused_pairs.tsv", "errors.tsv", "report.json"}
    assert {path.name for path in (tmp_path / "report").iterdir()} == names
    assert read_contents(tmp_path / "report") == json.loads(json.dumps(values))
    assert (tmp_path / "report" / "confusion.png").read_bytes().startswith(b"\x89PNG")
    # A later report replaces all files of an earlier one, and no others.
    (tmp_path / "report" / "notes.txt").write_text("mine")
    task, dataset = make_task("regression"), texts([1.0, 2.0])
    predictions = [{"id": "0", "score": 1.0}, {"id": "1", "score": 3.0}]
    report = task.report(dataset, predictions)
    write_report(tmp_path / "report", report, {"task": "regression"})
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        "groups.tsv",
        "errors.tsv",
        "report.json",
        "notes.txt",
    }
    with pytest.raises(UserError, match=r"notes\.txt: is a file"):
        check_new_folder("--report", tmp_path / "report" / "notes.txt")
    with pytest.raises(UserError, match="no such folder"):
        check_new_folder("--report", tmp_path / "a" / "b")
    assert read_contents(tmp_path) is None


def test_of_many_classes_the_most_confused_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = [f"class {i}" for i in range(150)]
    confusion = classes.confusion([*labels, *labels[100:112] * 2], [*labels, *labels[101:113] * 2], labels)
    assert confusion is not None
    chosen = most_confused(confusion)
    assert len(chosen) == MAX_CLASSES
    assert set(range(100, 113)) < set(chosen)
    draw_confusion(confusion, tmp_path / "confusion.png")
    assert len(confusion.to_table().rows) == 150
    # After a collapse the largest classes are.
    collapsed = classes.confusion([*labels, *labels[60:79]], ["class 90"] * 169, labels)
    assert collapsed is not None
    assert most_confused(collapsed) == [*range(60, 79), 90]
    titles: list[str] = []
    monkeypatch.setattr(Axes, "set_title", lambda axes, title, **_: titles.append(title))
    draw_confusion(collapsed, tmp_path / "confusion.png")
    assert titles == ["the 20 largest of 150 classes; all predictions are 'class 90'"]
    thousands = list(map(str, range(classes.MOST_CLASSES + 1)))
    assert classes.confusion(thousands, thousands, thousands) is None
    assert len(classes.per_class(thousands, thousands, thousands).rows) == len(thousands)


def test_class_names_that_no_font_can_draw_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import font_manager

    assert font_families("positive, отрицательный") == (["DejaVu Sans"], set())
    own = [entry for entry in font_manager.fontManager.ttflist if entry.name.startswith("DejaVu Sans")]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    assert font_families("a 中") == (["DejaVu Sans"], {"中"})
    drawn: list[str] = []
    monkeypatch.setattr(Axes, "set_yticks", lambda axes, at, labels=None, **_: drawn.extend(labels or ()))
    monkeypatch.setattr(Axes, "set_title", lambda axes, title, **_: drawn.append(" ".join(title.split())))
    confusion = classes.confusion(["b", "中性"], ["中性", "中性"], ["b", "中性"])
    assert confusion is not None
    with warnings.catch_warnings(action="error"):  # of a glyph that is missing
        draw_confusion(confusion, tmp_path / "confusion.png")
    assert drawn[:2] == ["b", "row 2"]
    assert drawn[2].endswith("which are named by their row in confusion.tsv")


@pytest.mark.parametrize("count", [2, 3, 150])
def test_the_summary_is_short_and_narrow(count: int, tmp_path: Path) -> None:
    labels = [f"{i} {'a very long name of a class ' * 3}" for i in range(count)]
    values = written(tmp_path / "report", labels, count // 2)
    shown = {name: f"{value:.2f}" for name, value in values["scores"].items()}
    lines = score_lines("dev.tsv", shown, values) + class_lines(values)
    lines += warning_lines("dev.tsv", {"warnings": classes.collapse(["a", "b"] * 9, ["a"] * 18)})
    assert lines[0].startswith("dev.tsv: accuracy ")
    assert lines[0].endswith(f"chance {100 / count:.2f})")
    assert len(lines) <= 9  # three more name the model, the report and the results
    assert max(map(len, lines)) <= WIDTH
    assert score_lines("dev.tsv", shown, values, others=False) == lines[:1]

"""The benchmarks' harness: comparison, turns, rows, table, chart, and contenders in processes of their own."""

import io
import json
import os
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from fastbert.benchmarks.harness import measure, pictures, records, report, tables
from fastbert.benchmarks.harness.isolation import Isolated, Local
from fastbert.benchmarks.harness.measure import ContenderFailed, Row, Timing
from fastbert.io import figures

DESIGNED = {"workload", "contender", "median_ms", "p20", "p80", "tokens_per_second", "ratio_to_fastbert"}
DESIGNED |= {"max_abs_difference", "dtype", "threads"}


def ragged(*rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([index for row in rows for index in row], np.int32), np.cumsum([0, *map(len, rows)])


def timings(*seconds: float) -> list[Timing]:
    return [Timing(value, value) for value in seconds]


def example() -> list[Row]:
    results = {"fastbert": timings(0.1, 0.2, 0.3), "other": timings(0.4, 0.4, 0.5), "wrong": timings(1.0)}
    return measure.make_rows(
        "texts, cold",
        results,
        dtype={"fastbert": "int32", "other": "uint32", "wrong": "list"},
        threads=1,
        tokens=1000,
        text_bytes=2_000_000,
        outputs={"wrong": "ids differ in 6 of 4,765 texts"},
        differences={"wrong": 7.0},
    )


@pytest.mark.parametrize(
    ("result", "text", "first", "worst"),
    [
        pytest.param(ragged([1, 2], [], [3]), "equal", None, 0, id="equal"),
        pytest.param(ragged([1, 2], [], [9]), "ids differ in 1 of 3 texts", 2, 6, id="other-id"),
        pytest.param(ragged([1], [2], [3]), "ids differ in 2 of 3 texts", 0, 3, id="moved-boundary"),
        pytest.param(ragged([1, 2], [], [3, 4]), "ids differ in 1 of 3 texts", 2, 5, id="longer"),
        pytest.param(ragged([1, 2], [3]), "ids differ in 3 of 3 texts", 0, float("inf"), id="a-text-less"),
    ],
)
def test_comparison_finds_what_differs(
    result: tuple[np.ndarray, np.ndarray], text: str, first: int | None, worst: float
) -> None:
    compared = measure.compare_rows(ragged([1, 2], [], [3]), result)
    assert str(compared) == text
    assert (compared.first, compared.max_abs_difference) == (first, worst)


def test_ids_of_other_dtypes_compare_by_value() -> None:
    ids, offsets = ragged([1, 2], [3])
    assert measure.compare_rows((ids, offsets), (ids.astype(np.uint32), offsets.astype(np.int32))).differing == 0


def test_contenders_take_turns() -> None:
    calls: list[str] = []

    def contender(name: str, seconds: float) -> Timing:
        calls.append(name)
        return Timing(seconds, seconds)

    result = measure.interleave({"a": lambda: contender("a", 0.1), "b": lambda: contender("b", 0.2)}, 4)
    assert "".join(calls) == "ab" * 2 + "ab" * 4, "two rounds agree at once, then four are timed"
    assert result == {"a": timings(0.1) * 4, "b": timings(0.2) * 4}


def test_warming_ends_when_two_rounds_agree_and_at_last_anyway() -> None:
    speeds = iter([0.2, 0.1, 0.05, 0.05, 99.0])
    measure.warm({"a": lambda: Timing(next(speeds), 0.0)})
    assert next(speeds) == 99.0
    never = iter(0.01 * 2**index for index in range(100))
    measure.warm({"a": lambda: Timing(next(never) % 0.2, 0.0)}, most=5)
    assert next(never) == 0.01 * 2**5
    slow = iter([3.0, 2.0, 1.0])
    measure.warm({"a": lambda: Timing(next(slow), 0.0)})
    assert next(slow) == 2.0, "what takes seconds is called once"


def test_a_contender_that_fails_is_named_and_the_others_go_on() -> None:
    left: list[str] = []
    turns = iter(range(100))

    def unlucky() -> Timing:
        if next(turns) == 3:
            raise ContenderFailed("it broke")
        return Timing(0.1, 0.1)

    result = measure.interleave(
        {"a": lambda: Timing(0.1, 0.1), "b": unlucky}, 5, failed=lambda name, error: left.append(f"{name}: {error}")
    )
    assert list(result) == ["a"]
    assert len(result["a"]) == 5
    assert left == ["b: it broke"]
    turns = iter([3])
    with pytest.raises(ContenderFailed, match="it broke"):
        measure.interleave({"b": unlucky}, 1)


def test_the_clock_counts_wall_and_processor_time() -> None:
    asleep = measure.clock(lambda: time.sleep(0.05))
    assert asleep.seconds >= 0.05
    assert asleep.processor_seconds < 0.04
    ended = time.process_time() + 0.06
    busy = measure.timed(lambda: all(time.process_time() < ended for _ in iter(int, 1)))()
    assert busy.processor_seconds >= 0.05


def test_rows_are_medians_and_ratios() -> None:
    fastbert, other, wrong = example()
    assert (fastbert.median_ms, fastbert.p20, fastbert.ratio_to_fastbert) == (200.0, 140.0, 1.0)
    assert (fastbert.tokens_per_second, fastbert.megabytes_per_second, fastbert.dtype) == (5000.0, 10.0, "int32")
    assert (other.median_ms, other.ratio_to_fastbert, other.agrees) == (400.0, 2.0, True)
    assert (wrong.median_ms, wrong.p20, wrong.p80, wrong.max_abs_difference) == (1000.0, 1000.0, 1000.0, 7.0)
    assert not wrong.agrees


def test_rows_say_when_they_used_other_threads() -> None:
    results = {"fastbert": [Timing(0.1, 0.1)], "many": [Timing(0.1, 0.19)], "waited": [Timing(0.1, 0.05)]}
    rows = measure.make_rows("texts", results, dtype="int32", threads=1)
    assert [row.threads_used for row in rows] == [1.0, 1.9, 0.5]
    notes = [row.details.get("note") for row in rows]
    assert notes == [None, "asked for 1 thread, used 1.9", "had only 0.5 of a processor"]


def test_without_us_there_is_no_ratio() -> None:
    [row] = measure.make_rows("texts", {"other": timings(0.1)}, dtype="int32", threads=1)
    assert row.ratio_to_fastbert is None


def test_the_file_has_the_designed_fields(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    records.write(path, records.record("toy", map(asdict, example())))
    rows = json.loads(path.read_text())["rows"]
    assert [row["contender"] for row in rows] == ["fastbert", "other", "wrong"]
    assert all(set(row) >= DESIGNED for row in rows)
    assert rows[2]["outputs"] == "ids differ in 6 of 4,765 texts"


def test_the_table_shows_and_marks(capsys: pytest.CaptureFixture[str]) -> None:
    report.show(example())
    printed = capsys.readouterr().out
    assert printed.count("texts, cold") == 1
    [wrong] = [line for line in printed.splitlines() if " wrong " in f" {line} "]
    assert wrong.split()[-2:] == ["WRONG", "[1]"]
    assert "\n[1] ids differ in 6 of 4,765 texts (by 7)\n" in printed


LONG = "a contender with a long name of versions and dtype"


@pytest.mark.parametrize("width", [None, 60, 80, 100, 200])
def test_tables_fit_their_width_and_say_what_they_leave_out(width: int | None) -> None:
    rich_console = pytest.importorskip("rich.console")
    terminal = {} if width is None else {"width": width, "force_terminal": True, "color_system": None}
    console = rich_console.Console(file=io.StringIO(), **terminal)
    rows = [replace(row, contender=f"{row.contender} {LONG}", median_ms=123456.7, p20=123000.0) for row in example()]
    report.show([*rows, *(replace(row, workload="texts, warm", details={"note": "used 1.9"}) for row in rows)], console)
    printed = console.file.getvalue()
    assert max(map(len, printed.splitlines())) <= (width or 100)
    assert "123,457" in printed
    assert "tokens/s" in printed
    assert "e+" not in printed
    # Each note once, below the first table that refers to it.
    assert printed.count("ids differ in 6") == printed.count("used 1.9") == 1
    assert printed.index("[1] ids differ") < printed.index("texts, warm") < printed.index("[2] used 1.9")
    assert "WRONG [1]" in printed
    assert ("left out here" in printed) == (width in (60, 80))
    assert ("p20-p80" in printed.split("left out here")[0]) == (width != 60)


def test_notes_are_numbered_once() -> None:
    notes = tables.Notes()
    assert notes.mark([]) == ""
    assert notes.mark(["b", "a"]) == "[1, 2]"
    assert notes.mark(["c", "b"]) == "[1, 3]"
    assert notes.lines() == ["[1] b", "[2] a", "[3] c"]


def test_charts_carry_the_notes_of_the_table_and_have_at_most_eight_panels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="charts need matplotlib")
    drawn = []

    @contextmanager
    def figure_file(*arguments: object):
        with figures.figure_file(*arguments) as figure:  # type: ignore[arg-type]
            drawn.append(figure)
            yield figure

    monkeypatch.setattr(pictures, "figure_file", figure_file)
    rows = [replace(row, workload=f"workload {n}") for n in range(17) for row in example()]
    rows[0].details["note"] = "had only 0.5 of a processor"
    files = report.chart(tmp_path / "chart.png", rows, title="here")
    assert [file.name for file in files] == ["chart-1.png", "chart-2.png", "chart-3.png"]
    assert all(file.exists() for file in files)
    assert [sum(axes.has_data() for axes in figure.axes) for figure in drawn] == [6, 6, 5]
    below = drawn[0].get_supxlabel()
    assert "[1] had only 0.5 of a processor" in below
    assert "[2] ids differ in 6 of 4,765 texts (by 7)" in below
    behind = [text.get_text() for text in drawn[0].axes[0].texts]
    assert [text.partition("[")[2] for text in behind] == ["1]", "", "2]"]
    assert "chart-1.png to chart-3.png" in capsys.readouterr().err
    assert report.chart(tmp_path / "one.png", rows[: 8 * 3], title="here") == [tmp_path / "one.png"]


def test_the_chart_is_a_picture_with_our_colour_and_a_mark(tmp_path: Path, every_figure: None) -> None:
    plt = pytest.importorskip("matplotlib.pyplot", reason="charts need matplotlib")
    from matplotlib.colors import to_rgb

    report.chart(tmp_path / "chart.png", [*example(), *example()], title="on this machine")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG\r\n")
    pixels = plt.imread(tmp_path / "chart.png")[..., :3]
    for color in (pictures.FASTBERT_COLOR, pictures.OTHER_COLOR, pictures.WRONG_COLOR):
        assert (np.abs(pixels - np.array(to_rgb(color), np.float32)).max(-1) < 0.01).sum() > 500, color


class Echo:
    """A contender for the tests, which must be importable by the process that holds it."""

    def __init__(self, word: str) -> None:
        self.word = word

    def say(self, times: int) -> str:
        print("a library prints")
        return self.word * times + os.environ.get("ECHO", "")

    def fail(self) -> None:
        raise ValueError("first line\nsecond line")

    def die(self) -> None:
        os._exit(7)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> str:
    folder = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", folder)
    monkeypatch.syspath_prepend(folder)
    return "test_harness:Echo"


def test_isolated_contenders_answer_fail_and_die(home: str) -> None:
    contender = Isolated(home, {"word": "ä"}, {"ECHO": "!"})
    assert contender.call("say", times=2) == "ää!"
    with pytest.raises(ContenderFailed, match=r"^ValueError: first line$"):
        contender.call("fail")
    assert contender.call("say", times=1) == "ä!", "a failure is not the end"
    with pytest.raises(ContenderFailed, match="ended with code 7"):
        contender.call("die")
    contender.close()
    with pytest.raises(ContenderFailed, match="no_such_module"):
        Isolated("no_such_module:Echo", {}, {})


def test_local_contenders_answer_and_fail_the_same_way(home: str) -> None:
    contender = Local(home, {"word": "ä"})
    assert contender.call("say", times=2) == "ää"
    with pytest.raises(ContenderFailed, match=r"^ValueError: first line$"):
        contender.call("fail")

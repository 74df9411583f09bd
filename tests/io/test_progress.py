"""Bars at the widths of terminals, lines without one, and the estimate of the time left."""

import io
import re
from typing import Any

import pytest

from fastbert.cli.training_view import TrainingView
from fastbert.io.progress import Bars

rich_console = pytest.importorskip("rich.console", reason="progress needs rich")

WIDTHS = [60, 80, 100, 200]
RECORD = {"split": "train", "tokens": 3, "tokens_per_second": 123456.7, "learning_rate": 1e-4, "seconds": 2.0}
PRETRAINING = {**RECORD, "loss": 7.1, "mlm_loss": 6.543, "nsp_loss": 0.6, "mlm_accuracy": 0.071, "nsp_accuracy": 0.55}
ELECTRA = {**RECORD, "loss": 19.0, "mlm_loss": 6.543, "mlm_accuracy": 0.071, "rtd_loss": 0.25, "rtd_accuracy": 0.875}


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def bars_on(width: int | None, clock: Clock, quiet: bool = False) -> Bars:
    """Return bars on a terminal of a width, or on a file."""
    terminal = {} if width is None else {"width": width, "force_terminal": True, "color_system": None}
    screen = rich_console.Console(file=io.StringIO(), soft_wrap=True, highlight=False, quiet=quiet, **terminal)
    return Bars(quiet, screen, clock)


def shown(bars: Bars) -> list[str]:
    """Return the lines of the bars as a terminal of their width draws them."""
    screen = rich_console.Console(file=io.StringIO(), width=bars.console.width, force_terminal=True, color_system=None)
    screen.print(bars._table())
    return screen.file.getvalue().splitlines()


def printed(bars: Bars) -> list[str]:
    return bars.console.file.getvalue().splitlines()


def train(view: TrainingView, clock: Clock, record: dict[str, Any], *, first: int, last: int, steps: int) -> None:
    for step in range(first, last + 1):
        clock.seconds += 2.0
        view.step({**record, "step": step}, step / steps)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "record", [PRETRAINING, ELECTRA, {**RECORD, "loss": 0.693}], ids=["pretraining", "electra", "finetuning"]
)
def test_training_shows_bar_percentage_rate_and_time_left_at_every_width(width: int, record: dict[str, Any]) -> None:
    clock = Clock()
    bars = bars_on(width, clock)
    reading = bars.stage("reading for the vocabulary", 300_000_000)
    for done in (0, 100_000_000, 300_000_000):
        reading(done, f"{done / 1e6:,.1f} of 300.0 MB")
        clock.seconds += 50
    train(TrainingView(bars), clock, record, first=1, last=1350, steps=10_000)
    first, second = shown(bars)
    assert max(map(len, (first, second))) < width
    assert re.search("━{4,}", first)
    assert "━" in second
    assert re.search(r"13 % +123,457 tokens/s  4:48:20 left", second), second
    assert re.search(r"100 % +3.0 MB/s +in 1:40", first), first
    assert first.startswith("reading")
    if width >= 80:
        assert ("loss 0.693" if "mlm_loss" not in record else "loss 6.54") in second
    assert ("pairs 55%" in second) == (width > 100 and "nsp_loss" in record)
    assert ("replaced 0.25, 88%" in second) == (width > 100 and "rtd_loss" in record)


COSTS = {"mfu": 0.413, "memory_bytes": 1_530_000_000, "gradient_norm": 0.61, "skipped_steps": 3, "data_seconds": 20.0}


@pytest.mark.parametrize("width", [40, 80, 100, 120, 160, 200, None])
def test_costs_follow_the_losses_where_there_is_room(width: int | None) -> None:
    clock = Clock()
    bars = bars_on(width, clock)
    view = TrainingView(bars)
    hooks = view.reporter()
    for step in range(1, 31):
        clock.seconds += 2.0
        hooks.on_line({**PRETRAINING, **COSTS, "step": step, "seconds": 100.0})
        hooks.on_line({"step": step, "split": "validation"})
        hooks.on_step({**PRETRAINING, "step": step}, step / 100)
    shown_costs = "MFU 41%  1.5 GB  3 skipped  waits 20%  gradient 0.61"
    if width is None:
        assert printed(bars)[-1].endswith(f"pairs 55%  {shown_costs}")
        return
    [line] = shown(bars)
    assert len(line) <= width
    assert (shown_costs in line) == (width >= 200)
    assert ("30 % " in line) == (width >= 80)
    assert ("loss 6.54" in line) == (width >= 80)


def test_masked_false_negatives_are_shown() -> None:
    clock = Clock()
    bars = bars_on(200, clock)
    view = TrainingView(bars)
    view.line({**RECORD, "masked_negatives": 12.25})
    train(view, clock, {**RECORD, "loss": 0.693}, first=1, last=3, steps=10)
    assert "12.2 false negatives masked per step" in shown(bars)[0]


@pytest.mark.parametrize("width", [10, 30, 45])
def test_a_very_narrow_terminal_has_no_second_line(width: int) -> None:
    clock = Clock()
    bars = bars_on(width, clock)
    train(TrainingView(bars), clock, PRETRAINING, first=1, last=3, steps=9)
    assert len(shown(bars)) == 1
    assert max(map(len, shown(bars))) <= width


def test_details_are_dropped_from_the_right_and_never_cut() -> None:
    clock = Clock()
    for width in range(60, 200):
        bars = bars_on(width, clock)
        stage = bars.stage("tokenizing", 1e9)
        stage(0)
        clock.seconds += 10
        stage(2e8, "200.0 of 1,000.0 MB  12,345 sentences")
        [line] = shown(bars)
        assert len(line) < width
        before, left, after = line.partition("0:40 left")
        assert left
        assert after.strip() in ("", "200.0 of 1,000.0 MB", "200.0 of 1,000.0 MB  12,345 sentences")
        assert " 20 %" in before
        assert "20.0 MB/s" in before


def test_the_time_left_includes_validations_and_leaves_out_warm_up_and_earlier_runs() -> None:
    clock = Clock()
    bars = bars_on(80, clock)
    view = TrainingView(bars)
    clock.seconds += 500  # compiling
    view.step({**RECORD, "loss": 1.0, "step": 41}, 0.41)
    assert view.stage is not None
    assert view.stage.time == "-:-- left"
    clock.seconds += 6
    view.step({**RECORD, "loss": 1.0, "step": 42}, 0.42)
    assert view.stage.time == "5:48 left", "58 steps of 6 s"
    view.validation({"step": 42, "scores": {"dev.tsv": {"accuracy": 91.0}}})
    clock.seconds += 6 + 12  # a step, and a validation
    view.step({**RECORD, "loss": 1.0, "step": 43}, 0.43)
    assert view.stage.time == "11:24 left", "57 steps of 12 s"


def test_trials_share_a_bar() -> None:
    clock = Clock()
    bars = bars_on(100, clock)
    view = TrainingView(bars)
    for number in (1, 2):
        view.trial(number, 4, f"seed {number}")
        for step in range(1, 11):
            clock.seconds += 1
            view.step({**RECORD, "loss": 1.0, "step": step}, step / 10)
    [line] = shown(bars)
    assert line.startswith("trial 2 of 4 ")
    assert " 50 % " in line
    assert "0:20 left" in line


def test_an_evaluation_has_a_bar_while_it_takes_and_training_ends_after_the_last_one() -> None:
    clock = Clock()
    bars = bars_on(80, clock)
    view = TrainingView(bars)
    train(view, clock, {**RECORD, "loss": 1.0}, first=1, last=100, steps=100)
    for rows in (100, 200, 400):
        view.prediction("dev.tsv", rows, rows / 1000)
        clock.seconds += 1
    training, evaluation = shown(bars)
    assert " 99 % " in training
    assert "evaluating dev.tsv" in evaluation
    assert " 40 % " in evaluation
    assert "150 rows/s  0:04 left" in evaluation
    view.prediction("dev.tsv", 1000, 1.0)
    assert len(shown(bars)) == 1
    bars.__exit__(None)
    assert "100 %" in shown(bars)[0]


def test_without_a_terminal_there_is_a_line_from_time_to_time() -> None:
    clock = Clock()
    bars = bars_on(None, clock)
    with bars:
        train(TrainingView(bars), clock, PRETRAINING, first=1, last=100, steps=100)
    lines = printed(bars)
    assert lines[0] == "training:  6 %  123,457 tokens/s  3:08 left  loss 6.54  step 6  accuracy 7%  pairs 55%"
    assert [int(re.findall(r"step (\d+)", line)[0]) for line in lines] == [6, 11, 21, 36, 51, 66, 81, 96, 100]
    assert "100 %" in lines[-1]
    assert "in 3:18" in lines[-1]


def test_a_short_stage_prints_no_line_without_a_terminal() -> None:
    clock = Clock()
    bars = bars_on(None, clock)
    with bars:
        for name in ("reading", "tokenizing"):
            stage = bars.stage(name, 100)
            for done in range(101):
                stage(done)
                clock.seconds += 0.09
        bars.message("a message")
    assert printed(bars) == ["a message"]


@pytest.mark.parametrize("width", [None, 80])
def test_quiet_prints_nothing(width: int | None) -> None:
    clock = Clock()
    bars = bars_on(width, clock, quiet=True)
    with bars:
        train(TrainingView(bars), clock, PRETRAINING, first=1, last=100, steps=100)
        bars.message("a message")
    assert printed(bars) == []


def test_stages_without_a_total_show_the_time_so_far() -> None:
    clock = Clock()
    bars = bars_on(80, clock)
    beat = bars.waiting("learning pieces")
    embedding = bars.stage("embedding", None, "texts")
    for seconds in range(20):
        clock.seconds += 1
        beat(float(seconds))
        embedding(seconds * 50)
    first, second = shown(bars)
    assert "for 0:20" in first
    assert "50 texts/s" in second
    assert "for 0:20" in second
    beat(0.0, done=True)
    assert "100 %" in shown(bars)[0]
    assert "in 0:20" in shown(bars)[0]


def test_counted_stages_begin_with_their_first_call_and_end_with_the_last() -> None:
    clock = Clock()
    bars = bars_on(80, clock)
    for done in range(4):
        bars.count("measuring", done, 3, "lognormal", unit="workloads")
        clock.seconds += 90
    [line] = shown(bars)
    assert "100 %" in line
    assert "0.67 workloads/min" in line
    assert "in 4:30" in line


def test_an_end_without_an_error_ends_every_stage_and_an_error_none() -> None:
    clock = Clock()
    bars = bars_on(None, clock)
    with bars:
        early = bars.stage("early stopping", 1.0)
        clock.seconds += 10
        early(0.3)
    assert early.percentage == "100 %"
    stopped = bars.stage("stopped", 1.0)
    stopped(0.3)
    bars.__exit__(KeyboardInterrupt)
    assert stopped.percentage == "30 %"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5.4, "0:05"), (65, "1:05"), (3600, "1:00:00"), (86_400, "24:00:00"), (200_000, "2 d 7 h")],
)
def test_durations(seconds: float, text: str) -> None:
    clock = Clock()
    bars = bars_on(80, clock)
    stage = bars.stage("long", 2.0)
    stage(0.0)
    clock.seconds += seconds
    stage(1.0)
    assert stage.time == f"{text} left"

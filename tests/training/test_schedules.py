"""Learning-rate schedules beside their formulas, and numbers that follow the progress of a run."""

import math

import pytest

from fastbert.errors import UserError
from fastbert.training.schedules import ScheduledValue, learning_rate_factor

WARMUP, DECAY = 0.1, 0.25
RUN = [i / 1000 for i in range(1001)]


def remaining(progress: float, schedule: str) -> float:
    """The published formulas, with the run counted in thousandths."""
    step, total, rising, falling = round(1000 * progress), 1000, round(1000 * WARMUP), round(1000 * DECAY)
    if schedule == "linear":
        return (total - step) / (total - rising)
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / (total - rising)))
    if schedule == "wsd" and step > total - falling:
        return 1 - math.sqrt((step - (total - falling)) / falling)
    return 1.0


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd", "constant"])
@pytest.mark.parametrize("least", [0.0, 0.1])
def test_learning_rates_are_those_of_the_formulas(schedule: str, least: float) -> None:
    for progress in RUN:
        factor = learning_rate_factor(progress, WARMUP, schedule, decay_fraction=DECAY, min_ratio=least)
        shape = remaining(progress, schedule)
        expected = progress / WARMUP if progress < WARMUP else least + (1 - least) * shape
        assert factor == pytest.approx(expected, abs=1e-6), progress
    assert learning_rate_factor(0.0, 0.0, schedule) == 1.0
    end = learning_rate_factor(1.0, WARMUP, schedule, min_ratio=least)
    assert end == (1.0 if schedule == "constant" else least)


def test_the_usual_schedule_has_kept_its_bits() -> None:
    for progress in RUN:
        expected = progress / 0.1 if progress < 0.1 else (1.0 - progress) / (1.0 - 0.1)
        assert learning_rate_factor(progress, 0.1) == expected


def test_a_run_may_be_all_decay() -> None:
    factors = [learning_rate_factor(progress, 0.0, "wsd", decay_fraction=1.0) for progress in RUN]
    assert factors[0] == 1.0
    assert factors[-1] == 0.0
    assert factors == sorted(factors, reverse=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.3", {0.0: 0.3, 0.5: 0.3, 1.0: 0.3}),
        (0.15, {0.0: 0.15, 1.0: 0.15}),
        ("0.3:0.15", {0.0: 0.3, 0.5: 0.225, 1.0: 0.15}),
        ("0.3@0.8,0.15", {0.0: 0.3, 0.799999: 0.3, 0.8: 0.15, 1.0: 0.15}),
        ("64:512@0.1,512", {0.0: 64, 0.05: 288, 0.1: 512, 1.0: 512}),
        ("1@0.25,2:4@0.75,-8:0", {0.2: 1, 0.25: 2, 0.5: 3, 0.75: -8, 0.875: -4, 1.0: 0}),
        (" 1 @ 0.5 , 1e2 ", {0.0: 1, 0.5: 100}),
        ("0.5@1", {0.0: 0.5, 1.0: 0.5}),
    ],
)
def test_values_follow_the_progress(text: str | float, expected: dict[float, float]) -> None:
    value = ScheduledValue.parse(text)
    for progress, number in expected.items():
        assert value.at(progress) == pytest.approx(number, rel=1e-12), progress
    assert ScheduledValue.parse(str(value)) == value
    assert all(value.smallest <= value.at(progress) <= value.largest for progress in RUN)
    assert value.is_constant == (len({value.at(progress) for progress in RUN}) == 1)
    assert value.mean == pytest.approx(sum(value.at(progress + 0.0005) for progress in RUN[:-1]) / 1000)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is not a number"),
        ("a", "'a' is not a number"),
        ("nan", "'nan' is not a number"),
        ("1e999", "'1e999' is not a number"),
        ("0.3:", "'' is not a number"),
        ("0.3:0.2:0.1", "'0.2:0.1' is not a number"),
        ("0.3@x,0.1", "'x' is not a number"),
        ("0.3,0.1", "part 1 needs @"),
        ("0.3@0.8", "the last part has none"),
        ("0.3@0.8,0.2@0.5,0.1", "must increase"),
        ("0.3@0.0,0.1", "must increase"),
        ("0.3@1,0.1", "the last part has none"),
        ("0.3@1.5,0.1", "between 0 and 1"),
        ("9" * 5000, "is not a number"),
    ],
)
def test_malformed_schedules_are_refused_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(UserError, match=r"^--mask-prob ") as caught:
        ScheduledValue.parse(text, "--mask-prob")
    message = str(caught.value)
    assert reason in message
    assert len(message) < 400
    assert "\n" not in message

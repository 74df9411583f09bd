"""GLUE's averages: those of the published table, and what is missing."""

import pytest

from fastbert.errors import UserError
from fastbert.tasks.metrics.glue import GLUE, glue_average, glue_name, glue_numbers

TASKS = ("MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE")
# Table 1 of BERT's paper (first version), and the means of its nine numbers.
TABLE = [
    ((80.6, 80.1, 66.1, 82.3, 93.2, 35.0, 81.0, 86.0, 61.7), 74.00),
    ((76.4, 76.1, 64.8, 79.9, 90.4, 36.0, 73.3, 84.9, 56.8), 70.96),
    ((82.1, 81.4, 70.3, 88.1, 91.3, 45.4, 80.0, 82.3, 56.0), 75.21),
    ((84.6, 83.4, 71.2, 90.1, 93.5, 52.1, 85.8, 88.9, 66.4), 79.56),
    ((86.7, 85.9, 72.1, 91.1, 94.9, 60.5, 86.5, 89.3, 70.1), 81.90),
]


@pytest.mark.parametrize(("numbers", "average"), TABLE)
def test_the_paper_counts_mnli_twice(numbers: tuple[float, ...], average: float) -> None:
    assert round(glue_average(dict(zip(TASKS, numbers))), 2) == average


METRICS = {name: {"accuracy": 80.0, "f1": 90.0, "matthews": 50.0, "pearson": 70.0, "spearman": 60.0} for name in GLUE}


def test_the_metrics_of_each_convention() -> None:
    assert glue_numbers(METRICS, "paper") == dict.fromkeys(GLUE, 80.0) | {
        "CoLA": 50,
        "STS-B": 60,
        "MRPC": 90,
        "QQP": 90,
        "AX": 50,
    }
    assert glue_numbers(METRICS, "official")["MRPC"] == 85
    assert glue_numbers(METRICS, "official")["STS-B"] == 65
    mnli = METRICS | {"MNLI-m": {"accuracy": 70.0}, "MNLI-mm": {"accuracy": 60.0}, "WNLI": {"accuracy": 10.0}}
    assert glue_average(mnli, "paper") == pytest.approx((50 + 80 + 90 + 60 + 90 + 70 + 60 + 80 + 80) / 9)
    assert glue_average(mnli, "official") == pytest.approx((50 + 80 + 85 + 65 + 85 + 65 + 80 + 80 + 10) / 9)


@pytest.mark.parametrize(
    ("name", "expected"), [("sst2", "SST-2"), ("mnli_mm", "MNLI-mm"), ("MNLI", "MNLI-m"), ("cola", "CoLA")]
)
def test_spellings(name: str, expected: str) -> None:
    assert glue_name(name) == expected


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UserError, match="no result for WNLI: the official average"):
        glue_average(dict.fromkeys(TASKS, 1.0), "official")
    with pytest.raises(UserError, match=r"STS-B: no spearman among its results \(pearson\)"):
        glue_average(METRICS | {"STS-B": {"pearson": 1.0}})
    with pytest.raises(UserError, match="'SQuAD' is not a task of GLUE"):
        glue_average(METRICS | {"SQuAD": 1.0})
    with pytest.raises(UserError, match="two results for CoLA"):
        glue_average(METRICS | {"cola": 1.0})

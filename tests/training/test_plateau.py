"""The plateau doctor: silent on healthy runs, and right about the cause where a curve stays on the line."""

import itertools
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastbert import BertConfig
from fastbert.training.config import Budget, PretrainConfig
from fastbert.training.metrics import Metrics
from fastbert.training.reporter import Reporter
from fastbert.training.watchdogs.plateau import Diagnosis, PlateauDoctor, RunFacts
from fastbert.training.watching import facts_of, watched

RECORDS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
UNIGRAM = 6.88
FACTS = RunFacts(
    unigram=UNIGRAM, batch_size=32, lr=9e-4, usual_lr=9e-4, max_length=128, steps=2000, epochs=5.0,
    unknown_share=0.001, most_frequent_share=0.04, validation_predictions=8000,
)  # fmt: skip


def line(step: int, loss: float, split: str = "train", length: int = 115, **values: Any) -> Metrics:
    return Metrics(
        step=step, split=split, loss=loss, mlm_loss=loss, nsp_loss=None, mlm_accuracy=0.1, nsp_accuracy=None,  # type: ignore[arg-type]
        tokens=step * 32 * length, tokens_per_second=1.0, learning_rate=1e-4, seconds=float(step), **values,
    )  # fmt: skip


def examine(
    curve: Callable[[float], float],
    facts: RunFacts = FACTS,
    validation: Callable[[float], float] | None = None,
    **values: Any,
) -> list[Diagnosis]:
    """Return what the doctor says about a run whose loss is a function of its progress, with the noise of batches."""
    steps, draw, doctor, said = facts.steps or 2000, random.Random(0), PlateauDoctor(facts), []
    for step in range(10, steps + 1, 10):
        said.append(doctor.add(line(step, curve(step / steps) + draw.gauss(0, 0.05), **values), step / steps))
        if validation is not None and step % (steps // 10) == 0:
            said.append(doctor.add(line(step, validation(step / steps), "validation"), step / steps))
    return [diagnosis for diagnosis in said if diagnosis is not None]


def healthy(progress: float) -> float:
    return 4.3 + (UNIGRAM - 4.3) * math.exp(-6 * max(progress - 0.03, 0))


def interpolated(points: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    def curve(x: float) -> float:
        (a, left), (b, right) = next((p, q) for p, q in itertools.pairwise(points) if x <= q[0])
        return left + (right - left) * (x - a) / (b - a)

    return curve


def recorded() -> list[tuple[str, RunFacts, Callable[[float], float]]]:
    """The curves of the runs in the records: those of the demo and of the defaults, and one from normal weights."""
    runs = []
    for path in (*RECORDS.glob("demo/*.json"), *RECORDS.glob("pretraining-defaults/*.json")):
        for row in json.loads(path.read_text())["rows"]:
            if "unigram_cross_entropy" not in row:  # an older record
                continue
            last = row["validation"][-1]["step"]
            points = [(0.0, row["first_step"]["mlm_loss"])]
            points += [(value["step"] / last, value["mlm_loss"]) for value in row["validation"]]
            normal = "normal" in row.get("contender", "")
            facts = replace(FACTS, unigram=row["unigram_cross_entropy"], steps=last, structured=not normal)
            runs.append(("normal" if normal else "structured", facts, interpolated(points)))
    return runs


def test_recorded_runs_are_judged_as_they_ended() -> None:
    """The run from normal weights stayed 0.6 nats below word frequencies; the others did not."""
    kinds = [(name, [(x.kind, x.causes[0].cure) for x in examine(curve, facts)]) for name, facts, curve in recorded()]
    assert ("normal", [("flat", "use --init structured")]) in kinds
    assert all(not said for name, said in kinds if name == "structured")
    assert len(kinds) >= 3


@pytest.mark.parametrize(
    "curve",
    [
        pytest.param(healthy, id="usual"),
        pytest.param(lambda p: max(9.2 - 15 * p, healthy(p)), id="from-above"),
        pytest.param(lambda p: UNIGRAM + 0.1 - 0.6 * max(p - 0.1, 0) / 0.1, id="leaves-late-but-steadily"),
        pytest.param(lambda p: 5.2 if p > 0.1 else 6.9, id="flat-but-far-below"),
    ],
)
def test_healthy_curves_are_left_alone(curve: Callable[[float], float]) -> None:
    assert not examine(curve)


@pytest.mark.parametrize(
    ("changes", "kind", "cure", "evidence"),
    [
        ({"steps": 300}, "line", "more --epochs or --steps", "300 steps are few"),
        ({"structured": False, "steps": 3000}, "line", "--init structured", "from normal initial weights"),
        ({"lr": 9e-6}, "line", "--lr 0.0009", "9e-06 is lower than the 0.0009"),
        ({"lr": 9e-3}, "line", "--lr 0.0009", "0.009 is higher than the 0.0009"),
        ({"batch_size": 256, "steps": 600}, "line", "--batch-size 32 takes 4,800", "batches of 256"),
        ({"mask_prob": 0.8}, "line", "--mask-prob of 0.15 to 0.4", "0.8 of the tokens are masked"),
        ({"mask_prob": 0.01}, "line", "--mask-prob of 0.15 to 0.4", "only 0.01 of the tokens"),
        ({"unknown_share": 0.4}, "line", "--tokenizer that fits", "40% of the tokens are unknown"),
        ({"most_frequent_share": 0.6}, "line", "markup or padding", "60% of the text"),
        ({}, "line", "shuffled words", "no setting"),
    ],
)  # fmt: skip
def test_the_likeliest_cause_comes_first(changes: dict[str, Any], kind: str, cure: str, evidence: str) -> None:
    facts = replace(FACTS, **changes)
    [said] = examine(lambda p: UNIGRAM - 0.1, facts, length=115 * facts.batch_size // 32)
    assert said.kind == kind
    assert cure in said.causes[0].cure
    assert evidence in said.causes[0].evidence
    assert said.text.startswith(
        f"step {said.step:,}: the loss stays at {said.loss:.2f}, that of word frequencies alone"
    )
    assert said.text.count("\n") == len(said.causes) <= 4


def test_short_sequences_rising_losses_and_steep_gradients_have_their_own_causes() -> None:
    [said] = examine(lambda p: UNIGRAM - 0.1, length=6)
    assert said.causes[0].evidence == "sequences have 6 tokens of 128 on average, hardly any context"
    [said] = examine(lambda p: 6.2 if p < 0.1 else 6.85)
    assert "rose to 6.8" in said.causes[0].evidence
    assert "--lr below 0.0009" in said.causes[0].cure
    [said] = examine(lambda p: 9.5, gradient_norm=50.0)
    assert (said.kind, said.causes[0].cure) == ("above", "lower --lr or use a longer --warmup")
    assert "above the 6.88 of word frequencies" in said.text


def test_repeated_text_is_told_by_the_validation_loss() -> None:
    few = replace(FACTS, validation_predictions=200)
    [said] = examine(lambda p: UNIGRAM - 4 * p, few, validation=lambda p: UNIGRAM - 0.2)
    assert said.kind == "validation"
    assert [cause.cure.split()[0] for cause in said.causes] == ["give", "raise"]
    assert "(5 epochs in all)" in said.causes[0].evidence
    assert not examine(lambda p: UNIGRAM - 4 * p, validation=lambda p: UNIGRAM - 3 * p)


def test_a_run_is_told_once_per_phase_and_neither_at_its_start_nor_at_its_end() -> None:
    doctor = PlateauDoctor(FACTS)
    said = [(step, doctor.add(line(step, UNIGRAM), step / 2000)) for step in range(10, 1001, 10)]
    assert [step for step, diagnosis in said if diagnosis] == [500]
    again = [(step, doctor.add(line(step, UNIGRAM), step / 2000, phase=1)) for step in range(1010, 1801, 10)]
    assert [step for step, diagnosis in again if diagnosis] == [1130]
    late = PlateauDoctor(FACTS, [line(step, UNIGRAM) for step in range(10, 1851, 10)])
    assert not [step for step in range(1860, 2001, 10) if late.add(line(step, UNIGRAM), step / 2000)]


def test_a_resumed_run_is_judged_by_the_lines_of_its_earlier_start() -> None:
    doctor = PlateauDoctor(FACTS, [line(step, UNIGRAM) for step in range(10, 501, 10)])
    diagnosis = doctor.add(line(510, UNIGRAM), 0.255)
    assert diagnosis is not None
    assert diagnosis.kind == "line"


def test_a_run_is_watched_through_its_hooks() -> None:
    said: list[str] = []
    seen: list[int] = []
    hooks = watched(
        Reporter(on_message=said.append, on_line=lambda record: seen.append(record["step"])),
        FACTS,
        history=[line(step, UNIGRAM) for step in range(10, 401, 10)],
        phase=lambda step: int(step > 1000),
    )
    for step in range(410, 1801, 10):
        hooks.on_step({}, step / 2000)
        hooks.on_line(line(step, UNIGRAM).record())
    assert [text.split(":")[0] for text in said] == ["step 500", "step 1,130"]
    assert seen == list(range(410, 1801, 10))


def test_the_facts_of_a_run_are_those_of_its_flags_and_its_text() -> None:
    config = PretrainConfig(corpus=(Path("x"),), lr=1e-5, batch_size=64, init="normal", max_length=64, warmup=0.2)
    text, masked = np.array([0, 30, 60, 10]), np.array([0, 3, 6, 1])
    facts = facts_of(
        config, BertConfig.preset("mini"), Budget(steps=100), unigram=3.0, usual_lr=9e-4, samples_per_epoch=640,
        text=text, masked=masked, unknown_id=1,
    )  # fmt: skip
    assert facts == RunFacts(
        unigram=3.0, batch_size=64, lr=1e-5, usual_lr=9e-4, max_length=64, steps=100, warmup=0.2, structured=False,
        can_be_structured=True, mask_prob=0.15, epochs=10.0, unknown_share=0.3, most_frequent_share=0.6,
        validation_predictions=10,
    )  # fmt: skip
    ltr = replace(config, objective="ltr", init="structured")
    left_to_right = facts_of(
        ltr, BertConfig.preset("mini"), Budget(steps=None, seconds=60.0), unigram=3.0, usual_lr=9e-4,
        samples_per_epoch=640, text=text * 0, masked=masked * 0, unknown_id=None,
    )  # fmt: skip
    assert (left_to_right.mask_prob, left_to_right.epochs, left_to_right.most_frequent_share) == (None, None, None)
    scheduled = facts_of(
        replace(config, batch_schedule="32:96", mask_schedule="0.4:0.2"), BertConfig.preset("mini"), Budget(steps=100),
        unigram=3.0, usual_lr=9e-4, samples_per_epoch=640, text=text, masked=masked, unknown_id=1,
    )  # fmt: skip
    assert (scheduled.batch_size, scheduled.mask_prob, scheduled.epochs) == (None, pytest.approx(0.3), 10.0)
    short = facts_of(
        replace(config, recipe="mosaicbert", optimizer="muon"), BertConfig.preset("mini"), Budget(steps=100),
        unigram=3.0, usual_lr=9e-4, samples_per_epoch=640, text=text, masked=masked, unknown_id=1,
    )  # fmt: skip
    assert (short.usual_lr, short.recipe_lr) == (None, None), "a rate of Muon is not compared with AdamW's"
    published = facts_of(
        replace(config, recipe="mosaicbert"), BertConfig.preset("mini"), Budget(steps=100), unigram=3.0, usual_lr=9e-4,
        samples_per_epoch=640, text=text, masked=masked, unknown_id=1,
    )  # fmt: skip
    assert (published.usual_lr, published.recipe_lr) == (9e-4, 5e-4)


def test_rates_of_a_recipe_and_of_other_optimisers_are_no_cause() -> None:
    def rates(**changes: Any) -> bool:
        facts = replace(FACTS, lr=9e-3, **changes)
        [said] = examine(lambda p: UNIGRAM - 0.1, facts)
        return any("usual for this width" in cause.evidence for cause in said.causes)

    assert rates()
    assert not rates(usual_lr=None)
    assert not rates(recipe_lr=9e-3)


def test_a_long_run_costs_little() -> None:
    """Each line is remembered, and of twenty thousand few are examined."""
    facts = replace(FACTS, steps=200_000)
    doctor, examined = PlateauDoctor(facts), []
    original = doctor._kind
    doctor._kind = lambda step, progress: examined.append(step) or original(step, progress)  # type: ignore[method-assign,func-returns-value]
    for step in range(10, 200_001, 10):
        doctor.add(line(step, 4.0), step / 200_000)
    assert len(examined) < 200

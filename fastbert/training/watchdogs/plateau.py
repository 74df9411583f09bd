"""The plateau doctor: tell a run that is stuck near the loss of word frequencies so while it runs, and why.

A masked language model first learns word frequencies, the unigram cross-entropy; then which words occur in the same
text; and only then to read the words beside a blank, from where its loss falls far. A run that stays on one of the
first two plateaus is told so as soon as its own curve shows it, with the likely causes in order, each with its evidence
from the run's numbers and the flag that cures it. `fastbert.training.verdict` says where a finished run stands.

The thresholds are set by recorded curves. Runs with the defaults are 0.6 nats below word frequencies after a tenth of
their steps, and fall by more than 0.1 nats in a third of the steps so far until they are 1.5 nats below
(benchmarks/results/pretraining-defaults/avx512-bf16.json); the run with normal initial weights in the same record
stays 0.6 nats below from two fifths of its steps on.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from fastbert.training.metrics import Metrics

LINE, FLAT = 0.035, 0.12  # of the unigram cross-entropy: on the line, and still near it
FALL = 0.1  # nats in a third of the steps so far from which a run is on its way
LEAST_STEPS, LEAST_LINES = 100, 6  # of a phase, before it is judged
LEAST_PROGRESS, LAST_PROGRESS = 0.15, 0.9  # of the run; at its end `verdict` speaks
ENOUGH_STEPS = 20_000  # of any run, past its warm-up
GROWTH = 1.05  # of the steps between two examinations
LEAVING_STRUCTURED, LEAVING_NORMAL = 500, 10_000  # steps after which runs have left the line by those initial weights
SHORT_RUN = 20_000  # steps below which structured initial weights are the default
GAP = 0.5  # nats between training and validation of a run that repeats its text
RISE = 0.2  # nats above its lowest value from which a training loss has risen
MANY_UNKNOWN, ONE_TOKEN, FEW_PREDICTIONS = 0.05, 0.25, 500
SHORT_SEQUENCE = 24  # tokens
STEPS_OF_SHORT_RUN, SMALL_BATCH = 2_000, 32
WAIT = 40.0  # the weight of a cause that time alone cures

Kind = Literal["above", "line", "flat", "validation"]


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run's settings and its data, as far as they can explain a plateau; what is not known is None."""

    unigram: float
    """Cross-entropy of word frequencies on the validation text, in nats."""
    batch_size: int | None
    """Sequences per step, None if it follows a schedule."""
    lr: float
    usual_lr: float | None
    """The default for the model's width, None for optimisers with rates of another scale."""
    max_length: int
    recipe_lr: float | None = None
    """That of the run's recipe."""
    steps: int | None = None
    """Planned; None for a run by the clock."""
    warmup: float = 0.1
    structured: bool = True
    """Whether it began from structured initial weights."""
    can_be_structured: bool = True
    mask_prob: float | None = 0.15
    """None for objectives without masks."""
    epochs: float | None = None
    """Passes over the training text in the whole run."""
    unknown_share: float | None = None
    """Of the tokens of the text that are [UNK]."""
    most_frequent_share: float | None = None
    """Of the predicted tokens that are the most frequent one."""
    validation_predictions: int | None = None
    """Tokens predicted per validation."""


@dataclass(frozen=True)
class Cause:
    """A likely cause: its evidence, its cure, and its weight, by which causes are ordered."""

    weight: float
    evidence: str
    cure: str


@dataclass(frozen=True)
class Diagnosis:
    """The state of a run that is stuck, and the likely causes in order."""

    kind: Kind
    step: int
    loss: float
    unigram: float
    causes: tuple[Cause, ...]

    @property
    def text(self) -> str:
        """Return the diagnosis in a few lines."""
        lines = [f"step {self.step:,}: {self._state()} Likely causes, the likeliest first:"]
        lines += [f"  {number}. {cause.evidence}: {cause.cure}" for number, cause in enumerate(self.causes, start=1)]
        return "\n".join(lines)

    def _state(self) -> str:
        below = self.unigram - self.loss
        loss, unigram = f"{self.loss:.2f}", f"{self.unigram:.2f}"
        match self.kind:
            case "above":
                return f"the loss stays at {loss}, above the {unigram} of word frequencies alone."
            case "line":
                return f"the loss stays at {loss}, that of word frequencies alone ({unigram}): no context is used yet."
            case "flat":
                return (
                    f"the loss stays at {loss}, only {below:.2f} below word frequencies alone ({unigram}): the model"
                    " has learned which words occur together, not their order."
                )
        return f"the validation loss stays at {loss}, near that of word frequencies ({unigram}), while training falls."


class PlateauDoctor:
    """Examines the lines of a run's metrics.jsonl as they are written; says at most once per phase that it is stuck."""

    def __init__(self, facts: RunFacts, history: Iterable[Metrics] = ()) -> None:
        """`history` holds the lines of an earlier start of the run."""
        self.facts = facts
        self.phase: int = 0
        self._begin = 0  # the step before the first of the phase
        self._training: list[Metrics] = []
        self._validations: list[Metrics] = []
        self._next = 0.0  # the step of the next examination
        self._told = False
        for line in history:
            self._remember(line)

    def add(self, line: Metrics, progress: float, phase: int = 0) -> Diagnosis | None:
        """Remember a line; return a diagnosis if the run is stuck and has not been told so in this phase.

        Args:
            line: of training or validation.
            progress: the finished fraction of the run.
            phase: the number of the phase that the line belongs to; its losses are compared with one another alone.
        """
        if phase != self.phase:
            newest = self._training[-1].step if self._training else 0
            self.phase, self._begin, self._training, self._validations = phase, newest, [], []
            self._next, self._told = 0.0, False
        self._remember(line)
        if self._told or line.split != "train" or line.step < self._next:
            return None
        self._next = line.step * GROWTH
        kind = self._kind(line.step, progress)
        if kind is None:
            return None
        causes = self._causes(kind, line.step)
        if all(cause.weight == WAIT for cause in causes):
            return None  # the next examinations will tell
        self._told = True
        loss = self._validations[-1].mlm_loss if kind == "validation" else _recent(self._training)
        return Diagnosis(kind, line.step, loss, self.facts.unigram, tuple(causes))

    def _remember(self, line: Metrics) -> None:
        (self._training if line.split == "train" else self._validations).append(line)

    def _kind(self, step: int, progress: float) -> Kind | None:
        """Return the plateau that the run is on, None if it is on none or it is too early or too late to tell."""
        enough = progress >= LEAST_PROGRESS or step >= ENOUGH_STEPS
        if step - self._begin < LEAST_STEPS or not enough or not 1.5 * self.facts.warmup <= progress <= LAST_PROGRESS:
            return None
        first = bisect_right(self._training, self._begin + (step - self._begin) / 2, key=lambda line: line.step)
        window = [line.mlm_loss for line in self._training[first:]]
        if len(window) < LEAST_LINES:
            return None
        third = len(window) // 3
        early, late = fmean(window[:third]), fmean(window[-third:])
        unigram = self.facts.unigram
        below = unigram - late
        if early - late < FALL:
            if below < -LINE * unigram:
                return "above"
            if below < LINE * unigram:
                return "line"
            if below < FLAT * unigram:
                return "flat"
        held_out = [line.mlm_loss for line in self._validations if line.step > step / 2]
        if len(held_out) >= 2 and max(held_out) - min(held_out) < FALL and unigram - held_out[-1] < FLAT * unigram:
            return "validation" if held_out[-1] - late > GAP else None
        return None

    def _causes(self, kind: Kind, step: int) -> list[Cause]:
        """Return the likely causes, the likeliest first; one at least."""
        causes = [*self._causes_in_data(kind, step), *self._causes_in_rate(kind), *self._causes_in_length(kind, step)]
        if not causes:
            causes.append(
                Cause(
                    0.0, "no setting of the run explains it", "look at the text: shuffled words have no order to learn"
                )
            )
        return sorted(causes, key=lambda cause: -cause.weight)[:4]

    def _causes_in_data(self, kind: Kind, step: int) -> list[Cause]:
        facts, causes = self.facts, []
        newest = self._training[-1]
        length = math.inf if facts.batch_size is None else newest.tokens / max(step * facts.batch_size, 1)
        if facts.unknown_share is not None and facts.unknown_share > MANY_UNKNOWN:
            evidence = f"{facts.unknown_share:.0%} of the tokens are unknown to the tokenizer"
            cure = "give a --tokenizer that fits the text, or leave it out to have one built"
            causes.append(Cause(90, evidence, cure))
        if length < min(SHORT_SEQUENCE, 0.25 * facts.max_length):
            evidence = f"sequences have {length:.0f} tokens of {facts.max_length} on average, hardly any context"
            causes.append(Cause(85, evidence, "give running text, or the --text-format that joins its lines"))
        share = facts.most_frequent_share
        if share is not None and share > ONE_TOKEN:
            evidence = f"a single token makes up {share:.0%} of the text"
            causes.append(Cause(70, evidence, "look for markup or padding in the text and remove it"))
        masked = facts.mask_prob
        if masked is not None and not 0.05 <= masked <= 0.5:
            only = "only " if masked < 0.05 else ""
            cure = "use a --mask-prob of 0.15 to 0.4"
            causes.append(Cause(55 if only else 80, f"{only}{masked:.3g} of the tokens are masked and predicted", cure))
        if kind == "validation":
            again = "" if facts.epochs is None else f" ({facts.epochs:.3g} epochs in all)"
            gap = self._validations[-1].mlm_loss - _recent(self._training)
            evidence = f"the training loss is {gap:.2f} lower than validation: the text is repeated{again}"
            causes.append(Cause(88, evidence, "give more text, remove repeated lines, and use fewer --epochs"))
        few = facts.validation_predictions
        if kind == "validation" and few is not None and few < FEW_PREDICTIONS:
            evidence = f"a validation predicts only {few:,} tokens, so that its loss is noise"
            causes.append(Cause(60, evidence, "raise --validation-fraction or --eval-samples"))
        return causes

    def _causes_in_rate(self, kind: Kind) -> list[Cause]:
        if kind == "validation":
            return []
        facts = self.facts
        lowest, recent = self._lowest(), _recent(self._training)
        if recent - lowest > RISE:
            cure = f"use an --lr below {facts.lr:g} or a longer --warmup"
            return [
                Cause(86, f"the loss had been {lowest:.2f} and rose to {recent:.2f}: the learning rate is high", cure)
            ]
        usual = facts.usual_lr
        if usual is not None:
            rate = f"the learning rate {facts.lr:g} is {{}} than the {usual:g} that is usual for this width"
            if facts.lr > 3 * max(usual, facts.recipe_lr or 0.0):
                return [Cause(75, rate.format("higher"), f"use --lr {usual:g}")]
            if facts.lr < usual / 2:
                return [Cause(75 if facts.lr < usual / 3 else 50, rate.format("lower"), f"use --lr {usual:g}")]
        norms = [line.gradient_norm for line in self._training[-20:] if line.gradient_norm is not None]
        if kind == "above" and norms and median(norms) > 10:
            evidence = f"gradients have a norm of {median(norms):.0f}: the learning rate {facts.lr:g} is too high"
            return [Cause(62, evidence, "lower --lr or use a longer --warmup")]
        return []

    def _causes_in_length(self, kind: Kind, step: int) -> list[Cause]:
        if kind == "validation":
            return []
        facts, causes, planned = self.facts, [], self.facts.steps
        normal = not facts.structured and facts.can_be_structured
        if normal and (planned is None or planned < SHORT_RUN):
            of = "" if planned is None else f" of {planned:,} steps"
            evidence = f"a run{of} from normal initial weights learns to attend to neighbouring words late, if at all"
            causes.append(Cause(74, evidence, "use --init structured"))
        leaving = LEAVING_STRUCTURED if facts.structured else LEAVING_NORMAL
        if planned is not None and planned < leaving:
            evidence = f"{planned:,} steps are few: runs like this one leave the plateau within about {leaving:,}"
            cure = "use more --epochs or --steps, or a smaller --batch-size"
            causes.append(Cause(72 if planned < leaving / 2 else 45, evidence, cure))
        elif step < leaving:
            evidence = f"{step:,} steps are few so far: runs like this one leave the plateau within about {leaving:,}"
            causes.append(Cause(WAIT, evidence, "wait, the run is long enough"))
        batch = facts.batch_size
        if batch is not None and batch > SMALL_BATCH and planned is not None and planned < STEPS_OF_SHORT_RUN:
            more = planned * batch // SMALL_BATCH
            evidence = f"batches of {batch} sequences leave {planned:,} steps for the text"
            causes.append(Cause(60, evidence, f"--batch-size {SMALL_BATCH} takes {more:,} over the same text"))
        return causes

    def _lowest(self) -> float:
        """Return the lowest training loss, a mean of neighbouring lines: single ones are noisy."""
        losses = [line.mlm_loss for line in self._training]
        return min(fmean(losses[i : i + LEAST_LINES]) for i in range(0, max(len(losses) - LEAST_LINES + 1, 1), 3))


def _recent(training: Sequence[Metrics]) -> float:
    """Return the mean training loss of the newest lines."""
    return fmean(line.mlm_loss for line in training[-LEAST_LINES:])

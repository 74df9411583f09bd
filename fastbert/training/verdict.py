"""Say where the loss of a pre-training run stands against that of word frequencies, and what to change."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastbert.training.metrics import Metrics

LEARNED = 0.1  # nats below word frequencies at which a model uses the context of a word
FALLING = 0.1  # nats that the validation loss falls in the second half of a run that has not converged
RISING = 0.02  # nats above its lowest value from which a validation loss has risen again
CHANCE = 0.53  # accuracy of sentence pairs that is still chance, with a few hundred pairs
FOUND = 0.1  # recall of replaced tokens below which a discriminator finds next to none
OVERFITTED = 0.5  # nats between the losses of training and validation


def verdict(history: Sequence[Metrics], unigram: float, *, lr: float, usual_lr: float, structured: bool = True) -> str:
    """Return one or two sentences about a finished run.

    Args:
        history: the lines of its metrics.jsonl, with a validation at least.
        unigram: the cross-entropy of word frequencies on the same text, in nats.
        lr, usual_lr: its peak learning rate, and the default for a model of its width.
        structured: whether it began with structured initial weights.
    """
    validations = [record for record in history if record.split == "validation"]
    training = [record for record in history if record.split == "train"]
    if not _is_finite(validations[-1]):
        return f"The validation loss is not finite: the training has diverged. Use an --lr below {lr:g}."
    validations, training = list(filter(_is_finite, validations)), list(filter(_is_finite, training))
    loss, steps = validations[-1].mlm_loss, validations[-1].step
    model = "model" if validations[-1].rtd_loss is None else "generator"
    below = unigram - loss
    pairs = validations[-1].nsp_accuracy
    at_chance = pairs is not None and pairs < CHANCE
    note = f" Sentence pairs are still at chance ({pairs:.0%}): they take more steps than words." if at_chance else ""
    recall = validations[-1].rtd_recall
    if recall is not None and recall < FOUND:
        note += f" The discriminator finds {recall:.0%} of the replaced tokens so far: it takes more steps."
    if below < LEARNED:
        stands = f"{below:.2f} nats below word frequencies alone" if below > 0 else "no better than word frequencies"
        cure = "" if structured else "--init structured, "
        cure += f"--lr {usual_lr:g}, " if lr < usual_lr / 2 else ""
        cure += "and " if cure else ""
        more = f"train longer: {cure}more --epochs or a smaller --batch-size, for more than these {steps:,} steps"
        return f"The loss is {stands}: the {model} does not use context yet. To change that, {more}."
    text = f"The loss is {below:.2f} nats below word frequencies alone: the {model} uses context."
    # The newest lines of training are noisy; their mean is compared.
    recent = [record.mlm_loss for record in training if record.step > 0.9 * steps]
    if (
        recent
        and loss - sum(recent) / len(recent) > OVERFITTED
        and loss > min(r.mlm_loss for r in validations) + RISING
    ):
        return f"{text} It repeats the training text by now: more text helps, more --epochs do not."
    # The last steps have a learning rate near zero, and say nothing about a longer run.
    before = [record.mlm_loss for record in validations if record.step <= 0.5 * steps]
    if not before:
        return text + note
    if before[-1] - loss < FALLING:
        return f"{text} It has stopped falling: a larger --model or more text lowers it further.{note}"
    return f"{text} The loss was still falling: more --epochs lower it further.{note}"


def _is_finite(record: Metrics) -> bool:
    """Return True for a finite loss; metrics.jsonl has null for others."""
    return record.mlm_loss is not None and math.isfinite(record.mlm_loss)

"""Default hyper-parameters of a pre-training run, from the size of its model and of its corpus. Imports no torch.

The paper's recipe (Devlin et al. 2019, appendix A.2: batches of 256, learning rate 1e-4) is for models of width 768 and
billions of tokens. A small run with it ends before the model has learned more than word frequencies; it needs more
steps, of smaller batches at a higher learning rate, and several epochs. Large corpora get the paper's values.
"""

from __future__ import annotations

import math

VOCABULARY, LEAST_VOCABULARY = 30_522, 2_048  # entries: of the released models, and for the smallest corpora
BYTES_PER_ENTRY = 1_000  # of text: about 200 words
PAPER_BATCH, LEAST_BATCH = 256, 32
PAPER_LR, HIGHEST_LR = 1e-4, 1e-3
CONTINUED_LR = 0.5  # of the learning rate of new weights
PAPER_WIDTH = 768
PAPER_EPOCHS = 40
ENOUGH_TOKENS = 6_000_000  # a small corpus is repeated until the model has seen about as many, for PAPER_EPOCHS at most
DROPOUT_EPOCHS = 10
STEPS = 2_000  # of a run whose batches are smaller than the paper's, at least
EVALUATIONS = 10
CHECKPOINTS, CHECKPOINT_STEPS = 20, 1000  # as many in a run, and every so many steps
EVALUATION_COST = 0.04  # of the time of training
FORWARD_COST = 1 / 3  # of a training step's time: no backward pass, no update
SAMPLES, LEAST_SAMPLES = 1024, 32


def vocabulary_size(corpus_bytes: float) -> int:
    """Return the number of entries of a vocabulary for this much text: one per 1,000 bytes, a multiple of 1,024, from
    2,048 to the 30,522 of the released models.

    Pieces that are too rare are not learned, so a small corpus needs a small vocabulary.
    """
    entries = round(corpus_bytes / BYTES_PER_ENTRY / 1024) * 1024
    return min(max(entries, LEAST_VOCABULARY), VOCABULARY)


def learning_rate(hidden_size: int) -> float:
    """Return the peak learning rate for a model of this width: the paper's 1e-4 for 768 and more, higher for narrower
    models in proportion to 1 / width^2, at most 1e-3."""
    rate = min(max(PAPER_LR * (PAPER_WIDTH / hidden_size) ** 2, PAPER_LR), HIGHEST_LR)
    return float(f"{rate:.1e}")


def continued_learning_rate(hidden_size: int) -> float:
    """Return the peak learning rate for a pre-trained model of this width: half of `learning_rate`, so that warm-up
    undoes little of what the model has learned."""
    return float(f"{learning_rate(hidden_size) * CONTINUED_LR:.1e}")


def epochs(tokens: float) -> int:
    """Return the number of epochs for a training split of `tokens` tokens."""
    return min(max(round(ENOUGH_TOKENS / max(tokens, 1)), 1), PAPER_EPOCHS)


def dropout(epochs: float, usual: float) -> float:
    """Return the dropout probability for a run of so many epochs: a model that sees its corpus less than 10 times does
    not repeat it by heart and learns faster without dropout; else the `usual` one."""
    return 0.0 if epochs < DROPOUT_EPOCHS else usual


def batch_size(samples: float) -> int:
    """Return the sequences per step for a run of `samples` sequences over all its epochs: the largest power of two with
    at least 2,000 steps, from 32 to the paper's 256."""
    fitting = 2 ** math.floor(math.log2(max(samples / STEPS, 1)))
    return min(max(fitting, LEAST_BATCH), PAPER_BATCH)


def batch_size_of_steps(steps: int) -> int:
    """Return the sequences per step for a run of `steps` steps: as `batch_size`, for a run of so many steps."""
    return batch_size(float(steps) * LEAST_BATCH)


def starts_structured(batch_size: int) -> bool:
    """Return whether a run whose default batch has so many sequences starts from structured initial weights: one that
    is too short for the paper's batch, and so for learning from the paper's weights."""
    return batch_size < PAPER_BATCH


def evaluation_samples(training_samples: float, evaluations: int = EVALUATIONS) -> int:
    """Return the sequences per validation with which all validations of a run take about 4 % of its training time: a
    power of two, from 32 to 1,024."""
    affordable = training_samples * EVALUATION_COST / FORWARD_COST / max(evaluations, 1)
    return min(max(2 ** math.floor(math.log2(max(affordable, 1))), LEAST_SAMPLES), SAMPLES)


def due(step: int, every: int | None, parts: int, steps: int | None, before: float, now: float) -> bool:
    """Return whether an action follows a step: each `every` steps if given, else at each of `parts` equal parts of the
    run and each `steps` steps; always at its end. `before` and `now` are its finished fractions around the step."""
    if now >= 1.0:
        return True
    if every is not None:
        return step % every == 0
    return int(now * parts) > int(before * parts) or (steps is not None and step % steps == 0)

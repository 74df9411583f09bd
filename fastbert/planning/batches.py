"""The batches of a run that has not begun, as statistics: from a mean length, or from token shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastbert.errors import UserError
from fastbert.planning.flops import WINDOWS_PER_WORD, BatchStatistics, visible_pairs

if TYPE_CHECKING:
    from fastbert.data.streamed_shards import StreamOptions

MEAN_FILL = 0.86
"""The mean length of pre-training samples of whole sentences, as a fraction of the maximum."""
SPECIAL = {"mlm+nsp": 3, "mlm+sop": 3}  # special tokens of a sample, which are not masked; others have two
SAMPLED = 512  # samples of token shards whose lengths are read
_VOCABULARY_GROWTH = (8.0, 0.6)  # distinct words of n tokens of text: a n^b


def planned_batch(
    sequences: float,
    max_length: int,
    objective: str,
    mask_prob: float,
    mean_length: float | None = None,
    windows: Sequence[int] = (),
) -> BatchStatistics:
    """Return the statistics of a batch of samples of up to `max_length` tokens, with the pairs that attend to each
    other within each of `windows`.

    `mean_length` defaults to 86 % of the maximum. Some samples are as long as possible, the others of any length.
    """
    mean = MEAN_FILL * max_length if mean_length is None else mean_length
    short = min(max(2 * (1 - mean / max_length), 0.0), 1.0)
    longest = max_length if short < 1 else 2 * mean

    def pairs(window: int | None) -> float:
        """Return the mean of the pairs of a sample."""
        return (1 - short) * visible_pairs(longest, window) + short * _mean_pairs(longest, window)

    predictions = mean - 1 if objective in ("ltr", "bilm") else mask_prob * (mean - SPECIAL.get(objective, 2))
    scale, power = _VOCABULARY_GROWTH
    words = scale * (sequences * mean) ** power if objective == "bilm" else 0.0
    return BatchStatistics(
        sequences=sequences,
        tokens=sequences * mean,
        squared_lengths=sequences * pairs(None),
        predictions=sequences * max(predictions, 0.0),
        words=words,
        windows=WINDOWS_PER_WORD * words,
        visible={window: sequences * pairs(window) for window in windows},
    )


def _mean_pairs(longest: float, window: int | None) -> float:
    """Return the mean of `visible_pairs` over samples of any length up to `longest`."""
    if window is None or longest <= window + 1:
        return longest**2 / 3
    short = window + 1
    long = (2 * window + 1) * (longest**2 - short**2) / 2 - window * short * (longest - short)
    return (short**3 / 3 + long) / longest


def batch_of_shards(
    locations: Sequence[str],
    mix: Sequence[float] | None,
    options: StreamOptions,
    sequences: int,
    max_length: int,
    objective: str,
    mask_prob: float,
    windows: Sequence[int] = (),
) -> tuple[BatchStatistics, int]:
    """Return the statistics of a batch of samples of token shards, mixed with the weights `mix`, with the pairs that
    attend to each other within each of `windows`, and the tokens that the shards hold.

    Up to 512 samples are read. Raises `UserError` for a folder or URL without token shards, and for shards that cannot
    be mixed.
    """
    from fastbert.data.mixing import open_data
    from fastbert.data.streamed_shards import open_shards

    shards = [open_shards(location, options) for location in locations]
    kind = "mlm" if objective == "rtd" else objective
    data = open_data(shards, mix, objective=kind, max_length=max_length, mask_prob=mask_prob)
    count = min(SAMPLED, data.samples_per_epoch(0))
    step = max(1, min(sequences, count))
    batches = (data.samples(range(first, first + step)) for first in range(0, count - step + 1, step))
    total = BatchStatistics.of(batches, windows)
    if not total.sequences:
        raise UserError(f"--data {' '.join(locations)}: holds no sample of up to {max_length} tokens")
    return total * (sequences / total.sequences), sum(each.num_tokens for each in shards)

"""Warn of validation text that occurs in the training text too."""

from __future__ import annotations

from collections.abc import Iterator

from fastbert.data.mixing import MixedData, SampleData
from fastbert.data.pretraining import PretrainingData
from fastbert.data.sentence_sample import LEAST_TOKENS, SentenceSample, leaked_share

MOST_LEAKED = 0.05
"""The share of leaked sentences above which a warning is given; independent articles share half a percent."""


def leak_warnings(train: SampleData, validation: SampleData) -> Iterator[str]:
    """Yield a line for each source of which much of the validation split occurs in its training split too.

    Shards of older versions have no sample of sentences and are left out. Raises UserError for a damaged sample.
    """
    for first, second in zip(_sources(train), _sources(validation), strict=True):
        shards = first.shards
        sample = SentenceSample.read(shards.folder)
        share = 0.0 if sample is None else leaked_share(sample, first.documents, second.documents)
        if share > MOST_LEAKED:
            yield (
                f"leaked validation text in {shards.folder}: {100 * share:.0f} % of the validation sentences of"
                f" {LEAST_TOKENS} tokens or more also occur in the training text, so the validation loss is too low;"
                " prepare the corpus with --dedup"
            )


def _sources(data: SampleData) -> tuple[PretrainingData, ...]:
    return data.sources if isinstance(data, MixedData) else (data,)

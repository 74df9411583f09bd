"""Warn of validation text that occurs in the training text too."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from fastbert.data.mixing import MixedData, SampleData
from fastbert.data.pretraining import PretrainingData
from fastbert.data.sentence_sample import LEAST_TOKENS, SentenceSample, leaked_share, shared_share

MOST_LEAKED = 0.05
"""The share of leaked sentences above which a warning is given; independent articles share half a percent."""


def leak_warnings(train: SampleData, validation: SampleData) -> Iterator[str]:
    """Yield a line for each source of which much of the validation split occurs in its training split too, or in that
    of another source.

    Shards of older versions have no sample of sentences and are left out. Raises UserError for a damaged sample.
    """
    held_out = _sources(validation)
    samples = [SentenceSample.read(source.shards.folder) for source in held_out]
    for (i, first), (j, second) in product(enumerate(_sources(train)), enumerate(held_out)):
        sample, other = samples[i], samples[j]
        if sample is None or other is None:
            continue
        same = i == j
        share = (
            leaked_share(sample, first.documents, second.documents)
            if same
            else shared_share(sample, first.documents, other, second.documents)
        )
        if share > MOST_LEAKED:
            source = "the training text" if same else f"the training text of {first.shards.folder}"
            cure = "prepare the corpus with --dedup" if same else "prepare both as one corpus with --dedup"
            yield (
                f"leaked validation text in {second.shards.folder}: {100 * share:.0f} % of the validation sentences of"
                f" {LEAST_TOKENS} tokens or more also occur in {source}, so the validation loss is too low; {cure}"
            )


def _sources(data: SampleData) -> tuple[PretrainingData, ...]:
    return data.sources if isinstance(data, MixedData) else (data,)

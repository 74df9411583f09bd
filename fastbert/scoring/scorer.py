"""Score texts with the language model of a folder or of memory, masked or left to right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastbert.checkpoints.source import find_masked_lm, find_source
from fastbert.errors import UserError
from fastbert.models import registry
from fastbert.models.heads.causal import ForCausalLM
from fastbert.models.heads.pretraining import MaskedLanguageModel
from fastbert.scoring.log_likelihood import CausalScorer
from fastbert.scoring.pseudo_log_likelihood import MaskedScorer
from fastbert.scoring.tokenized_texts import Progress, ScoreMode, Scorer, tokenize
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """The scores of texts: the log-probabilities of their tokens, in nats.

    `tokens`, float64, has those of text i from `offsets[i]` up to `offsets[i + 1]`, int64 (texts + 1,).
    """

    tokens: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> np.ndarray:
        """The number of tokens of each text, int64 (texts,), special ones not counted."""
        return np.diff(self.offsets)

    @property
    def totals(self) -> np.ndarray:
        """The score of each text, float64 (texts,): the sum over its tokens."""
        texts = np.repeat(np.arange(len(self)), self.counts)
        return np.bincount(texts, weights=self.tokens, minlength=len(self)).astype(np.float64)

    @property
    def perplexity(self) -> float:
        """The exponential of the negative mean over all tokens; of a masked model the pseudo-perplexity."""
        return float(np.exp(-self.tokens.mean())) if len(self.tokens) else float("nan")


def score(
    model: Any,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    mode: ScoreMode = "original",
    batch_tokens: int | None = None,
    progress: Progress | None = None,
) -> Scores:
    """Return the scores of texts by a language model.

    A model with a masked-LM head gives pseudo-log-likelihoods: each token's log-probability given the rest of its text
    (Salazar et al. 2020, equation 1); with `mode="within-word"` the later tokens of its word are masked too (Kauf and
    Ivanova 2023). A left-to-right model gives log-likelihoods. The model computes on its device and in its dtype,
    softmax in fp32, sums in fp64; a text's score does not depend on the others. `batch_tokens` is the number of tokens
    per batch (None: 4,096, on a GPU 65,536).

    Raises `UserError` for a model without such a head, a tokenizer that is not the model's, items that are not texts,
    and texts longer than the model's positions.
    """
    scorer = scorer_of(model, tokenizer, mode, batch_tokens)
    return score_with(scorer, texts, progress=progress)


def score_with(
    scorer: Scorer,
    texts: Sequence[str],
    source: Callable[[int], str] = "texts[{}]".format,
    progress: Progress | None = None,
) -> Scores:
    """Return the scores of texts by any scorer; `source` describes a text by its index, for errors."""
    tokenized = tokenize(scorer.tokenizer, texts, scorer.max_tokens, source)
    return Scores(tokens=scorer.log_probabilities(tokenized, progress), offsets=tokenized.offsets)


def scorer_of(
    model: Any, tokenizer: Tokenizer, mode: ScoreMode = "original", batch_tokens: int | None = None
) -> MaskedScorer | CausalScorer:
    """Return the scorer of a model. Raises `UserError` for one without a head that predicts tokens."""
    if isinstance(model, MaskedLanguageModel):
        return MaskedScorer(model, tokenizer, mode, batch_tokens)
    if not isinstance(model, ForCausalLM):
        raise UserError(
            f"{type(model).__name__} predicts no tokens: load the model with a masked-LM head (BertForMaskedLM) or a"
            " causal one (BertForCausalLM)"
        )
    if mode != "original":
        raise UserError(f"score_mode={mode!r}: a left-to-right model masks nothing; leave it out")
    return CausalScorer(model, tokenizer, batch_tokens)


def load_scorer(
    source: str | Path,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    mode: ScoreMode = "original",
    batch_tokens: int | None = None,
    *,
    quantize: bool = False,
) -> MaskedScorer | CausalScorer:
    """Load the language model and the tokenizer of a folder, or of a run's folder; `quantize` its matmuls to int8.

    Raises `UserError` for a folder without the weights of the head.
    """
    head = "ForCausalLM" if registry.read_config(find_source(source)).is_decoder else "ForMaskedLM"
    model, tokenizer = load_with_trained_head(source, head, dtype)
    model = model.to(device)
    if quantize:
        model.quantize("int8")
    return scorer_of(model, tokenizer, mode, batch_tokens)


HEADS = {
    "ForMaskedLM": "masked-LM",
    "ForCausalLM": "language-model",
    "ForNextSentencePrediction": "next-sentence",
}


def load_with_trained_head(source: str | Path, head: str, dtype: torch.dtype) -> tuple[Any, Tokenizer]:
    """Load a model with a head of `HEADS`, and its tokenizer.

    Raises `UserError` for a folder that lacks weights of the head, whose scores would be random.
    """
    folder = find_masked_lm(source) if head == "ForMaskedLM" else find_source(source)
    if head == "ForMaskedLM":
        registry.refuse_decoder(registry.read_config(folder), source)
    model = registry.load_with_head(folder, head, dtype=dtype)
    if model.new_weights:
        raise UserError(
            f"{source}: holds no {HEADS[head]} head ({head}): it lacks {model.new_weights[0]}, so scores would be"
            " random; use the folder of a model that was pre-trained with one"
        )
    return model, load_tokenizer(folder)

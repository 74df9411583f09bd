"""Pseudo-log-likelihoods: score texts with a masked language model, each token masked in turn.

Copies of many texts are packed into batches, sorted by length; the last layer and the head compute nothing but the
masked tokens, and equal copies are computed once.
"""

from __future__ import annotations

import numpy as np
import torch

from fastbert.embeddings.embed import inferring
from fastbert.errors import UserError
from fastbert.models.finite import refuse_non_finite
from fastbert.models.heads.pretraining import MaskedLanguageModel
from fastbert.ops.native import matmul_table
from fastbert.packing import PackedBatch
from fastbert.scoring.label_scores import label_scores
from fastbert.scoring.masked_copies import MaskedCopies, masked_copies
from fastbert.scoring.tokenized_texts import Progress, ScoreMode, TokenizedTexts
from fastbert.tasks.row_template import RowTemplate
from fastbert.tasks.rows import bounds, by_length, runs, tokens_per_batch
from fastbert.tokenizers.fit import check_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer

CHUNK_TOKENS = 1 << 21
"""Tokens of the copies that are planned at a time: a few hundred thousand rows."""


class MaskedScorer:
    """A masked language model as a scorer: each token of `[CLS] text [SEP]` given all others."""

    def __init__(
        self,
        model: MaskedLanguageModel,
        tokenizer: Tokenizer,
        mode: ScoreMode = "original",
        batch_tokens: int | None = None,
    ) -> None:
        """`batch_tokens`: tokens per batch; None: 4,096, on a GPU 65,536. Scores do not depend on it."""
        check_tokenizer(tokenizer, model.config.vocab_size)
        if tokenizer.mask_token_id is None:
            raise UserError("the tokenizer has no token for masks: name one as mask_token in its files")
        self.model = model
        self.tokenizer = tokenizer
        self.mode = mode
        self.template: RowTemplate = RowTemplate.of(tokenizer)
        self.batch_tokens: int = tokens_per_batch(model.device.type, batch_tokens)

    @property
    def max_tokens(self) -> int:
        """The positions of the model, [CLS] and [SEP] not counted."""
        return self.model.config.max_sequence_length - self.template.added

    def log_probabilities(self, texts: TokenizedTexts, progress: Progress | None = None) -> np.ndarray:
        """Return the natural logarithm of each token's probability given the rest of its text, float64 (tokens,).

        Salazar et al. 2020, equation 1, sums them to the pseudo-log-likelihood of a text. Raises `UserError` for
        outputs that are not finite.
        """
        costs = np.cumsum(texts.sizes * (texts.sizes + self.template.added))
        total = max(int(costs[-1]), 1) if len(costs) else 1
        parts, begin = [np.zeros(0, np.float64)], 0
        with inferring(self.model), matmul_table.same_in_every_batch():
            while begin < len(texts):
                done = int(costs[begin - 1]) if begin else 0
                end = max(begin + 1, int(np.searchsorted(costs, done + CHUNK_TOKENS, side="right")))
                share = (int(costs[end - 1]) - done) / total

                def update(part: float, before: float = done / total, share: float = share) -> None:
                    if progress is not None:
                        progress(before + share * part)

                copies = masked_copies(texts.select(begin, end), self.template, self.mode)
                parts.append(self._scores(copies, update))
                begin = end
        return np.concatenate(parts)

    def _scores(self, copies: MaskedCopies, progress: Progress) -> np.ndarray:
        """Return the log-probabilities of the tokens of some texts, float64 (tokens,)."""
        scores = np.empty(len(copies.of_token), np.float64)
        tokens = np.argsort(copies.of_token, kind="stable")  # those that a copy predicts are adjacent
        counts = np.bincount(copies.of_token, minlength=len(copies))
        begins = bounds(counts)[:-1]
        done, total = 0, max(int(copies.lengths.sum()), 1)
        for group in by_length(copies.lengths, self.batch_tokens):
            predicted = tokens[runs(begins[group], counts[group])]
            rows = np.repeat(np.arange(len(group)), counts[group])
            batch, masked = self._batch(copies, group)
            x, _ = self.model.base_model.encode(batch, token_indices=masked)
            labels = copies.source.ids[predicted]
            scores[predicted] = label_scores(self.model.cls.predictions, x, rows, labels)
            if not np.isfinite(scores[predicted]).all():
                bad = int(predicted[~np.isfinite(scores[predicted])][0])
                text = int(np.searchsorted(copies.source.offsets, bad, side="right")) - 1
                refuse_non_finite(self.model, copies.source.source(text))
            done += batch.num_tokens
            progress(done / total)
        return scores

    def _batch(self, copies: MaskedCopies, group: np.ndarray) -> tuple[PackedBatch, torch.Tensor]:
        """Return copies as a batch, and the index of each one's masked token, int64 (copies,)."""
        rows = copies.rows(group, self.tokenizer.mask_token_id)
        batch = PackedBatch(
            input_ids=torch.from_numpy(rows.ids),
            cu_seqlens=torch.from_numpy(rows.offsets.astype(np.int32)),
            max_seqlen=int(np.diff(rows.offsets).max()),
        )
        return batch.to(self.model.device), torch.from_numpy(rows.masked).to(self.model.device)

"""Log-likelihoods: score texts with a left-to-right language model, each token given those before it.

Equal texts are encoded once. A context that several texts share, such as the beginning of the sentences of a minimal
pair, has its logits once: the matmul with the vocabulary is the larger half of the work of a small model.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from fastbert.embeddings.embed import inferring
from fastbert.models.finite import refuse_non_finite
from fastbert.models.heads.causal import ForCausalLM
from fastbert.ops.native import matmul_table
from fastbert.packing import PackedBatch
from fastbert.scoring.label_scores import label_scores
from fastbert.scoring.tokenized_texts import Progress, TokenizedTexts
from fastbert.tasks.row_template import first_token
from fastbert.tasks.rows import bounds, by_length, runs, tokens_per_batch
from fastbert.tokenizers.fit import check_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer

CHUNK_TOKENS = 1 << 18


class CausalScorer:
    """A left-to-right language model as a scorer: each token of `[CLS] text` given those before it.

    The end of a text is not scored, as masked language models do not score theirs.
    """

    def __init__(self, model: ForCausalLM, tokenizer: Tokenizer, batch_tokens: int | None = None) -> None:
        """`batch_tokens`: tokens per batch; None: 4,096, on a GPU 65,536. Scores do not depend on it."""
        model.refuse_later_tokens()
        check_tokenizer(tokenizer, model.config.vocab_size)
        self.model = model
        self.tokenizer = tokenizer
        self.begin: int = first_token(tokenizer)
        self.batch_tokens: int = tokens_per_batch(model.device.type, batch_tokens)

    @property
    def max_tokens(self) -> int:
        """The positions of the model: [CLS] takes that of the last token, which is no input."""
        return self.model.config.max_sequence_length

    def log_probabilities(self, texts: TokenizedTexts, progress: Progress | None = None) -> np.ndarray:
        """Return the natural logarithm of each token's probability given those before it, float64 (tokens,).

        Raises `UserError` for outputs that are not finite.
        """
        parts, begin = [np.zeros(0, np.float64)], 0
        with inferring(self.model), matmul_table.same_in_every_batch():
            while begin < len(texts):
                last = texts.offsets[begin] + CHUNK_TOKENS
                end = max(begin + 1, int(np.searchsorted(texts.offsets, last, side="right")) - 1)
                parts.append(self._scores(texts.select(begin, end)))
                if progress is not None:
                    progress(end / len(texts))
                begin = end
        return np.concatenate(parts)

    def _scores(self, texts: TokenizedTexts) -> np.ndarray:
        """Return the log-probabilities of the tokens of some texts, float64 (tokens,)."""
        scores = np.empty(len(texts.ids), np.float64)
        owners, of_token = distinct_contexts(texts)
        tokens = np.argsort(of_token, kind="stable")  # those that a context predicts are adjacent
        counts = np.bincount(of_token, minlength=len(owners))
        begins = bounds(counts)[:-1]
        # Owners are in the order of the texts: those of a text are adjacent.
        contexts = np.searchsorted(owners, texts.offsets)
        encoded = np.flatnonzero(np.diff(contexts))  # texts with a context that no earlier one has
        for chosen in by_length(texts.sizes[encoded], self.batch_tokens):
            group = encoded[chosen]
            sizes = texts.sizes[group]
            offsets = bounds(sizes)
            ids = np.empty(offsets[-1], np.int64)
            source = runs(texts.offsets[group], sizes)
            ids[1:] = texts.ids[source[:-1]]
            ids[offsets[:-1]] = self.begin
            owned = runs(contexts[group], np.diff(contexts)[group])
            shift = np.repeat(offsets[:-1] - texts.offsets[group], np.diff(contexts)[group])
            batch = PackedBatch(
                input_ids=torch.from_numpy(ids),
                cu_seqlens=torch.from_numpy(offsets.astype(np.int32)),
                max_seqlen=int(sizes.max()),
            ).to(self.model.device)
            indices = torch.from_numpy(owners[owned] + shift).to(self.model.device)
            x, _ = self.model.base_model.encode(batch, token_indices=indices)
            predicted = tokens[runs(begins[owned], counts[owned])]
            rows = np.repeat(np.arange(len(owned)), counts[owned])
            scores[predicted] = label_scores(self.model.head, x, rows, texts.ids[predicted])
        if not np.isfinite(scores).all():
            bad = int(np.flatnonzero(~np.isfinite(scores))[0])
            refuse_non_finite(self.model, texts.source(int(np.searchsorted(texts.offsets, bad, side="right")) - 1))
        return scores


def distinct_contexts(texts: TokenizedTexts) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct contexts of the texts' tokens, those before each in its text: the first token that has each,
    int64 (contexts,), ascending; and each token's context, int64 (tokens,)."""
    numbers: dict[tuple[int, int], int] = {}  # a node of the tree of all texts and a token -> the node it leads to
    owners: dict[int, int] = {}  # node -> its context's number
    of_token = np.empty(len(texts.ids), np.int64)
    firsts: list[int] = []
    ids, offsets = texts.ids.tolist(), texts.offsets.tolist()
    for first, last in pairwise(offsets):
        node = 0
        for token in range(first, last):
            number = owners.setdefault(node, len(firsts))
            if number == len(firsts):
                firsts.append(token)
            of_token[token] = number
            node = numbers.setdefault((node, ids[token]), len(numbers) + 1)
    return np.array(firsts, np.int64), of_token

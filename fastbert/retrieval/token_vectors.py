"""One vector per token of each text, for late interaction (ColBERT: Khattab and Zaharia 2020)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastbert.embeddings.embed import inferring
from fastbert.embeddings.pooling import normalized
from fastbert.embeddings.settings import check_widths
from fastbert.errors import UserError, require_whole
from fastbert.models import registry
from fastbert.models.finite import check_finite
from fastbert.ops.native import matmul_table
from fastbert.retrieval.encoding import Device, Dtype, RetrievalModel, RetrievalOptions, folder_of
from fastbert.retrieval.ragged import TokenVectors
from fastbert.retrieval.rows import Expansion, Prefix, TokenRows, read_rows
from fastbert.retrieval.settings import TokenSettings, read_token_settings
from fastbert.tasks.rows import bounds, by_length, runs, tokens_per_batch


@dataclass(frozen=True, kw_only=True)
class TokenOptions(RetrievalOptions):
    """Options of token vectors. None stands for the folder's setting."""

    normalize: bool | None = None
    """True divides vectors by their length."""
    query_length: int | None = None
    """Queries are expanded to so many tokens by masks; 0: they are not."""
    attend: bool | None = None
    """True if a query's tokens attend to its masks; by default these only attend to the tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("query_length", self.query_length, 0, optional=True)
        if self.query_length and self.role != "query":
            raise UserError(f"query_length={self.query_length} expands queries: choose role='query'")


class TokenEncoder(RetrievalModel[TokenVectors]):
    """A model that gives one vector per token, as ColBERT: `encode` texts, then score them with `maxsim`.

    Reads folders of sentence-transformers' `MultiVectorEncoder`, of PyLate and of Stanford's ColBERT; of a plain
    folder the vectors are the hidden states of the last layer. Attributes: `model`, `tokenizer`, `settings`, and `how`,
    device and dtype in words.

    Raises UserError for unsupported modules, by name, and CheckpointError for damaged files.

    Example:
        >>> import fastbert
        >>> encoder = fastbert.TokenEncoder("runs/mine/model", device="cpu")
        >>> queries = encoder.encode(["a one"], role="query")
        >>> documents = encoder.encode(["a short one.", "one"], role="document")
        >>> fastbert.maxsim(queries, documents).shape
        torch.Size([1, 2])
    """

    options_type: type[TokenOptions] = TokenOptions

    def __init__(self, source: str | Path, *, device: Device = "auto", dtype: Dtype = "auto") -> None:
        """Load a folder, or its name in the Hub's local cache."""
        folder = folder_of(source)
        self.settings: TokenSettings = read_token_settings(folder)
        super().__init__(self.settings.folder, registry.load_encoder, device, dtype)
        self.width: int = check_widths(self.settings.dense, self.model.config.hidden_size, str(folder))

    def encode(self, texts: Iterable[str], **options: Any) -> TokenVectors:
        """Return the vectors of the tokens of texts, fp32 (tokens, width) on the CPU, in the order of the texts.

        `options` are those of `TokenOptions`. [CLS], [SEP] and prefixes have vectors too, and so have the masks of an
        expanded query; documents have none for tokens of the folder's skip list, usually punctuation. On CPUs a text
        has the same bits in every batch. Truncated texts are counted in a warning. Raises UserError for wrong options,
        for an item that is not a text, by its index, and for vectors that are NaN or infinite.
        """
        return TokenVectors.joined(self._encode(texts, options), self.width)

    def limit(self, role: str = "document") -> int:
        """Return the tokens that a text of a role, "query" or "document", has at most, special ones included. Raises
        UserError for another role."""
        return self._limit(TokenOptions(role=role))

    def read(self, texts: Sequence[str], **options: Any) -> tuple[TokenRows, TokenOptions]:
        """Return the rows of texts, and their options, for `compute`. Raises UserError where `encode` does."""
        chosen = TokenOptions(**options)
        rows = read_rows(self.tokenizer, texts, self._limit(chosen), self._prefix(chosen), self._expansion(chosen))
        return rows, chosen

    def compute(self, rows: TokenRows, options: TokenOptions, batch_tokens: int | None = None) -> TokenVectors:
        """Return the vectors of rows of `read`, in batches of so many tokens."""
        return self._compute(rows, options, tokens_per_batch(self.model.device.type, batch_tokens), 0)

    def _compute(self, rows: TokenRows, options: TokenOptions, batch_tokens: int, first: int) -> TokenVectors:
        every = rows.rows
        vectors = torch.empty(len(every.input_ids), self.width)
        with inferring(self.model), matmul_table.same_in_every_batch():
            for indices in by_length(every.lengths, batch_tokens):
                states = self.model.encode(rows.packed(indices).to(self.model.device))[0]
                tokens = torch.from_numpy(runs(every.offsets[indices], every.lengths[indices]))
                vectors[tokens] = self._finished(states.float().cpu(), options)
        texts = np.repeat(np.arange(len(every)), every.lengths)
        check_finite(self.model, vectors, lambda token: f"texts[{first + int(texts[token])}]")
        counted = np.ones(len(texts), dtype=bool)
        if skipped := self._skipped(options):
            counted = ~np.isin(every.input_ids, skipped)
        offsets = bounds(np.bincount(texts, weights=counted, minlength=len(every)).astype(np.int64))
        kept = torch.from_numpy(counted)
        return TokenVectors(
            vectors=vectors if counted.all() else vectors[kept],
            offsets=torch.from_numpy(offsets),
            token_ids=torch.from_numpy(every.input_ids)[kept],
        )

    def _finished(self, states: Tensor, options: TokenOptions) -> Tensor:
        """Project and normalise hidden states (tokens, hidden_size), fp32."""
        for dense in self.settings.dense:
            states = dense(states)
        normalize = self.settings.normalize if options.normalize is None else options.normalize
        return normalized(states) if normalize else states

    def _skipped(self, options: TokenOptions) -> list[int]:
        """Return the ids that get no vector."""
        vocabulary = self.tokenizer.get_vocab()
        words = self.settings.skiplist.get(options.role, ())
        return [vocabulary[word] for word in words if word in vocabulary]

    def _prefix(self, options: TokenOptions) -> Prefix:
        beginning = self.settings.markers.get(options.role)
        if options.prefix is not None or not beginning:
            return super()._prefix(options)
        return Prefix.marked(self.folder.prompts.get(options.role, ""), beginning, self.tokenizer)

    def _expansion(self, options: TokenOptions) -> Expansion | None:
        stored = self.settings.expansion or {}
        length = stored.get("length") if options.query_length is None else options.query_length
        if options.role != "query" or not length:
            return None
        positions = self.model.config.max_sequence_length
        if length > positions:
            raise UserError(f"query_length={length} is more than the {positions} positions of the model")
        token, attend = stored.get("token"), options.attend
        token_id = self.tokenizer.mask_token_id if token is None else self.tokenizer.get_vocab().get(token)
        if token_id is None:
            raise UserError(f"queries are expanded by {token or 'a mask'}, which the tokenizer does not have")
        return Expansion(
            length=length, token_id=token_id, attend=bool(stored.get("attend")) if attend is None else attend
        )

    def _limit(self, options: TokenOptions) -> int:
        limit = super()._limit(options)
        if options.max_length is not None:
            return limit
        expansion = self._expansion(options)
        stored = self.settings.lengths.get(options.role)
        if expansion is None:
            return limit if stored is None else min(stored, self.model.config.max_sequence_length)
        if (self.settings.expansion or {}).get("strategy") == "min":
            return max(min(stored or limit, limit), expansion.length)
        return expansion.length

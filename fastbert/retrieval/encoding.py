"""Load and run encoders of token vectors and of sparse vectors: options, and the loop over chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from fastbert.checkpoints.manifest import EMBEDDER, verify_files
from fastbert.checkpoints.source import find_source
from fastbert.distributed.shares import Share
from fastbert.embeddings.embed import Counts
from fastbert.embeddings.lower_case import load_with_case
from fastbert.errors import UserError, require_whole
from fastbert.io.log import logger
from fastbert.retrieval.rows import Expansion, Prefix, TokenRows, chunks, read_rows
from fastbert.retrieval.settings import ROLES, Folder
from fastbert.tasks.inference import Device, Dtype, choose_inference
from fastbert.tasks.rows import tokens_per_batch
from fastbert.tokenizers.fit import check_tokenizer


class Ragged(Protocol):
    """The output of an encoder for some texts."""

    def __len__(self) -> int: ...


R = TypeVar("R", bound=Ragged)


@dataclass(frozen=True, kw_only=True)
class RetrievalOptions:
    """Options of both kinds of vectors. None stands for the folder's setting."""

    role: str = "document"
    """"query" or "document": which of the folder's prompts, lengths and skip lists count."""
    prefix: str | None = None
    """Precedes each text, in place of the folder's prompt; its first word may be a token such as [unused0]."""
    max_length: int | None = None
    """Tokens per text, special ones, prefix and masks included."""
    batch_tokens: int | None = None
    """Tokens per batch; None: 4,096, on a GPU 65,536. Results do not depend on it."""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise UserError(f"role={self.role!r} must be 'query' or 'document'")
        require_whole("max_length", self.max_length, 3, optional=True)
        require_whole("batch_tokens", self.batch_tokens, 1, optional=True)


class RetrievalModel(Generic[R]):
    """The base of encoders: a model with its tokenizer, in eval mode on its device."""

    model: Any
    options_type: type[RetrievalOptions] = RetrievalOptions

    def __init__(self, folder: Folder, load: Callable[..., Any], device: Device, dtype: Dtype) -> None:
        place, weights, words = choose_inference(device, dtype)
        self.model = load(folder.encoder, dtype=weights).eval().to(place)
        if dtype == "int8":
            self.model.quantize("int8")
        self.folder, self.how = folder, f"{words} on {place}"
        self.tokenizer = load_with_case(folder.encoder, folder.lower_case)
        check_tokenizer(self.tokenizer, self.model.config.vocab_size)

    def encode_chunks(
        self,
        texts: Iterable[str],
        *,
        counts: Counts | None = None,
        share: Share | None = None,
        **options: Any,
    ) -> Iterator[R]:
        """Yield what `encode` returns for a thousand texts at a time, for more than fits into memory.

        `counts` is updated before each. With a `share`, only the texts of one of several processes are computed; all
        are read. Raises UserError where `encode` does.
        """
        chosen, counts = self.options_type(**options), Counts() if counts is None else counts
        prefix, limit, expansion = self._prefix(chosen), self._limit(chosen), self._expansion(chosen)
        counts.max_length = limit
        batch_tokens = tokens_per_batch(self.model.device.type, chosen.batch_tokens)
        for first, chunk in chunks(texts, share):
            rows = read_rows(self.tokenizer, chunk, limit, prefix, expansion, first)
            counts.texts += len(chunk)
            counts.tokens += len(rows.rows.input_ids)
            counts.truncated += rows.truncated
            yield self._compute(rows, chosen, batch_tokens, first)

    def _encode(self, texts: Iterable[str], options: dict[str, Any]) -> list[R]:
        """Return the chunks of `encode`, with a warning about truncated texts."""
        counts = Counts()
        parts = list(self.encode_chunks(texts, counts=counts, **options))
        if counts.truncated:
            logger.warning("%s", counts.describe_truncated())
        return parts

    def _compute(self, rows: TokenRows, options: Any, batch_tokens: int, first: int) -> R:
        """Return the vectors of rows, the first of which is text number `first`."""
        raise NotImplementedError

    def _prefix(self, options: Any) -> Prefix:
        if options.prefix is None:
            return Prefix(text=self.folder.prompts.get(options.role, ""))
        return Prefix.marked(options.prefix, options.prefix, self.tokenizer)

    def _expansion(self, options: Any) -> Expansion | None:
        """Return how short texts are expanded; None: they are not."""
        return None

    def _limit(self, options: Any) -> int:
        positions = self.model.config.max_sequence_length
        if options.max_length is not None and options.max_length > positions:
            raise UserError(f"max_length={options.max_length} is more than the {positions} positions of the model")
        return options.max_length or min(self.folder.max_length or self.tokenizer.model_max_length, positions)


def folder_of(source: str | Path) -> Path:
    """Return the verified folder of a model, or of its name in the Hub's cache. Raises UserError for a file."""
    folder = find_source(source)
    if not folder.is_dir():
        raise UserError(f"{folder}: is not a folder; name that of a sentence-transformers or Hugging Face model")
    verify_files(folder, EMBEDDER)
    return folder

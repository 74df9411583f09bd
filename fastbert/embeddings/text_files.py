"""Embed a file of texts into a file of vectors, in bounded memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fastbert.embeddings.embed import Counts, EmbedOptions, embed_chunks
from fastbert.embeddings.vector_files import VectorFile
from fastbert.errors import UserError
from fastbert.models.encoder import EncoderModel
from fastbert.tasks.text_files import TextFile
from fastbert.tokenizers import WordPieceTokenizer


@dataclass(frozen=True)
class Report:
    """A written file: its counts, the vectors' width, and the time it took."""

    counts: Counts
    width: int
    seconds: float

    def __str__(self) -> str:
        counts = self.counts
        speed = counts.texts / max(self.seconds, 1e-9)
        return (
            f"{counts.texts:,} texts, {counts.tokens:,} tokens, {counts.describe_truncated()}:"
            f" {self.seconds:.1f} s, {speed:,.0f} texts/s"
        )


def embed_file(
    model: EncoderModel,
    tokenizer: WordPieceTokenizer,
    texts: TextFile,
    out: VectorFile | str | Path,
    options: EmbedOptions | None = None,
    progress: Callable[[int, Counts], None] | None = None,
) -> Report:
    """Write the embeddings of a file's texts, in their order; see `TextFile` and `VectorFile`.

    `progress` is called with the bytes read and the counts so far. Raises UserError for a file without texts.
    """
    began = time.perf_counter()
    counts = Counts()
    file = out if isinstance(out, VectorFile) else VectorFile(out)
    with file:
        for vectors in embed_chunks(model, texts, tokenizer, options, counts):
            file.append(vectors.numpy())
            if progress is not None:
                progress(texts.position, counts)
        if not counts.texts:
            raise UserError(f"{texts.name} holds no text")
    return Report(counts, file.width, time.perf_counter() - began)

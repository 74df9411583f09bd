"""Make an index folder: vectors in the chosen format, texts and ids, written as they come, in bounded memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.checkpoints.manifest import describe
from fastbert.checkpoints.pipeline_files import role_prompt
from fastbert.embeddings.embed import Counts, EmbedOptions, embed_chunks
from fastbert.embeddings.folder import load_embedder
from fastbert.embeddings.pooling import normalized
from fastbert.embeddings.roles import drop_default_prompt, similarity_of
from fastbert.errors import UserError
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.log import logger
from fastbert.ops.native import matmul
from fastbert.search import faiss_files
from fastbert.search.arrays import ArrayWriter
from fastbert.search.exact import check_finite, check_vectors
from fastbert.search.fingerprint import model_fingerprint
from fastbert.search.format import (
    FAISS,
    INDEX,
    SCALES,
    SUPERSEDED,
    IndexSettings,
    ModelRecord,
    Similarity,
    Store,
    check_out,
    vectors_name,
)
from fastbert.search.rows import WIDEST_INT8
from fastbert.search.texts import Texts, TextWriter
from fastbert.tasks.inference import choose_inference

DTYPES: dict[str, np.dtype[Any]] = {"int8": np.dtype(np.int8), "fp16": np.dtype("<f2"), "fp32": np.dtype("<f4")}
MANY = 5_000_000
"""Vectors from which an approximate FAISS index is worth its loss of recall."""


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Options of an index."""

    store: Store = "fp16"
    """Dtype of the vectors that a query scans, or "faiss"."""
    rescore: bool = True
    """True keeps an fp16 copy that orders the candidates of int8 and of FAISS indexes that are not flat."""
    similarity: Similarity | None = None
    """"cosine" scales vectors to unit length, "dot" leaves them as they are; None: the model's, else cosine."""
    prompt: str | None = None
    """Name of the model's prompt before each text; None: "document", "passage" or "corpus", if it has one of these."""
    max_length: int | None = None
    """Tokens per text; None: the model's."""
    batch_tokens: int | None = None
    """Tokens per batch; results do not depend on it."""
    faiss: str = "Flat"
    """Factory string of a FAISS index, such as "IVF4096,PQ48" or "HNSW32"."""

    def __post_init__(self) -> None:
        if self.store not in get_args(Store):
            raise UserError(f"store={self.store!r} must be one of {', '.join(get_args(Store))}")
        if self.similarity not in (None, *get_args(Similarity)):
            raise UserError(f"similarity={self.similarity!r} must be one of {', '.join(get_args(Similarity))}")

    @property
    def has_copy(self) -> bool:
        """True if an fp16 copy of the vectors is kept."""
        return self.rescore and (self.store == "int8" or (self.store == "faiss" and self.faiss != "Flat"))


def build_index(
    out: str | Path,
    texts: Iterable[tuple[str, str]],
    model: str | Path,
    options: BuildOptions | None = None,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto",
    overwrite: bool = False,
    counts: Counts | None = None,
    progress: Callable[[int], None] = lambda texts: None,
    message: Callable[[str], None] = lambda words: None,
) -> IndexSettings:
    """Embed texts, pairs of an id and a text, and write an index of them to a folder; return its settings.

    `counts` is updated, `progress` is called with the number of texts done, and `message` with the device and dtype.
    Nothing is written if an error occurs. Repeated ids are counted in a warning. Raises UserError for a folder that
    holds an index unless `overwrite`, or other files of its names, for no texts, for unsupported models and options,
    and for vectors that are not finite, by their index.
    """
    options = options or BuildOptions()
    check_out(Path(out), overwrite)
    faiss_files.check(options.store, options.faiss)
    # Queries may come from a different working directory.
    source = Path(model).absolute() if Path(model).is_dir() else model
    record = ModelRecord(source=str(source), sha256=model_fingerprint(model))
    torch_device, weights, words = choose_inference(device, dtype)
    encoder, tokenizer, settings = load_embedder(model, dtype=weights)
    if dtype == "int8":
        encoder.quantize("int8")
    similarity = options.similarity or similarity_of(settings)
    drop_default_prompt(encoder, settings)
    prompt = role_prompt("document", settings.prompts) if options.prompt is None else options.prompt
    embed_options = EmbedOptions(prompt=prompt, max_length=options.max_length, batch_tokens=options.batch_tokens)
    message(f"{words} on {torch_device}, {out}")
    with atomic_folder(Path(out), SUPERSEDED) as folder, _Writer(folder, options, similarity) as writer:
        written, counts = writer.reading(texts), counts or Counts()
        for vectors in embed_chunks(encoder.to(torch_device), written, tokenizer, embed_options, counts, progress):
            writer.append(vectors)
        query_prompt = role_prompt("query", settings.prompts)
        return writer.finish(model=record, document_prompt=prompt, query_prompt=query_prompt)


def index_vectors(
    out: str | Path,
    vectors: Tensor | np.ndarray,
    texts: Iterable[tuple[str, str]],
    options: BuildOptions | None = None,
    *,
    overwrite: bool = False,
) -> IndexSettings:
    """Write an index of vectors that come from elsewhere; it is queried with vectors. Return its settings.

    vectors fp32 or fp16 (n, width), a tensor or an array, which may be memory-mapped; `texts` are n pairs of an id and
    a text. Raises UserError as `build_index` does, and for a different number of texts.
    """
    options = options or BuildOptions()
    check_out(Path(out), overwrite)
    check_vectors("vectors", vectors, (torch.float32, torch.float16, np.dtype(np.float32), np.dtype(np.float16)))
    faiss_files.check(options.store, options.faiss)
    with (
        atomic_folder(Path(out), SUPERSEDED) as folder,
        _Writer(folder, options, options.similarity or "cosine") as writer,
    ):
        for _ in writer.reading(texts):
            pass
        if writer.texts.count != len(vectors):
            raise UserError(f"there are {len(vectors):,} vectors and {writer.texts.count:,} texts: give one per vector")
        for first in range(0, len(vectors), _BLOCK):
            block = vectors[first : first + _BLOCK]
            writer.append(torch.from_numpy(np.array(block, np.float32)) if isinstance(block, np.ndarray) else block)
        return writer.finish(model=None)


_BLOCK = 1 << 14


class _Writer:
    """Write vectors and texts to a folder that becomes the index."""

    def __init__(self, folder: Path, options: BuildOptions, similarity: Similarity) -> None:
        self.folder, self.options, self.similarity = folder, options, similarity
        self.texts = TextWriter(folder)
        self.arrays: dict[str, ArrayWriter] = {}
        self.count = self.width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        self.texts.close()
        for array in self.arrays.values():
            array.close()

    def reading(self, texts: Iterable[tuple[str, str]]) -> Iterator[str]:
        """Yield the texts, and write them with their ids as they pass."""
        for index, pair in enumerate(texts):
            if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(item, str) for item in pair):
                raise UserError(f"texts[{index}] must be an id and a text, two strings, not {pair!r}")
            self.texts.append(*pair)
            yield pair[1]

    def append(self, vectors: Tensor) -> None:
        """Write vectors (rows, width) in each format of the index."""
        vectors = vectors.detach().cpu().float()
        check_finite("texts", vectors, self.count)
        if self.similarity == "cosine":
            vectors = normalized(vectors)
        if not self.arrays:
            self._begin(vectors.shape[1])
        for name, array in self.arrays.items():
            if name == vectors_name("int8"):
                integers, scales = matmul.quantize_rows(vectors)
                array.append(integers.numpy())
                self.arrays[SCALES].append(scales.numpy())
            elif name != SCALES:
                rows = vectors.numpy() if name == vectors_name("fp32") else _halves(vectors, self.count)
                array.append(rows)
        self.count += len(vectors)

    def _begin(self, width: int) -> None:
        store = self.options.store
        if store == "int8" and width > WIDEST_INT8:
            raise UserError(f"vectors are {width:,} numbers wide, and int8 supports {WIDEST_INT8:,}: choose fp16")
        self.width = width
        # FAISS is trained on vectors of all texts, and they are added when all are there.
        kept = ["fp16" if self.options.has_copy else "fp32"] if store == "faiss" else [store]
        for dtype in dict.fromkeys([*kept, *(["fp16"] if self.options.has_copy else [])]):
            self.arrays[vectors_name(dtype)] = ArrayWriter(self.folder / vectors_name(dtype), DTYPES[dtype], (width,))
        if store == "int8":
            self.arrays[SCALES] = ArrayWriter(self.folder / SCALES, DTYPES["fp32"], ())

    def finish(self, **settings: Any) -> IndexSettings:
        """Complete the files and write `index.json`; return its content."""
        if not self.count:
            raise UserError("there is no text to index: name a file that holds some")
        self._close()
        self._report_repeated_ids()
        options = self.options
        if options.store == "faiss":
            source = self.folder / vectors_name("fp16" if options.has_copy else "fp32")
            faiss_files.write(self.folder / FAISS, np.load(source, mmap_mode="r"), options.faiss)
            if not options.has_copy:
                source.unlink()
        elif self.count > MANY:
            logger.warning(
                "%s vectors are scanned by each query; a FAISS index answers sooner, with some loss of recall:"
                " --store faiss --faiss IVF4096,PQ48",
                f"{self.count:,}",
            )
        content = IndexSettings(
            count=self.count,
            width=self.width,
            store=options.store,
            rescore=options.has_copy,
            similarity=self.similarity,
            faiss=options.faiss if options.store == "faiss" else None,
            **settings,
        )
        files = {name: describe(self.folder / name) for name in content.names}
        content = dataclasses.replace(content, files=files)
        write_json_atomic(self.folder / INDEX, content.to_json())
        return content

    def _report_repeated_ids(self) -> None:
        repeated, index = self.texts.repeated_ids()
        if repeated:
            with Texts(self.folder, self.count) as texts:
                identifier, _ = texts[index]
            logger.warning(
                "%s of %s texts have the id of an earlier text, the first of them %r: hits cannot be told apart by id;"
                " name another column of ids, or make them unique",
                f"{repeated:,}",
                f"{self.count:,}",
                identifier,
            )


def _halves(vectors: Tensor, first: int) -> np.ndarray:
    halves = vectors.half()
    infinite = halves.isinf().any(1)
    if bool(infinite.any()):
        row = int(infinite.nonzero()[0, 0])
        raise UserError(f"the vector of texts[{first + row}] is beyond the range of fp16: choose fp32, or cosine")
    return halves.numpy()

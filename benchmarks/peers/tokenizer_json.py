"""Tokenizers that read a tokenizer.json: fastbert, Hugging Face's, and the packages that replace it.

All encode without special tokens, in their fastest form.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np

from fastbert.benchmarks.peers import thread_environment

FILE = "tokenizer.json"
Rows = tuple[np.ndarray, np.ndarray]


def rows_of_lists(lists: Sequence[Sequence[int]]) -> Rows:
    """Return lists of ids flat, with their offsets."""
    offsets = np.fromiter(accumulate(map(len, lists), initial=0), np.int64)
    return np.fromiter(chain.from_iterable(lists), np.int64, offsets[-1]), offsets


def rows_of_lengths(encoded: Rows) -> Rows:
    """Return flat ids with the offsets that belong to their lengths."""
    return encoded[0], np.concatenate([[0], np.cumsum(encoded[1], dtype=np.int64)])


def rows_of_bytes(encoded: tuple[bytes, bytes]) -> Rows:
    """Return ids and offsets of buffers of uint32 and uint64."""
    return np.frombuffer(encoded[0], np.uint32), np.frombuffer(encoded[1], np.uint64).astype(np.int64)


class FolderTokenizer(ABC):
    """A tokenizer of a folder; the environment sets the number of threads unless a class does."""

    dtype = "list"

    def __init__(self, folder: Path, *, threads: int) -> None:
        self.threads = threads
        self.tokenizer: Any = self.load(folder)

    @abstractmethod
    def load(self, folder: Path) -> Any:
        """Return the package's object."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> Any:
        """Return the ids in this package's form."""

    def rows(self, encoded: Any) -> Rows:
        """Return the ids flat, with their offsets; not timed."""
        return rows_of_lists(encoded)

    def forget(self) -> None:  # noqa: B027 - nothing is to be done by any of them
        """Do nothing: each object has its own caches."""


class Fastbert(FolderTokenizer):
    """`load_tokenizer`, then `encode_ragged`."""

    dtype = "int32"

    def load(self, folder: Path) -> Any:
        from fastbert.tokenizers.loading import load_tokenizer

        return load_tokenizer(folder)

    def encode(self, texts: Sequence[str]) -> Any:
        return self.tokenizer.encode_ragged(texts, False, threads=self.threads)

    def rows(self, encoded: Any) -> Rows:
        ids, offsets = encoded
        return ids, offsets


class HuggingFace(FolderTokenizer):
    """`encode_batch_fast`, whose objects' conversion to lists is not timed; the reference."""

    def load(self, folder: Path) -> Any:
        import tokenizers

        # Read at each call, and shared by all objects of a process.
        os.environ["TOKENIZERS_PARALLELISM"] = thread_environment(self.threads)["TOKENIZERS_PARALLELISM"]
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / FILE))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def encode(self, texts: Sequence[str]) -> Any:
        return self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)

    def rows(self, encoded: Any) -> Rows:
        return rows_of_lists([row.ids for row in encoded])


class Gigatoken(FolderTokenizer):
    """`encode_batch` to an Awkward Array; with one thread on the calling one."""

    dtype = "uint32"

    def load(self, folder: Path) -> Any:
        import gigatoken

        return gigatoken.Tokenizer(str(folder / FILE)).backend

    def encode(self, texts: Sequence[str]) -> Any:
        return self.tokenizer.encode_batch(texts, parallel=self.threads > 1)

    def rows(self, encoded: Any) -> Rows:
        import awkward

        ids = awkward.to_numpy(awkward.flatten(encoded))
        return rows_of_lengths((ids, awkward.to_numpy(awkward.num(encoded))))


class Fastokens(FolderTokenizer):
    """`encode_batch_flat` to two buffers."""

    dtype = "uint32"

    def load(self, folder: Path) -> Any:
        import fastokens

        return fastokens.Tokenizer.from_file(str(folder / FILE))

    def encode(self, texts: Sequence[str]) -> Any:
        return self.tokenizer.encode_batch_flat(texts)

    def rows(self, encoded: Any) -> Rows:
        return rows_of_bytes(encoded)


class Tokie(FolderTokenizer):
    """`encode_batch_flat` to ids and lengths."""

    dtype = "uint32"

    def load(self, folder: Path) -> Any:
        import tokie

        return tokie.Tokenizer.from_json(str(folder / FILE))

    def encode(self, texts: Sequence[str]) -> Any:
        return self.tokenizer.encode_batch_flat(texts, False)

    def rows(self, encoded: Any) -> Rows:
        return rows_of_lengths(encoded)


class Splintr(FolderTokenizer):
    """`encode_batch_flat` to two buffers, always with the special tokens around a text; the comparison removes them."""

    dtype = "uint32"

    def load(self, folder: Path) -> Any:
        import splintr

        return splintr.from_json(str(folder / FILE))

    def encode(self, texts: Sequence[str]) -> Any:
        return self.tokenizer.encode_batch_flat(texts)

    def rows(self, encoded: Any) -> Rows:
        ids, offsets = rows_of_bytes(encoded)
        around = len(self.tokenizer.encode(""))  # half of them before the text
        keep = np.ones(len(ids), bool)
        for index in range(around // 2):
            keep[offsets[:-1] + index] = keep[offsets[1:] - 1 - index] = False
        return ids[keep], offsets - around * np.arange(len(offsets))


class Iree(FolderTokenizer):
    """`encode_batch_to_array` to ids and lengths."""

    dtype = "int32"

    def load(self, folder: Path) -> Any:
        from iree.tokenizer import Tokenizer

        return Tokenizer.from_file(str(folder / FILE))

    def encode(self, texts: Sequence[str]) -> Any:
        return self.tokenizer.encode_batch_to_array(texts)

    def rows(self, encoded: Any) -> Rows:
        return rows_of_lengths(encoded)


class Kitoken(FolderTokenizer):
    """`encode_all` to lists, with the added tokens that occur in a text."""

    def load(self, folder: Path) -> Any:
        import kitoken

        return kitoken.Kitoken.from_tokenizers_file(str(folder / FILE))

    def encode(self, texts: Sequence[str]) -> Any:
        return self.tokenizer.encode_all(texts, True)

"""Tokenizers with files of their own: tiktoken, whose ranks are a tokenizer.json's merges, and sentencepiece.

Their ids are their own as well; the comparison maps them to those of the tokenizer.json, piece by piece.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbert.benchmarks.peers.tokenizer_json import FILE, FolderTokenizer, Rows, rows_of_lists

# GPT-2's expression as tiktoken has it: what it matches is the same, and it never backtracks.
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
MODELS = ("spiece.model", "spm.model", "sentencepiece.bpe.model")


def byte_characters() -> dict[str, int]:
    """Return the bytes that the characters of a byte-level vocabulary stand for."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(256 + index): byte for index, byte in enumerate(others)},
    }


class Tiktoken(FolderTokenizer):
    """`encode_ordinary` of one text after the other, or of a batch with several threads; text is composed first where
    the file demands it, and added tokens that are no special tokens are special ones here."""

    def load(self, folder: Path) -> Any:
        import tiktoken

        content = json.loads((folder / FILE).read_bytes())
        pre_tokenizer, normalizer = content["pre_tokenizer"], content["normalizer"]
        if "merges" not in content["model"] or pre_tokenizer["type"] != "ByteLevel":
            raise ValueError(f"{folder / FILE}: not byte-level BPE, which is all that tiktoken has")
        if pre_tokenizer.get("add_prefix_space") or not pre_tokenizer.get("use_regex", True):
            raise ValueError(f"{folder / FILE}: adds a space before texts, or has an expression of its own")
        if normalizer is not None and normalizer["type"] != "NFC":
            raise ValueError(f"{folder / FILE}: normalises by {normalizer['type']}; only NFC is composed for tiktoken")
        self.composes: bool = normalizer is not None
        vocab = content["model"]["vocab"]
        bytes_of = byte_characters()
        merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in content["model"]["merges"]]
        tokens = dict.fromkeys([*bytes_of, *("".join(pair) for pair in merges)])
        ranks = {bytes(bytes_of[character] for character in token): rank for rank, token in enumerate(tokens)}
        added = [token for token in content["added_tokens"] if not token["special"]]
        self.added: dict[Any, int] = {token["content"]: len(ranks) + index for index, token in enumerate(added)}
        # A vocabulary may lack bytes that occur in no UTF-8.
        self.ids: NDArray[np.int64] = np.array(
            [*(vocab.get(token, -1) for token in tokens), *(token["id"] for token in added)], np.int64
        )
        return tiktoken.Encoding(folder.name, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=self.added)

    def encode(self, texts: Sequence[str]) -> Any:
        if self.composes:
            texts = [unicodedata.normalize("NFC", text) for text in texts]
        if self.threads > 1:
            return self.tokenizer.encode_batch(texts, num_threads=self.threads, allowed_special="all")
        if not self.added:
            return [self.tokenizer.encode_ordinary(text) for text in texts]
        return [self.tokenizer.encode(text, allowed_special="all") for text in texts]

    def rows(self, encoded: Any) -> Rows:
        ids, offsets = rows_of_lists(encoded)
        return self.ids[ids], offsets


class Sentencepiece(FolderTokenizer):
    """`SentencePieceProcessor.encode` of a list, with the folder's model."""

    def load(self, folder: Path) -> Any:
        import sentencepiece

        path = next((folder / name for name in MODELS if (folder / name).is_file()), None)
        if path is None:
            raise ValueError(f"{folder}: has none of {', '.join(MODELS)}, which are all that sentencepiece reads")
        self.file: Path = folder / FILE
        return sentencepiece.SentencePieceProcessor(model_file=str(path))

    def encode(self, texts: Sequence[str]) -> Any:
        return self.tokenizer.encode(texts, num_threads=self.threads)

    def rows(self, encoded: Any) -> Rows:
        model = json.loads(self.file.read_bytes())["model"]
        index = {piece: index for index, (piece, _) in enumerate(model["vocab"])}
        pieces = map(self.tokenizer.id_to_piece, range(self.tokenizer.get_piece_size()))
        table = np.array([index.get(piece, model["unk_id"]) for piece in pieces], np.int64)
        ids, offsets = rows_of_lists(encoded)
        return table[ids], offsets

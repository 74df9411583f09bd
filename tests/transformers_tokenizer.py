"""A tokenizer of transformers behind fastbert's interface: for kinds of tokenizers in tests of what uses them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from fastbert import PackedBatch
from fastbert.checkpoints.manifest import TOKENIZER, update_manifest, verify_files
from fastbert.tasks.rows import bounds
from fastbert.tokenizers.added import as_added_token
from fastbert.tokenizers.tokenizer import Tokenizer


class TransformersTokenizer(Tokenizer):
    """Slow, and exactly what transformers computes."""

    model_max_length = property(lambda self: self._wrapped.model_max_length)
    truncation_side = property(lambda self: self._wrapped.truncation_side)
    bos_token_id = property(lambda self: self._wrapped.bos_token_id)
    eos_token_id = property(lambda self: self._wrapped.eos_token_id)
    unk_token_id = property(lambda self: self._wrapped.unk_token_id)
    pad_token_id = property(lambda self: self._wrapped.pad_token_id)
    cls_token_id = property(lambda self: self._wrapped.cls_token_id)
    sep_token_id = property(lambda self: self._wrapped.sep_token_id)
    mask_token_id = property(lambda self: self._wrapped.mask_token_id)
    all_special_ids = property(lambda self: list(self._wrapped.all_special_ids))
    vocab_size = property(len)

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str], *, verify: bool = True, **options: Any) -> Self:
        from transformers import AutoTokenizer

        verify_files(Path(path), TOKENIZER, verify=verify)
        return cls(AutoTokenizer.from_pretrained(path, **options))

    def save_pretrained(self, folder: str | os.PathLike[str], **options: Any) -> tuple[str, ...]:
        paths = self._wrapped.save_pretrained(folder)
        update_manifest(Path(folder), [Path(path).name for path in paths if Path(path).is_file()], self.fingerprint)
        return tuple(paths)

    def __len__(self) -> int:
        return len(self._wrapped)

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        return {index: as_added_token(token) for index, token in self._wrapped.added_tokens_decoder.items()}

    @property
    def added_tokens_encoder(self) -> dict[str, int]:
        return {token.content: index for index, token in self.added_tokens_decoder.items()}

    @property
    def fingerprint(self) -> str:
        values = json.loads(self._wrapped.backend_tokenizer.to_str())
        changing = {name: value for name, value in values.items() if name not in ("truncation", "padding")}
        return hashlib.sha256(json.dumps(changing, sort_keys=True).encode()).hexdigest()

    def encode_ragged(
        self,
        texts: Sequence[str],
        add_special_tokens: bool = False,
        *,
        max_length: int | None = None,
        threads: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        options = {"add_special_tokens": add_special_tokens, "max_length": max_length, "verbose": False}
        rows = self._wrapped(list(texts), truncation=max_length is not None, **options)["input_ids"] if texts else []
        ids = np.array([token_id for row in rows for token_id in row], dtype=np.int32)
        return ids, bounds(np.array([len(row) for row in rows], dtype=np.int64))

    def encode_aligned_ragged(
        self, texts: Sequence[str], *, threads: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        rows = self._wrapped(list(texts), add_special_tokens=False, verbose=False).encodings
        tokens = [
            (token_id, *span, word)
            for row in rows
            for token_id, span, word in zip(row.ids, row.offsets, row.word_ids, strict=True)
        ]
        ids, begins, ends, words = np.array(tokens, dtype=np.int32).reshape(-1, 4).T
        return ids, begins, ends, words, bounds(np.array([len(row.ids) for row in rows], dtype=np.int64))

    def __call__(self, text: Any, text_pair: Any = None, **options: Any) -> Any:
        return self._wrapped(text, text_pair, **options)

    def pack(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, max_length: int | None = 512
    ) -> PackedBatch:
        sides = (list(texts),) if pairs is None else (list(texts), list(pairs))
        encoding = self._wrapped(
            *sides,
            truncation=max_length is not None,
            max_length=max_length,
            return_token_type_ids=True,
            verbose=False,
        )
        lengths = np.array([len(row) for row in encoding["input_ids"]])
        flat = {name: torch.tensor([x for row in encoding[name] for x in row]) for name in encoding}
        return PackedBatch(
            input_ids=flat["input_ids"],
            token_type_ids=flat["token_type_ids"],
            cu_seqlens=torch.from_numpy(bounds(lengths).astype(np.int32)),
            max_seqlen=int(lengths.max()),
        )

    def _special(self, *texts: str) -> list[tuple[int, bool]]:
        row = self._wrapped(*texts, return_special_tokens_mask=True)
        return list(zip(row["input_ids"], map(bool, row["special_tokens_mask"]), strict=True))

    @property
    def prefix_ids(self) -> list[int]:
        row = self._special("a")
        return [token_id for token_id, _ in row[: [special for _, special in row].index(False)]]

    @property
    def suffix_ids(self) -> list[int]:
        return [token_id for token_id, special in self._special("a")[len(self.prefix_ids) :] if special]

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        return int(self._wrapped.num_special_tokens_to_add(pair))

    def build_inputs_with_special_tokens(self, ids: Sequence[int], pair_ids: Sequence[int] | None = None) -> list[int]:
        if pair_ids is None:
            return [*self.prefix_ids, *ids, *self.suffix_ids]
        row: list[int] = []
        sides, inside = [ids, pair_ids], False
        for token_id, special in self._special("a", "a"):
            if special:
                row.append(token_id)
            elif not inside:
                row += sides.pop(0)
            inside = not special
        return row

    def create_token_type_ids_from_sequences(
        self, ids: Sequence[int], pair_ids: Sequence[int] | None = None
    ) -> list[int]:
        length = len(self.build_inputs_with_special_tokens(ids, pair_ids))
        second = self._wrapped("a", "a", return_token_type_ids=True)["token_type_ids"][-1]
        if pair_ids is None or not second:
            return [0] * length
        return [0] * (length - len(pair_ids) - 1) + [1] * (len(pair_ids) + 1)

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        return self._wrapped.convert_ids_to_tokens(list(ids), skip_special_tokens)

    def decode(
        self, token_ids: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = False
    ) -> Any:
        return self._wrapped.decode(token_ids, skip_special_tokens=skip_special_tokens)

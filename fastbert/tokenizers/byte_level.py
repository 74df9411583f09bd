"""Byte-level BPE over the C++ core: the tokenizer of GPT-2, RoBERTa and ModernBERT."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fastbert import _C
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.untrusted_input import shown
from fastbert.tokenizers.json_errors import VocabularyError
from fastbert.tokenizers.pipeline import Pipeline
from fastbert.tokenizers.pipeline_tokenizer import PipelineTokenizer, check_distinct, hash_of, write_lines

# The characters that stand for the bytes of UTF-8, which every vocabulary has.
BYTES = {
    byte: character
    for byte, character in enumerate(_C.byte_level_alphabet())
    if byte < 0xF5 and byte not in (0xC0, 0xC1)
}


class ByteLevelBPETokenizer(PipelineTokenizer):
    """Byte-level BPE: text is cut by GPT-2's expression, and the bytes of each part are merged.

    Ids, offsets and tokens equal those of the `tokenizers` library. Stateless and picklable.

    Args:
        vocab: the tokens in the order of their ids, each byte as its character of the byte-level alphabet.
        merges: pairs of tokens that merge, the first ones first.
        pipeline: the other parts of a tokenizer.json.
        whole_words: a word of the vocabulary is one token, whatever its merges (`ignore_merges`).
        Others: as `WordPieceTokenizer`; special tokens may be None.

    Raises:
        UserError: a merge names a token that is not in the vocabulary, a byte is missing, a token is empty or occurs
            twice, a special token is missing, or a step is not one of byte-level BPE.

    Example:
        >>> from fastbert.tokenizers import train_tokenizer
        >>> tokenizer = train_tokenizer(["low lower lowest"] * 3, "bpe", vocab_size=266)
        >>> type(tokenizer).__name__
        'ByteLevelBPETokenizer'
        >>> tokenizer.decode(tokenizer("lower low")["input_ids"], skip_special_tokens=True)
        'lower low'
    """

    kind: ClassVar[str] = "BPE"
    _space = "\u0120"
    _vocabulary_beside_json = True

    def __init__(
        self,
        vocab: Sequence[str],
        merges: Sequence[tuple[str, str]],
        *,
        pipeline: Pipeline,
        whole_words: bool = False,
        **options: Any,
    ) -> None:
        tokens = list(vocab)
        check_distinct(tokens, pipeline.path)
        ids = {token: index for index, token in enumerate(tokens)}
        self._merges = list(merges)
        try:
            table = [(ids[left], ids[right], ids[left + right]) for left, right in self._merges]
        except KeyError as error:
            rank = next(i for i, (a, b) in enumerate(self._merges) if a not in ids or b not in ids or a + b not in ids)
            merge, lacking = " ".join(map(shown, self._merges[rank])), shown(error.args[0])
            file = pipeline.path / "merges.txt" if pipeline.path.is_dir() else pipeline.path
            raise VocabularyError(
                f"{file}: merge {rank + 1} ({merge}) names {lacking}, which is not in the vocabulary; the"
                " merges belong to another vocabulary, or one of the two is damaged"
            ) from None
        missing = [byte for byte, character in BYTES.items() if character not in ids]
        if missing:
            raise VocabularyError(
                f"{pipeline.path}: {len(missing)} of the 256 bytes are not in the vocabulary (the first is"
                f" 0x{missing[0]:02x}), so that texts with them have no tokens; restore the vocabulary"
            )
        prefix_space = pipeline.byte_level()
        if prefix_space is None:
            kind = (pipeline.pre_tokenizer or {}).get("type")
            raise VocabularyError(
                f"{pipeline.path}: a BPE tokenizer with the pre_tokenizer {kind!r} is not supported; only ByteLevel is"
            )
        self.add_prefix_space: bool = prefix_space
        self.whole_words: bool = bool(whole_words)
        self._table = np.array(table, dtype=np.int32).reshape(-1, 3)
        super().__init__(tokens, pipeline=pipeline, **options)

    @property
    def merges(self) -> list[tuple[str, str]]:
        """Return the pairs of tokens that merge, the first ones first."""
        return self._merges

    def _build_core(self, split_special_tokens: bool) -> _C.ByteLevelBpe:
        return _C.ByteLevelBpe(
            self._tokens,
            self._table,
            self._added_of_core(),
            split_special_tokens,
            self._normalizer,
            self.add_prefix_space,
            self._post_processor.trim_offsets,
            self._post_processor.expects_prefix,
            self.whole_words,
        )

    def _model_json(self) -> dict[str, Any]:
        return {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": self.whole_words,
            "vocab": {token: index for index, token in enumerate(self._tokens)},
            "merges": [list(merge) for merge in self._merges],
        }

    def _write_vocabulary(self, folder: Path, prefix: str = "") -> list[str]:
        names = [f"{prefix}vocab.json", f"{prefix}merges.txt"]
        write_json_atomic(folder / names[0], self._model_json()["vocab"], ensure_ascii=False)
        write_lines(folder / names[1], ["#version: 0.2", *(" ".join(merge) for merge in self._merges)])
        return names

    def _model_fingerprint(self) -> str:
        return hash_of({"merges": json.dumps(self._merges), "whole_words": self.whole_words})

"""Unigram over the C++ core: the tokenizer of XLM-RoBERTa, DeBERTa-v3, ALBERT, CamemBERT and T5."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fastbert import _C
from fastbert.io.atomic_write import write_json_atomic
from fastbert.tokenizers.json_errors import VocabularyError
from fastbert.tokenizers.pipeline import Pipeline
from fastbert.tokenizers.pipeline_tokenizer import PipelineTokenizer, check_distinct, hash_of


class UnigramTokenizer(PipelineTokenizer):
    """Unigram: each word becomes its most probable pieces.

    Ids, offsets and tokens equal those of the `tokenizers` library. Stateless and picklable.

    Args:
        vocab: the pieces in the order of their ids.
        scores: the log probability of each.
        unknown_id: the id of characters that no piece has.
        pipeline: the other parts of a tokenizer.json.
        byte_fallback: such characters become their bytes, pieces "<0x00>" to "<0xFF>".
        Others: as `WordPieceTokenizer`; special tokens may be None.

    Raises:
        UserError: a score is not a finite number, a piece for a byte is missing, a piece is empty or occurs twice, a
            special token is missing, or a step is not supported.

    Example:
        >>> from fastbert.tokenizers import train_tokenizer
        >>> tokenizer = train_tokenizer(["low slow lower slower"] * 9, "unigram", vocab_size=30)
        >>> type(tokenizer).__name__
        'UnigramTokenizer'
        >>> tokenizer.tokenize("lower low")
        ['▁low', 'e', 'r', '▁low']
    """

    kind: ClassVar[str] = "Unigram"

    def __init__(
        self,
        vocab: Sequence[str],
        scores: Sequence[float],
        *,
        unknown_id: int,
        pipeline: Pipeline,
        byte_fallback: bool = False,
        **options: Any,
    ) -> None:
        tokens = list(vocab)
        check_distinct(tokens, pipeline.path)
        self._scores = np.asarray(scores, dtype=np.float64)
        if self._scores.shape != (len(tokens),):
            raise VocabularyError(f"{pipeline.path}: {len(tokens)} pieces, but {self._scores.size} scores")
        if not np.isfinite(self._scores).all():
            index = int(np.flatnonzero(~np.isfinite(self._scores))[0])
            raise VocabularyError(
                f"{pipeline.path}: piece {index} ({tokens[index]!r}) has the score {self._scores[index]}, which is not"
                " a finite number; restore the file"
            )
        if not 0 <= unknown_id < len(tokens):
            raise VocabularyError(
                f"{pipeline.path}: unk_id={unknown_id} is not one of its {len(tokens)} pieces; restore the file"
            )
        self.unknown_id = unknown_id
        self.byte_fallback: bool = bool(byte_fallback)
        self._byte_ids: list[int] = []
        if byte_fallback:
            ids = {token: index for index, token in enumerate(tokens)}
            names = [f"<0x{byte:02X}>" for byte in range(256)]
            missing = [name for name in names if name not in ids]
            if missing:
                raise VocabularyError(
                    f"{pipeline.path}: byte_fallback needs a piece per byte, and {len(missing)} of 256 are missing (the"
                    f" first is {missing[0]}); restore the vocabulary or set byte_fallback to false"
                )
            self._byte_ids = [ids[name] for name in names]
        if "\0" in "".join(tokens):
            index = next(index for index, token in enumerate(tokens) if "\0" in token)
            raise VocabularyError(f"{pipeline.path}: piece {index} holds a zero byte; remove it")
        self._steps = pipeline.compiled_pre_tokenizer()
        super().__init__(tokens, pipeline=pipeline, **options)

    @property
    def scores(self) -> np.ndarray:
        """Return the log probability of each piece, float64 (vocab_size,)."""
        return self._scores

    def _build_core(self, split_special_tokens: bool) -> _C.Unigram:
        return _C.Unigram(
            self._tokens,
            self._scores,
            self.unknown_id,
            self._byte_ids,
            self._added_of_core(),
            split_special_tokens,
            self._normalizer,
            self._steps,
        )

    def _ids_spelled_as_text(self) -> list[int]:
        return [self.unknown_id]

    def _model_json(self) -> dict[str, Any]:
        scores = _C.written_decimals(self._scores).tolist()
        return {
            "type": "Unigram",
            "unk_id": self.unknown_id,
            "vocab": [list(item) for item in zip(self._tokens, scores, strict=True)],
            "byte_fallback": self.byte_fallback,
        }

    def _write_vocabulary(self, folder: Path, prefix: str = "") -> list[str]:
        name = f"{prefix}unigram.json"
        write_json_atomic(folder / name, self._model_json(), ensure_ascii=False)
        return [name]

    def _model_fingerprint(self) -> str:
        # Those of a saved copy: a score that no short decimal form is read as changes its last bit when it is saved.
        saved = np.array([_C.read_decimal(repr(score)) for score in _C.written_decimals(self._scores).tolist()])
        scores = saved.astype("<f8").tobytes().hex()
        return hash_of({"scores": scores, "unknown_id": self.unknown_id, "byte_fallback": self.byte_fallback})

"""The C++ core: tokenizer, masking collator and CPU kernels. One section per bindings_*.cpp."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

# bindings_wordpiece.cpp

UNICODE_FINGERPRINT: str
MAX_WORD_CHARS: int

class NormalizerOptions:
    def __init__(self, lower_case: bool, strip_accents: bool, chinese_chars: bool) -> None: ...

class Truncation:
    NONE: ClassVar[Truncation]
    LONGEST_FIRST: ClassVar[Truncation]
    ONLY_FIRST: ClassVar[Truncation]
    ONLY_SECOND: ClassVar[Truncation]

class Template:
    def __init__(self, add_special_tokens: bool, cls_id: int, sep_id: int) -> None: ...

class WordPiece:
    def __init__(
        self, tokens: Sequence[str], special_ids: Sequence[int], unknown_id: int, options: NormalizerOptions
    ) -> None: ...
    def encode_ragged(self, texts: Sequence[str], threads: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]: ...
    def encode_model_inputs(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None,
        form: Template,
        truncation: Truncation,
        max_length: int,
        threads: int,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]: ...
    def split_words(self, text: str) -> list[str]: ...

class WordCounter:
    def __init__(self, options: NormalizerOptions) -> None: ...
    def add(self, texts: Sequence[str]) -> None: ...
    def counts(self) -> dict[str, int]: ...

def pad_rows(values: NDArray[np.int32], offsets: NDArray[np.int64], width: int, filler: int) -> NDArray[np.int64]: ...

# bindings_cpu.cpp

def token_dropout_mask(
    out: NDArray[Any],
    keys: NDArray[np.int64],
    sequence: NDArray[np.int64],
    position: NDArray[np.int64],
    site: int,
    threshold: int,
    keep: int,
) -> None: ...
def attention_dropout_mask(
    out: NDArray[Any], keys: NDArray[np.int64], site: int, threshold: int, keep: int
) -> None: ...

# bindings_features.cpp

def cpu_features() -> dict[str, bool]: ...

"""Find the tokens of a vocabulary that continue a word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray


def continued(vocabulary: Sequence[str]) -> list[bool]:
    """Return for each token whether it continues a word: in WordPiece "##ing", in byte-level BPE and Unigram tokens
    without the mark of a space in front ("Ġ" and "▁")."""
    if any(token.startswith("##") and len(token) > 2 for token in vocabulary):
        return [token.startswith("##") for token in vocabulary]
    mark = next((mark for mark in ("Ġ", "▁") if mark in vocabulary), None)
    return [mark is not None and not token.startswith(mark) for token in vocabulary]


def continuation_flags(vocabulary: Sequence[str], special_ids: Mapping[str, int]) -> NDArray[np.bool_]:
    """Return for each id whether its token continues a word, bool (vocab_size,); special tokens never do."""
    flags = np.array(continued(vocabulary), dtype=bool)
    flags[list(special_ids.values())] = False
    return flags

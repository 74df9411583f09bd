"""Find the tokens of a vocabulary that continue a word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

_PIECE = "##"
_MARKS = (_PIECE, "Ġ", "▁")


def continued(vocabulary: Sequence[str]) -> list[bool]:
    """Return for each token whether it continues a word: in WordPiece "##ing", in byte-level BPE and Unigram tokens
    without the mark of a space in front ("Ġ" and "▁").

    The commonest of the three marks decides: byte-level vocabularies hold "###", and those of WordPiece may hold "▁".
    """
    counts = {mark: sum(token.startswith(mark) and token != _PIECE for token in vocabulary) for mark in _MARKS}
    mark = max(counts, key=lambda each: counts[each])
    return [counts[mark] > 0 and token.startswith(mark) == (mark == _PIECE) for token in vocabulary]


def continuation_flags(vocabulary: Sequence[str], special_ids: Mapping[str, int]) -> NDArray[np.bool_]:
    """Return for each id whether its token continues a word, bool (vocab_size,); special tokens never do."""
    flags = np.array(continued(vocabulary), dtype=bool)
    flags[list(special_ids.values())] = False
    return flags

"""Tokenizers of every kind, and the optional data, for the checks of tokenizers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from embedding import small_tokenizer
from hostile_texts import PARTS
from tokenizer_pipelines import random_tokenizer
from torture.campaign import Campaign

from fastbert import _C, WordPieceTokenizer, load_tokenizer


def tokenizers(folder: Path) -> list[Any]:
    """Return a tokenizer of each kind."""
    made: list[Any] = [WordPieceTokenizer([*small_tokenizer().get_vocab(), "é", "##é"])]
    for kind in ("BPE", "Unigram"):
        content = random_tokenizer(random.Random(f"{kind} 4"), PARTS, _C.byte_level_alphabet(), kind)
        (folder / "tokenizer.json").write_text(json.dumps(content))
        made.append(load_tokenizer(folder / "tokenizer.json", verify=False))
    return made


def data_of(campaign: Campaign, request: pytest.FixtureRequest) -> Path | None:
    """Return the optional data for a full form."""
    if not campaign.full:
        return None
    try:
        folder: Path = request.getfixturevalue("data_dir")
    except pytest.skip.Exception:
        return None
    return folder

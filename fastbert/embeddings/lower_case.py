"""Load the tokenizer of a folder whose settings lower-case texts."""

from __future__ import annotations

from pathlib import Path

from fastbert.tokenizers.loading import load_tokenizer
from fastbert.tokenizers.pipeline_tokenizer import PipelineTokenizer
from fastbert.tokenizers.tokenizer import Tokenizer


def load_with_case(folder: Path, lower_case: bool) -> Tokenizer:
    """Return the tokenizer of a folder, which lower-cases texts if `lower_case`, whatever its own files say."""
    tokenizer = load_tokenizer(folder)
    if not lower_case or getattr(tokenizer, "do_lower_case", False):
        return tokenizer
    if isinstance(tokenizer, PipelineTokenizer):
        return tokenizer.lower_cased()
    # As in sentence-transformers, accents stay unless the tokenizer strips them.
    return load_tokenizer(folder, do_lower_case=True, strip_accents=bool(getattr(tokenizer, "strip_accents", False)))

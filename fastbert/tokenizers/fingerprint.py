"""Identify a tokenizer by a hash: token shards, runs and model folders name theirs by it, whatever its kind."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any


def fingerprint(tokens: Sequence[str], options: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of a tokenizer: its tokens in the order of their ids, and its options.

    `options` are JSON values, all that changes the ids of a text: special and added tokens, and those of its
    kind (normaliser, merges or scores; kinds other than WordPiece include their name). Equal fingerprints mean equal
    ids for every text.
    """
    return hashlib.sha256(json.dumps([tokens, options], sort_keys=True).encode()).hexdigest()

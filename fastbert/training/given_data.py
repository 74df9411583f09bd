"""The token shards of a run, one folder or several: opened, and compared with those that it began with."""

from __future__ import annotations

from collections.abc import Sequence

from fastbert.data.mixing import check_tokenizers
from fastbert.data.shards import INDEX, TokenShards
from fastbert.data.streamed_shards import StreamedShards, StreamOptions, open_index, open_shards
from fastbert.errors import UserError
from fastbert.io.checksums import sha256
from fastbert.training.reporter import Reporter

CONTINUE = "continue with --resume --data"


def fingerprint(shards: Sequence[TokenShards]) -> str:
    """Return what identifies the data of a run: the SHA-256 of each index, in their order."""
    return " ".join(sha256(each.folder / INDEX) for each in shards)


def given_shards(
    locations: Sequence[str],
    expected: str | None,
    options: StreamOptions,
    window_tokens: int | None,
    reporter: Reporter,
    action: str = CONTINUE,
) -> tuple[TokenShards, ...]:
    """Open the token shards of --data; `expected` is the fingerprint of those that a run began with, and `action` what
    messages propose for shards that are elsewhere.

    Raises `UserError`, with the cure, where a run's shards were moved, replaced or damaged since it began, and for
    shards that were not made with one tokenizer.
    """
    began = None if expected is None else expected.split()
    if began is not None and len(began) != len(locations):
        raise UserError(
            f"--data names {len(locations)} corpora, but the run began with {len(began)}; give the run's own, in their"
            f" order{_or_another(action)}"
        )
    opened = []
    for place, location in enumerate(locations):
        identity = None if began is None else began[place]
        opened.append(_open(location, identity, options, window_tokens, reporter, action))
    check_tokenizers(opened)
    return tuple(opened)


def _or_another(action: str) -> str:
    """Return the other way out, for a run that may also be left alone."""
    return ", or start another run with another --out" if action == CONTINUE else ""


def _open(
    location: str,
    expected: str | None,
    options: StreamOptions,
    window_tokens: int | None,
    reporter: Reporter,
    action: str,
) -> TokenShards:
    again = f"{action}, followed by the place of the run's own (SHA-256 of {INDEX}: {expected})"
    try:
        index = open_index(location, options)
    except UserError as error:
        if expected is None:
            raise
        raise UserError(f"--data {location}: the run's token shards are not there ({error}); {again}") from None
    if expected not in (None, index.sha256):
        raise UserError(
            f"--data {location}: holds other token shards than the run began with; {again}{_or_another(action)}"
        )
    shards = open_shards(location, options, on_stage=reporter.on_stage)
    if isinstance(shards, StreamedShards):
        reporter.on_message(shards.described(window_tokens))
    return shards

"""The flags of token shards behind a URL: their cache, and the order in which they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fastbert.errors import UserError
from fastbert.flags import DATA, rare

if TYPE_CHECKING:
    from fastbert.data.streamed_shards import StreamOptions

CHANGEABLE = frozenset(("cache_dir", "cache_size", "data_patience"))
"""Those that change no batch."""


@dataclass(frozen=True, kw_only=True)
class StreamCacheFlags:
    """Token shards that are streamed: their cache."""

    GROUP: ClassVar = DATA

    cache_dir: Path | None = rare(None)
    """Folder of the cache of a --data behind a URL (default: ~/.cache/fastbert/shards). The processes of a machine
    share it."""
    cache_size: float = rare(10.0)
    """Gigabytes of one corpus in the cache at most."""
    data_patience: float | None = rare(None)
    """Seconds for which a failing read of a --data behind a URL is repeated before the run ends (default: 300, and 10
    for the first read of a start, whose address may be wrong)."""

    def check_flags(self) -> None:
        """Raise `UserError` for a value out of range."""
        least = {"cache_size": 0.0, "data_patience": 0.0, "shuffle_window": 0.001}
        for name, smallest in least.items():
            value = getattr(self, name, None)
            if value is not None and not smallest <= value < 1e9:
                raise UserError(f"--{name.replace('_', '-')} {value:g} must be at least {smallest:g} and below 1e9")

    @property
    def stream_options(self) -> StreamOptions:
        """Return these flags as `fastbert.data.streamed_shards` takes them."""
        from fastbert.data.streamed_shards import StreamOptions

        return StreamOptions(
            cache_dir=self.cache_dir, cache_bytes=round(self.cache_size * 1e9), patience=self.data_patience
        )


@dataclass(frozen=True, kw_only=True)
class StreamFlags(StreamCacheFlags):
    """Token shards that are streamed: their cache, and the order in which they are read."""

    GROUP: ClassVar = DATA

    shuffle_window: float | None = rare(None)
    """Millions of tokens among which samples are shuffled, read from random places of the corpus (default: the whole
    corpus): a streamed corpus larger than its cache is then read once per epoch, except for the negatives of
    mlm+nsp."""

    @property
    def window_tokens(self) -> int | None:
        """Return --shuffle-window in tokens."""
        return None if self.shuffle_window is None else round(self.shuffle_window * 1e6)

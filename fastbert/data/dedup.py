"""Drop repeated lines and documents of a corpus, and report what was dropped."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from fastbert import _C
from fastbert.data.dedup_flags import Dedup, check_dedup
from fastbert.data.shards import IndexReader


@dataclass(frozen=True)
class DedupReport:
    """Counts of the lines and documents dropped from a corpus; bytes are those of the text."""

    mode: Dedup
    lines: int
    """Lines that were read, those of dropped documents left out."""
    documents: int
    dropped_lines: int
    dropped_documents: int
    dropped_line_bytes: int
    dropped_document_bytes: int

    @classmethod
    def of(cls, mode: Dedup, repeats: _C.Repeats) -> DedupReport:
        """Return the report of a corpus that was read."""
        counts = {name: getattr(repeats, name) for name in cls.__dataclass_fields__ if name != "mode"}
        return cls(mode, **counts)

    @classmethod
    def read(cls, folder: Path) -> DedupReport | None:
        """Return the report in a folder of token shards, None if nothing was to be dropped. Raises UserError for a
        damaged one."""
        reader = IndexReader(folder)
        entry = reader.content.get("dedup") if isinstance(reader.content, dict) else None
        if entry is None:
            return None
        mode = reader.get(entry, "mode", str)
        if mode not in get_args(Dedup):
            raise reader.damaged(f"has the dedup mode {mode[:40]!r}, which is unknown")
        names = [name for name in cls.__dataclass_fields__ if name != "mode"]
        return cls(mode, **{name: reader.count(entry, name, smallest=0) for name in names})

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON can store it."""
        return asdict(self)

    def __str__(self) -> str:
        parts = []
        if self.mode != "lines":
            parts.append(_dropped("documents", self.dropped_documents, self.documents, self.dropped_document_bytes))
        if self.mode != "documents":
            parts.append(_dropped("lines", self.dropped_lines, self.lines, self.dropped_line_bytes))
        return f"dropped {' and '.join(parts)}"


def repeats_of(mode: Dedup) -> _C.Repeats | None:
    """Return an empty memory of what was read, None for "off". Raises UserError for an unknown mode."""
    check_dedup(mode)
    return None if mode == "off" else _C.Repeats(lines=mode != "documents", documents=mode != "lines")


def _dropped(what: str, dropped: int, total: int, size: int) -> str:
    amount = f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size:,} bytes"
    return f"{dropped:,} of {total:,} {what} that repeat ({amount})"

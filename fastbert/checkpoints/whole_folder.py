"""Files of a folder that appear together, when all of them are written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_folder(out: Path, superseded: Sequence[str] = ()) -> Iterator[Path]:
    """A folder to write to; what it holds at the end is moved to `out`, and an interrupt before that leaves nothing.

    Files of `out` that match `superseded`, and are not written anew, go: readers would prefer them to the new ones.
    """
    target = out.absolute()
    partial = target / ".partial" if target.exists() else target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if not target.exists():
            partial.rename(target)
            return
        names = sorted(path.name for path in partial.iterdir())
        for name in names:
            if (partial / name).is_dir():  # which takes no other folder's name
                shutil.rmtree(target / name, ignore_errors=True)
            (partial / name).replace(target / name)
        for old in [path for pattern in superseded for path in target.glob(pattern)]:
            if old.name not in names:
                old.unlink()
    finally:
        shutil.rmtree(partial, ignore_errors=True)

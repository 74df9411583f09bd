"""The files that this process holds open."""

from __future__ import annotations

import gc
import os
from pathlib import Path


def open_below(folder: Path) -> list[str]:
    """Return the files below `folder` that this process holds open or mapped into memory, once all objects that nothing
    refers to are gone."""
    gc.collect()
    targets = []
    for handle in Path("/proc/self/fd").iterdir():
        try:
            targets.append(os.readlink(handle))
        except OSError:  # closed meanwhile, as the handle of this listing is
            continue
    return [target for target in targets if Path(target).is_relative_to(folder)]

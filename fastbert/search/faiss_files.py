"""Indexes in FAISS' format, by the optional package faiss-cpu (Johnson, Douze and Jégou 2017)."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from fastbert.errors import CheckpointError, UserError, require_package

TRAINED_PER_CENTROID = 64
"""Vectors per centroid that an index is trained on; FAISS warns below 39, and samples from more than 256."""
LEAST_TRAINED = 65_536
MOST_TRIAL_WIDTH = 1 << 14
_BLOCK = 1 << 14


def import_faiss() -> Any:
    """Import FAISS. Raises UserError if it is not installed."""
    return require_package(
        "faiss", "a FAISS index needs the package faiss-cpu: `pip install 'fastbert-engine[search]'`"
    )


def check(store: str, factory: str) -> None:
    """Raise UserError for a FAISS index without FAISS, or an unknown factory string; other stores pass."""
    if store != "faiss":
        return
    faiss = import_faiss()
    # Product quantisation divides the width of the vectors, which is not known yet.
    width = 8 * math.lcm(*(int(number) for number in re.findall(r"PQ(\d+)", factory)))
    unknown = UserError(f"--faiss {factory}: FAISS has no such index; examples are Flat, HNSW32, IVF4096,PQ48")
    if not width:  # FAISS would divide by it
        raise unknown
    if width > MOST_TRIAL_WIDTH:
        return
    try:
        faiss.index_factory(width, factory, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, OverflowError, TypeError):
        raise unknown from None


def write(path: Path, vectors: np.ndarray, factory: str, *, seed: int = 0) -> None:
    """Train an index on a sample of vectors, fp16 or fp32 (n, width), add all of them, and write it.

    Scores are dot products. Raises UserError for an index that does not fit the width or the number of vectors.
    """
    faiss = import_faiss()
    count, width = vectors.shape
    try:
        index = faiss.index_factory(width, factory, faiss.METRIC_INNER_PRODUCT)
        if not index.is_trained:
            lists = int(match[1]) if (match := re.search(r"IVF(\d+)", factory)) else 256
            most = min(count, max(LEAST_TRAINED, TRAINED_PER_CENTROID * lists))
            sample = np.sort(np.random.default_rng(seed).choice(count, most, replace=False))
            index.train(np.ascontiguousarray(vectors[sample], dtype=np.float32))
        for first in range(0, count, _BLOCK):
            index.add(np.ascontiguousarray(vectors[first : first + _BLOCK], dtype=np.float32))
    except (RuntimeError, OverflowError, TypeError) as error:  # of FAISS, of SWIG for numbers beyond 31 bits
        raise UserError(
            f"--faiss {factory}: FAISS refuses {count:,} vectors of width {width} ({_reason(error)}); name a different"
            " index"
        ) from None
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:
        raise UserError(f"{path.name}: FAISS cannot write it ({_reason(error)}); is the disk full?") from None


def _reason(error: Exception) -> str:
    """Return what FAISS says, without the place in its source."""
    lines = str(error).rpartition("Error: ")[2].strip().splitlines()
    return lines[0] if lines else "no reason given"


class FaissRows:
    """A FAISS index of a folder."""

    def __init__(self, path: Path, count: int, width: int) -> None:
        self.faiss: Any = import_faiss()
        try:
            self.index: Any = self.faiss.read_index(str(path))
        except RuntimeError:
            raise CheckpointError(f"{path}: damaged: FAISS cannot read it; make the index again") from None
        if self.index.ntotal != count or self.index.d != width:
            raise CheckpointError(
                f"{path}: damaged: holds {self.index.ntotal:,} vectors of width {self.index.d}, not {count:,} of"
                f" {width}; make the index again"
            )

    def search(self, queries: np.ndarray, k: int, probes: int) -> tuple[np.ndarray, np.ndarray]:
        """Return scores fp32 and indices int64, (q, k) each, for queries fp32 (q, width); -1 where none was found.

        `probes` is the number of IVF's lists, or of HNSW's candidates (at least k), that are visited.
        """
        # Of a wrapped index (pre-transforms, refinement) too.
        inverted = self.faiss.try_extract_index_ivf(self.index)
        if inverted is not None:
            inverted.nprobe = min(probes, inverted.nlist)
        inner = self.faiss.downcast_index(self.index)
        if hasattr(inner, "hnsw"):
            inner.hnsw.efSearch = max(probes, k)
        scores, indices = self.index.search(np.ascontiguousarray(queries, dtype=np.float32), k)
        return scores, indices

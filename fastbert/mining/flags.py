"""The flags of mining, for commands that train embedders and rerankers. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from fastbert.errors import UserError
from fastbert.flags import flag, rare
from fastbert.mining.options import MiningOptions


@dataclass(frozen=True, kw_only=True)
class MiningFlags:
    """Hard negatives, mined before training."""

    GROUP: ClassVar = "With --task embedding, rerank, splade, colbert"

    mine_negatives: str | None = rare(None)
    """Mine hard negatives with this embedder, the folder of a sentence-transformers or Hugging Face model, and train on
    the file that is written."""
    negatives_file: Path | None = rare(None)
    """File that mined negatives are written to, or read from if it was mined before (default: --out with the suffix
    .negatives.jsonl)."""
    negatives: int = rare(5)
    """Negatives per pair of an anchor and a positive."""
    mining_margin: float | None = rare(None)
    """Leave out candidates whose cosine is above the positive's less this margin."""
    mining_relative_margin: float | None = rare(None)
    """Leave out candidates whose cosine is above the positive's less this fraction of it; 0.05 is usual."""
    mining_range: tuple[int, int] | None = rare(None)
    """Skip the MIN nearest candidates, and consider others up to rank MAX."""
    mining_reranker: str | None = rare(None)
    """Leave out candidates that this cross-encoder, a folder, scores above the positive; its scores are written too."""
    mining_reranker_margin: float = rare(0.0)
    """Leave out candidates whose score by --mining-reranker is above the positive's less this margin."""
    mining_corpus: Path | None = rare(None)
    """More texts to choose negatives from: .txt, one per line, or .jsonl, .csv or .tsv with a column text; also .gz and
    .xz (default: the texts of the training file)."""
    mining_sampling: Literal["top", "random"] = rare("top")
    """Take the nearest candidates that remain, or random ones among them."""

    def mining_options(self, seed: int = 0) -> MiningOptions:
        """Return the options; `seed` is that of random sampling. Raises UserError, naming the flag, for wrong ones."""
        values = (self.mining_margin, self.mining_relative_margin, self.mining_corpus, self.mining_reranker)
        if self.mine_negatives is None and (self.mining_range is not None or any(v is not None for v in values)):
            name = next(name for name in _NEEDED if getattr(self, name) is not None)
            raise UserError(f"{flag(name)} is for --mine-negatives MODEL; name the embedder or leave the flag out")
        for name in _MARGINS:
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise UserError(f"{flag(name)} {value:g} must be a finite number")
        low, high = (0, None) if self.mining_range is None else self.mining_range
        if self.negatives < 1:
            raise UserError(f"--negatives {self.negatives} must be at least 1")
        if high is not None and not 0 <= low <= high - self.negatives:
            raise UserError(
                f"--mining-range {low} {high} must hold at least {self.negatives} ranks, as many as --negatives"
            )
        return MiningOptions(
            negatives=self.negatives,
            range_min=low,
            range_max=high,
            margin=self.mining_margin,
            relative_margin=self.mining_relative_margin,
            sampling=self.mining_sampling,
            seed=seed,
            reranker_margin=self.mining_reranker_margin,
        )


_MARGINS = ("mining_margin", "mining_relative_margin", "mining_reranker_margin")
_NEEDED = ("mining_margin", "mining_relative_margin", "mining_range", "mining_reranker", "mining_corpus")

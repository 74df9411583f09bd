"""BetterTransformer of optimum before 2.0: transformers' layers through PyTorch's fused encoder layer.

It needs an environment of its own: optimum 1.25 to 1.27 refuse transformers 4.49 and later for it, and 2.0 removed it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from optimum.bettertransformer import BetterTransformer

from fastbert.benchmarks.peers.padded_batches import real_tokens
from fastbert.benchmarks.peers.transformers_encoder import Encoder as TransformersEncoder


class Encoder(TransformersEncoder):
    """The converted model. It starts from eager attention, since SDPA models are refused; a batch with padding is
    computed as a nested tensor, so that the layers skip padding."""

    def __init__(self, folder: Path, *, dtype: str, threads: int, scratch: Path) -> None:
        super().__init__(folder, dtype=dtype, attention="eager", threads=threads, scratch=scratch)
        self.model: Any = BetterTransformer.transform(self.model).eval()
        self.call: Any = self.model

    def values(self, result: Any) -> np.ndarray:
        # Columns that are padding in every sequence are gone.
        hidden = result.last_hidden_state.float().numpy()
        return real_tokens(hidden, self.arrays["attention_mask"][:, : hidden.shape[1]])

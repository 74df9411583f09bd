"""fastbert's encoder as a contender: packed inputs and outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastbert import PackedBatch
from fastbert.benchmarks.peers import Arrays
from fastbert.models.registry import load_encoder
from fastbert.ops import dispatch


class Encoder:
    """An encoder on a `PackedBatch`, its weights in fp32 or bf16; int8 is the bf16 model quantised."""

    def __init__(self, folder: Path, *, dtype: str, threads: int, scratch: Path) -> None:
        torch.set_num_threads(threads)
        self.model: Any = load_encoder(folder, dtype=torch.float32 if dtype == "fp32" else torch.bfloat16)
        if dtype == "int8":
            self.model = self.model.quantize("int8")

    def open(self, arrays: Arrays) -> dict[str, Any]:
        lengths = torch.from_numpy(arrays["lengths"])
        self.batch: PackedBatch = PackedBatch(
            input_ids=torch.from_numpy(arrays["input_ids"]),
            cu_seqlens=torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int(),
            max_seqlen=int(lengths.max()),
        )
        choices = dispatch.report(torch.device("cpu"))
        return {"backends": {choice.operation: choice.backend for choice in choices}}

    def run(self) -> Any:
        with torch.inference_mode():
            return self.model(self.batch)

    def values(self, result: Any) -> np.ndarray:
        hidden: np.ndarray = result.last_hidden_state.float().numpy()
        return hidden

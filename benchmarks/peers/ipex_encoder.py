"""Intel Extension for PyTorch: transformers' model optimised, traced and frozen, as its examples for BERT do.

It needs an environment of its own: its last release, 2.8, works with PyTorch 2.8 alone.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

# After torch and before all others, as its guide asks.
import intel_extension_for_pytorch as ipex  # isort: skip

from fastbert.benchmarks.peers import Arrays
from fastbert.benchmarks.peers.padded_batches import real_tokens
from fastbert.benchmarks.peers.transformers_encoder import DTYPES
from fastbert.benchmarks.peers.transformers_encoder import Encoder as TransformersEncoder

WARMING = 2  # the profiling executor compiles in the first calls


class Encoder(TransformersEncoder):
    """`ipex.optimize`, then a TorchScript trace per shape; bf16 is its autocast over bf16 weights."""

    shape: tuple[int, ...] = ()

    def __init__(self, folder: Path, *, dtype: str, threads: int, scratch: Path) -> None:
        # Its fusions match the operations of eager attention; with SDPA it takes 16 % longer (not on record).
        super().__init__(folder, dtype="fp32", attention="eager", threads=threads, scratch=scratch)
        self.dtype: torch.dtype = DTYPES[dtype]
        self.model: Any = ipex.optimize(self.model, dtype=self.dtype)

    def open(self, arrays: Arrays) -> dict[str, Any]:
        super().open(arrays)
        shape = tuple(self.inputs["input_ids"].shape)
        compiled = 0.0
        if shape != self.shape:
            began = time.perf_counter()
            with torch.no_grad(), self._autocast():
                traced = torch.jit.trace(self.model, example_kwarg_inputs=self.inputs, strict=False, check_trace=False)
                self.call: Any = torch.jit.freeze(traced)
            for _ in range(WARMING):
                self.run()
            self.shape, compiled = shape, round(time.perf_counter() - began, 1)
        return {"compile_seconds": compiled}

    def run(self) -> Any:
        with torch.no_grad(), self._autocast():
            return self.call(**self.inputs)

    def values(self, result: Any) -> Any:
        # A traced model returns a dictionary.
        hidden = result["last_hidden_state"]
        return real_tokens(hidden.float().numpy(), self.arrays["attention_mask"])

    def _autocast(self) -> Any:
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.dtype is torch.bfloat16)

"""transformers' models on padded batches: original, accelerated, and compiled with frozen weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModel

from fastbert.benchmarks.peers import Arrays
from fastbert.benchmarks.peers.padded_batches import padded, real_tokens

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def load(folder: Path, attention: str, dtype: torch.dtype = torch.float32) -> Any:
    """Load the model in evaluation mode; other libraries convert it."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    # In environments of their own, some libraries need an older release, which has a different name for it.
    name = "dtype" if int(transformers.__version__.partition(".")[0]) >= 5 else "torch_dtype"
    return AutoModel.from_pretrained(folder, **{name: dtype}, attn_implementation=attention).eval()


class Encoder:
    """A model of transformers, all weights in one dtype, with its eager or SDPA attention."""

    def __init__(self, folder: Path, *, dtype: str, attention: str, threads: int, scratch: Path) -> None:
        torch.set_num_threads(threads)
        self.model: Any = load(folder, attention, DTYPES[dtype])
        self.call: Any = self.model

    def open(self, arrays: Arrays) -> dict[str, Any]:
        self.arrays: dict[str, np.ndarray] = padded(arrays)
        self.inputs: dict[str, torch.Tensor] = {name: torch.from_numpy(values) for name, values in self.arrays.items()}
        return {}

    def run(self) -> Any:
        with torch.inference_mode():
            return self.call(**self.inputs)

    def values(self, result: Any) -> np.ndarray:
        return real_tokens(result.last_hidden_state.float().numpy(), self.arrays["attention_mask"])


class AcceleratedEncoder(Encoder):
    """The same model accelerated in one line: padded inputs and outputs. "int8" quantises weights that stay fp32."""

    def __init__(self, folder: Path, *, dtype: str, threads: int, scratch: Path) -> None:
        import fastbert

        weight_dtype = "fp32" if dtype == "int8" else dtype
        super().__init__(folder, dtype=weight_dtype, attention="sdpa", threads=threads, scratch=scratch)
        self.model: Any = fastbert.accelerate(self.model, quantize="int8" if dtype == "int8" else None)
        self.call: Any = self.model


class CompiledEncoder(Encoder):
    """The same through `torch.compile` per shape, weights frozen and prepacked by inductor."""

    shape: tuple[int, ...] = ()

    def open(self, arrays: Arrays) -> dict[str, Any]:
        super().open(arrays)
        shape = tuple(self.inputs["input_ids"].shape)
        if shape == self.shape:
            return {"compile_seconds": 0.0}
        from torch._inductor import config

        config.freezing = True
        torch._dynamo.reset()
        self.call: Callable[..., Any] = torch.compile(self.model, dynamic=False)
        began = time.perf_counter()
        self.run()
        self.shape = shape
        return {"compile_seconds": round(time.perf_counter() - began, 1)}

    def run(self) -> Any:
        with torch.no_grad():  # inductor does not freeze tensors of inference mode
            return self.call(**self.inputs)

"""Where a trained model computes, and what it multiplies."""

from __future__ import annotations

import torch

from fastbert.errors import UserError
from fastbert.ops.backend import fastest_dtype


def choose_inference(device: str, dtype: str) -> tuple[str, torch.dtype, str]:
    """The device (auto, cpu or cuda), the weights' dtype (of auto, fp32, bf16 or int8), and what is multiplied in
    words. With int8 the model is still to be quantised (`model.quantize`)."""
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise UserError("--device cuda: torch sees no GPU here; use --device cpu")
    if device == "auto":
        device = "cuda" if has_gpu and dtype != "int8" else "cpu"
    if dtype == "int8":
        if device != "cpu":
            raise UserError("--dtype int8 is for CPUs; use --device cpu, or --dtype bf16")
        return device, torch.bfloat16, "int8"  # what lies between the products is then half as large
    if dtype == "auto":
        chosen, reason = fastest_dtype(torch.device(device))
        return device, chosen, f"{str(chosen).removeprefix('torch.')} ({reason})"
    return device, {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype], dtype

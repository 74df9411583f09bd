"""The device and dtype of inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from fastbert.errors import UserError
from fastbert.ops import gpu
from fastbert.ops.dispatch import fastest_dtype

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "fp32", "bf16", "int8"]
SHORT_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
LONG_NAMES = {name: dtype for dtype, name in SHORT_NAMES.items()}


@dataclass(frozen=True, kw_only=True)
class ScoringDtype:
    """The dtype in which a run scored its model, stored with the model so that its scores can be reproduced."""

    dtype: str
    """fp32, bf16 or fp16: of the weights and of matmuls."""
    device: str
    """cpu or cuda."""
    chosen: bool
    """True if the user chose the dtype, False if it was the fastest for inference on that device."""

    @classmethod
    def of_run(cls, device: torch.device, dtype: str) -> ScoringDtype:
        """Return the dtype in which a run with `--dtype` scores: that one, or for auto the choice of
        `choose_inference`."""
        chosen = dtype != "auto"
        name = dtype if chosen else SHORT_NAMES[fastest_dtype(device)[0]]
        return cls(dtype=name, device=device.type, chosen=chosen)

    @property
    def weights(self) -> torch.dtype:
        """The dtype in torch."""
        return LONG_NAMES[self.dtype]


def choose_inference(device: str, dtype: str, scored: ScoringDtype | None = None) -> tuple[str, torch.dtype, str]:
    """Return the device (auto, cpu or cuda), the weights' dtype (of auto, fp32, bf16 or int8), and both in words.

    With int8 the model is still to be quantised (`model.quantize`). `auto` is the dtype in which the model's run
    `scored` it, if the user chose that one and the device is of the same kind; else the fastest one. The words say
    where the run scored in a different dtype or on a different device.
    """
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise UserError(f"--device cuda: {gpu.problem()}; use --device cpu")
    if device == "auto":
        device = "cuda" if has_gpu and dtype != "int8" else "cpu"
    if dtype == "int8":
        if device != "cpu":
            raise UserError("--dtype int8 is for CPUs; use --device cpu, or --dtype bf16")
        weights, reason = torch.bfloat16, "int8"  # activations between the matmuls are then half as large
    elif dtype == "auto" and scored is not None and scored.chosen and scored.device == device:
        weights, reason = scored.weights, f"{scored.dtype} (the dtype of its run)"
    elif dtype == "auto":
        weights, why = fastest_dtype(torch.device(device))
        reason = f"{str(weights).removeprefix('torch.')} ({why})"
    else:
        weights, reason = LONG_NAMES[dtype], dtype
    if scored is not None and (dtype == "int8" or (scored.dtype, scored.device) != (SHORT_NAMES[weights], device)):
        reason += f"; its run scored it in {scored.dtype} on {scored.device}, so scores can differ"
    return device, weights, reason


def check_inference(device: object, dtype: object) -> tuple[str, str]:
    """Return a device and a dtype that a caller named: those of `Device`, also as torch's, or None for "auto", and
    those of `Dtype`.

    Raises UserError for others.
    """
    device = "auto" if device is None else str(device) if isinstance(device, torch.device) else device
    if device not in get_args(Device):
        cure = "; set CUDA_VISIBLE_DEVICES to select a GPU" if str(device).startswith("cuda") else ""
        raise UserError(f"device={str(device)!r} must be {_alternatives(Device)}{cure}")
    if dtype not in get_args(Dtype):
        raise UserError(f"dtype={str(dtype)!r} must be {_alternatives(Dtype)}")
    return str(device), str(dtype)


def _alternatives(names: object) -> str:
    *others, last = map(repr, get_args(names))
    return f"{', '.join(others)} or {last}"

"""Select the CPU capability, the instruction sets of CPU kernels: the processor's highest, or FASTBERT_CPU's."""

from __future__ import annotations

import os

from fastbert import _C
from fastbert.errors import UserError

CAPABILITIES = ("portable", "avx2", "avx512", "amx")
VARIABLE = "FASTBERT_CPU"

_applied = False


def apply() -> None:
    """Apply FASTBERT_CPU, once per process and before the first kernel. Raises UserError for an invalid value."""
    global _applied
    if _applied:
        return
    requested = os.environ.get(VARIABLE, "").strip().lower()
    if requested and requested not in CAPABILITIES:
        raise UserError(
            f"{VARIABLE}={requested} is not a CPU capability: choose one of {', '.join(CAPABILITIES)}, or unset it"
        )
    if requested and requested not in _C.cpu_capabilities():
        raise UserError(
            f"{VARIABLE}={requested}: not supported by this processor or operating system, which support"
            f" {', '.join(_C.cpu_capabilities())}. Unset {VARIABLE} to use {_C.cpu_capabilities()[-1]}"
        )
    if requested:
        _C.force_cpu_capability(requested)
    _applied = True


def current() -> str:
    """Return the CPU capability in use: portable, avx2, avx512 or amx."""
    apply()
    return _C.cpu_capability()


def reason() -> str:
    """Return why that capability is used, in words, for reports."""
    capability = current()
    if os.environ.get(VARIABLE, "").strip():
        return f"set by {VARIABLE}"
    features, extras = _C.cpu_capability_features(), []
    if capability == "avx512":
        extras = [name for name in ("avx512_bf16", "avx512_vnni") if features[name]]
    return "the highest of this processor" + (f", with {' and '.join(extras)}" if extras else "")

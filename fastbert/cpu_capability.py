"""Select the instruction sets of CPU kernels: the processor's highest level, or the one that FASTBERT_CPU names."""

from __future__ import annotations

import os

from fastbert import _C
from fastbert.errors import UserError

LEVELS = ("portable", "avx2", "avx512", "amx")
VARIABLE = "FASTBERT_CPU"

_applied = False


def apply() -> None:
    """Apply FASTBERT_CPU, once per process and before the first kernel. Raises UserError for an invalid value."""
    global _applied
    if _applied:
        return
    requested = os.environ.get(VARIABLE, "").strip().lower()
    if requested and requested not in LEVELS:
        raise UserError(f"{VARIABLE}={requested} is not a level: choose one of {', '.join(LEVELS)}, or unset it")
    if requested and requested not in _C.cpu_levels():
        raise UserError(
            f"{VARIABLE}={requested}: not supported by this processor or operating system, which support"
            f" {', '.join(_C.cpu_levels())}. Unset {VARIABLE} to use {_C.cpu_levels()[-1]}"
        )
    if requested:
        _C.force_cpu_level(requested)
    _applied = True


def level() -> str:
    """Return the level in use: portable, avx2, avx512 or amx."""
    apply()
    return _C.cpu_level()


def reason() -> str:
    """Return why that level is used, in words, for reports."""
    chosen = level()
    if os.environ.get(VARIABLE, "").strip():
        return f"set by {VARIABLE}"
    features, extras = _C.cpu_level_features(), []
    if chosen == "avx512":
        extras = [name for name in ("avx512_bf16", "avx512_vnni") if features[name]]
    return "the highest of this processor" + (f", with {' and '.join(extras)}" if extras else "")

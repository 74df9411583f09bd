"""The instruction sets that CPU kernels use: the highest level of the processor, or the one that FASTBERT_CPU names."""

from __future__ import annotations

import os

from fastbert import _C
from fastbert.errors import UserError

LEVELS = ("portable", "avx2", "avx512", "amx")
VARIABLE = "FASTBERT_CPU"

_applied = False


def apply() -> None:
    """Heed FASTBERT_CPU, once a process: called before the first kernel runs. Raises UserError for a wrong value."""
    global _applied
    if _applied:
        return
    wanted = os.environ.get(VARIABLE, "").strip().lower()
    if wanted and wanted not in LEVELS:
        raise UserError(f"{VARIABLE}={wanted} is no level: choose one of {', '.join(LEVELS)}, or unset it")
    if wanted and wanted not in _C.cpu_levels():
        raise UserError(
            f"{VARIABLE}={wanted}: this processor, or its system, does not have that; it can run"
            f" {', '.join(_C.cpu_levels())}. Unset {VARIABLE} to run {_C.cpu_levels()[-1]}"
        )
    if wanted:
        _C.force_cpu_level(wanted)
    _applied = True


def level() -> str:
    """The level in force: portable, avx2, avx512 or amx."""
    apply()
    return _C.cpu_level()


def reason() -> str:
    """Why that level, in words, for reports."""
    chosen = level()
    if os.environ.get(VARIABLE, "").strip():
        return f"{VARIABLE} asks for it"
    features, extras = _C.cpu_level_features(), []
    if chosen == "avx512":
        extras = [name for name in ("avx512_bf16", "avx512_vnni") if features[name]]
    return "the highest that this processor has" + (f", with {' and '.join(extras)}" if extras else "")

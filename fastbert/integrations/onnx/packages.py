"""The optional packages that ONNX files need, checked before anything is loaded."""

from __future__ import annotations

from importlib.util import find_spec

from fastbert.errors import UserError

PACKAGES = ("onnx", "onnxruntime")


def check_packages() -> None:
    """Raise `UserError` for a package that is not installed; none is imported."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(f"--to onnx needs {' and '.join(missing)}: `pip install 'fastbert-engine[onnx]'`")

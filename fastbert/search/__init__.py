"""Search of texts by their vectors: index folders, exact scans, and FAISS' format for many millions."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastbert.search.exact import top_k
    from fastbert.search.index import Hit, Index

__all__ = ["Hit", "Index", "top_k"]
_MODULES = {"Hit": "index", "Index": "index", "top_k": "exact"}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: the command line reads this package before torch is imported."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"fastbert.search.{_MODULES[name]}"), name)

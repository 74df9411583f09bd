"""Language models scored without fine-tuning: log-probabilities of texts, minimal pairs, held-out losses, n-grams."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastbert.scoring.scorer import Scores, score

__all__ = ["Scores", "score"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: readers of files in this package need no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fastbert.scoring import scorer

    return getattr(scorer, name)

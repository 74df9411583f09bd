"""The base classes of scikit-learn's estimators, with types whether or not scikit-learn is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from fastbert.errors import UserError, require_package

MISSING = "fastbert.TextClassifier and fastbert.TextEmbedder need scikit-learn: `pip install scikit-learn`"

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import ArrayLike, NDArray

    class BaseEstimator:
        """Parameters by name: those of `__init__`."""

        def get_params(self, deep: bool = True) -> dict[str, Any]: ...
        def set_params(self, **params: Any) -> Self: ...
        def __getstate__(self) -> dict[str, Any]: ...
        def __setstate__(self, state: dict[str, Any]) -> None: ...
        def __sklearn_tags__(self) -> Any: ...

    class TransformerMixin:
        """What transformers have beside `fit` and `transform`."""

        def fit_transform(self, X: Any, y: ArrayLike | None = None, **fit_params: Any) -> Any: ...
        def set_output(self, *, transform: Literal["default", "pandas", "polars"] | None = None) -> Self: ...
        def __sklearn_tags__(self) -> Any: ...

    class ClassifierMixin:
        """What classifiers have beside `fit` and `predict`."""

        def score(self, X: Any, y: ArrayLike, sample_weight: NDArray[Any] | None = None) -> float: ...
        def __sklearn_tags__(self) -> Any: ...

else:
    try:
        from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
    except ImportError:

        class BaseEstimator:
            """Refuses to make an estimator without scikit-learn: the classes still exist, for `from fastbert import *`
            and for documentation."""

            def __new__(cls, *args: Any, **options: Any) -> BaseEstimator:
                raise UserError(MISSING)

        class TransformerMixin:
            """Stands for scikit-learn's."""

        class ClassifierMixin:
            """Stands for scikit-learn's."""


__all__ = ["BaseEstimator", "ClassifierMixin", "TransformerMixin", "library"]


def library(module: str) -> Any:
    """Import a module of scikit-learn. Raises UserError, with the command that installs it, if it is missing."""
    return require_package(module, MISSING)


def mark_text_input(tags: Any) -> Any:
    """Return an estimator's tags, of one that takes texts: one dimension, of strings."""
    tags.input_tags.string = True
    tags.input_tags.one_d_array = True
    tags.input_tags.two_d_array = False
    return tags

"""`fastbert.TextEmbedder`: texts to vectors, as a transformer of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastbert.embeddings.embedder import Embedder, Texts
from fastbert.errors import UserError
from fastbert.integrations.sklearn.bases import BaseEstimator, TransformerMixin, mark_text_input
from fastbert.io.columns import texts_of
from fastbert.search.fingerprint import model_fingerprint
from fastbert.tasks.inference import Device, Dtype


class TextEmbedder(TransformerMixin, BaseEstimator):
    """Turn texts into the vectors of a model, as a transformer of scikit-learn for pipelines and searches.

    It learns nothing from the texts, so `fit` only loads the model, and `transform` works without it. Pickles and
    copies hold the model's folder by its name, and a fingerprint of its files: they refuse a folder that has changed.

    Example:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        import fastbert

        pipeline = make_pipeline(fastbert.TextEmbedder("runs/mine/model"), LogisticRegression())
        pipeline.fit(["a short one.", "one", "short", "a"], [1, 0, 1, 0])
        print(pipeline.predict(["one short"]))
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: Device | None = "auto",
        dtype: Dtype = "auto",
        max_length: int | None = None,
        truncate_dim: int | None = None,
        prompt_name: str | None = None,
        normalize_embeddings: bool = False,
        batch_tokens: int | None = None,
        show_progress_bar: bool | None = False,
    ) -> None:
        """Keep the options; `fit` and `transform` check them.

        Args:
            model: the folder of an embedder or of any Hugging Face encoder, or its name in the Hub's local cache.
            device: "auto" (a GPU if there is one), "cpu" or "cuda".
            dtype: "auto" is the faster of fp32 and bf16 on the device; "int8", on CPUs, is faster still and less exact.
            max_length: tokens per text, special ones included; None is the folder's.
            truncate_dim: keep the first dimensions only, of models trained for it (Matryoshka).
            prompt_name: the folder's prompt that precedes each text; None is its default prompt.
            normalize_embeddings: scale each vector to unit length, even if the folder's settings do not.
            batch_tokens: tokens per batch; None is 4,096, on a GPU 65,536.
            show_progress_bar: True shows a bar, None one on a terminal if the texts take more than two seconds.
        """
        self.model: str | Path = model
        self.device: Device | None = device
        self.dtype: Dtype = dtype
        self.max_length: int | None = max_length
        self.truncate_dim: int | None = truncate_dim
        self.prompt_name: str | None = prompt_name
        self.normalize_embeddings: bool = normalize_embeddings
        self.batch_tokens: int | None = batch_tokens
        self.show_progress_bar: bool | None = show_progress_bar

    def fit(self, X: Texts, y: ArrayLike | None = None) -> Self:
        """Load the model, and check the texts X (texts,), a list, an array or a column; `y`, labels of any shape and
        dtype, is ignored. Return the estimator.

        Raises UserError for options and folders that `Embedder` refuses, and for texts that `transform` refuses.

        Example:
            import fastbert

            embedder = fastbert.TextEmbedder("runs/mine/model").fit(["a short one."])
        """
        _texts(X)
        self._fingerprint = None
        self._load()
        return self

    def transform(self, X: Texts) -> NDArray[np.float32]:
        """Return the vectors of texts X (texts,), a list, a generator, an array or a column: fp32 (texts,
        dimensions), or a frame if `set_output` says so.

        Raises UserError for a single text instead of several, and for an item that is missing or not a text, by its
        index; and as `fit` does where it was not called before.

        Example:
            import fastbert

            embedder = fastbert.TextEmbedder("runs/mine/model").set_output(transform="default")
            print(embedder.fit_transform(["a short one.", "one"]).shape)
        """
        return self._load().encode(
            _texts(X),
            prompt_name=self.prompt_name,
            normalize_embeddings=self.normalize_embeddings,
            batch_tokens=self.batch_tokens,
            show_progress_bar=self.show_progress_bar,
        )

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[np.object_]:
        """Return the names of the columns that `transform` returns, object (dimensions,): "textembedder0" and so on.

        `input_features`, names of any shape and dtype, is ignored. Raises UserError where `fit` does.

        Example:
            import fastbert

            print(fastbert.TextEmbedder("runs/mine/model").get_feature_names_out()[:2])
        """
        count = self._load().get_embedding_dimension()
        return np.array([f"{type(self).__name__.lower()}{index}" for index in range(count)], dtype=object)

    def _load(self) -> Embedder:
        """Return the model, loaded with the present options."""
        options = {
            "device": self.device,
            "dtype": self.dtype,
            "max_length": self.max_length,
            "truncate_dim": self.truncate_dim,
        }
        loaded: tuple[dict[str, Any], Embedder] | None = getattr(self, "_loaded", None)
        if loaded is not None and loaded[0] == {"model": self.model, **options}:
            return loaded[1]
        expected = getattr(self, "_fingerprint", None)
        if expected is not None and model_fingerprint(self.model) != expected:
            raise UserError(
                f"{self.model}: holds a different model than when this TextEmbedder was pickled: restore the folder, or"
                " fit again"
            )
        embedder = Embedder(self.model, **options)  # type: ignore[arg-type]
        self._loaded = ({"model": self.model, **options}, embedder)
        return embedder

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if state.pop("_loaded", None) is not None:
            state["_fingerprint"] = model_fingerprint(self.model)
        return state

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = mark_text_input(super().__sklearn_tags__())
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = []
        return tags


def _texts(texts: Texts) -> Iterable[str]:
    if isinstance(texts, str):
        raise UserError("X is a single text: give a list of texts, [text] for example")
    return texts_of(texts, "X")

"""`fastbert.Embedder`: a model of a folder that turns texts into vectors, called as sentence-transformers' model is.

One file: the methods of one class, and half of it are their options in words and their examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, Unpack, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fastbert.checkpoints.pipeline_files import ROLE_PROMPTS, role_prompt
from fastbert.checkpoints.source import find_source
from fastbert.embeddings.embed import embed, token_limit, width_of
from fastbert.embeddings.folder import load_embedder, refuse_other_models
from fastbert.embeddings.foreign_arguments import (
    EncodeArguments,
    EncodeOptions,
    LoadArguments,
    refuse_foreign,
    texts_by_name,
)
from fastbert.embeddings.pooling import normalized
from fastbert.embeddings.settings import SIMILARITIES, EmbedSettings, find_prompt
from fastbert.embeddings.vector_similarity import as_rows, pairwise_score, score
from fastbert.errors import UserError, require_whole
from fastbert.io.columns import Series, texts_of
from fastbert.io.job_progress import job_progress
from fastbert.io.plain_numbers import plain_number
from fastbert.losses.checks import require_choice
from fastbert.models.encoder import EncoderModel
from fastbert.tasks.inference import Device, Dtype, check_inference, choose_inference
from fastbert.tasks.rows import tokens_per_batch
from fastbert.tokenizers.tokenizer import Tokenizer

Texts: TypeAlias = str | Iterable[str] | NDArray[Any] | Series
"""A text, or texts: a list, a generator, a NumPy array, or a column of pandas, polars or Arrow."""
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]


class Embedder:
    """A model that turns texts into vectors.

    It stands where `SentenceTransformer` of sentence-transformers stands: `encode`, `encode_query`, `encode_document`
    and `similarity` take its options and return its vectors. Attributes: `model`, in eval mode; `tokenizer`;
    `settings`, pooling and prompts of the folder; `truncate_dim`; `how`, device and dtype in words.

    Raises UserError for wrong options, for a folder that holds no embedder, a classifier for example, and for
    unsupported modules, by name; and CheckpointError for damaged files.

    Example:
        import fastbert

        embedder = fastbert.Embedder("runs/mine/model")
        vectors = embedder.encode(["a short one.", "one"])
        print(vectors.shape, embedder.similarity(vectors, vectors))
    """

    def __init__(
        self,
        source: str | Path,
        *,
        device: Device | None = "auto",
        dtype: Dtype = "auto",
        max_length: int | None = None,
        truncate_dim: int | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: Similarity | None = None,
        **unused: Unpack[LoadArguments],
    ) -> None:
        """Load a folder of sentence-transformers, a plain Hugging Face folder (whose vectors are the mean of all
        tokens), the folder of a run, or any of these by its name in the Hub's local cache.

        Args:
            source: the folder or the name.
            device: "auto" (a GPU if there is one), "cpu" or "cuda".
            dtype: "auto" is the faster of fp32 and bf16 on the device; "int8", on CPUs, is faster still and less exact.
            max_length: tokens per text, special ones included; None is the folder's, else as many as tokenizer and
                model allow. Longer texts are truncated.
            truncate_dim: keep the first dimensions only, of models trained for it (Matryoshka).
            prompts: texts by name that precede the texts to encode, added to the folder's.
            default_prompt_name: the prompt of `encode` if none is named.
            similarity_fn_name: the score of `similarity`; None is the folder's, else cosine.
            **unused: other arguments of sentence-transformers, with their default values.

        Example:
            import fastbert

            embedder = fastbert.Embedder("runs/mine/model", device="cpu", dtype="fp32", max_length=64)
        """
        refuse_foreign("Embedder", unused)
        place, kind = check_inference(device, dtype)
        max_length = plain_number(max_length)
        require_whole("max_length", max_length, 3, optional=True)
        refuse_other_models(find_source(source))
        place, weights, words = choose_inference(place, kind)
        model, tokenizer, settings = load_embedder(source, dtype=weights)
        if prompts is not None and not isinstance(prompts, Mapping):
            raise UserError(f"prompts={prompts!r} must be a dictionary of texts by name")
        if similarity_fn_name is not None:
            require_choice("similarity_fn_name", similarity_fn_name, SIMILARITIES)
        prompts = {**settings.prompts, **(prompts or {})}
        find_prompt(prompts, default_prompt_name, "default_prompt_name")
        self.settings: EmbedSettings = replace(
            settings,
            max_length=settings.max_length if max_length is None else max_length,
            prompts=prompts,
            default_prompt=settings.default_prompt if default_prompt_name is None else default_prompt_name,
            similarity=settings.similarity if similarity_fn_name is None else similarity_fn_name,
        )
        model.embed_settings = self.settings
        token_limit(model, tokenizer, max_length, None)
        if kind == "int8":
            model.quantize("int8")
        self.model: EncoderModel = model.to(place)
        self.tokenizer: Tokenizer = tokenizer
        self.how: str = f"{words} on {place}"
        self.truncate_dim: int | None = self._dimensions(truncate_dim)

    def __repr__(self) -> str:
        dimensions, tokens = self.get_embedding_dimension(), self.max_seq_length
        return f"Embedder({dimensions} dimensions, {tokens} tokens per text, {self.how})"

    @property
    def device(self) -> torch.device:
        """The device of the model.

        Example:
            import fastbert

            print(fastbert.Embedder("runs/mine/model").device)
        """
        return self.model.device

    @property
    def max_seq_length(self) -> int:
        """The tokens per text, special ones included; longer texts are truncated. Raises UserError where `encode` does,
        and for a number that model and tokenizer do not allow; None stands for the largest that they do.

        Example:
            import fastbert

            embedder = fastbert.Embedder("runs/mine/model")
            embedder.max_seq_length = 64
            print(embedder.max_seq_length)
        """
        return token_limit(self.model, self.tokenizer, None, self.settings.max_length)

    @max_seq_length.setter
    def max_seq_length(self, tokens: int | None) -> None:
        tokens = plain_number(tokens)
        require_whole("max_seq_length", tokens, 3, optional=True)
        token_limit(self.model, self.tokenizer, tokens, None, "max_seq_length")
        self.settings = replace(self.settings, max_length=tokens)
        self.model.embed_settings = self.settings

    @property
    def prompts(self) -> Mapping[str, str]:
        """The prompts by name: the folder's, and those that were given.

        Example:
            import fastbert

            print(fastbert.Embedder("runs/mine/model", prompts={"query": "one: "}).prompts)
        """
        return self.settings.prompts

    @property
    def similarity_fn_name(self) -> str:
        """The score of `similarity`: cosine, dot, or the negative distances euclidean and manhattan.

        Example:
            import fastbert

            print(fastbert.Embedder("runs/mine/model").similarity_fn_name)
        """
        return self.settings.similarity or "cosine"

    def get_embedding_dimension(self) -> int:
        """Return the dimensions of the vectors that `encode` returns.

        Example:
            import fastbert

            print(fastbert.Embedder("runs/mine/model").get_embedding_dimension())
        """
        return self.truncate_dim or width_of(self.model)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the dimensions of the vectors that `encode` returns, under the name that sentence-transformers had
        before its release 6.

        Example:
            import fastbert

            print(fastbert.Embedder("runs/mine/model").get_sentence_embedding_dimension())
        """
        return self.get_embedding_dimension()

    @overload
    def encode(
        self, texts: Texts | None = None, *, convert_to_tensor: Literal[False] = False, **options: Unpack[EncodeOptions]
    ) -> NDArray[np.float32]: ...

    @overload
    def encode(
        self, texts: Texts | None = None, *, convert_to_tensor: Literal[True], **options: Unpack[EncodeOptions]
    ) -> Tensor: ...

    def encode(
        self,
        texts: Texts | None = None,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        show_progress_bar: bool | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        long: Literal["truncate", "windows", "error"] = "truncate",
        **unused: Unpack[EncodeArguments],
    ) -> NDArray[np.float32] | Tensor:
        """Return the vectors of texts, fp32 (texts, dimensions) in their order; of a single text (dimensions,).

        Texts are sorted by length and packed, so that no padding is computed; a generator is read in chunks. On CPUs a
        text's vector has the same bits in every batch. Truncated texts are counted in a warning.

        Args:
            texts: a text, or texts as a list, a generator, a NumPy array of strings, or a column of pandas, polars or
                Arrow. Vectors are returned as an array whatever the kind.
            prompt_name: the prompt, by its name, that precedes each text; by default the folder's default prompt.
                "query" and "document" are no text where the model has no prompt of that name.
            prompt: the prompt itself; "" is none.
            batch_size: texts per batch at most, if all have as many tokens as the model takes. Batches are made by
                tokens, so that it lowers the memory that is used, and never raises it; vectors do not depend on it.
            batch_tokens: tokens per batch; None is 4,096, on a GPU 65,536.
            show_progress_bar: True shows a bar, None one on a terminal if the texts take more than two seconds.
            convert_to_numpy: an array is returned; kept for calls that say so.
            convert_to_tensor: return a tensor on the model's device instead.
            normalize_embeddings: scale each vector to unit length, even if the folder's settings do not.
            truncate_dim: keep the first dimensions only; None is that of the model.
            long: longer texts than `max_seq_length` are truncated, averaged over overlapping "windows", or refused
                ("error").
            **unused: other arguments of sentence-transformers, with their default values; and `inputs` or `sentences`,
                its names of the texts.

        Raises UserError for wrong options, and for an item that is missing or not a text, by its index.

        Example:
            import fastbert

            embedder = fastbert.Embedder("runs/mine/model")
            print(embedder.encode("a short one.").shape)
            print(embedder.encode(["a short one.", "one"], normalize_embeddings=True).shape)
        """
        texts = texts_by_name(texts, unused)
        if str(unused.get("device")) in (str(self.device), self.device.type):  # where it is
            unused["device"] = None
        refuse_foreign("Embedder.encode", unused)
        if not convert_to_numpy and not convert_to_tensor:
            raise UserError("convert_to_numpy=False: use convert_to_tensor=True, a tensor with one row per text")
        dimensions = self._dimensions(truncate_dim)
        is_one = isinstance(texts, str)
        items = texts_of([texts] if is_one else texts)
        truncates = dimensions is not None and dimensions < width_of(self.model)
        total = len(items) if isinstance(items, Sized) else None
        with job_progress("embedding", total, show_progress_bar) as progress:
            vectors = embed(
                self.model,
                items,
                self.tokenizer,
                progress=progress,
                prompt_text=self._prompt(prompt_name, prompt),
                normalize=True if normalize_embeddings and not truncates else None,
                batch_tokens=self._batch_tokens(batch_size, batch_tokens),
                long=long,
            )
        if truncates:
            vectors = vectors[:, :dimensions].contiguous()
            vectors = normalized(vectors) if normalize_embeddings else vectors
        vectors = vectors[0] if is_one else vectors
        return vectors.to(self.device) if convert_to_tensor else vectors.numpy()

    @overload
    def encode_query(
        self, texts: Texts | None = None, *, convert_to_tensor: Literal[False] = False, **options: Unpack[EncodeOptions]
    ) -> NDArray[np.float32]: ...

    @overload
    def encode_query(
        self, texts: Texts | None = None, *, convert_to_tensor: Literal[True], **options: Unpack[EncodeOptions]
    ) -> Tensor: ...

    def encode_query(
        self, texts: Texts | None = None, *, convert_to_tensor: bool = False, **options: Unpack[EncodeOptions]
    ) -> NDArray[np.float32] | Tensor:
        """Return the vectors of queries, fp32 (texts, dimensions): those of `encode`, whose options it has, with the
        prompt "query" if the model has one, and without a default prompt.

        Raises UserError as `encode` does.

        Example:
            import fastbert

            embedder = fastbert.Embedder("runs/mine/model", prompts={"query": "one: "})
            print(embedder.encode_query("a short one.").shape)
        """
        chosen = self._of_role("query", options)
        if convert_to_tensor:
            return self.encode(texts, convert_to_tensor=True, **chosen)
        return self.encode(texts, **chosen)

    @overload
    def encode_document(
        self, texts: Texts | None = None, *, convert_to_tensor: Literal[False] = False, **options: Unpack[EncodeOptions]
    ) -> NDArray[np.float32]: ...

    @overload
    def encode_document(
        self, texts: Texts | None = None, *, convert_to_tensor: Literal[True], **options: Unpack[EncodeOptions]
    ) -> Tensor: ...

    def encode_document(
        self, texts: Texts | None = None, *, convert_to_tensor: bool = False, **options: Unpack[EncodeOptions]
    ) -> NDArray[np.float32] | Tensor:
        """Return the vectors of documents, fp32 (texts, dimensions): those of `encode`, whose options it has, with
        the prompt "document", "passage" or "corpus", the first that the model has, and without a default prompt.

        Raises UserError as `encode` does.

        Example:
            import fastbert

            embedder = fastbert.Embedder("runs/mine/model")
            queries, documents = embedder.encode_query(["one"]), embedder.encode_document(["a short one.", "a"])
            print(embedder.similarity(queries, documents))
        """
        chosen = self._of_role("document", options)
        if convert_to_tensor:
            return self.encode(texts, convert_to_tensor=True, **chosen)
        return self.encode(texts, **chosen)

    def similarity(self, embeddings1: ArrayLike | Tensor, embeddings2: ArrayLike | Tensor) -> Tensor:
        """Return the similarity of each vector of `embeddings1` (n, dimensions) with each of `embeddings2` (m,
        dimensions), by `similarity_fn_name`: fp32 (n, m) on the device of the first.

        Single vectors (dimensions,) count as one row; any floating dtype is taken. Distances are negated: higher is
        always more similar. Raises UserError for other shapes.

        Example:
            import fastbert

            embedder = fastbert.Embedder("runs/mine/model")
            vectors = embedder.encode(["a short one.", "one"])
            print(embedder.similarity(vectors, vectors))
        """
        return score(*as_rows(embeddings1, embeddings2), self.similarity_fn_name)

    def similarity_pairwise(self, embeddings1: ArrayLike | Tensor, embeddings2: ArrayLike | Tensor) -> Tensor:
        """Return the similarity of each vector of `embeddings1` (n, dimensions) with the one of `embeddings2` (n,
        dimensions) in the same row, fp32 (n,); see `similarity`. Raises UserError for other shapes.

        Example:
            import fastbert

            embedder = fastbert.Embedder("runs/mine/model")
            vectors = embedder.encode(["a short one.", "one"])
            print(embedder.similarity_pairwise(vectors, vectors[::-1]))
        """
        return pairwise_score(*as_rows(embeddings1, embeddings2), self.similarity_fn_name)

    def _of_role(self, role: str, options: EncodeOptions) -> EncodeOptions:
        """Return options with the prompt of a role, unless they have one."""
        if options.get("prompt_name") is not None or options.get("prompt") is not None:
            return options
        return {**options, "prompt": find_prompt(self.prompts, role_prompt(role, self.prompts), "prompt_name")}

    def _prompt(self, name: str | None, text: str | None) -> str:
        """Return the text that precedes each text."""
        if name is not None and text is not None:
            raise UserError(f"prompt_name={name!r} and prompt={text!r} exclude each other; leave one out")
        if text is not None:
            if not isinstance(text, str):
                raise UserError(f"prompt={text!r} must be a string; prompt_name names one of the model's")
            return text
        if name in ROLE_PROMPTS and name not in self.prompts:
            return ""
        return find_prompt(self.prompts, self.settings.default_prompt if name is None else name, "prompt_name")

    def _dimensions(self, truncate_dim: int | None) -> int | None:
        """Return the dimensions to keep, None for all."""
        truncate_dim = plain_number(truncate_dim)
        require_whole("truncate_dim", truncate_dim, 1, optional=True)
        if truncate_dim is None:
            return getattr(self, "truncate_dim", None)
        width = width_of(self.model)
        if truncate_dim > width:
            raise UserError(f"truncate_dim={truncate_dim} is more than the {width} dimensions of the model; lower it")
        return truncate_dim

    def _batch_tokens(self, batch_size: int | None, batch_tokens: int | None) -> int:
        """Return the tokens per batch."""
        batch_size = plain_number(batch_size)
        require_whole("batch_size", batch_size, 1, optional=True)
        tokens = tokens_per_batch(self.device.type, plain_number(batch_tokens))
        return tokens if batch_size is None else min(tokens, batch_size * self.max_seq_length)

"""The contenders of the benchmarks: a small adapter module for each, found by kind and name, imported when it is used.

A kind is what is compared ("tokenizer"); all adapters of a kind have the same methods, which its protocol here lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from fastbert.errors import UserError

Arrays = Mapping[str, np.ndarray]


class Entry(NamedTuple):
    """Where an adapter is, the modules that must be importable for it, the distributions whose versions matter, and
    what makes this contender of it: arguments of its constructor."""

    module: str
    attribute: str
    needs: tuple[str, ...]
    distributions: tuple[str, ...]
    options: Mapping[str, Any] = MappingProxyType({})


class TokenizerPeer(Protocol):
    """A tokenizer that was loaded from a vocab.txt, and uses exactly so many threads.

    Args of the constructor: the file; whether to lower-case (and strip accents); the number of threads.
    """

    dtype: str
    """What ids come in: an array's dtype, or "list"."""

    def __init__(self, vocab: Path, *, lower_case: bool, threads: int) -> None: ...

    def encode(self, texts: Sequence[str]) -> Any:
        """The ids of the texts, with [CLS] and [SEP], in the form that is fastest for this tokenizer."""

    def rows(self, encoded: Any) -> tuple[np.ndarray, np.ndarray]:
        """What `encode` returned as flat ids and row offsets, to be compared (not timed)."""

    def encode_padded(self, texts: Sequence[str], length: int) -> Arrays | None:
        """`input_ids`, `token_type_ids`, `attention_mask`: int64 (texts, length); None if it makes no such arrays."""

    def forget(self) -> None:
        """Empty the caches that another tokenizer object of this process could profit from."""


class EncoderPeer(Protocol):
    """A BERT encoder on the CPU, or a matrix product, with exactly so many threads.

    Args of the constructor: the model's Hugging Face folder (products: None); the dtype, "fp32", "bf16" or "int8"; the
    number of threads; a folder for files of its own. What cannot be had on this machine raises an exception whose
    message says why: the contender is then listed as not measured.
    """

    def __init__(self, folder: Path | None, *, dtype: str, threads: int, scratch: Path) -> None: ...

    def open(self, arrays: Arrays) -> dict[str, Any]:
        """Prepare for one workload, untimed; what is returned stands in the row's details.

        Of a model `arrays` are `input_ids` int64 (tokens,), `lengths` int64 (sequences,) and `padded_to`, an int64 of
        no dimension; of a product x (M, K), weight (layers, N, K) and bias (N,), fp32.
        """

    def run(self) -> Any:
        """What is timed: the model's hidden states and pooled output, or the product, as this library gives them."""

    def values(self, result: Any) -> np.ndarray:
        """The last hidden states in what `run` returned, real tokens only: fp32 (tokens, width); not timed."""


class TrainingPeer(Protocol):
    """A model in training on the CPU with its optimiser, with exactly so many threads.

    Args of the constructor: the Hugging Face folder of a pre-training or sequence classification model, whose
    config.json names the architecture; "fp32" or "bf16" (autocast, weights in fp32); the number of threads; a folder
    for files of its own. `fastbert.benchmarks.peers.training` holds what all of them share.
    """

    model: Any
    """The module in training mode, its weights as loaded until the first step."""
    optimizer: Any
    """A `torch.optim.Optimizer`."""
    batches: Sequence[Any]
    """The workload's batches as this contender takes them."""
    classifies: bool
    """Whether sequences are classified, else pre-training."""

    def __init__(self, folder: Path, *, dtype: str, threads: int, scratch: Path) -> None: ...

    def open(self, arrays: Arrays) -> dict[str, Any]:
        """Take the batches of one workload (`fastbert.benchmarks.training.workloads`); details for the row."""

    def phases(self) -> dict[str, Callable[[], Any]]:
        """One optimiser step on the next batch as functions to call in this order."""

    def values(self) -> np.ndarray:
        """Loss, gradient norm and samples of the gradient on the first batch without dropout, fp64 (count,)."""


class EmbedderPeer(Protocol):
    """A model that gives a vector for each text, on the CPU with exactly so many threads.

    Args of the constructor: a sentence-transformers folder; what it computes in, "fp32", "bf16" or "int8"; the number
    of threads; a folder for files of its own. `texts_of` reads what `open` is given.
    """

    def __init__(self, folder: Path, *, dtype: str, threads: int, scratch: Path) -> None: ...

    def open(self, arrays: Arrays) -> dict[str, Any]:
        """Take the texts, untimed; what is returned stands in the row's details."""

    def run(self) -> Any:
        """What is timed: from the list of texts to their vectors."""

    def values(self, result: Any) -> np.ndarray:
        """The vectors as fp32 (texts, width); not timed."""


FASTBERT = (("fastbert",), ("fastbert-engine",))
ENCODERS = ("torch", "transformers")
SENTENCES = ("sentence-transformers", *ENCODERS)
EXPORTED = ("onnx", "onnxruntime", *ENCODERS)

REGISTRY: dict[str, dict[str, Entry]] = {
    "tokenizer": {
        "fastbert": Entry("fastbert_tokenizer", "Tokenizer", *FASTBERT),
        "nanotoken": Entry("nanotoken", "Tokenizer", ("nanotoken",), ("nanotoken",)),
        "flash_tokenizer": Entry("flash_tokenizer", "Tokenizer", ("flash_tokenizer",), ("flash-tokenizer",)),
        "huggingface": Entry(
            "huggingface_tokenizer", "Tokenizer", ("tokenizers", "transformers"), ("tokenizers", "transformers")
        ),
    },
    "encoder": {
        **{
            f"fastbert {dtype}": Entry(
                "fastbert_encoder", "Encoder", ("fastbert",), ("fastbert-engine",), {"dtype": dtype}
            )
            for dtype in ("fp32", "bf16", "int8")
        },
        **{
            f"accelerated {dtype}": Entry(
                "transformers_encoder",
                "AcceleratedEncoder",
                ("fastbert", *ENCODERS),
                ("fastbert-engine", *ENCODERS),
                {"dtype": dtype},
            )
            for dtype in ("fp32", "bf16", "int8")
        },
        **{
            f"transformers {attention} {dtype}": Entry(
                "transformers_encoder", "Encoder", ENCODERS, ENCODERS, {"dtype": dtype, "attention": attention}
            )
            for attention, dtype in (("eager", "fp32"), ("sdpa", "fp32"), ("sdpa", "bf16"))
        },
        **{
            f"torch.compile {dtype}": Entry(
                "transformers_encoder", "CompiledEncoder", ENCODERS, ENCODERS, {"dtype": dtype, "attention": "sdpa"}
            )
            for dtype in ("fp32", "bf16")
        },
        **{
            f"openvino {dtype}": Entry(
                "openvino_encoder", "Encoder", ("openvino", *ENCODERS), ("openvino", *ENCODERS), {"dtype": dtype}
            )
            for dtype in ("fp32", "bf16")
        },
        **{
            f"onnxruntime {dtype}": Entry("onnxruntime_encoder", "Encoder", EXPORTED, EXPORTED, {"dtype": dtype})
            for dtype in ("fp32", "int8")
        },
    },
    "training": {
        **{
            f"fastbert {dtype}": Entry(
                "fastbert_training", "Step", ("fastbert",), ("fastbert-engine",), {"dtype": dtype}
            )
            for dtype in ("bf16", "fp32")
        },
        **{
            f"{name} {dtype}": Entry("transformers_training", attribute, ENCODERS, ENCODERS, {"dtype": dtype})
            for name, attribute in (("transformers", "Step"), ("torch.compile", "CompiledStep"))
            for dtype in ("bf16", "fp32")
        },
    },
    "embed": {
        **{
            f"fastbert {dtype}": Entry("fastbert_embedder", "Embedder", *FASTBERT, {"dtype": dtype})
            for dtype in ("fp32", "bf16", "int8")
        },
        **{
            f"sentence-transformers {dtype} by {batch}": Entry(
                "sentence_transformers_embedder",
                "Embedder",
                ("sentence_transformers",),
                SENTENCES,
                {"dtype": dtype, "batch": batch},
            )
            for dtype, batch in (("fp32", 32), ("fp32", 64), ("fp32", 128), ("bf16", 32))
        },
        **{
            f"{module} {dtype} by 32": Entry(
                "sentence_transformers_embedder",
                attribute,
                (*needs, "sentence_transformers"),
                (*needs, *SENTENCES),
                {"dtype": dtype, "batch": 32},
            )
            for module, attribute, needs, dtypes in (
                ("onnxruntime", "OnnxRuntime", ("onnx", "onnxruntime"), ("fp32", "int8")),
                ("openvino", "OpenVino", ("openvino",), ("fp32", "bf16")),
            )
            for dtype in dtypes
        },
    },
    "matmul": {
        f"{name} {dtype}": Entry("matmul", attribute, ("torch",), ("torch",), {"dtype": dtype})
        for name, attribute, dtypes in (
            ("fastbert", "Own", ("fp32", "bf16")),
            ("torch", "Plain", ("fp32", "bf16")),
            ("torch, oneDNN prepacked", "Prepacked", ("fp32", "bf16")),
            ("torch, MKL prepacked", "PrepackedMkl", ("fp32",)),
        )
        for dtype in dtypes
    },
}


def names(kind: str) -> list[str]:
    """The contenders of a kind, ours first."""
    return list(_entries(kind))


def missing(kind: str, name: str) -> str | None:
    """The module that a contender lacks here, or None if it can be loaded."""
    return next((module for module in _entry(kind, name).needs if find_spec(module) is None), None)


def load(kind: str, name: str) -> Any:
    """A contender's adapter class."""
    entry = _entry(kind, name)
    return getattr(import_module(f"{__name__}.{entry.module}"), entry.attribute)


def options(kind: str, name: str) -> dict[str, Any]:
    """Arguments that a contender's constructor takes besides those of its kind."""
    return dict(_entry(kind, name).options)


def distributions(kind: str) -> tuple[str, ...]:
    """The distributions whose versions belong to a measurement of this kind."""
    found = [name for entry in _entries(kind).values() for name in entry.distributions]
    return tuple(dict.fromkeys([*found, "numpy", "torch"]))


def texts_of(arrays: Arrays) -> list[str]:
    """The texts of an embedding workload: lines of UTF-8 in the array `texts`, uint8."""
    return arrays["texts"].tobytes().decode().split("\n")


def thread_environment(threads: int) -> dict[str, str]:
    """Environment variables that make every library's pool this large; they count before it is first used."""
    pools = ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {
        **dict.fromkeys(pools, str(threads)),
        "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
    }


def _entries(kind: str) -> dict[str, Entry]:
    if kind not in REGISTRY:
        raise UserError(f"unknown kind of contender {kind!r}; there are {', '.join(REGISTRY)}")
    return REGISTRY[kind]


def _entry(kind: str, name: str) -> Entry:
    entries = _entries(kind)
    if name not in entries:
        raise UserError(f"unknown {kind} {name!r}; there are {', '.join(entries)}")
    return entries[name]

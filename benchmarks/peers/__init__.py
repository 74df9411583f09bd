"""The contenders of the benchmarks: one small adapter module each, found by kind and name, imported on use.

A kind is what is compared ("tokenizer"); all adapters of a kind have the methods of its protocol, which is defined
here.
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
    """The module and class of an adapter, the modules it needs, the distributions whose versions are recorded, and the
    arguments of its constructor that define this contender."""

    module: str
    attribute: str
    needs: tuple[str, ...]
    distributions: tuple[str, ...]
    options: Mapping[str, Any] = MappingProxyType({})


class TokenizerPeer(Protocol):
    """A tokenizer loaded from a vocab.txt, with an exact number of threads.

    Args of the constructor: the file; whether to lower-case (and strip accents); the number of threads.
    """

    dtype: str
    """The dtype of the ids, or "list"."""

    def __init__(self, vocab: Path, *, lower_case: bool, threads: int) -> None: ...

    def encode(self, texts: Sequence[str]) -> Any:
        """Return the ids of the texts, with [CLS] and [SEP], in this tokenizer's fastest form."""

    def rows(self, encoded: Any) -> tuple[np.ndarray, np.ndarray]:
        """Convert the result of `encode` to flat ids and row offsets, for the comparison (not timed)."""

    def encode_padded(self, texts: Sequence[str], length: int) -> Arrays | None:
        """Return `input_ids`, `token_type_ids`, `attention_mask`: int64 (texts, length); None if not supported."""

    def forget(self) -> None:
        """Clear caches that are shared with other tokenizer objects of this process."""


class FolderTokenizerPeer(Protocol):
    """A tokenizer loaded from a folder with a tokenizer.json of BPE or Unigram, with an exact number of threads.

    `fastbert.benchmarks.peers.tokenizer_json` has the base class. A constructor raises an exception with the reason for
    a folder that its package cannot read; the contender is then left out of its texts.
    """

    dtype: str
    """The dtype of the ids, or "list"."""

    def __init__(self, folder: Path, *, threads: int) -> None: ...

    def encode(self, texts: Sequence[str]) -> Any:
        """Return the ids of the texts, without special tokens around them, in this tokenizer's fastest form."""

    def rows(self, encoded: Any) -> tuple[np.ndarray, np.ndarray]:
        """Convert the result of `encode` to flat ids of the tokenizer.json and row offsets (not timed)."""

    def forget(self) -> None:
        """Clear caches that are shared with other tokenizer objects of this process."""


class EncoderPeer(Protocol):
    """A BERT encoder on the CPU, or a matmul, with an exact number of threads.

    Args of the constructor: the model's Hugging Face folder (matmuls: None); the dtype, "fp32", "bf16" or "int8"; the
    number of threads; a folder for temporary files. A contender that is not available on this machine raises an
    exception with the reason; it is then listed as not measured.
    """

    def __init__(self, folder: Path | None, *, dtype: str, threads: int, scratch: Path) -> None: ...

    def open(self, arrays: Arrays) -> dict[str, Any]:
        """Prepare for one workload, untimed; return details for the row.

        For a model `arrays` are `input_ids` int64 (tokens,), `lengths` int64 (sequences,) and `padded_to`, an int64
        scalar; for a matmul x (M, K), weight (layers, N, K) and bias (N,), fp32.
        """

    def run(self) -> Any:
        """Compute what is timed: the model's hidden states and pooled output, or the matmul, in this library's form."""

    def values(self, result: Any) -> np.ndarray:
        """Return the last hidden states of real tokens from the result of `run`: fp32 (tokens, width); not timed."""


class TrainingPeer(Protocol):
    """A model in training on the CPU with its optimizer, with an exact number of threads.

    Args of the constructor: the Hugging Face folder of a pre-training, masked-LM or sequence classification model,
    whose config.json names its class; "fp32" or "bf16" (autocast, weights in fp32); the number of threads; a folder
    for temporary files. `fastbert.benchmarks.peers.training` has the base class.
    """

    model: Any
    """The module in training mode, its weights as loaded until the first step."""
    optimizer: Any
    """A `torch.optim.Optimizer`."""
    batches: Sequence[Any]
    """The workload's batches in this contender's form."""
    head: str
    """The model's head, such as "ForMaskedLM": the name of its class without the architecture's."""

    def __init__(self, folder: Path, *, dtype: str, threads: int, scratch: Path) -> None: ...

    def open(self, arrays: Arrays) -> dict[str, Any]:
        """Read the batches of one workload (`fastbert.benchmarks.training.workloads`); return details for the row."""

    def phases(self) -> dict[str, Callable[[], Any]]:
        """Return one optimizer step on the next batch as functions to call in this order."""

    def values(self) -> np.ndarray:
        """Return loss, gradient norm and samples of the gradient on the first batch without dropout, fp64 (count,)."""


class EmbedderPeer(Protocol):
    """A model that computes one vector per text, on the CPU with an exact number of threads.

    Args of the constructor: a sentence-transformers folder; the dtype, "fp32", "bf16" or "int8"; the number of threads;
    a folder for temporary files. `texts_of` decodes the argument of `open`.
    """

    def __init__(self, folder: Path, *, dtype: str, threads: int, scratch: Path) -> None: ...

    def open(self, arrays: Arrays) -> dict[str, Any]:
        """Read the texts, untimed; return details for the row."""

    def run(self) -> Any:
        """Compute what is timed: the vectors of the list of texts."""

    def values(self, result: Any) -> np.ndarray:
        """Return the vectors as fp32 (texts, width); not timed."""


class RerankerPeer(Protocol):
    """A cross-encoder, on the CPU with an exact number of threads.

    Args of the constructor are those of `EmbedderPeer`, with a folder of a cross-encoder. `texts_of` decodes the
    argument of `open`: the query, then the texts.
    """

    def __init__(self, folder: Path, *, dtype: str, threads: int, scratch: Path) -> None: ...

    def open(self, arrays: Arrays) -> dict[str, Any]:
        """Read the query and the texts, untimed; return details for the row."""

    def run(self) -> Any:
        """Compute what is timed: the scores of all pairs."""

    def values(self, result: Any) -> np.ndarray:
        """Return the scores minus their mean as fp32 (1, pairs); not timed."""


FASTBERT = (("fastbert",), ("fastbert-engine",))
ENCODERS = ("torch", "transformers")
SENTENCES = ("sentence-transformers", *ENCODERS)
NEEDED_BY_OPENVINO = ("openvino", "nncf")
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
    "tokenizers": {
        "fastbert": Entry("tokenizer_json", "Fastbert", *FASTBERT),
        "huggingface": Entry("tokenizer_json", "HuggingFace", ("tokenizers",), ("tokenizers",)),
        "gigatoken": Entry("tokenizer_json", "Gigatoken", ("gigatoken", "awkward"), ("gigatoken",)),
        "fastokens": Entry("tokenizer_json", "Fastokens", ("fastokens",), ("fastokens",)),
        "splintr": Entry("tokenizer_json", "Splintr", ("splintr",), ("splintr-rs",)),
        "tokie": Entry("tokenizer_json", "Tokie", ("tokie",), ("tokie",)),
        "iree": Entry("tokenizer_json", "Iree", ("iree",), ("iree-tokenizer",)),
        "kitoken": Entry("tokenizer_json", "Kitoken", ("kitoken",), ("kitoken",)),
        "tiktoken": Entry("piece_files", "Tiktoken", ("tiktoken",), ("tiktoken",)),
        "sentencepiece": Entry("piece_files", "Sentencepiece", ("sentencepiece",), ("sentencepiece",)),
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
            for attention in ("eager", "sdpa")
            for dtype in ("fp32", "bf16")
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
    "rerank": {
        **{
            f"fastbert {dtype}": Entry("fastbert_reranker", "Reranker", *FASTBERT, {"dtype": dtype})
            for dtype in ("fp32", "bf16", "int8")
        },
        **{
            f"{name} {dtype} by {batch}": Entry(
                "sentence_transformers_reranker",
                attribute,
                (*(NEEDED_BY_OPENVINO if name == "openvino" else ()), "sentence_transformers"),
                (*(NEEDED_BY_OPENVINO if name == "openvino" else ()), *SENTENCES),
                {"dtype": dtype, "batch": batch},
            )
            for name, attribute, runs in (
                ("sentence-transformers", "Reranker", (("fp32", 8), ("fp32", 32), ("bf16", 32))),
                ("openvino", "OpenVino", (("fp32", 8), ("int8", 1), ("int8", 8), ("int8", 32))),
            )
            for dtype, batch in runs
        },
    },
    "kernel": {
        f"{name} {dtype}": Entry("operations", attribute, ("torch",), ("torch",), {"dtype": dtype})
        for dtype in ("fp32", "bf16")
        for name, attribute in (("fastbert", "Fastbert"), ("torch", "Torch"))
    },
    "matmul": {
        f"{name} {dtype}": Entry("matmul", attribute, ("torch",), ("torch",), {"dtype": dtype})
        for name, attribute, dtypes in (
            ("fastbert", "FastbertMatmul", ("fp32", "bf16")),
            ("torch", "TorchMatmul", ("fp32", "bf16")),
            ("torch, oneDNN prepacked", "Prepacked", ("fp32", "bf16")),
            ("torch, MKL prepacked", "PrepackedMkl", ("fp32",)),
        )
        for dtype in dtypes
    },
}


def names(kind: str) -> list[str]:
    """Return the contenders of a kind, fastbert first."""
    return list(_entries(kind))


def missing(kind: str, name: str) -> str | None:
    """Return the module that a contender lacks here, or None if it can be loaded."""
    return next((module for module in _entry(kind, name).needs if find_spec(module) is None), None)


def load(kind: str, name: str) -> Any:
    """Return a contender's adapter class."""
    entry = _entry(kind, name)
    return getattr(import_module(f"{__name__}.{entry.module}"), entry.attribute)


def options(kind: str, name: str) -> dict[str, Any]:
    """Return the arguments of a contender's constructor besides those of its kind."""
    return dict(_entry(kind, name).options)


def distributions(kind: str) -> tuple[str, ...]:
    """Return the distributions whose versions are recorded with a measurement of this kind."""
    all_names = [name for entry in _entries(kind).values() for name in entry.distributions]
    return tuple(dict.fromkeys([*all_names, "numpy", "torch"]))


def texts_of(arrays: Arrays) -> list[str]:
    """Return the texts of an embedding workload: lines of UTF-8 in the array `texts`, uint8."""
    return arrays["texts"].tobytes().decode().split("\n")


def thread_environment(threads: int) -> dict[str, str]:
    """Return environment variables that set every library's pool size; they apply before its first use."""
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

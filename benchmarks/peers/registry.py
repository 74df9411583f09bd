"""The registry of contenders: per kind and name the adapter's class, what it needs, and its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Exporter(NamedTuple):
    """A function of an adapter module, called as `function(folder, dtype=..., scratch=...)` in fastbert's environment
    before the contender starts, and the modules that it needs there."""

    module: str
    function: str
    needs: tuple[str, ...]


class Entry(NamedTuple):
    """The module and class of an adapter, the modules it needs, the distributions whose versions are recorded, the
    arguments of its constructor that define this contender, and the exporter that prepares its files, if any."""

    module: str
    attribute: str
    needs: tuple[str, ...]
    distributions: tuple[str, ...]
    options: Mapping[str, Any] = MappingProxyType({})
    exporter: Exporter | None = None


FASTBERT = (("fastbert",), ("fastbert-engine",))
ENCODERS = ("torch", "transformers")
SENTENCES = ("sentence-transformers", *ENCODERS)
NEEDED_BY_OPENVINO = ("openvino", "nncf")
EXPORTED = ("onnx", "onnxruntime", *ENCODERS)
ONNX_EXPORTER = Exporter("onnx_folder", "write", EXPORTED)

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
        **{
            f"ctranslate2 {dtype}": Entry(
                "ctranslate2_encoder", "Encoder", ("ctranslate2",), ("ctranslate2",), {"dtype": dtype}
            )
            for dtype in ("fp32", "int8")
        },
        **{
            f"zentorch {dtype}": Entry(
                "zentorch_encoder",
                "Encoder",
                ("zentorch", *ENCODERS),
                ("zentorch", *ENCODERS),
                {"dtype": dtype, "attention": "sdpa"},
            )
            for dtype in ("fp32", "bf16")
        },
        **{
            f"{module} {dtype}": Entry(f"{module}_encoder", "Encoder", needs, distributions, {"dtype": dtype})
            for module, needs, distributions in (
                ("bettertransformer", ("optimum", *ENCODERS), ("optimum", *ENCODERS)),
                (
                    "ipex",
                    ("intel_extension_for_pytorch", *ENCODERS),
                    ("intel-extension-for-pytorch", *ENCODERS),
                ),
            )
            for dtype in ("fp32", "bf16")
        },
        **{
            f"llama.cpp {dtype}": Entry(
                "llama_cpp_encoder",
                "Encoder",
                ("llama_cpp", "gguf"),
                ("llama-cpp-python", "gguf"),
                {"dtype": dtype},
            )
            for dtype in ("fp32", "bf16", "int8")
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
        **{
            f"fastembed {dtype} by {batch}": Entry(
                "fastembed_embedder",
                "Embedder",
                ("fastembed",),
                ("fastembed", "onnxruntime"),
                {"dtype": dtype, "batch": batch},
                ONNX_EXPORTER,
            )
            for dtype, batch in (("fp32", 32), ("fp32", 256), ("int8", 32))
        },
        **{
            f"infinity torch {dtype} by 32": Entry(
                "infinity_embedder",
                "Embedder",
                ("infinity_emb", *ENCODERS),
                ("infinity-emb", *SENTENCES),
                {"dtype": dtype, "batch": 32},
            )
            for dtype in ("fp32", "bf16")
        },
        **{
            f"infinity onnxruntime {dtype} by 32": Entry(
                "infinity_embedder",
                "OnnxRuntime",
                ("infinity_emb", "optimum", "onnxruntime"),
                ("infinity-emb", "optimum", "onnxruntime"),
                {"dtype": dtype, "batch": 32},
                ONNX_EXPORTER,
            )
            for dtype in ("fp32", "int8")
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
        f"{name} {dtype}": Entry("matmul", attribute, ("torch",), ("torch",), {"dtype": dtype, **options})
        for name, attribute, dtypes, options in (
            ("fastbert", "FastbertMatmul", ("fp32", "bf16"), {}),
            ("fastbert", "FastbertInt8Matmul", ("int8",), {}),
            ("torch", "TorchMatmul", ("fp32", "bf16"), {}),
            ("torch, oneDNN prepacked", "Prepacked", ("fp32", "bf16"), {}),
            ("torch, MKL prepacked", "PrepackedMkl", ("fp32",), {}),
            ("torch, FBGEMM dynamic", "DynamicInt8Matmul", ("int8",), {"engine": "fbgemm"}),
            ("torch, oneDNN dynamic", "DynamicInt8Matmul", ("int8",), {"engine": "onednn"}),
        )
        for dtype in dtypes
    },
}

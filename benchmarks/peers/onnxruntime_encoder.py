"""ONNX Runtime: the transformers model exported, its layers fused by the transformer optimizer, in fp32 or int8."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

from fastbert.benchmarks.peers import Arrays
from fastbert.benchmarks.peers.padded_batches import padded, real_tokens
from fastbert.benchmarks.peers.transformers_encoder import load


class _Exported(torch.nn.Module):
    """The model with positional tensors as inputs and outputs, as the tracing exporter requires."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return output.last_hidden_state, output.pooler_output


class Encoder:
    """An `InferenceSession` with all graph optimisations; int8 quantises weights and, at run time, activations."""

    def __init__(self, folder: Path, *, dtype: str, threads: int, scratch: Path) -> None:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        torch.set_num_threads(threads)
        exported, fused, quantized = (scratch / f"{name}.onnx" for name in ("exported", "fused", "quantized"))
        self.fused: dict[str, int] = _export_fused(folder, exported, fused)
        if dtype == "int8":
            # Shapes and dtypes after a fused operator cannot be inferred.
            kind = {"DefaultTensorType": onnx.TensorProto.FLOAT}
            quantize_dynamic(fused, quantized, weight_type=QuantType.QInt8, extra_options=kind)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        path = quantized if dtype == "int8" else fused
        self.session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs: set[Any] = {node.name for node in self.session.get_inputs()}

    def open(self, arrays: Arrays) -> dict[str, Any]:
        self.arrays: dict[str, np.ndarray] = padded(arrays)
        return {"fused": self.fused}

    def run(self) -> Any:
        return self.session.run(None, self.arrays)

    def values(self, result: Any) -> np.ndarray:
        return real_tokens(result[0], self.arrays["attention_mask"])


def _export_fused(folder: Path, exported: Path, fused: Path) -> dict[str, int]:
    """Write the exported and the fused model; return the number of each fused operator in it."""
    from onnxruntime.transformers import optimizer

    # The optimizer only recognises the eager attention of the tracing exporter.
    model = load(folder, "eager")
    names = ["input_ids", "attention_mask"]
    example = tuple(torch.ones(2, 16, dtype=torch.int64) for _ in names)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Exported(model).eval(),
            example,
            str(exported),
            dynamo=False,
            opset_version=17,
            input_names=names,
            output_names=["last_hidden_state", "pooler_output"],
            dynamic_axes={name: {0: "sequences", 1: "length"} for name in [*names, "last_hidden_state"]},
        )
    config = model.config
    optimized = optimizer.optimize_model(
        str(exported),
        model_type="bert",
        num_heads=config.num_attention_heads,
        hidden_size=config.hidden_size,
        opt_level=0,
        use_gpu=False,
    )
    optimized.save_model_to_file(str(fused))
    return {name: count for name, count in optimized.get_fused_operator_statistics().items() if count}

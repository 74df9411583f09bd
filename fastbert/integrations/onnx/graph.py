"""An ONNX graph under construction: operators, weights by their names in the model, and the file.

Weights stay views of the model's parameters until they are written, one by one where they do not fit into the file
itself, which protocol buffers limit to 2 GB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# The first with LayerNormalization. Runtimes fuse GELU, which is an operator from 20 on, out of its parts.
OPSET = 17
# The version of the file format that came with this opset: older runtimes refuse files of a newer one.
IR_VERSION = 8
FILE, DATA_FILE = "model.onnx", "model.onnx_data"
MOST_INLINE_BYTES = (1 << 31) - (1 << 26)
LEAST_EXTERNAL = 1024
"""Elements of the smallest tensor that is written beside the graph: the shapes among them are part of it."""
# Runtimes map weights into memory by pages.
_ALIGNMENT = 1 << 12

Axis = str | int


class Graph:
    """Nodes in the order in which they were added; values are known by their names."""

    def __init__(self, model: nn.Module, *, for_quantizer: bool = False) -> None:
        """`for_quantizer`: the weight of a matmul that is the token table too is written twice, since ONNX Runtime's
        quantiser reads weights alone."""
        self.onnx: Any = import_module("onnx")
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.weights: dict[str, Tensor] = {}
        self.shapes: list[Any] = []
        self.quantizable: list[str] = []
        """The names of the nodes whose weights may be int8."""
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._constants: dict[tuple[Any, ...], str] = {}
        self._counts: Counter[str] = Counter()
        self._scope = ""
        self.for_quantizer = for_quantizer

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Begin the names of the nodes that are added in the block with that of a module."""
        outer, self._scope = self._scope, f"{name}/"
        try:
            yield
        finally:
            self._scope = outer

    def input(self, name: str, axes: Sequence[Axis]) -> str:
        """Add an int64 input with named or constant axes."""
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, self.onnx.TensorProto.INT64, axes))
        return name

    def output(self, name: str, value: str, axes: Sequence[Axis]) -> None:
        """Return a value as an fp32 output."""
        self.outputs.append(self.onnx.helper.make_tensor_value_info(name, self.onnx.TensorProto.FLOAT, axes))
        self.nodes.append(self.onnx.helper.make_node("Identity", [value], [name], name=f"output/{name}"))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add an operator with one output, and return its name."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add an operator with several outputs, and return their names."""
        path = f"{self._scope}{kind}"
        number = self._counts[path]
        self._counts[path] += 1
        name = f"{path}_{number}" if number else path
        values = [f"{name}_output_{index}" for index in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), values, name=name, **attributes))
        return values

    def quantizable_op(self, kind: str, *inputs: str) -> str:
        """Add an operator whose weight may be int8."""
        value = self.op(kind, *inputs)
        self.quantizable.append(self.nodes[-1].name)
        return value

    def shaped(self, value: str, axes: Sequence[Axis]) -> str:
        """State the shape of an fp32 value that cannot be inferred: runtimes fuse additions of equal shapes alone."""
        self.shapes.append(self.onnx.helper.make_tensor_value_info(value, self.onnx.TensorProto.FLOAT, axes))
        return value

    def cast(self, value: str, dtype: str) -> str:
        """Convert a value to a dtype of ONNX: "FLOAT", "INT32", "BOOL"."""
        return self.op("Cast", value, to=getattr(self.onnx.TensorProto, dtype))

    def ints(self, *values: int) -> str:
        """Return a constant int64 vector."""
        return self.constant(torch.tensor(values, dtype=torch.int64))

    def number(self, value: float | int) -> str:
        """Return a constant scalar, fp32 or int64."""
        return self.constant(torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float32))

    def constant(self, tensor: Tensor) -> str:
        """Return a small constant tensor; equal ones are added once."""
        key = (tensor.dtype, tuple(tensor.shape), tuple(tensor.flatten().tolist()))
        if key not in self._constants:
            self._constants[key] = self.tensor(f"constant_{len(self._constants)}", tensor)
        return self._constants[key]

    def tensor(self, name: str, tensor: Tensor) -> str:
        """Add a tensor under a name that no other tensor has."""
        self.weights.setdefault(name, tensor.detach())
        return name

    def name_of(self, parameter: Tensor) -> str:
        """Return the name of one of the model's parameters."""
        return self._names[id(parameter)]

    def parameter(self, parameter: Tensor) -> str:
        """Return a parameter of the model under its own name; one that is shared is added once."""
        return self.tensor(self.name_of(parameter), parameter)

    def transposed(self, parameter: Tensor) -> str:
        """Return the transpose of a matrix among the model's parameters, which is not written beside the matrix."""
        name = self.name_of(parameter)
        if name in self.weights and not self.for_quantizer:
            return self.op("Transpose", name, perm=[1, 0])
        return self.tensor(f"{name}.T", parameter.T)

    @property
    def is_large(self) -> bool:
        """Return whether the weights lie in a file of their own."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.weights.values()) > MOST_INLINE_BYTES

    def save(self, folder: Path) -> None:
        """Write `model.onnx`, and beside it `model.onnx_data` with the weights where they exceed 2 GB."""
        helper = self.onnx.helper
        external = self._write_data(folder / DATA_FILE) if self.is_large else {}
        tensors = [external.get(name) or self._inline(name, tensor) for name, tensor in self.weights.items()]
        graph = helper.make_graph(self.nodes, "encoder", self.inputs, self.outputs, tensors, value_info=self.shapes)
        model = helper.make_model(
            graph, producer_name="fastbert", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
        )
        if self.for_quantizer:  # which else asks for a pre-processing that infers shapes and folds constants
            helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
        self.onnx.save_model(model, str(folder / FILE))
        self.onnx.checker.check_model(str(folder / FILE))

    def _inline(self, name: str, tensor: Tensor) -> Any:
        """Return a tensor as part of the graph."""
        return self.onnx.numpy_helper.from_array(tensor.contiguous().numpy(), name)

    def _write_data(self, path: Path) -> dict[str, Any]:
        """Write the large tensors one behind the other, and return what refers to them by their names."""
        references = {}
        with path.open("wb") as file:
            for name, tensor in self.weights.items():
                if tensor.numel() < LEAST_EXTERNAL:
                    continue
                offset = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
                file.seek(offset)
                values = tensor.contiguous().numpy()
                file.write(values.data)
                proto = self.onnx.TensorProto(
                    name=name,
                    data_type=self.onnx.helper.np_dtype_to_tensor_dtype(values.dtype),
                    dims=values.shape,
                    data_location=self.onnx.TensorProto.EXTERNAL,
                )
                for key, value in {"location": path.name, "offset": offset, "length": values.nbytes}.items():
                    proto.external_data.add(key=key, value=str(value))
                references[name] = proto
        return references

"""The bytes that a fused layer reads and writes, counted over its kernels and products: what docs/performance-gpu.md
says, and no pass more."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from batches import random_batch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fastbert import BertConfig
from fastbert.models.bert.architecture import bert_spec
from fastbert.models.layers import layer_batch
from fastbert.models.modules import Layer
from fastbert.ops.encoder_layer import gradients
from fastbert.ops.encoder_layer.arguments import SAVE_ALL, EncoderLayerArguments, GradMask
from fastbert.ops.encoder_layer.triton import Triton
from fastbert.training.optimizer import AdamW

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.launch import interpreted, observing

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(not interpreted(), reason="counted in the interpreter"),
]
DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "performance-gpu.md").read_text()
TOKENS, WIDTH = 160, 64
CONFIG = BertConfig(
    vocab_size=50, hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=2, intermediate_size=4 * WIDTH,
    max_position_embeddings=64,
)  # fmt: skip


class Traffic(TorchDispatchMode):
    """Count the tensors that torch's operations on the tokens read and write, in rows of `WIDTH`."""

    NAMES = ("mm", "addmm", "addmm_", "sum", "add", "add_", "mul", "clone", "copy_", "_to_copy", "t_copy")

    def __init__(self) -> None:
        super().__init__()
        self.units: Counter[str] = Counter()
        self.cast = 0
        """Bytes that casts and concatenations of fp32 matrices without tokens read and write."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in self.NAMES:
            tensors = [*(arg for arg in args if isinstance(arg, torch.Tensor)), result]
            self.units[name] += sum(units_of(tensor) for tensor in tensors)
        if name in ("_to_copy", "cat") and result.dim() == 2 and TOKENS not in result.shape:
            sources = args[0] if name == "cat" else args[:1]
            if sources[0].dtype == torch.float32:
                self.cast += sum(tensor.nbytes for tensor in (*sources, result))
        return result


def units_of(tensor: torch.Tensor) -> int:
    """Rows of WIDTH elements a token; 0 for weights, statistics and ids, which do not grow with width and tokens."""
    if TOKENS not in tensor.shape or not tensor.dtype.is_floating_point:
        return 0
    return round(tensor.numel() / (TOKENS * WIDTH))


def documented(kind: str) -> int:
    """The sum that the document gives for a direction."""
    match = re.search(rf"^\| \*\*{kind}\*\* \|.*\| \*\*(\d+)\*\* \|", DOCUMENT, re.MULTILINE)
    assert match is not None, kind
    return int(match[1])


def test_a_layer_moves_what_is_documented(seed: int) -> None:
    layer = Layer(bert_spec(CONFIG).layers[0], 0, drops=True).half()
    batch = random_batch([60, 60, 40], 50, 5, seed)
    view = layer_batch(batch, 0.1, 0.1, True)
    parameters = layer.fusible_parameters()
    assert parameters is not None
    x, grad = (torch.randn(TOKENS, WIDTH).half() for _ in range(2))
    arguments, units = EncoderLayerArguments(x, parameters, layer.spec, view, 0, torch.half), {}
    kernels = Triton()
    # Below the operators, where torch shows what they are made of.
    with torch.no_grad():
        with observing() as launches, Traffic() as traffic:
            _, *saved = kernels.forward(arguments, SAVE_ALL)
        units["forward"] = count(launches) + traffic.units
        with observing() as launches, Traffic() as traffic:
            kernels.backward(arguments, grad, saved, GradMask(*[True] * len(GradMask._fields)))
        units["backward"] = count(launches) + traffic.units
    for kind, counted in units.items():
        assert sum(counted.values()) == documented(kind), counted


@pytest.mark.parametrize("flat", [False, True], ids=["ordinary", "flat"])
def test_bytes_of_weights_are_what_is_documented(monkeypatch: pytest.MonkeyPatch, flat: bool, seed: int) -> None:
    """Casts of a layer's matrices in bytes per parameter; with flat parameters the layer moves the same rows."""
    layer = Layer(bert_spec(CONFIG).layers[0], 0, drops=True)
    buffers = AdamW(layer.parameters()).flatten(nn.ModuleList([layer]), torch.half)
    parameters = layer.fusible_parameters()
    assert parameters is not None
    x, grad = (torch.randn(TOKENS, WIDTH).half() for _ in range(2))
    view = layer_batch(random_batch([60, 60, 40], 50, 5, seed), 0.1, 0.1, True)
    arguments, kernels = EncoderLayerArguments(x, parameters, layer.spec, view, 0, torch.half), Triton()
    found = buffers.layer(parameters, torch.half)
    assert found is not None
    units: Counter[str] = Counter()

    def add_matmul(_: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, fresh: bool) -> None:
        assert not fresh
        units["weights"] += units_of(a) + units_of(b)

    monkeypatch.setattr(gradients, "add_matmul", add_matmul)
    with torch.no_grad(), observing() as launches, Traffic() as traffic:
        _, *saved = kernels.forward(arguments, SAVE_ALL, found.operands if flat else None)
        if flat:
            kernels.accumulate(arguments, found, grad, saved, True)
        else:
            kernels.backward(arguments, grad, saved, GradMask(*[True] * len(GradMask._fields)))
    units += count(launches) + traffic.units
    assert sum(units.values()) == documented("forward") + documented("backward"), units
    ordinary, without = re.search(r"^\| weights cast, .* \| (\d \+ \d) \| (\d) \|$", DOCUMENT, re.MULTILINE).groups()
    expected = int(without) if flat else sum(map(int, ordinary.split("+")))
    assert traffic.cast == expected * sum(matrix.numel() for matrix in parameters.matrices)


def count(launches: list[Any]) -> Counter[str]:
    units: Counter[str] = Counter()
    for launch in launches:
        tensors = [argument for argument in launch.arguments if isinstance(argument, torch.Tensor)]
        units[launch.kernel.__name__] += sum(units_of(tensor) for tensor in tensors)
    for direction in ("forward", "backward"):
        # Each sequence is computed by the kernel of its length alone: together they move what one does.
        if f"{direction}_short" in units:
            del units[f"{direction}_heads"]
    return units

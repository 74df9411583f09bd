"""The launches of a fused layer on a GPU, counted over its kernels and torch's operations: those that
docs/performance-gpu.md lists, and none more. A call in inference neither casts nor concatenates weights."""

import copy
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import layers
import pytest
import torch
from batches import random_batch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from fastbert import BertConfig, BertModel
from fastbert.models.joined_projections import join_projections
from fastbert.models.layers import layer_batch
from fastbert.models.modules import SelfAttention
from fastbert.ops.encoder_layer import gradients
from fastbert.ops.encoder_layer.arguments import SAVE_ALL, SAVE_NOTHING, EncoderLayerArguments, GradMask
from fastbert.ops.encoder_layer.operands import are_adjacent
from fastbert.ops.encoder_layer.triton import Triton
from fastbert.training.optimizer import AdamW

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.launch import interpreted, observing

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(not interpreted(), reason="counted in the interpreter"),
]
ROOT = Path(__file__).resolve().parents[2]
CONFIG = BertConfig(
    vocab_size=50, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=96,
    max_position_embeddings=160,
)  # fmt: skip
# Operations of torch that launch nothing: they allocate, or describe the same memory in another way.
FREE = {
    "empty", "empty_like", "empty_strided", "new_empty", "view", "_unsafe_view", "t", "transpose", "slice", "select",
    "as_strided", "detach", "unbind", "unsqueeze", "expand", "alias", "permute", "split", "reshape", "lift_fresh",
}  # fmt: skip


def is_interpreting() -> bool:
    """Whether Triton's interpreter is calling, which copies a kernel's tensors."""
    frame = sys._getframe()
    while frame is not None and Path(frame.f_code.co_filename).name != "interpreter.py":
        frame = frame.f_back
    return frame is not None


class Operations(TorchDispatchMode):
    """Count torch's operations that launch a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in FREE and not is_interpreting():
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def counted(run: Any, *arguments: Any) -> tuple[Counter[str], Any]:
    """Return the launches of run(*arguments), by kernel and by operation of torch, and its result."""
    with torch.no_grad(), observing() as launches, Operations() as operations:
        result = run(*arguments)
    return Counter(launch.kernel.__name__ for launch in launches) + operations.counts, result


def documented(kind: str) -> int:
    """The number of launches that the document gives."""
    text = (ROOT / "docs" / "performance-gpu.md").read_text()
    match = re.search(rf"^\| \*\*{kind}\*\* \| \*\*(\d+)\*\* \|$", text, re.MULTILINE)
    assert match is not None, kind
    return int(match[1])


def arguments_of(layer: nn.Module, longest: int, p: float, dtype: torch.dtype, seed: int) -> EncoderLayerArguments:
    batch = random_batch([longest, 16], 50, 5, seed)
    x = torch.randn(batch.num_tokens, 64, generator=torch.Generator().manual_seed(seed)).to(dtype)
    parameters = layer.fusible_parameters()
    return EncoderLayerArguments(x, parameters, layer.spec, layer_batch(batch, p, p, p > 0), 0, dtype)


def one_matmul_each(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Return the calls of a matmul from bf16 to fp32 from now on: one launch each on a GPU, several on a CPU."""
    calls, function = [], getattr(gradients, name)

    def matmul(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        with _disable_current_modes():
            return function(*arguments, **options)

    monkeypatch.setattr(gradients, name, matmul)
    return calls


@pytest.mark.parametrize(("longest", "more"), [(24, 0), (100, 2), (140, 4), (260, 6)])
def test_launches_of_a_layer_in_training(monkeypatch: pytest.MonkeyPatch, longest: int, more: int, seed: int) -> None:
    """bf16 with copies of the weights and gradients that matmuls add to, as `fastbert pretrain` runs on one GPU."""
    layer = layers.random_layer(seed, CONFIG)
    flat = AdamW(layer.parameters()).flatten(nn.ModuleList([layer]), torch.bfloat16)
    arguments = arguments_of(layer, longest, 0.1, torch.bfloat16, seed)
    added = one_matmul_each(monkeypatch, "add_matmul")
    kernels, found = Triton(), flat.layer(arguments.parameters, torch.bfloat16)
    assert found is not None
    forward, (y, *saved) = counted(kernels.forward, arguments, SAVE_ALL, found.operands)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed)).to(y.dtype)
    backward, _ = counted(kernels.accumulate, arguments, found, grad, saved, True)
    launches = forward + backward + Counter(added)
    assert not {"cat", "_to_copy", "copy_", "sum", "add", "zero_"} & launches.keys(), launches
    assert launches.total() == documented("launches in training") + more <= 26, launches


def test_launches_of_a_layer_with_ordinary_parameters(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    layer, counts = layers.random_layer(seed, CONFIG), []
    attention, kernels = layer.attention.self, Triton()
    multiplied = one_matmul_each(monkeypatch, "matmul")
    for join in (False, True):
        if join:
            join_projections(attention.query, attention.key, attention.value)
        arguments = arguments_of(layer, 24, 0.1, torch.bfloat16, seed)
        forward, (y, *saved) = counted(kernels.forward, arguments, SAVE_ALL)
        grad, mask = torch.ones_like(y), GradMask(*[True] * len(GradMask._fields))
        backward, _ = counted(kernels.backward, arguments, grad, saved, mask)
        counts.append((forward + backward + Counter(multiplied)).total())
        multiplied.clear()
    text = " ".join((ROOT / "docs" / "performance-gpu.md").read_text().split())
    assert f"has {counts[1]} ({counts[0]} where its projections are not adjacent" in text, counts


def test_inference_neither_casts_nor_concatenates_weights(seed: int) -> None:
    layer = layers.random_layer(seed, CONFIG).bfloat16().eval()
    arguments = arguments_of(layer, 16, 0.0, torch.bfloat16, seed)
    before, apart = counted(Triton().forward, arguments, SAVE_NOTHING)
    assert before["cat"] == 2
    attention = layer.attention.self
    join_projections(attention.query, attention.key, attention.value)
    after, together = counted(Triton().forward, arguments, SAVE_NOTHING)
    assert torch.equal(apart[0], together[0])
    assert not {"cat", "_to_copy", "copy_"} & after.keys(), after
    assert after.total() == documented("launches in inference"), after


def test_projections_are_joined_where_models_move_to_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a CPU, which pretends to be one: the parameters stay, with their names, values and files."""
    model = BertModel(CONFIG)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = dict(model.named_parameters())

    def is_joined() -> bool:
        attention = model.encoder.layer[0].attention.self
        linears = (attention.query, attention.key, attention.value)
        return all(are_adjacent([getattr(linear, name) for linear in linears]) for name in ("weight", "bias"))

    model.float()
    assert not is_joined(), "a CPU has kernels of its own"
    monkeypatch.setattr(SelfAttention, "_joins", staticmethod(lambda device: True))
    for moved in (model.float(), model.double(), model.float()):
        assert moved is model
        assert is_joined()
    assert dict(model.named_parameters()).keys() == parameters.keys()
    assert all(model.get_parameter(name) is parameter for name, parameter in parameters.items())
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    model.save_pretrained(tmp_path)
    for other in (BertModel.from_pretrained(tmp_path), copy.deepcopy(model)):
        assert all(torch.equal(value, expected[name]) for name, value in other.state_dict().items())
    model.load_state_dict({name: value + 1.0 for name, value in expected.items()})
    assert is_joined()
    key = "encoder.layer.0.attention.self.key.weight"
    assert torch.equal(model.get_parameter(key), expected[key] + 1.0)


def test_projections_that_are_not_alike_stay_apart() -> None:
    def apart(linears: list[nn.Linear]) -> bool:
        before = [linear.weight.data_ptr() for linear in linears]
        join_projections(*linears)
        return before == [linear.weight.data_ptr() for linear in linears]

    shared = nn.Linear(4, 4)
    assert apart([nn.Linear(4, 4), nn.Linear(4, 4).double(), nn.Linear(4, 4)])
    assert apart([shared, shared, nn.Linear(4, 4)])
    assert apart([nn.Linear(4, 4, device="meta") for _ in range(3)][:1] + [nn.Linear(4, 4)] * 2)
    wide = [nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2, bias=False)]
    assert not apart(wide)
    assert are_adjacent([linear.weight for linear in wide])
    assert not are_adjacent([wide[0].bias, wide[1].bias])

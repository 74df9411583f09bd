"""The buffers of the Triton loss: how large its chunks are, and what a call takes at its peak."""

import weakref

import pytest
import torch
from cross_entropy_kernels import IGNORED, INTERPRETED
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.loss import linear_cross_entropy as kernels
from fastbert.ops.cross_entropy.arguments import CrossEntropyArguments, LossOptions
from fastbert.ops.cross_entropy.eager import Eager

# The interpreter computes with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([] if INTERPRETED else [pytest.mark.gpu])]


@pytest.mark.parametrize("vocabulary", [33, 2048, 30522, 119547, 256000, 5_000_000])
@pytest.mark.parametrize("element_size", [2, 4])
def test_the_plan_bounds_the_buffer(vocabulary: int, element_size: int) -> None:
    row_bytes = kernels.padded(vocabulary) * element_size
    assert row_bytes % 128 == 0
    fewest = kernels.FEWEST // element_size // kernels.TILE * kernels.TILE
    for rows in (0, 1, 500, 4096, 4500, 4915, 10_000, 20_011, 70_000, 400_000):
        chunk = kernels.plan(rows, vocabulary, element_size)
        assert chunk >= 1
        if rows * row_bytes <= kernels.ONE_CHUNK:
            assert chunk == max(rows, 1)
            continue
        assert chunk % kernels.TILE == 0
        assert chunk * row_bytes <= 512e6 or chunk == kernels.TILE
        assert chunk * row_bytes <= 0.09 * rows * vocabulary * 12 or chunk <= fewest
        chunks = -(-rows // chunk)
        if chunks > 1:  # not needlessly small: with one chunk fewer
            larger = -(-rows // ((chunks - 1) * kernels.TILE)) * kernels.TILE * row_bytes
            assert larger > min(512e6, max(0.09 * rows * vocabulary * 12, fewest * row_bytes))
        assert chunks * chunk - rows < chunks * kernels.TILE  # about equal


@pytest.mark.parametrize(("rows", "chunks"), [(2000, 1), (4915, 2), (8192, 2), (20_000, 3)])
def test_bf16_takes_few_chunks_of_the_vocabulary_of_bert(rows: int, chunks: int) -> None:
    """4,915 rows are 15 % of 32,768 tokens. Counted in launches: a matmul and a kernel per chunk."""
    launched = []
    x, weight = (torch.empty(size, 8, dtype=torch.bfloat16, device="meta") for size in (rows, 30_522))
    labels = torch.empty(rows, dtype=torch.int64, device="meta")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "launch", lambda kernel, *_, **__: launched.append(kernel.__name__))
        patch.setattr(kernels, "add_matmul", lambda *_, **__: launched.append("matmul"))
        kernels.forward(kernels.LossInputs(x, weight, None, labels, IGNORED, 0.0, 0.0, True, True, False))
    assert launched == ["cross_entropy", "matmul", "matmul"] * chunks


class Allocations(TorchDispatchMode):
    """The most bytes that new storages had at a time."""

    def __init__(self, known: tuple[torch.Tensor, ...]) -> None:
        super().__init__()
        self.alive = {tensor.untyped_storage()._cdata for tensor in known}
        self.bytes = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage._cdata not in self.alive:
                self.alive.add(storage._cdata)
                self.bytes += storage.nbytes()
                self.peak = max(self.peak, self.bytes)
                weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        return result

    def _free(self, key: int, size: int) -> None:
        self.alive.discard(key)
        self.bytes -= size


def peak_of(call, *inputs: torch.Tensor) -> int:
    """The most bytes that a call allocated at a time."""
    with Allocations(inputs) as seen:
        call()
    return seen.peak


@pytest.mark.parametrize("rows", [4915, 10_000, 20_000])
def test_a_call_takes_a_tenth_of_the_memory_of_eager_torch(rows: int, monkeypatch) -> None:
    """Everything but the gradient of the weight, in tensors without memory; matmuls and kernels do not run."""
    vocabulary, width = 30_522, 768
    monkeypatch.setattr(kernels, "launch", lambda *_, **__: None)
    monkeypatch.setattr(kernels, "add_matmul", lambda *_, **__: None)
    x, weight, bias = (
        torch.empty(*shape, dtype=torch.bfloat16, device="meta", requires_grad=True)
        for shape in ((rows, width), (vocabulary, width), (vocabulary,))
    )
    labels = torch.empty(rows, dtype=torch.int64, device="meta")
    arguments = CrossEntropyArguments(x, weight, bias, labels, LossOptions(IGNORED, 0.0, 0.0))
    eager = peak_of(lambda: Eager().forward(arguments)[0].backward(), x, weight, bias, labels)
    assert eager == pytest.approx(kernels.EAGER_BYTES * rows * vocabulary, rel=0.01)
    gradient = 4 * vocabulary * width

    def call() -> None:
        with torch.no_grad():
            kernels.forward(kernels.LossInputs(x, weight, bias, labels, IGNORED, 0.0, 0.0, True, True, True))

    actual = peak_of(call, x, weight, bias, labels)
    copied = kernels.padded(vocabulary) * width * 2  # the weight with rows of zeros
    chunk = kernels.plan(rows, vocabulary, 2, copied)
    assert actual > chunk * kernels.padded(vocabulary) * 2 + copied + gradient  # it does count
    assert actual - gradient <= 0.1 * eager

"""The buffers of the Triton loss: how large its chunks are, and what a call takes at its peak."""

import weakref

import pytest
import torch
from cross_entropy_kernels import IGNORED, INTERPRETED
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.loss import linear_cross_entropy as kernels

# The interpreter computes with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([] if INTERPRETED else [pytest.mark.gpu])]


@pytest.mark.parametrize("vocabulary", [33, 2048, 30522, 119547, 256000])
@pytest.mark.parametrize("element_size", [2, 4])
def test_the_plan_bounds_the_buffer(vocabulary: int, element_size: int) -> None:
    row_bytes = kernels.padded(vocabulary) * element_size
    assert row_bytes % 128 == 0
    fewest = kernels.FEWEST // element_size // kernels.TILE * kernels.TILE
    for rows in (0, 1, 500, 4096, 4500, 10_000, 20_011, 70_000, 400_000):
        chunk = kernels.plan(rows, vocabulary, element_size)
        assert chunk >= 1
        if rows * row_bytes <= kernels.ONE_CHUNK:
            assert chunk == max(rows, 1)
            continue
        assert chunk % kernels.TILE == 0
        assert chunk * row_bytes <= 0.08 * rows * vocabulary * 4 or chunk <= fewest
        chunks = -(-rows // chunk)
        assert chunk <= fewest or chunk * row_bytes > 0.03 * rows * vocabulary * 4  # not needlessly small
        assert chunks * chunk - rows < chunks * kernels.TILE  # about equal


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


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16], ids=["autocast", "bf16"])
def test_ten_thousand_rows_take_a_tenth_of_their_fp32_logits(weight_dtype: torch.dtype, monkeypatch) -> None:
    """Everything but the gradient of the weight, in tensors without memory; matmuls and kernels do not run."""
    rows, vocabulary, width = 10_000, 30_522, 768
    monkeypatch.setattr(kernels, "launch", lambda *_, **__: None)
    monkeypatch.setattr(kernels, "add_matmul", lambda *_, **__: None)
    x = torch.empty(rows, width, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(vocabulary, width, dtype=weight_dtype, device="meta")
    bias = torch.empty(vocabulary, dtype=weight_dtype, device="meta")
    labels = torch.empty(rows, dtype=torch.int64, device="meta")
    with Allocations((x, weight, bias, labels)) as seen:
        actual = kernels.forward(kernels.LossInputs(x, weight, bias, labels, IGNORED, 0.0, 0.0, True, True, True))
    logits = kernels.plan(rows, vocabulary, 2) * kernels.padded(vocabulary) * 2
    gradient = actual[4].untyped_storage().nbytes()
    assert seen.peak > logits + gradient  # it does count
    assert seen.peak - gradient <= 0.1 * rows * vocabulary * 4

"""Memory that is used again: whose it is at every moment, when it goes back, and that it does not grow."""

import gc
import os
import pickle
import random
import subprocess
import sys
import threading

import pytest
import torch
from garbage import leave_out_old_objects
from sweeps import sweep
from torch import Tensor, nn

from fastbert.ops.native import caching_allocator

LARGE = (300, 1000)
MEGABYTE = 1 << 20


@pytest.fixture(autouse=True, scope="module")
def new_objects() -> None:
    leave_out_old_objects()


@pytest.fixture(autouse=True)
def only_ours() -> None:
    gc.collect()
    caching_allocator.release()
    caching_allocator.reset_peak()


def in_use() -> int:
    return caching_allocator.statistics()["in_use"]


@sweep(
    "shape",
    [(), (0,), (0, 4096), (1,), (128, 127), (128, 128), (4097, 1023), (3, 5, 7, 1001)],
    ids=["scalar", "no-element", "no-row", "one", "just-small", "just-large", "odd", "four-dimensions"],
)
@sweep("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_a_tensor_is_as_torch_would_make_it(shape: tuple, dtype: torch.dtype) -> None:
    actual, expected = caching_allocator.empty(shape, dtype), torch.empty(shape, dtype=dtype)
    assert (actual.shape, actual.dtype, actual.stride()) == (expected.shape, expected.dtype, expected.stride())
    assert actual.device.type == "cpu"
    assert actual.data_ptr() % 64 == 0
    assert not actual.requires_grad
    actual.copy_(torch.arange(actual.numel()).reshape(shape))
    assert torch.equal(actual, torch.arange(actual.numel()).reshape(shape).to(dtype))


def test_unwritten_memory_is_poisoned_where_torch_poisons_it() -> None:
    assert caching_allocator.empty(LARGE, torch.bfloat16).isnan().all()
    assert (caching_allocator.empty(LARGE, torch.int32) == torch.iinfo(torch.int32).max).all()


def test_a_block_is_used_again_warm() -> None:
    first = caching_allocator.empty(LARGE, torch.float32)
    pointer, before = first.data_ptr(), in_use()
    del first
    assert in_use() < before
    assert caching_allocator.statistics()["free"] > 0
    assert caching_allocator.empty(LARGE, torch.bfloat16).data_ptr() == pointer


def test_memory_lives_as_long_as_any_view_of_it() -> None:
    base, empty = caching_allocator.empty(LARGE, torch.float32).fill_(3.0), in_use()
    view = base.view(1000, 300).t()[5:, 7:].detach().numpy()
    del base
    assert in_use() == empty
    others = [caching_allocator.empty(LARGE, torch.float32).zero_() for _ in range(3)]
    assert (view == 3.0).all()
    del view, others
    assert in_use() < empty


def test_autograd_keeps_what_it_saved_and_takes_gradients_over() -> None:
    class Square(torch.autograd.Function):
        pointer = 0

        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            saved = caching_allocator.empty(LARGE, torch.float32).copy_(x)
            ctx.save_for_backward(saved)
            return saved.square()

        @staticmethod
        def backward(ctx, grad: Tensor) -> Tensor:
            (saved,) = ctx.saved_tensors
            dx = caching_allocator.empty(LARGE, torch.float32)
            Square.pointer = dx.data_ptr()
            return torch.mul(grad, 2 * saved, out=dx)

    before = in_use()
    x = nn.Parameter(torch.randn(LARGE))
    y = Square.apply(x)
    in_use_before = in_use()
    caching_allocator.empty(LARGE, torch.float32).zero_()
    y.backward(torch.ones(LARGE))
    assert torch.equal(x.grad, 2 * x.detach())
    assert x.grad.data_ptr() == Square.pointer, "the gradient was copied"
    del y
    assert in_use() == in_use_before, "the saved tensor went, the gradient stays"
    x.grad = None
    assert in_use() == before


def test_blocks_never_meet(seed: int) -> None:
    """Many sizes come and go in threads; each tensor still holds what its owner wrote when it dies."""
    wrong: list[str] = []

    def work(number: int) -> None:
        draw, held = random.Random(seed + number), []
        for step in range(150):
            tensor = caching_allocator.empty((draw.randint(17 << 10, 2 << 20),), torch.float32)
            mark = float(number * 1000 + step)
            tensor[:8], tensor[-8:] = mark, mark
            held.append((mark, tensor))
            if len(held) > 6:
                mark, tensor = held.pop(draw.randrange(6))
                if not (tensor[:8].eq(mark).all() and tensor[-8:].eq(mark).all()):
                    wrong.append(f"thread {number}, step {step}")
                del tensor

    before = caching_allocator.statistics()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    gc.collect()
    after = caching_allocator.statistics()
    assert (after["in_use"], after["blocks"]) == (before["in_use"], before["blocks"])


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_two_thousand_steps_of_any_size_do_not_grow(seed: int) -> None:
    """The memory held stays near its peak use, whatever sizes came before."""
    draw = random.Random(seed)

    def step() -> None:
        tokens = draw.randint(20, 500)
        blocks = [caching_allocator.empty((tokens, width), torch.float32) for width in (768, 2304, 3072, 768)]
        for tensor in blocks:
            tensor.view(-1)[::1024] = 1.0  # touches every page
        del blocks[1], blocks[0]
        caching_allocator.empty((tokens, 3072), torch.bfloat16)

    # Torch's fill of all would take most of the time.
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        for _ in range(200):
            step()
        before = resident()
        for _ in range(2000):
            step()
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
    result = caching_allocator.statistics()
    assert result["in_use"] + result["free"] <= 1.5 * result["peak"] + 4 * MEGABYTE
    assert resident() < before + 16 * MEGABYTE


def test_warm_pages_are_used_before_cold_ones() -> None:
    """Also where the system maps the pool's second gigabyte below its first, as Linux does."""
    caching_allocator.release()

    def warm() -> int:
        result = caching_allocator.statistics()
        return result["in_use"] + result["free"]

    torch.utils.deterministic.fill_uninitialized_memory = False  # what nobody writes to costs nothing
    try:
        blocks = [caching_allocator.empty((size * MEGABYTE,), torch.uint8) for size in (900, 300)]
        before = warm()
        blocks.clear()
        caching_allocator.empty((900 * MEGABYTE,), torch.uint8)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
    assert warm() == before


def test_a_huge_batch_does_not_hold_its_memory_for_ever() -> None:
    caching_allocator.empty((100 * MEGABYTE,), torch.uint8).fill_(1)
    assert caching_allocator.statistics()["free"] >= 100 * MEGABYTE
    before = resident()
    for _ in range(2200):
        caching_allocator.empty((MEGABYTE,), torch.uint8)
    assert caching_allocator.statistics()["free"] < 10 * MEGABYTE
    assert resident() < before - 80 * MEGABYTE


def test_release_gives_all_back_but_what_is_used() -> None:
    used = caching_allocator.empty((5 * MEGABYTE,), torch.uint8).fill_(7)
    caching_allocator.empty((50 * MEGABYTE,), torch.uint8).fill_(1)
    caching_allocator.release()
    assert caching_allocator.statistics()["free"] < 4 * MEGABYTE
    assert (used == 7).all()
    assert caching_allocator.statistics()["peak"] >= 55 * MEGABYTE
    caching_allocator.reset_peak()
    assert caching_allocator.statistics()["peak"] == in_use()


@pytest.mark.parametrize("elements", [1 << 44, 1 << 46, 1 << 60], ids=["64-TiB", "256-TiB", "4-EiB"])
def test_no_memory_is_an_error_with_its_size(elements: int) -> None:
    before = caching_allocator.statistics()["in_use"]
    with pytest.raises((MemoryError, RuntimeError), match=rf"{elements * 4}|[Oo]verflow|too (large|big)"):
        caching_allocator.empty((elements,), torch.float32)
    assert in_use() == before


def test_a_negative_size_is_torch_s_error() -> None:
    with pytest.raises(RuntimeError, match="negative"):
        caching_allocator.empty((-300, 1000), torch.float32)


def test_tensors_are_pickled_and_shared_like_others() -> None:
    tensor = caching_allocator.empty(LARGE, torch.float32).fill_(2.0)
    assert torch.equal(pickle.loads(pickle.dumps(tensor)), tensor)
    assert torch.equal(tensor.clone().share_memory_(), tensor)


def test_modes_that_watch_torch_see_the_tensor() -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode():
        assert isinstance(caching_allocator.empty(LARGE, torch.float32), FakeTensor)
    with torch.inference_mode():
        assert caching_allocator.empty(LARGE, torch.float32).is_inference()


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_interpreter_ends_while_tensors_live() -> None:
    """In globals, in a cycle, in a thread's hands, and in a module that dies last."""
    assert run("""
import sys, threading, time, torch
from fastbert.ops.native import caching_allocator
kept = caching_allocator.empty((300, 1000), torch.float32).fill_(1)
cycle = [caching_allocator.empty((300, 1000), torch.float32)]; cycle.append(cycle)
sys.kept = caching_allocator.empty((300, 1000), torch.float32)
w = torch.nn.Parameter(kept); loss = (w * 2).sum(); loss.backward()
def work():
    held = caching_allocator.empty((300, 1000), torch.float32)
    time.sleep(1000)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
print("end")
""").endswith("end\n")


def test_a_child_of_fork_has_the_memory_and_the_pool() -> None:
    """Also where another thread takes from the pool while the process forks."""
    assert run("""
import os, sys, threading, torch
from fastbert.ops.native import caching_allocator
torch.set_num_threads(1)
stop = False
def work():
    while not stop:
        caching_allocator.empty((300, 1000), torch.float32)
thread = threading.Thread(target=work); thread.start()
kept = caching_allocator.empty((300, 1000), torch.float32).fill_(5)
for _ in range(8):
    child = os.fork()
    if not child:
        ours = caching_allocator.empty((300, 1000), torch.float32).fill_(6)
        whole = bool((kept == 5).all()) and bool((ours == 6).all())
        del ours
        caching_allocator.release()
        os._exit(0 if whole and bool((kept == 5).all()) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (kept == 5).all()
stop = True
thread.join()
print("whole")
""").endswith("whole\n")

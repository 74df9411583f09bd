"""Many steps of training: no memory stays behind."""

import gc
import os
import random
import sys

import pytest
import torch
from batches import random_batch
from garbage import leave_out_old_objects

from fastbert import BertConfig, BertForPreTraining
from fastbert.ops.native import caching_allocator
from fastbert.training.optimizer import adamw

CONFIG = BertConfig(
    vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
    max_position_embeddings=64,
)  # fmt: skip
MEGABYTE = 1 << 20


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("steps", [50, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_steps_without_memory_growth(dtype: torch.dtype, steps: int, seed: int) -> None:
    """Sequences of other lengths in each step; gradients, packed copies and saved tensors are all given back."""
    model = BertForPreTraining(CONFIG).train()
    optimizer = adamw(model, lr=1e-4, weight_decay=0.01)
    draw = random.Random(seed)

    def step() -> None:
        lengths = [draw.randint(1, 64) for _ in range(draw.randint(1, 6))]
        batch = random_batch(lengths, CONFIG.vocab_size, max(1, sum(lengths) // 7), draw.randrange(2**31))
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = model(batch).loss
        loss.backward()
        optimizer.clip_gradients(1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def measured() -> tuple[int, int, int]:
        gc.collect()
        result = caching_allocator.statistics()
        return resident(), result["in_use"], sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())

    for _ in range(40):
        step()
    # In a process that other tests have used, the system's allocator may grow once; a leak grows again.
    growth = []
    leave_out_old_objects()
    for _ in range(3):
        before = measured()
        for _ in range(steps):
            step()
        after = measured()
        assert after[1:] == before[1:]
        growth.append(after[0] - before[0])
        if growth[-1] < 8 * MEGABYTE:
            break
    assert growth[-1] < 8 * MEGABYTE, growth

"""Compare the loss curves of one small pre-training run on every backend with float64's.

    python benchmarks/training/backend_losses.py --steps 200 --json curves.json

On a CPU the Triton kernels are interpreted: 200 steps then take about a quarter of an hour. Eager torch in fp32 is the
yardstick: every step amplifies the rounding of earlier ones, so different orders of summation soon give different
curves, and a backend is as good as eager torch if it stays about as close to float64.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fastbert import BertConfig, BertForPreTraining, use_backend
from fastbert.benchmarks.harness import records
from fastbert.ops.dispatch import HAS_TRITON
from fastbert.packing import PackedBatch
from fastbert.training.optimizer import adamw, clip_gradients

CONFIG = BertConfig(
    vocab_size=96,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=128,
    max_position_embeddings=32,
)
SEQUENCES, MASKED, MASK = 6, 14, 4


def batch_of(step: int) -> PackedBatch:
    """Return sequences that count upwards from a random token, so that there is something to learn; lengths change
    every step."""
    generator = torch.Generator().manual_seed(step)
    lengths = torch.randint(8, 21, (SEQUENCES,), generator=generator)
    cu_seqlens = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).int()
    starts = torch.randint(5, 40, (SEQUENCES,), generator=generator)
    total = int(lengths.sum())
    ids = starts.repeat_interleave(lengths) + torch.cat([torch.arange(int(length)) for length in lengths])
    positions = torch.randperm(total, generator=generator)[:MASKED].sort().values
    labels = ids[positions].clone()
    ids[positions] = MASK
    return PackedBatch(
        input_ids=ids,
        cu_seqlens=cu_seqlens,
        max_seqlen=int(lengths.max()),
        dropout_key=torch.randint(0, 2**62, (SEQUENCES,), generator=generator),
        masked_positions=positions,
        labels=labels,
        next_sentence_label=torch.randint(0, 2, (SEQUENCES,), generator=generator),
    )


def curve(
    backend: str | None,
    steps: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    progress: Callable[[int], None] = lambda step: None,
) -> torch.Tensor:
    """Return the loss of every step, dropout included, float64 (steps,); backend None is fastbert's choice for the
    device."""
    model = BertForPreTraining(CONFIG)
    model.init_weights(seed=3)
    model.to(device, dtype).train()
    optimizer = adamw(model, lr=2e-3, weight_decay=0.01)
    losses = []
    with use_backend(backend):  # type: ignore[arg-type]
        for step in range(steps):
            loss = model(batch_of(step).to(device)).loss
            assert loss is not None
            loss.backward()
            clip_gradients(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().double().cpu())
            progress(step + 1)
    return torch.stack(losses)


def backends(device: torch.device) -> dict[str, str | None]:
    """Return the backends besides eager torch, by name, as `use_backend` accepts them."""
    by_name: dict[str, str | None] = {"triton": "triton"} if HAS_TRITON else {}
    return by_name if device.type == "cuda" else {**by_name, "native": None}


def distance(curve: torch.Tensor, exact: torch.Tensor) -> float:
    return float((curve - exact).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="optimiser steps of each run (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file to write the curves to")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    runs: dict[str, tuple[str | None, torch.dtype]] = {
        "float64": ("eager", torch.float64),
        "eager": ("eager", torch.float32),
        **{name: (backend, torch.float32) for name, backend in backends(device).items()},
    }
    curves = {}
    for name, (backend, dtype) in runs.items():

        def progress(step: int, name: str = name) -> None:
            if sys.stderr.isatty():
                print(f"\r{name}: step {step} of {arguments.steps} ", end="", file=sys.stderr, flush=True)

        curves[name] = curve(backend, arguments.steps, device, dtype, progress)
    exact = curves.pop("float64")
    print(f"loss over {arguments.steps} steps: {exact[0]:.4f} to {exact[-1]:.4f} (float64)")
    workload = {"workload": "loss per step"}
    rows: list[dict[str, Any]] = [{**workload, "backend": "float64 reference", "loss": exact.tolist()}]
    for name, losses in curves.items():
        largest = distance(losses, exact)
        rows.append({**workload, "backend": name, "largest_difference_from_float64": largest, "loss": losses.tolist()})
        print(f"{name}: at most {largest:.3g} from float64")
    if arguments.json:
        settings = {"device": device.type, "steps": arguments.steps}
        records.write(arguments.json, records.record("backend-losses", rows, settings=settings))


if __name__ == "__main__":
    # Read when the kernels are imported.
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    main()

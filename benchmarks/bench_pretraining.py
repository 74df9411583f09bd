"""A pre-training step (forward, backward, clip, AdamW) of fastbert beside transformers on the same weights and batch.

    python benchmarks/bench_pretraining.py --model mini --json benchmarks/results/pretraining.json

Both run bf16 autocast (or the --dtype given) with torch's fused AdamW. transformers pads to the longest sequence, has
labels of -100 at unmasked positions, and computes logits of every position, as its users do. Without dropout the losses
of both are compared before anything is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from fastbert.benchmarks import harness, report
from fastbert.config import PRESETS, BertConfig
from fastbert.models import BertForPreTraining
from fastbert.packing import PackedBatch
from fastbert.training.optimizer import adamw, clip_gradients

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def make_batch(config: BertConfig, sequences: int, length: int, ragged: bool, seed: int) -> PackedBatch:
    """Random tokens, 15 % of them masked; `ragged` draws log-normal lengths instead of full ones."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.full((sequences,), length)
    if ragged:
        drawn = torch.empty(sequences).log_normal_(3.5, 0.6, generator=generator)
        lengths = drawn.long().clamp(5, length)
    total = int(lengths.sum())
    masked = torch.randperm(total, generator=generator)[: round(0.15 * total)].sort().values
    ids = torch.randint(5, config.vocab_size, (total,), generator=generator)
    return PackedBatch(
        input_ids=ids,
        cu_seqlens=torch.cat((torch.zeros(1), lengths.cumsum(0))).int(),
        max_seqlen=int(lengths.max()),
        dropout_key=torch.randint(0, 2**62, (sequences,), generator=generator),
        masked_positions=masked,
        labels=ids[masked],
        next_sentence_label=torch.randint(0, 2, (sequences,), generator=generator),
    )


def step_of(model: torch.nn.Module, forward: Callable[[], torch.Tensor], dtype: torch.dtype) -> Callable[[], None]:
    """One optimiser step as a function without arguments."""
    optimizer = adamw(model, lr=1e-5, weight_decay=0.01)

    def step() -> None:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            loss = forward()
        loss.backward()
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def compare(
    config: BertConfig, batch: PackedBatch, dtype: torch.dtype, workload: str, rounds: int
) -> list[harness.Row]:
    """The rows of one workload."""
    ours = BertForPreTraining(config)
    ours.init_weights(seed=0)
    theirs = transformers.BertForPreTraining(transformers.BertConfig.from_dict(config.to_dict()))
    theirs.load_state_dict(ours.state_dict())
    padded = batch.unpack()

    def our_loss() -> torch.Tensor:
        return ours(batch).loss

    def their_loss() -> torch.Tensor:
        return theirs(**padded).loss

    ours.eval(), theirs.eval()
    with torch.no_grad():
        difference = abs(float(our_loss()) - float(their_loss()))
    if difference > 1e-4:
        raise SystemExit(f"{workload}: the losses differ by {difference}; nothing is timed")
    ours.train(), theirs.train()
    timings = harness.interleave(
        {
            "fastbert": harness.timed(step_of(ours, our_loss, dtype)),
            "transformers": harness.timed(step_of(theirs, their_loss, dtype)),
        },
        rounds,
    )
    name = next(key for key, value in DTYPES.items() if value == dtype)
    return harness.make_rows(
        workload,
        timings,
        tokens=batch.num_tokens,
        differences={"transformers": difference},
        outputs={"transformers": "close"},
        dtype=name,
        threads=torch.get_num_threads(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini", choices=[*PRESETS], help="size of the model")
    parser.add_argument("--sequences", type=int, default=32, help="sequences a batch")
    parser.add_argument("--length", type=int, default=128, help="tokens a sequence, at most")
    parser.add_argument("--dtype", default="bf16", choices=[*DTYPES], help="dtype of the matrix products")
    parser.add_argument("--rounds", type=int, default=9, help="timed steps of each contender")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    arguments = parser.parse_args()
    config = BertConfig.preset(arguments.model)
    table = []
    for ragged in (False, True):
        batch = make_batch(config, arguments.sequences, arguments.length, ragged, seed=0)
        filled = batch.num_tokens / (arguments.sequences * batch.max_seqlen)
        workload = f"{arguments.model} {arguments.sequences}x{arguments.length} {filled:.0%} full"
        table += compare(config, batch, DTYPES[arguments.dtype], workload, arguments.rounds)
    report.show(table)
    if arguments.json:
        harness.write(arguments.json, table)


if __name__ == "__main__":
    main()

"""Compare the step of each optimiser with PyTorch's on the parameters of a BERT: milliseconds, on a CPU.

    python benchmarks/bench_optimizers.py --model base --rounds 9 --json rows.json

A step clips the norm of all gradients and updates the weights. The peers are `torch.optim.AdamW(fused=True)`,
StableAdamW and LAMB in multi-tensor operations of PyTorch, as they are commonly written, and `torch.optim.Muon` beside
AdamW. Weights are compared after the first step; then contenders take turns.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.measure import FASTBERT, Row, interleave, make_rows, timed
from fastbert.benchmarks.harness.report import show
from fastbert.config import PRESETS, BertConfig
from fastbert.models import BertForPreTraining
from fastbert.training.muon import ORTHOGONAL, Muon, split_groups
from fastbert.training.optimizer import OPTIMIZERS, AdamW, decayed
from fastbert.training.optimizer_flags import OptimizerName

PEER = "PyTorch"
LR, BETAS, EPS, DECAY, MAX_NORM = 1e-3, (0.9, 0.98), 1e-6, 0.01, 1.0
CLOSE, CLOSE_BF16 = 1e-5, 2e-4  # the latter for Muon, whose iterations are bf16 matmuls


class ForeachOptimizer:
    """StableAdamW or LAMB in multi-tensor operations, with the parameters' groups of AdamW."""

    def __init__(self, rule: str, groups: Sequence[dict[str, Any]]) -> None:
        self.rule = rule
        self.groups = groups
        self.step_count: int = 0
        self.moments: list[list[list[Tensor]]] = [
            [[torch.zeros_like(p) for p in group["params"]] for _ in range(2)] for group in groups
        ]

    @torch.no_grad()
    def step(self) -> None:
        """Take a step by the gradients."""
        self.step_count += 1
        first_correction, second_correction = (1.0 - beta**self.step_count for beta in BETAS)
        for group, (first, second) in zip(self.groups, self.moments, strict=True):
            weights, decay = group["params"], group["weight_decay"]
            gradients = [p.grad for p in weights]
            torch._foreach_lerp_(first, gradients, 1.0 - BETAS[0])
            torch._foreach_mul_(second, BETAS[1])
            torch._foreach_addcmul_(second, gradients, gradients, 1.0 - BETAS[1])
            roots = torch._foreach_sqrt(second)
            torch._foreach_div_(roots, math.sqrt(second_correction))
            updates = torch._foreach_div(first, torch._foreach_add(roots, EPS))
            torch._foreach_div_(updates, first_correction)
            rates = torch.full((len(weights),), LR)
            if self.rule == "stableadamw":
                torch._foreach_clamp_min_(roots, EPS)
                norms = torch.stack(torch._foreach_norm(torch._foreach_div(gradients, roots)))
                sizes = torch.tensor([float(p.numel()) for p in weights])
                rates = LR / (norms / sizes.sqrt()).clamp(min=1.0)
            elif decay:
                norms = torch.stack(torch._foreach_norm(weights))
                with_decay = torch._foreach_add(updates, weights, alpha=decay)
                rates = LR * norms / torch.stack(torch._foreach_norm(with_decay))
            torch._foreach_mul_(weights, (1.0 - rates * decay).tolist())
            torch._foreach_mul_(updates, rates.tolist())
            torch._foreach_sub_(weights, updates)


class MuonBesideAdamW:
    """torch.optim.Muon for the matrices of the layers, and torch's fused AdamW for the rest."""

    def __init__(self, groups: Sequence[dict[str, Any]]) -> None:
        matrices, rest = (
            [{"params": g["params"], "weight_decay": g["weight_decay"]} for g in groups if g[ORTHOGONAL] == orthogonal]
            for orthogonal in (True, False)
        )
        self.optimizers: tuple[Muon, AdamW] = (
            torch.optim.Muon(matrices, lr=LR, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=LR, betas=BETAS, eps=EPS, fused=True),
        )

    def step(self) -> None:
        """Take a step by the gradients."""
        for optimizer in self.optimizers:
            optimizer.step()


def parameter_groups(model: str, seed: int = 0, *, split: bool = False) -> list[dict[str, Any]]:
    """Return the parameters of a model's size with gradients, equal for equal seeds, grouped by weight decay, and by
    Muon and AdamW if `split`."""
    with torch.device("meta"):
        shapes = BertForPreTraining(BertConfig.preset(model))
    generator = torch.Generator().manual_seed(seed)
    groups: list[dict[str, Any]] = [{"params": [], "weight_decay": decay} for decay in (DECAY, 0.0)]
    for name, meta in shapes.named_parameters():
        parameter = nn.Parameter(torch.randn(meta.shape, generator=generator).mul_(0.02))
        parameter.grad = torch.randn(meta.shape, generator=generator).mul_(1e-4)
        groups[not decayed(name, meta)]["params"].append((name, parameter) if split else parameter)
    return split_groups(groups) if split else groups


def contenders(rule: OptimizerName, model: str) -> dict[str, tuple[list[Tensor], Callable[[], None]]]:
    """Return the weights of each contender, and its step."""
    own, theirs = (parameter_groups(model, split=rule == "muon") for _ in range(2))
    for group in theirs if rule == "muon" else ():
        group["params"] = [parameter for _, parameter in group["params"]]
    kind = Muon if rule == "muon" else OPTIMIZERS[rule]
    ours = kind(own, lr=LR, betas=BETAS, eps=EPS, fused=True)
    peer: Any
    if rule == "muon":
        peer = MuonBesideAdamW(theirs)
    elif rule == "adamw":
        peer = torch.optim.AdamW(theirs, lr=LR, betas=BETAS, eps=EPS, fused=True)
    else:
        peer = ForeachOptimizer(rule, theirs)
    weights = {
        name: [p for group in groups for p in group["params"]]
        for name, groups in ((FASTBERT, ours.param_groups), (PEER, theirs))
    }

    def our_step() -> None:
        ours.clip_gradients(MAX_NORM)
        ours.step()

    def their_step() -> None:
        nn.utils.clip_grad_norm_(weights[PEER], MAX_NORM)
        peer.step()

    return {FASTBERT: (weights[FASTBERT], our_step), PEER: (weights[PEER], their_step)}


def measure(rule: OptimizerName, model: str, rounds: int) -> list[Row]:
    """Return the rows of an optimiser. Exits if the contenders' weights differ after a step."""
    both = contenders(rule, model)
    for _, step in both.values():
        step()
    (own, _), (theirs, _) = both.values()
    difference = max(float((p - q).detach().abs().max()) for p, q in zip(own, theirs, strict=True))
    if not difference < (CLOSE_BF16 if rule == "muon" else CLOSE):
        sys.exit(f"{rule}: weights differ by {difference:.2g} after a step: there is nothing to compare")
    timings = interleave({name: timed(step) for name, (_, step) in both.items()}, rounds, warming=rounds > 1)
    differences, outputs = dict.fromkeys(timings, difference), dict.fromkeys(timings, "close")
    return make_rows(
        rule, timings, dtype="fp32", threads=torch.get_num_threads(), differences=differences, outputs=outputs
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(PRESETS), default="base", help="size of the parameters")
    parser.add_argument("--rounds", type=int, default=9, help="steps per contender")
    parser.add_argument("--threads", type=int, help="threads of each contender (default: torch's)")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or (options.threads is not None and options.threads < 1):
        parser.error("--rounds and --threads must be at least 1")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    rows = [row for rule in get_args(OptimizerName) for row in measure(rule, options.model, options.rounds)]
    show(rows)
    if options.json is not None:
        settings = {"model": options.model, "clipped": True}
        records.write(options.json, records.record("optimizers", map(asdict, rows), settings=settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())

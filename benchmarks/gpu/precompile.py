"""Compile in advance what later sections run: each variant in a process of its own, in parallel, into one disk cache.

python -P -m fastbert.benchmarks.gpu.precompile '{"kind": "attention", ...}'      # one variant of `variants`
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from fastbert.kernels.tuning.processes import end_with_parent

if __name__ == "__main__":
    # Before torch is imported, which takes seconds: the parent may be killed meanwhile.
    end_with_parent()

import torch

from fastbert.benchmarks.gpu import (
    attention,
    attention_peers,
    fused,
    graphs,
    layer,
    linear,
    loss,
    models,
    softmax,
    steps,
)
from fastbert.benchmarks.gpu.device import Device, open_device, own_backend
from fastbert.config import BertConfig
from fastbert.models import BertForPreTraining
from fastbert.ops import dispatch

# Longer than the short path supports, so that one run launches the kernels of both paths.
BEYOND_SHORT = 256
# `warm(device, name)` runs once what a case compiles, `warm_names` has one case per such variant.
WARMED: tuple[Any, ...] = (layer, linear, loss, fused)
STAGES = ("steps", "kernels", "rest")


def variants(dry: bool, stage: str) -> list[dict[str, Any]]:
    """Return what is to be compiled before a stage of the measurements, the slowest first, each as JSON.

    "steps": what training steps and inference run; "kernels": the layer and its operations; "rest".
    """
    return [variant for variant in every(dry) if variant["stage"] == stage]


def every(dry: bool) -> list[dict[str, Any]]:
    """Return what is to be compiled for all stages."""
    shapes = attention.shapes(dry)
    compiled = [candidate for candidate in shapes if candidate.compiled and candidate.direction == "forward"]
    flags = {
        (candidate.head_dim, candidate.causal, candidate.bias, candidate.dropout): candidate
        for candidate in reversed(shapes)
        if not candidate.compiled
    }
    longest, sequences = (24, 2) if dry else (BEYOND_SHORT, 2)
    tiny = [
        replace(candidate, length=longest, sequences=sequences, padding="full", direction="backward")
        for candidate in flags.values()
    ]
    cases: list[dict[str, Any]] = [{"kind": "compiled", "shape": asdict(candidate)} for candidate in compiled]
    sizes = ("base",) if dry else ("base", "large")
    cases += [{"kind": "steps", "case": name} for name in steps.warm_names(dry)]
    cases += [{"kind": "model", "size": size} for size in sizes]
    cases += [{"kind": "case", "case": name} for module in WARMED for name in module.warm_names(dry)]
    cases += [{"kind": "attention", "shape": asdict(candidate)} for candidate in tiny]
    cases += [{"kind": "softmax", "keys": keys} for keys in ((16,) if dry else (128, 512))]
    if dry:  # one kernel is enough
        cases = [candidate for candidate in cases if candidate["kind"] == "softmax"]
    return [{"name": _name(variant), "stage": _stage(variant), **variant} for variant in cases]


def _stage(variant: dict[str, Any]) -> str:
    if variant["kind"] in ("model", "steps"):
        return "steps"
    shape = variant.get("shape", {})
    masked = any(shape.get(name) for name in ("causal", "bias", "compiled"))
    return "rest" if variant["kind"] == "softmax" or masked or shape.get("head_dim", 64) != 64 else "kernels"


def resources(dry: bool) -> dict[str, Any]:
    """Return what attention with dropout, compiled for this GPU, takes: registers, spills, programs per multiprocessor,
    instructions per score."""
    if dry:
        return {"status": "skipped", "reason": "a dry run compiles for no GPU"}
    from fastbert.kernels.attention.compile_cases import AttentionCase
    from fastbert.kernels.launch import architecture, recording
    from fastbert.kernels.tuning.resources import TARGETS, compile_launch

    target = architecture(open_device(dry).torch_device)
    if target not in TARGETS:
        return {"status": "skipped", "reason": f"the limits of {target} are not known"}
    with recording(target) as launches:
        AttentionCase(head_dim=64, dropout=True).launch()
    kernels = []
    for launch in launches:
        row = compile_launch(launch, "bf16 64 dropout", target)
        names = ("kernel", "warps", "registers", "spills", "shared", "programs", "per_score")
        kernels.append({name: getattr(row, name) for name in names})
    return {"kernels": kernels}


def _name(variant: dict[str, Any]) -> str:
    if "shape" in variant:
        shape = variant["shape"]
        words = [variant["kind"], str(shape["head_dim"]), f"dropout {shape['dropout']:g}"]
        words += [str(shape["length"])] if variant["kind"] == "compiled" else []
        return " ".join(words + [word for word in ("causal", "bias") if shape[word]])
    return variant.get("case") or f"{variant['kind']} {variant.get('size', variant.get('keys'))}"


def run(variant: dict[str, Any], dry: bool) -> dict[str, Any]:
    """Run a variant once, forward and backward, and return the seconds it took."""
    device = open_device(dry)
    runner: Callable[[Device, dict[str, Any]], None] = {
        "attention": _attention,
        "compiled": _compiled,
        "softmax": _softmax,
        "case": _case,
        "model": _model,
        "steps": _steps,
    }[variant["kind"]]
    began = time.perf_counter()
    runner(device, variant)
    device.synchronize()
    return {"name": variant["name"], "seconds": round(time.perf_counter() - began, 2)}


def _attention(device: Device, variant: dict[str, Any]) -> None:
    inputs = attention.make_inputs(device, attention.Shape(**variant["shape"]), 0)
    with dispatch.use_backend(own_backend(device, "attention")):
        torch.autograd.grad(attention.run_fastbert(inputs), inputs.leaves(False), inputs.gradient)


def _compiled(device: Device, variant: dict[str, Any]) -> None:
    """Run attention under `torch.compile` at its full size: torch compiles for each shape."""
    inputs = attention.make_inputs(device, attention.Shape(**variant["shape"]), 0)
    function = attention_peers.compiled().call
    with torch.no_grad():
        function(inputs)
    torch.autograd.grad(function(inputs), inputs.leaves(True), inputs.padded_gradient)


def _softmax(device: Device, variant: dict[str, Any]) -> None:
    # Triton specialises on multiples of 16: use such sizes, as the measurements do.
    size = 2 if device.dry_run else 16
    scores = softmax.draw(device, size, size, variant["keys"], 0)
    with dispatch.use_backend(own_backend(device, "softmax")):
        torch.autograd.grad(softmax.run_fastbert(scores), scores.scores, scores.gradient)


def _case(device: Device, variant: dict[str, Any]) -> None:
    (module,) = (candidate for candidate in WARMED if variant["case"] in candidate.case_names(device.dry_run))
    module.warm(device, variant["case"])


def _steps(device: Device, variant: dict[str, Any]) -> None:
    steps.warm(device, variant["case"])


def _model(device: Device, variant: dict[str, Any]) -> None:
    config = models.small(replace(BertConfig.preset(variant["size"]), num_hidden_layers=1), device.dry_run)
    model = models.new_model(BertForPreTraining, config, device).train()
    lengths = (16,) if device.dry_run else (128, 512)
    batches = [models.make_batch(config, torch.full((4,), length), 0).to(device.torch_device) for length in lengths]
    for step in graphs.launched_steps(model, batches, **steps.SETTINGS):
        step()
    models.packed_states(model.bert.to(torch.bfloat16).eval(), batches[-1])


if __name__ == "__main__":
    result: dict[str, Any] = run(json.loads(sys.argv[1]), os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"))
    print(json.dumps(result))

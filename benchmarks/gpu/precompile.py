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
from functools import partial
from typing import Any

import torch

from fastbert.benchmarks.gpu import attention, attention_peers, fused, layer, loss, models, softmax
from fastbert.benchmarks.gpu.device import Device, open_device, own_backend
from fastbert.config import BertConfig
from fastbert.models import BertForPreTraining
from fastbert.ops import dispatch

# Longer than the short path supports, so that one run launches the kernels of both paths.
BEYOND_SHORT = 256
# `warm(device, name)` runs once what a case compiles, `warm_names` has one case per such variant.
WARMED: tuple[Any, ...] = (layer, loss, fused)


def variants(dry: bool) -> list[dict[str, Any]]:
    """Return what is to be compiled, the slowest first, each as JSON."""
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
    cases += [{"kind": "model", "size": size} for size in sizes]
    cases += [{"kind": "case", "case": name} for module in WARMED for name in module.warm_names(dry)]
    cases += [{"kind": "attention", "shape": asdict(candidate)} for candidate in tiny]
    cases += [{"kind": "softmax", "keys": keys} for keys in ((16,) if dry else (128, 512))]
    if dry:  # one kernel and one function compiled by torch are enough
        cases = [
            candidate
            for candidate in cases
            if candidate["kind"] == "softmax" or candidate.get("case", "").startswith("loss")
        ]
    return [{"name": _name(variant), **variant} for variant in cases]


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


def _model(device: Device, variant: dict[str, Any]) -> None:
    config = models.small(replace(BertConfig.preset(variant["size"]), num_hidden_layers=1), device.dry_run)
    model = models.new_model(BertForPreTraining, config, device).train()
    step = models.training_step(model, device)
    for length in (16,) if device.dry_run else (128, 512):
        batch = models.make_batch(config, torch.full((4,), length), 0).to(device.torch_device)
        step(batch)
    models.packed_states(model.bert.to(torch.bfloat16).eval(), batch)


def tune(dry: bool) -> dict[str, Any]:
    """Measure kernel configurations; FASTBERT_TUNING names the file of the table."""
    from importlib import import_module

    run_tuning = import_module("fastbert.kernels.tuning.tune").run
    lines: list[str] = []
    path, measured = run_tuning(open_device(dry).torch_device, report=partial(_keep, lines), widths=(64,))
    rows = [
        {
            "kernel": measurement.trial.kernel,
            "shape": measurement.trial.shape,
            "config": measurement.trial.config.as_json(),
            "ms": measurement.milliseconds,
            "problem": measurement.error,
        }
        for measurement in measured
    ]
    return {"path": str(path), "rows": rows}


def _keep(lines: list[str], *words: object) -> None:
    lines.append(" ".join(map(str, words)))
    print(*words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    result = run(json.loads(sys.argv[1]), os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"))
    print(json.dumps(result))

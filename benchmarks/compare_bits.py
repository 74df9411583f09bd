"""Compare two installations of fastbert bit by bit: outputs, losses and gradients per backend and CPU capability.

    python benchmarks/compare_bits.py --before OLD/bin/python --after NEW/bin/python

Each interpreter runs the same public calls, one process per capability, with the same seeds and one thread; digests of
the results are compared. Exits with 1 if a digest differs or is missing on one side.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

CAPABILITIES = ("portable", "avx2", "avx512", "amx")


def digest(values: Iterable[Any]) -> str:
    """Return a hash of the bytes of tensors."""
    import torch

    state = hashlib.sha256()
    for value in values:
        raw = value.detach().reshape(-1).contiguous().cpu()
        state.update(repr((raw.dtype, tuple(value.shape))).encode())
        state.update(raw.view(torch.uint8).numpy().tobytes() if raw.numel() else b"")
    return state.hexdigest()[:16]


def operations(dtype: Any) -> Iterator[tuple[str, Any]]:
    """Yield operations by name: functions that return their output and gradients."""
    import torch

    from fastbert import ops

    generator = torch.Generator().manual_seed(7)

    def random(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()

    x, residual, square, wide = random(37, 64), random(37, 64), random(64, 64), random(96, 64)
    weight, bias, wide_bias = random(64), random(64), random(96)
    qkv = random(37, 3, 2, 32)
    offsets = torch.tensor([0, 5, 5, 21, 37], dtype=torch.int32)
    keys = torch.arange(4) * 977
    sequences = torch.repeat_interleave(torch.arange(4), offsets.diff().long())
    dropout = ops.TokenDropout(0.1, keys, sequences, torch.arange(37) - offsets[sequences].long(), 258)
    scores, ids = random(2, 2, 9, 9), torch.randint(0, 64, (37,), generator=generator)
    parameter = torch.nn.Parameter(wide.detach().clone())
    upstream = torch.Generator().manual_seed(8)

    def both(output: Any, *leaves: Any) -> list[Any]:
        grad = torch.randn(output.shape, generator=upstream.manual_seed(8)).to(output.dtype)
        return [output, *torch.autograd.grad(output, leaves, grad)]

    def attend(**options: Any) -> list[Any]:
        q, k, v = qkv.unbind(1)
        return both(ops.attention(q, k, v, offsets, offsets, 16, 16, **options), qkv)

    yield "layer_norm", lambda: both(ops.layer_norm(x, weight, bias), x, weight, bias)
    yield "dropout", lambda: both(ops.dropout(x, dropout), x)
    yield (
        "dropout_add_layer_norm",
        lambda: both(
            ops.dropout_add_layer_norm(x, residual, weight, bias, 1e-12, dropout, x_bias=bias),
            x,
            residual,
            weight,
            bias,
        ),
    )
    yield "bias_gelu", lambda: both(ops.bias_gelu(x, bias), x, bias)
    yield "bias_gelu tanh", lambda: both(ops.bias_gelu(x, bias, "tanh"), x, bias)
    yield "gelu_layer_norm", lambda: both(ops.gelu_layer_norm(x, bias, weight, bias), x, weight, bias)
    yield "softmax", lambda: both(ops.softmax(scores, None), scores)
    yield (
        "embedding_layer_norm",
        lambda: both(
            ops.embedding_layer_norm((ids, ids), (square, square), weight, bias, 1e-12, dropout), square, weight, bias
        ),
    )
    yield "linear", lambda: both(ops.linear(x, parameter, wide_bias, activation="gelu"), x, parameter, wide_bias)
    yield "attention", attend
    yield "attention causal dropout", lambda: attend(causal=True, dropout_p=0.2, dropout_key=keys, dropout_site=3)
    yield (
        "linear_cross_entropy",
        lambda: both(ops.linear_cross_entropy(x, parameter, wide_bias, ids).loss_sum, x, parameter, wide_bias),
    )


def models() -> Iterator[tuple[str, Any]]:
    """Yield pre-training and inference of a small model: its loss with all gradients, and its hidden states."""
    import torch

    from fastbert import BertConfig, BertForPreTraining, BertModel

    config = BertConfig(
        vocab_size=120, hidden_size=64, num_hidden_layers=3, num_attention_heads=2, intermediate_size=96,
        max_position_embeddings=64,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(9)
    ids = torch.randint(0, 120, (4, 24), generator=generator)
    mask = (torch.arange(24)[None] < torch.tensor([[24], [3], [17], [9]])).long()
    labels = torch.where(torch.rand(4, 24, generator=generator) < 0.3, ids, -100)

    def train(bf16: bool, checkpointing: str) -> list[Any]:
        torch.manual_seed(10)
        model = BertForPreTraining(config)
        model.init_weights(11)
        model.checkpoint_activations(checkpointing)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            output = model(
                input_ids=ids, attention_mask=mask, labels=labels, next_sentence_label=torch.tensor([0, 1, 1, 0])
            )
        output.loss.backward()
        return [output.loss, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]

    def infer(int8: bool) -> list[Any]:
        model = BertModel(config).eval()
        model.init_weights(11)
        if int8:
            model.quantize()
        with torch.no_grad():
            return [model(input_ids=ids, attention_mask=mask).last_hidden_state]

    for bf16 in (False, True):
        for mode in ("none", "selective", "layer"):
            yield f"pretraining {'bf16' if bf16 else 'fp32'} {mode}", lambda bf16=bf16, mode=mode: train(bf16, mode)
    yield "inference", lambda: infer(False)
    yield "inference int8", lambda: infer(True)


def worker() -> None:
    """Print the digests of this interpreter's installation as JSON."""
    import torch

    from fastbert import use_backend

    torch.set_num_threads(1)
    digests: dict[str, str] = {}
    for backend in os.environ["COMPARE_BACKENDS"].split():
        with use_backend(None if backend == "auto" else backend):  # type: ignore[arg-type]
            for dtype in (torch.float32, torch.bfloat16):
                for name, call in operations(dtype):
                    digests[f"{backend} {name} {dtype}"] = digest(call())
            for name, call in models():
                if not (backend == "triton" and "bf16" in name) and not (backend != "native" and "int8" in name):
                    digests[f"{backend} {name}"] = digest(call())
    print(json.dumps(digests))


def run(python: str, capability: str, backends: str) -> dict[str, str] | None:
    """Return the digests of an installation; None where its CPU has no such capability."""
    environment = {**os.environ, "FASTBERT_CPU": capability, "COMPARE_BACKENDS": backends, "PYTHONSAFEPATH": "1"}
    if backends == "triton":
        environment["TRITON_INTERPRET"] = "1"
    done = subprocess.run([python, __file__, "--worker"], env=environment, capture_output=True, text=True)
    if done.returncode:
        if "FASTBERT_CPU" in done.stderr:
            return None
        raise SystemExit(f"{python} at {capability}: {done.stderr[-2000:]}")
    result: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> int:
    """Compare, print what differs, and return the exit code."""
    parser = argparse.ArgumentParser(description="Compare two installations of fastbert bit by bit.")
    parser.add_argument("--before", help="Python interpreter of the first installation")
    parser.add_argument("--after", default=sys.executable, help="interpreter of the second (default: this one)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker()
        return 0
    different = 0
    for capability, backends in (*((capability, "auto native eager") for capability in CAPABILITIES), ("", "triton")):
        before, after = (run(python, capability, backends) for python in (options.before, options.after))
        if before is None or after is None:
            print(f"{capability}: not on this CPU")
            continue
        names = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
        print(f"{capability or 'triton, interpreted'}: {len(before)} results, {len(names)} different")
        for name in names:
            print(f"  {name}: {before.get(name)} -> {after.get(name)}")
        different += len(names)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())

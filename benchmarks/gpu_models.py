"""The whole encoder: inference on real lengths beside padded ones and transformers, and steps of pre-training."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastbert.benchmarks.gpu_device import Device, open_device
from fastbert.benchmarks.gpu_measure import Calls, Case, Work, contest, willing
from fastbert.benchmarks.harness import OWN
from fastbert.config import BertConfig
from fastbert.models import BertForPreTraining, BertModel
from fastbert.ops import backend
from fastbert.packing import PackedBatch
from fastbert.training.optimizer import adamw, clip_gradients

TOKENS = 32768
FEWEST_TOKENS = 4096  # a step that does not fit is tried with half the sequences, down to this


def make_batch(config: BertConfig, lengths: Tensor, seed: int) -> PackedBatch:
    """Random tokens of given lengths, 15 % of them masked, with both labels."""
    generator = torch.Generator().manual_seed(seed)
    total, sequences = int(lengths.sum()), len(lengths)
    ids = torch.randint(5, config.vocab_size, (total,), generator=generator)
    masked = torch.randperm(total, generator=generator)[: round(0.15 * total)].sort().values
    return PackedBatch(
        input_ids=ids,
        cu_seqlens=torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).int(),
        max_seqlen=int(lengths.max()),
        dropout_key=torch.randint(0, 2**62, (sequences,), generator=generator),
        masked_positions=masked,
        labels=ids[masked],
        next_sentence_label=torch.randint(0, 2, (sequences,), generator=generator),
    )


def real_lengths(sequences: int, longest: int, seed: int) -> Tensor:
    """Lengths as sentences have them: log-normal, from 5 on, cut at `longest`, which one of them has."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.empty(sequences).log_normal_(3.5, 0.6, generator=generator).long().clamp(5, longest)
    drawn[0] = longest
    return drawn


def small(config: BertConfig, dry: bool) -> BertConfig:
    """The same model, or in a dry run one of two layers."""
    tiny = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1}
    return BertConfig(**tiny, intermediate_size=128) if dry else config  # type: ignore[arg-type]


def operations_per_token(config: BertConfig, length: int) -> float:
    """Of a forward pass through the encoder layers: two for each weight, and attention's."""
    width, inner = config.hidden_size, config.intermediate_size
    weights = 4 * width * width + 2 * width * inner
    return float(config.num_hidden_layers * (2 * weights + 4 * length * width))


# Inference


def encoder_names(dry: bool) -> list[str]:
    del dry
    return ["encoder base 128 real", "encoder base 128 full"]


def run_encoder(name: str, dry: bool, seconds: float, without: Sequence[str] = ()) -> dict[str, Any]:
    """Hidden states of base in bf16: ours packed and padded, and transformers' padded with SDPA if it is there."""
    device = open_device(dry)
    config = small(BertConfig.preset("base"), dry)
    longest, sequences = (16, 4) if dry else (128, 512)
    full = name.endswith("full")
    lengths = torch.full((sequences,), longest) if full else real_lengths(sequences, longest, 0)
    batches = [make_batch(config, lengths, seed).to(device.torch_device) for seed in range(2)]
    model = new_model(BertModel, config, device)
    theirs = transformers_model(model, device)
    model.to(torch.bfloat16).eval()
    candidates: dict[str, Callable[[], Calls]] = {
        OWN: lambda: [partial(packed_states, model, batch) for batch in batches],
        "fastbert padded": lambda: [partial(padded_states, model, batch.unpack()) for batch in batches],
    }
    if theirs is not None:
        theirs.to(torch.bfloat16).eval()
        candidates["transformers sdpa"] = lambda: [partial(padded_states, theirs, batch.unpack()) for batch in batches]
    case = Case()
    if theirs is None:
        case.leave_out(name, "transformers sdpa", "transformers is not installed")
    contenders = willing(device, case, name, candidates, without)
    tokens = int(lengths.sum())
    differences = compare_states(model, theirs, batches[0])
    case.rows = contest(
        device,
        name,
        contenders,
        Work(tokens=tokens, operations=tokens * operations_per_token(config, longest)),
        seconds=seconds,
        queued=False,
        differences=differences,
        outputs={other: "close" if other in differences else "not compared" for other in contenders},
        details=_details(device, sequences, tokens, longest),
    )
    device.free()
    return case.as_json()


def new_model(kind: Any, config: BertConfig, device: Device) -> Any:
    """A model with fresh weights, made on the device: drawing those of large on a CPU takes many seconds."""
    torch.manual_seed(0)
    with device.torch_device:
        return kind(config)


def transformers_model(ours: BertModel, device: Device) -> Any:
    """transformers' BertModel with our weights, or None where the package is missing."""
    if importlib.util.find_spec("transformers") is None:
        return None
    import transformers

    config = transformers.BertConfig.from_dict(ours.config.to_dict())
    config._attn_implementation = "sdpa"
    with device.torch_device:
        model = transformers.BertModel(config)
    model.load_state_dict(ours.state_dict(), strict=False)
    return model


def packed_states(model: BertModel, batch: PackedBatch) -> Tensor:
    with torch.no_grad():
        return model(batch).last_hidden_state


def padded_states(model: Any, padded: dict[str, Tensor]) -> Tensor:
    inputs = {key: padded[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
    with torch.no_grad():
        states: Tensor = model(**inputs).last_hidden_state
    return states


def compare_states(model: BertModel, theirs: Any, batch: PackedBatch) -> dict[str, float]:
    """Largest difference of four sequences' states in bf16 from the eager operations in fp32."""
    few = batch[:4]
    mine = packed_states(model, few).float()
    peer = None if theirs is None else padded_states(theirs, few.unpack()).float()
    with batch.device:
        plain = BertModel(model.config)
    plain.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    with backend.use_backend("eager"):
        exact = packed_states(plain.eval(), few)
    found = {OWN: float((mine - exact).abs().max())}
    if peer is not None:
        real = few.unpack()["attention_mask"].bool()
        found["transformers sdpa"] = float((peer[real] - exact).abs().max())
    return found


def _details(device: Device, sequences: int, tokens: int, longest: int) -> dict[str, Any]:
    served = {choice.operation: choice.backend for choice in backend.report(device.torch_device)}
    return {"sequences": sequences, "tokens": tokens, "longest": longest, "backends": served}


# Pre-training


def pretraining_names(dry: bool) -> list[str]:
    lengths = (16,) if dry else (128, 512)
    return [f"pretraining {size} {length}" for size in ("base", "large") for length in lengths]


def run_pretraining(name: str, dry: bool, seconds: float) -> dict[str, Any]:
    """Steps of bf16 autocast, backward, clipping and AdamW, with dropout, on full sequences."""
    device = open_device(dry)
    _, size, length = name.split()
    longest, tokens = int(length), 64 if dry else TOKENS
    config = small(BertConfig.preset(size), dry)
    model = new_model(BertForPreTraining, config, device).train()
    case = Case()
    while True:
        sequences = tokens // longest
        batches = [
            make_batch(config, torch.full((sequences,), longest), seed).to(device.torch_device) for seed in range(2)
        ]
        step = training_step(model, device)
        contenders = willing(device, case, name, {OWN: partial(_steps, step, batches)})
        if contenders or tokens // 2 < FEWEST_TOKENS:
            break
        tokens //= 2
        model.zero_grad(set_to_none=True)
        device.free()
    work = Work(tokens=tokens, operations=3 * tokens * operations_per_token(config, longest))
    details = _details(device, sequences, tokens, longest)
    case.rows = contest(
        device,
        name,
        contenders,
        work,
        seconds=seconds,
        queued=False,
        outputs={OWN: "not compared"},
        details=details,
    )
    device.free()
    return case.as_json()


def _steps(step: Callable[[PackedBatch], None], batches: list[PackedBatch]) -> Calls:
    return [partial(step, batch) for batch in batches]


def training_step(model: BertForPreTraining, device: Device) -> Callable[[PackedBatch], None]:
    """One optimiser step as a function of its batch."""
    optimizer = adamw(model, lr=1e-5, weight_decay=0.01)

    def step(batch: PackedBatch) -> None:
        with torch.autocast(device.torch_device.type, dtype=torch.bfloat16):
            loss = model(batch).loss
        assert loss is not None
        loss.backward()
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step

"""The whole encoder: inference beside padded torch, and steps of pre-training; each also replayed from CUDA graphs."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastbert.benchmarks.cpu.workloads import unread_operations
from fastbert.benchmarks.gpu.check import judge
from fastbert.benchmarks.gpu.device import Device, open_device
from fastbert.benchmarks.gpu.graphs import GRAPHS, replayed_states, replayed_steps
from fastbert.benchmarks.gpu.padded import PaddedEncoder, key_mask
from fastbert.benchmarks.gpu.timing import Calls, Case, Work, contest, willing
from fastbert.benchmarks.harness.measure import FASTBERT
from fastbert.config import BertConfig
from fastbert.models import BertForPreTraining, BertModel
from fastbert.ops import dispatch
from fastbert.packing import PackedBatch
from fastbert.training.optimizer import adamw, clip_gradients

TOKENS, MASKED = 32768, 0.15
SLOT, SLOT_TOKENS = 512, 509  # a slot of BERT-large, and the real tokens of the two sequences that share it
SETTINGS = {"lr": 1e-5, "weight_decay": 0.01, "max_grad_norm": 1.0}
TRANSFORMERS, PLAIN = "transformers sdpa", "torch padded"
FEWEST_TOKENS = 4096  # a step that does not fit is retried with half the sequences, down to this


def make_batch(config: BertConfig, lengths: Tensor, seed: int) -> PackedBatch:
    """Draw random tokens of the given lengths, 15 % of them masked, with both labels."""
    generator = torch.Generator().manual_seed(seed)
    total, sequences = int(lengths.sum()), len(lengths)
    ids = torch.randint(5, config.vocab_size, (total,), generator=generator)
    masked = torch.randperm(total, generator=generator)[: round(MASKED * total)].sort().values
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
    """Draw log-normal lengths as of sentences, from 5 on, capped at `longest`, which one of them has."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.empty(sequences).log_normal_(3.5, 0.6, generator=generator).long().clamp(5, longest)
    lengths[0] = longest
    return lengths


def small(config: BertConfig, dry: bool) -> BertConfig:
    """Return the same model, or in a dry run one of two layers."""
    tiny = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1}
    return BertConfig(**tiny, intermediate_size=128) if dry else config  # type: ignore[arg-type]


def operations_per_token(config: BertConfig, lengths: Sequence[int]) -> float:
    """Count the operations per token of a forward pass through the encoder layers, the mean over sequences of these
    lengths: two per weight, and attention's."""
    width, inner = config.hidden_size, config.intermediate_size
    weights = 4 * width * width + 2 * width * inner
    attended = sum(length * length for length in lengths) / sum(lengths)
    return float(config.num_hidden_layers * (2 * weights + 4 * attended * width))


# Inference


def encoder_names(dry: bool) -> list[str]:
    del dry
    return ["encoder base 128 real", "encoder base 128 full", "encoder base 16 latency"]


def run_encoder(name: str, dry: bool, seconds: float, without: Sequence[str] = ()) -> dict[str, Any]:
    """Measure hidden states of base in bf16: fastbert packed, padded, and from CUDA graphs, beside transformers' padded
    with SDPA, or the same layers in plain torch where transformers is not installed. "latency": one sequence of 16
    tokens, with a sync after each call."""
    device = open_device(dry)
    config = small(BertConfig.preset("base"), dry)
    variant = name.split()[-1]
    longest, sequences = (16, 1) if variant == "latency" else (16, 4) if dry else (128, 512)
    lengths = real_lengths(sequences, longest, 0) if variant == "real" else torch.full((sequences,), longest)
    batches = [make_batch(config, lengths, seed).to(device.torch_device) for seed in range(2)]
    model = new_model(BertModel, config, device)
    rival, states = _rival(model, device)
    model.to(torch.bfloat16).eval()
    unpacked = [batch.unpack() for batch in batches]
    masks = [key_mask(batch) for batch in batches]
    replayed: list[States] = []

    def graphs() -> Calls:
        replayed.append(replayed_states(model, batches))
        return [partial(replayed[0], batch) for batch in batches]

    candidates: dict[str, Callable[[], Calls]] = {
        FASTBERT: lambda: [partial(packed_states, model, batch) for batch in batches],
        GRAPHS: graphs,
        "fastbert padded": lambda: [partial(padded_states, model, padded) for padded in unpacked],
        rival: lambda: [partial(states, padded, mask) for padded, mask in zip(unpacked, masks)],
    }
    case = Case()
    if rival == PLAIN:
        case.leave_out(name, TRANSFORMERS, f"transformers is not installed: {PLAIN} stands in for it")
    contenders = willing(device, case, name, candidates, without)
    differences, outputs = {}, dict.fromkeys(contenders, "not compared")
    if rival in contenders:
        compared: dict[str, States] = dict(zip((FASTBERT, GRAPHS), (partial(packed_states, model), *replayed)))
        compared = {contender: call for contender, call in compared.items() if contender in contenders}
        differences, verdicts = compare_states(model, batches[0], compared, rival, partial(_real_states, states))
        outputs |= verdicts
    if variant == "latency":
        contenders = {
            contender: [partial(_answered, device, call) for call in calls] for contender, calls in contenders.items()
        }
    tokens = int(lengths.sum())
    case.rows = contest(
        device,
        name,
        contenders,
        Work(tokens=tokens, operations=tokens * operations_per_token(config, lengths.tolist())),
        seconds=seconds,
        queued=False,
        differences=differences,
        outputs=outputs,
        details=_details(device, sequences, tokens, longest),
    )
    device.free()
    return case.as_json()


def _answered(device: Device, call: Callable[[], Any]) -> Any:
    result = call()
    device.synchronize()
    return result


Padded = Callable[[dict[str, Tensor], Tensor | None], Tensor]
States = Callable[[PackedBatch], Tensor]


def _rival(model: BertModel, device: Device) -> tuple[str, Padded]:
    """Return the rival in bf16: its name, and a function from padded input and key mask to its states."""
    peer = transformers_model(model, device)
    if peer is not None:
        peer.to(torch.bfloat16).eval()
        return TRANSFORMERS, lambda inputs, mask: padded_states(peer, inputs)
    encoder = PaddedEncoder(copy.deepcopy(model)).to(torch.bfloat16).eval()

    def states(inputs: dict[str, Tensor], mask: Tensor | None) -> Tensor:
        with torch.no_grad():
            hidden: Tensor = encoder(inputs["input_ids"], inputs["token_type_ids"], mask)
        return hidden

    return PLAIN, states


def new_model(kind: Any, config: BertConfig, device: Device) -> Any:
    """Construct a model on the device: initialising large on a CPU takes many seconds."""
    torch.manual_seed(0)
    with device.torch_device:
        return kind(config)


def transformers_model(source: BertModel, device: Device) -> Any:
    """Return transformers' BertModel with the same weights, or None if the package is missing."""
    if importlib.util.find_spec("transformers") is None:
        return None
    import transformers

    config = transformers.BertConfig.from_dict(source.config.to_dict())
    config._attn_implementation = "sdpa"
    with device.torch_device:
        model = transformers.BertModel(config)
    model.load_state_dict(source.state_dict(), strict=False)
    return model


def packed_states(model: BertModel, batch: PackedBatch) -> Tensor:
    with torch.no_grad():
        return model(batch).last_hidden_state


def padded_states(model: Any, padded: dict[str, Tensor]) -> Tensor:
    inputs = {key: padded[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
    with torch.no_grad():
        states: Tensor = model(**inputs).last_hidden_state
    return states


def _real_states(states: Padded, batch: PackedBatch) -> Tensor:
    """Return padded states of a batch, packed."""
    unpacked = batch.unpack()
    return states(unpacked, key_mask(batch))[unpacked["attention_mask"].bool()]


def compare_states(
    model: BertModel, batch: PackedBatch, compared: dict[str, States], rival: str, rival_call: States
) -> tuple[dict[str, float], dict[str, str]]:
    """Compare four sequences' states in bf16 with eager operations in fp32; return everybody's largest difference, and
    whether fastbert's are at most twice the rival's."""
    subset = batch[:4]
    with batch.device:
        reference = BertModel(model.config)
    reference.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    with dispatch.use_backend("eager"):
        exact = {"states": packed_states(reference.eval(), subset).double()}
    rival_states = {"states": rival_call(subset)}
    judged = {
        contender: judge({"states": states(subset)}, exact, rival_states) for contender, states in compared.items()
    }
    differences = {contender: difference for contender, (difference, _) in judged.items()}
    differences[rival] = judge(rival_states, exact, rival_states)[0]
    return differences, {contender: verdict for contender, (_, verdict) in judged.items()} | {rival: "close"}


def _details(device: Device, sequences: int, tokens: int, longest: int) -> dict[str, Any]:
    backends = {choice.operation: choice.backend for choice in dispatch.report(device.torch_device)}
    return {"sequences": sequences, "tokens": tokens, "longest": longest, "backends": backends}


# Pre-training


def pretraining_names(dry: bool) -> list[str]:
    """Return the cases, those with a goal first."""
    if dry:
        return ["pretraining base 16 full", "pretraining large 16 packed"]
    goals = ["pretraining base 128 full", "pretraining base 512 full", "pretraining large 512 packed"]
    return [*goals, "pretraining large 128 full", "pretraining large 512 full"]


def slot_lengths(slots: int, longest: int) -> Tensor:
    """Return the lengths of the two sequences in each slot: together nearly the slot, the shorter between an eighth and
    half of it."""
    pair = longest * SLOT_TOKENS // SLOT
    shorter = torch.linspace(pair / 8, pair / 2, slots).long()
    return torch.stack((shorter, pair - shorter), 1).flatten()


def step_lengths(tokens: int, longest: int, how: str) -> Tensor:
    """Return the lengths of a step's sequences: "full" or "packed" slots of `longest` tokens."""
    slots = tokens // longest
    return slot_lengths(slots, longest) if how == "packed" else torch.full((slots,), longest)


def run_pretraining(name: str, dry: bool, seconds: float, without: Sequence[str] = ()) -> dict[str, Any]:
    """Measure steps of bf16 autocast, backward, clipping and AdamW, with dropout: kernel by kernel, and from CUDA
    graphs."""
    device = open_device(dry)
    _, size, length, variant = name.split()
    longest, tokens = int(length), 64 if dry else TOKENS
    config = small(BertConfig.preset(size), dry)
    model = new_model(BertForPreTraining, config, device).train()
    case = Case()
    while True:
        lengths = step_lengths(tokens, longest, variant)
        batches = [make_batch(config, lengths, seed).to(device.torch_device) for seed in range(2)]
        candidates = {
            FASTBERT: partial(_steps, training_step(model, device), batches),
            # A separate model: a graph keeps its gradients in place, the other run drops them.
            GRAPHS: lambda: replayed_steps(new_model(BertForPreTraining, config, device).train(), batches, **SETTINGS),  # noqa: B023
        }
        contenders = willing(device, case, name, candidates, without)
        if FASTBERT in contenders or tokens // 2 < FEWEST_TOKENS:
            break
        tokens //= 2
        model.zero_grad(set_to_none=True)
        device.free()
    real = int(lengths.sum())
    read_rows = len(lengths) + round(MASKED * real)  # from the last layer: first tokens and masked positions
    unread = (real - min(real, read_rows)) * unread_operations(config)
    work = Work(tokens=real, operations=3 * (real * operations_per_token(config, lengths.tolist()) - unread))
    case.rows = contest(
        device,
        name,
        contenders,
        work,
        seconds=seconds,
        queued=False,
        outputs=dict.fromkeys(contenders, "not compared"),
        details=_details(device, len(lengths), real, longest),
    )
    device.free()
    return case.as_json()


def _steps(step: Callable[[PackedBatch], None], batches: list[PackedBatch]) -> Calls:
    return [partial(step, batch) for batch in batches]


def training_step(model: BertForPreTraining, device: Device) -> Callable[[PackedBatch], None]:
    """Return a function that takes one optimizer step on a batch."""
    optimizer = adamw(model, lr=SETTINGS["lr"], weight_decay=SETTINGS["weight_decay"])

    def step(batch: PackedBatch) -> None:
        with torch.autocast(device.torch_device.type, dtype=torch.bfloat16):
            loss = model(batch).loss
        assert loss is not None
        loss.backward()
        clip_gradients(model.parameters(), SETTINGS["max_grad_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step

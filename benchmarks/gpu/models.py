"""The whole encoder: inference on packed tokens beside padded ones, and replayed from CUDA graphs; random batches."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastbert.benchmarks.cpu.workloads import layer_operations
from fastbert.benchmarks.gpu.check import judge
from fastbert.benchmarks.gpu.device import Device, open_device
from fastbert.benchmarks.gpu.graphs import GRAPHS, replayed_states
from fastbert.benchmarks.gpu.padded import PaddedEncoder, key_mask
from fastbert.benchmarks.gpu.timing import Calls, Case, Work, contest, willing
from fastbert.benchmarks.harness.measure import FASTBERT
from fastbert.config import BertConfig
from fastbert.models import BertModel
from fastbert.ops import dispatch
from fastbert.packing import PackedBatch

MASKED = 0.15
TRANSFORMERS, PLAIN = "transformers sdpa", "torch padded"
# Packed input, which transformers passes to flash-attn without padding.
UNPADDED = "transformers flash unpadded"


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
    return layer_operations(config, lengths) / sum(lengths)


# Inference


def encoder_names(dry: bool) -> list[str]:
    names = ["encoder base 128 full", "encoder base 128 real", "encoder base 16 latency"]
    return names[1:] if dry else names


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
    flash = _unpadded_transformers(model, device, case, name)
    if flash is not None:
        candidates[UNPADDED] = lambda: [partial(flash, batch) for batch in batches]
    if rival == PLAIN:
        case.leave_out(name, TRANSFORMERS, f"transformers is not installed: {PLAIN} stands in for it")
    contenders = willing(device, case, name, candidates, without)
    differences, outputs = {}, dict.fromkeys(contenders, "not compared")
    if rival in contenders:
        compared: dict[str, States] = dict(zip((FASTBERT, GRAPHS), (partial(packed_states, model), *replayed)))
        compared |= {UNPADDED: flash} if flash is not None else {}
        compared = {contender: call for contender, call in compared.items() if contender in contenders}
        differences, verdicts = compare_states(model, batches[0], compared, rival, partial(_real_states, states))
        outputs |= verdicts
    if variant == "latency":
        contenders = {
            contender: [partial(_answered, device, call) for call in calls] for contender, calls in contenders.items()
        }
    tokens = int(lengths.sum())
    measured = contest(
        device,
        name,
        contenders,
        Work(tokens=tokens, operations=tokens * operations_per_token(config, lengths.tolist())),
        seconds=seconds,
        queued=False,
        differences=differences,
        outputs=outputs,
        details=details(device, sequences, tokens, longest),
    )
    case.add(measured)
    device.free()
    return case.as_json()


def _unpadded_transformers(model: BertModel, device: Device, case: Case, name: str) -> States | None:
    """Return transformers' states of packed input in bf16, None where flash-attn is missing, with the reason in
    `case`."""
    for package in ("transformers", "flash_attn"):
        if importlib.util.find_spec(package) is None:
            case.leave_out(name, UNPADDED, f"{package} is not installed")
            return None
    peer = transformers_model(model, device, "flash_attention_2")
    peer.to(torch.bfloat16).eval()

    def states(batch: PackedBatch) -> Tensor:
        ids = {key: getattr(batch, key)[None] for key in ("input_ids", "token_type_ids", "position_ids")}
        offsets, longest = batch.cu_seqlens, batch.max_seqlen
        lengths = {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": longest, "max_length_k": longest}
        with torch.no_grad():
            hidden: Tensor = peer(**ids, **lengths).last_hidden_state[0]
        return hidden

    return states


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


def transformers_model(source: BertModel, device: Device, attention: str = "sdpa") -> Any:
    """Return transformers' BertModel with the same weights, or None if the package is missing."""
    if importlib.util.find_spec("transformers") is None:
        return None
    import transformers

    config = transformers.BertConfig.from_dict(source.config.to_dict())
    config._attn_implementation = attention
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


def details(device: Device, sequences: int, tokens: int, longest: int) -> dict[str, Any]:
    """Return what a row says about its batch, and the backend of every operation."""
    backends = {choice.operation: choice.backend for choice in dispatch.report(device.torch_device)}
    return {"sequences": sequences, "tokens": tokens, "longest": longest, "backends": backends}

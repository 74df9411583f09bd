"""Encoders of other families than BERT in their released shapes, with random weights, and the batches they are measured
on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fastbert.benchmarks.cpu import growth, workloads
from fastbert.benchmarks.cpu.workloads import LONGEST, Workload, batch, lognormal_lengths

if TYPE_CHECKING:
    from fastbert.config import BertConfig
    from fastbert.ops.encoder_layer.spec import LayerSpec


def _mpnet() -> BertConfig:
    from fastbert.models.mpnet.config import MPNetConfig

    return MPNetConfig.preset("base")


def _modernbert() -> BertConfig:
    from fastbert.models.modernbert.config import ModernBertConfig

    return ModernBertConfig()


def _deberta() -> BertConfig:
    from fastbert.models.deberta_v2.config import DebertaV2Config

    return DebertaV2Config(
        hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, type_vocab_size=0,
        relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True,
        pos_att_type=("p2c", "c2p"), position_biased_input=False,
    )  # fmt: skip


def _nomic() -> BertConfig:
    from fastbert.models.nomic_bert.config import NomicBertConfig

    return NomicBertConfig()


def _eurobert() -> BertConfig:
    from fastbert.models.eurobert.config import EuroBertConfig

    return EuroBertConfig()


# The largest batch of a sweep: eager relative positions take a minute for twice as many.
MOST_SWEPT = 4096


@dataclass(frozen=True)
class Family:
    """A family: the config of its released shape, and whether texts of thousands of tokens belong to its use."""

    released: Callable[[], BertConfig]
    long: bool = False

    def config(self, quick: bool = False) -> BertConfig:
        """Return the config, with two layers if `quick`."""
        config = self.released()
        return dataclasses.replace(config, num_hidden_layers=2) if quick else config


FAMILIES: dict[str, Family] = {
    "mpnet-base": Family(_mpnet),
    "modernbert-base": Family(_modernbert, long=True),
    "deberta-v3-base": Family(_deberta),
    "nomic-bert": Family(_nomic, long=True),
    "eurobert-210m": Family(_eurobert, long=True),
}


def batches(family: Family, quick: bool = False) -> list[Workload]:
    """Return the workloads of a family; `quick` ones have an eighth of the sequences."""
    config = family.config(quick)
    many, few = (4, 1) if quick else (32, 8)
    made = [
        batch("lognormal", lognormal_lengths(many, LONGEST), LONGEST, config),
        batch("full-128", [LONGEST] * (few if quick else 8), LONGEST, config),
        batch("full-512", [512] * few, 512, config),
        batch("latency-16", [16], 16, config),
    ]
    if family.long:
        made.append(batch("long-4096", [1024 if quick else 4096], 1024 if quick else 4096, config))
    return [_counted(workload, config) for workload in made]


def sweep(family: Family, quick: bool = False) -> list[Workload]:
    """Return full batches of every size from one short text on, named `sequences x length`, of at most `MOST_SWEPT`
    tokens; `quick` ones have at most 8 sequences of 32."""
    config = family.config(quick)
    counts, lengths = ((1, 8), (8, 32)) if quick else ((1, 8, 32), (8, 32, 64, 128, 256, 512))
    shapes = growth.shapes(counts, lengths, MOST_SWEPT)
    made = [batch(f"{count}x{length}", [length] * count, length, config) for count, length in shapes]
    return [_counted(workload, config) for workload in made]


def _counted(workload: Workload, config: Any) -> Workload:
    """Return the workload with the operations of the config's own layers."""
    counted = operations(config, workload.arrays["lengths"].tolist())
    return replace(workload, operations=counted, forward=None)  # the model of time is that of BERT's layers


def operations(config: Any, lengths: Sequence[int]) -> float:
    """Count the operations of a forward pass through the layers: matmuls of all tokens, and of queries with the keys
    and values that they see; those with relative positions are not counted."""
    from fastbert.models.registry import architecture_of

    total = 0.0
    for layer in architecture_of(config).spec(config).layers:
        attention, width = layer.self_attention, layer.hidden_size
        groups = attention.heads if attention.key_value_heads is None else attention.key_value_heads
        heads = attention.heads * attention.head_dim
        total += sum(lengths) * (2.0 * width * (heads + 2 * groups * attention.head_dim) + _after_attention(layer))
        total += 4.0 * heads * sum(_visible(length, attention.window) for length in lengths)
    return total


def unread_operations(config: Any) -> float:
    """Count the operations of the last layer after attention for a token whose output is not used."""
    from fastbert.models.registry import architecture_of

    return _after_attention(architecture_of(config).spec(config).layers[-1])


def _after_attention(layer: LayerSpec) -> float:
    """Return the operations per token of attention's output projection and of the feed-forward network."""
    attention, network = layer.self_attention, layer.feed_forward
    inputs = attention.heads * attention.head_dim + network.first_width + network.intermediate_size
    return 2.0 * layer.hidden_size * inputs


def _visible(length: int, window: int | None) -> int:
    """Return the pairs of queries and visible keys of a sequence."""
    if window is None or window >= length:
        return length * length
    return length * (2 * window + 1) - window * (window + 1)


def save_model(folder: Any, family: Family, quick: bool = False) -> Any:
    """Write a model with random weights as a Hugging Face folder, with two layers if `quick`; return the folder."""
    import torch

    from fastbert.models.encoder import EncoderModel
    from fastbert.models.registry import architecture_of

    config = family.config(quick)
    torch.manual_seed(workloads.SEED)
    model = architecture_of(config).model_class(EncoderModel)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    model.save_pretrained(folder)
    return folder

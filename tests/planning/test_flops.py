"""FLOPs of a training step, counted from a config, equal those that torch counts while it computes the step."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fastbert.models import registry
from fastbert.models.electra.sampling import _BLOCK
from fastbert.models.elmo.characters import windows_of
from fastbert.models.elmo.config import ElmoConfig
from fastbert.ops.dispatch import use_backend
from fastbert.packing import PackedBatch
from fastbert.planning.flops import BatchStatistics, ModelFlops, model_flops, parts, step_flops
from fastbert.planning.shape import model_shape
from fastbert.planning.stacks import PAIRED
from fastbert.training.objectives import pretraining_model, with_dropout

LENGTHS = (16, 32, 16)  # powers of two: the eager attention pads to them
VARIED: dict[str, dict[str, Any]] = {
    "mpnet": {"pad_token_id": 1},
    "jina_embeddings_v3": {"pad_token_id": 1},
    "modernbert": {"pad_token_id": 0, "local_attention": 8, "num_hidden_layers": 4},
    "deberta-v2": {"conv_kernel_size": 3, "conv_groups": 2, "embedding_size": 48, "z_steps": 2},
    "nomic_bert": {"attention_head_dim": 32},
    "eurobert": {"pad_token_id": 0, "num_key_value_heads": 1},
    "albert": {"num_hidden_layers": 3, "num_hidden_groups": 2},
    "jina_bert": {},
}
"""Newer architectures, and what of their specs the preset does not show."""


def config_of(architecture: str, **overrides: Any) -> Any:
    record = registry.architecture(architecture)
    assert record.config is not None
    overrides = {**VARIED.get(architecture, {}), **overrides}
    return with_dropout(record.config.preset("tiny", vocab_size=1000, **overrides), 0.0)


def batch_of(objective: str, lengths: tuple[int, ...] = LENGTHS, vocab: int = 1000) -> PackedBatch:
    """Return a batch with labels as the objective has them."""
    tokens = sum(lengths)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(10, vocab, (tokens,), generator=generator)
    offsets = torch.tensor([0, *lengths]).cumsum(0).int()
    if objective in ("ltr", "bilm"):  # a label at every token but the last of a sequence
        positions = (
            torch.ones(tokens, dtype=torch.bool).index_fill_(0, offsets[1:].long() - 1, False).nonzero().view(-1)
        )
    else:
        positions = torch.arange(3, tokens, 9)
    return PackedBatch(
        input_ids=ids, cu_seqlens=offsets, max_seqlen=max(lengths),
        token_type_ids=torch.zeros(tokens, dtype=torch.int64),
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        masked_positions=positions, labels=ids[positions],
        next_sentence_label=torch.tensor([0, 1, 0][: len(lengths)]) if objective in PAIRED else None,
    )  # fmt: skip


class _NoModules(contextlib.nullcontext[None]):
    """In place of the counter's hooks on modules, with which the last layer would compute all tokens."""

    parents = frozenset(("Global",))


def counter() -> FlopCounterMode:
    counts = FlopCounterMode(display=False)
    counts.mod_tracker = _NoModules()  # type: ignore[assignment]
    return counts


def counted(model: Any, batch: PackedBatch) -> tuple[int, int]:
    """Return the operations that torch counts in the forward and the backward pass of a step."""
    with use_backend("eager"), counter() as forward:
        loss = model(batch).loss
    with use_backend("eager"), counter() as backward:
        loss.backward()
    return forward.get_total_flops(), backward.get_total_flops()


# XLM-RoBERTa and CamemBERT are RoBERTa with other vocabularies.
CASES = [
    pytest.param(*case, id="-".join(case))
    for case in (
        ("bert", "mlm+nsp"), ("bert", "mlm"), ("bert", "ltr"), ("roberta", "mlm"), ("distilbert", "mlm"),
        ("roberta-prelayernorm", "mlm+nsp"), ("electra", "rtd"), ("gpt2", "ltr"), ("openai-gpt", "ltr"),
        ("elmo", "bilm"), *((name, "mlm+sop" if name == "albert" else "mlm") for name in VARIED),
    )
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "objective"), CASES)
def test_flops_are_those_of_the_counter(architecture: str, objective: str) -> None:
    config = config_of(architecture)
    if objective == "ltr" and architecture == "bert":
        config = replace(config, is_decoder=True)
    model, batch = pretraining_model(config, objective).train(), batch_of(objective)  # type: ignore[arg-type]
    statistics = BatchStatistics.of([batch])
    if isinstance(config, ElmoConfig):
        model.set_vocabulary(words := [*(f"w{'o' * (i % 13)}{i}" for i in range(998)), "[CLS]", "[SEP]"])
        assert len(words) == config.vocab_size
        distinct = batch.input_ids.unique()
        windows = windows_of(model.elmo._vocabulary, distinct, len(config.filters)).starts
        statistics = replace(statistics, windows=len(windows))
    shape = model_shape(config, objective)
    if not isinstance(config, ElmoConfig):  # the eager backend computes masked scores too
        shape = tuple(replace(stack, causal=False, windows=()) for stack in shape)
    expected = step_flops(parts(shape, fused_attention=False), statistics)
    forward, backward = expected.forward, expected.backward
    if isinstance(config, ElmoConfig):  # torch does not count matmuls in place: those of the recurrence
        rows = 2 * (sum(LENGTHS) - len(LENGTHS)) * config.num_hidden_layers
        recurrence = 2 * rows * 4 * config.intermediate_size * config.projection_size
        forward, backward = forward - recurrence, backward - recurrence
    if architecture == "deberta-v2":  # relative positions are projected once
        (stack,) = shape
        projections = 2 * stack.layers * stack.relative_rows * config.hidden_size**2
        forward, backward = forward + projections, backward + 2 * projections
    if objective == "rtd":  # the cumulated probabilities of samples are matmuls with ones
        forward += 2 * statistics.predictions * (math.ceil(config.vocab_size / _BLOCK) ** 2 + _BLOCK**2)
    assert counted(model, batch) == (forward, backward)
    assert expected.recomputed == 0


def test_recomputation_is_that_of_the_counter() -> None:
    batch = batch_of("mlm+nsp")
    statistics, config = BatchStatistics.of([batch]), config_of("bert")
    model = pretraining_model(config, "mlm+nsp").train()
    for mode in ("layer", "selective"):
        model.checkpoint_activations(mode)
        expected = step_flops(parts(model_shape(config, "mlm+nsp"), mode, fused_attention=False), statistics)
        assert counted(model, batch)[1] == expected.backward + expected.recomputed
    fused = step_flops(parts(model_shape(config, "mlm+nsp")), statistics)
    assert fused.recomputed == config.num_hidden_layers * 2 * config.hidden_size * sum(n * n for n in LENGTHS)
    assert fused.model == ModelFlops(config, "mlm+nsp").of(statistics) == model_flops(config, statistics)


def test_causal_attention_counts_the_pairs_that_it_reads() -> None:
    config = config_of("gpt2")
    statistics = BatchStatistics.of([batch_of("ltr")])
    attention = next(part for part in parts(model_shape(config, "ltr")) if part.name == "attention")
    pairs = sum(n * (n + 1) / 2 for n in LENGTHS)
    assert statistics.dot(attention.forward) == config.num_hidden_layers * 4 * config.hidden_size * pairs


def test_windows_count_the_pairs_that_they_show() -> None:
    config = config_of("modernbert", local_attention=8)
    batch = batch_of("mlm")
    statistics = BatchStatistics.of([batch, batch], ModelFlops(config, "mlm").windows)
    distances = (torch.arange(n)[:, None].sub(torch.arange(n)).abs() for n in LENGTHS)
    visible = 2 * sum(int((each <= 4).sum()) for each in distances)
    assert statistics.visible == {4: visible}
    attention = next(part for part in parts(model_shape(config, "mlm")) if part.name == "attention")
    pairs = 2 * statistics.squared_lengths + 2 * visible  # of global and of other layers
    assert statistics.dot(attention.forward) == 4 * config.hidden_size * pairs
    most = replace(statistics, visible={}).dot(attention.forward)
    assert most >= statistics.dot(attention.forward), "without the lengths, as many as there may be"
    assert (statistics + statistics).visible == (statistics * 2).visible == {4: 2 * visible}
    whole = replace(config, layer_types=("full_attention",) * 4)
    assert ModelFlops(config, "mlm").of(statistics) < ModelFlops(whole, "mlm").of(statistics)


def test_utilisation_is_the_share_of_the_peak() -> None:
    config, statistics = config_of("bert"), BatchStatistics.of([batch_of("mlm")])
    flops = ModelFlops(config, "mlm")
    assert flops.utilisation(statistics, 2.0, flops.of(statistics)) == 0.5
    assert flops.utilisation(statistics, 2.0, None) is None
    assert (statistics + statistics) == statistics * 2

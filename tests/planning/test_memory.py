"""Memory of a step: activations are those that autograd saves; parts follow what is shared, gathered or recomputed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fastbert.config import BertConfig
from fastbert.models import registry
from fastbert.ops.dispatch import preferred_backend
from fastbert.planning.batches import planned_batch
from fastbert.planning.flops import BatchStatistics
from fastbert.planning.measure import random_batch
from fastbert.planning.memory import Setup, memory
from fastbert.planning.shape import model_shape
from fastbert.planning.stacks import ElmoShape
from fastbert.training.objectives import pretraining_model

NATIVE = preferred_backend("encoder_layer", torch.device("cpu")) == "native"
VOCABULARY = 2000
VARIED: dict[str, dict[str, Any]] = {
    "mpnet": {"pad_token_id": 1},
    "jina_embeddings_v3": {"pad_token_id": 1},
    "modernbert": {"pad_token_id": 0, "num_hidden_layers": 4},
    "deberta-v2": {"conv_kernel_size": 3, "embedding_size": 96, "position_buckets": 32},
    "nomic_bert": {"attention_head_dim": 32},
    "eurobert": {"pad_token_id": 0, "num_key_value_heads": 1},
    "albert": {"num_hidden_layers": 4, "num_hidden_groups": 2},
    "jina_bert": {},
}
"""Newer architectures, and what of their specs the preset does not show."""


def saved_bytes(model: Any, batch: Any, dtype: str) -> int:
    """Return the bytes that autograd saves in the forward pass, each storage once, parameters left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    alive: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            alive[storage.data_ptr()] = tensor
        return tensor

    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast:
        loss = model(batch).loss
    assert loss.isfinite()
    return sum(tensor.untyped_storage().nbytes() for tensor in alive.values())


@pytest.mark.skipif(not NATIVE, reason="activations are those of the native kernels")
@pytest.mark.parametrize(
    ("architecture", "objective", "tolerance"),
    [
        pytest.param("bert", "mlm+nsp", 0.03, id="bert"),
        pytest.param("electra", "rtd", 0.05, id="electra"),
        pytest.param("gpt2", "ltr", 0.03, id="gpt2"),
        pytest.param("elmo", "bilm", 0.1, id="elmo"),
        *(pytest.param(name, "mlm+sop" if name == "albert" else "mlm", 0.04, id=name) for name in VARIED),
    ],
)
def test_activations_are_those_that_autograd_saves(architecture: str, objective: str, tolerance: float) -> None:
    record = registry.architecture(architecture)
    assert record.config is not None
    variant = VARIED.get(architecture, {})
    config = record.config.preset("tiny", **{"vocab_size": VOCABULARY, "num_hidden_layers": 3, **variant})
    model = pretraining_model(config, objective).train()  # type: ignore[arg-type]
    if architecture == "elmo":
        model.set_vocabulary([*(f"word{index}" for index in range(VOCABULARY - 2)), "[CLS]", "[SEP]"])
    batch = random_batch(planned_batch(16, 64, objective, 0.15), objective, VOCABULARY)
    statistics, shape = BatchStatistics.of([batch]), model_shape(config, objective)
    cases = [("bf16", "none")]
    if architecture == "bert":
        cases += [("bf16", "layer"), ("bf16", "selective"), ("fp32", "none")]
    if architecture in VARIED:  # where selective checkpointing saves results of matmuls past autograd's hooks
        cases += [("bf16", "layer"), ("fp32", "none")]
    for dtype, mode in cases:
        model.checkpoint_activations(mode)
        plan = memory(shape, statistics, Setup(dtype=dtype, checkpointing=mode))  # type: ignore[arg-type]
        # The gradient of the vocabulary's matrix and of its bias is computed with the loss, and saved.
        stack = shape[-1] if objective != "rtd" else shape[0]
        width = stack.projection if isinstance(stack, ElmoShape) else stack.decoder_inputs
        table = 4 * stack.vocab * (width + 1) * (2 if architecture == "elmo" else 1)
        rotary = plan.parts.get("rotary tables", 0) if mode == "none" else 0
        saved = saved_bytes(model, batch, dtype) - table - rotary
        assert plan.activations == pytest.approx(saved, rel=tolerance), (dtype, mode)


def test_parts_add_up_and_shrink_as_they_should() -> None:
    config, one = BertConfig.preset("large"), planned_batch(32, 512, "mlm+nsp", 0.15)
    shape, setup = model_shape(config, "mlm+nsp"), Setup(device="cuda", long_sequences=True)
    parameters = config.num_parameters(heads=True)
    alone = memory(shape, one, setup)
    assert alone.total == sum(alone.parts.values()) == max(alone.phases.values())
    assert alone.parts["weights"] == 4 * parameters
    assert alone.parts["optimiser"] == 8 * parameters
    assert alone.parts["bf16 copy of the weights"] == 2 * parameters
    layer, selective = (
        memory(shape, one, replace(setup, checkpointing=mode)).total  # type: ignore[arg-type]
        for mode in ("layer", "selective")
    )
    assert layer < selective < alone.total
    muon = memory(shape, one, replace(setup, optimizer="muon"))
    layers = config.num_hidden_layers * (12 * config.hidden_size**2 + 13 * config.hidden_size)
    assert muon.parts["optimiser"] == 8 * parameters - 4 * layers
    ddp = memory(shape, one, replace(setup, parallel="ddp", devices=8))
    fsdp = memory(shape, one, replace(setup, parallel="fsdp", devices=8))
    assert fsdp.parts["weights"] == -(-parameters // 8) * 4
    assert fsdp.total < ddp.total
    accumulating = memory(shape, one, replace(setup, parallel="ddp", devices=8, accumulates=True))
    assert accumulating.phases["loss"] - ddp.phases["loss"] == 4 * parameters, "gradients beside the buckets"
    assert memory(shape, one, replace(setup, parallel="fsdp", devices=64)).total < fsdp.total
    twice = memory(shape, one * 2, setup)
    assert twice.total > alone.total
    assert twice.parts["weights"] == alone.parts["weights"]
    cpu = memory(shape, one, Setup(accumulates=True), baseline=1000)
    assert cpu.parts["framework"] == 1000
    assert "prepacked weights" in cpu.parts

"""Encoders of newer architectures against transformers on the same weights: outputs, gradients of all parameters,
files; packed, padded, with padding between tokens, and recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_families import CASES, LENGTHS, padded

import fastbert

transformers = pytest.importorskip("transformers")

EXPORTED = ("mpnet", "modernbert", "deberta-v2-convolution", "eurobert")  # all features; an export takes seconds
every_case = pytest.mark.parametrize("case", CASES)


def reference_of(case: str, folder: Path, seed: int) -> Any:
    """Save an encoder of transformers with weights that all matter, and return it in eval mode."""
    prefix, values = CASES[case]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{prefix}Config")(**values)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{prefix}Model")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model.eval()


def packed(inputs: dict[str, torch.Tensor]) -> fastbert.PackedBatch:
    offsets = torch.tensor((0, *LENGTHS)).cumsum(0).int()
    ids = inputs["input_ids"][inputs["attention_mask"] == 1]
    return fastbert.PackedBatch(input_ids=ids, cu_seqlens=offsets, max_seqlen=max(LENGTHS))


def backward(model: Any, inputs: dict[str, torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    """Return the states of tokens, after the backward pass of their weighted sum."""
    states = model(**inputs).last_hidden_state[inputs["attention_mask"] == 1]
    (states * weights).sum().backward()
    return states.detach()


@every_case
def test_encoders_equal_transformers(case: str, tmp_path: Path, seed: int) -> None:
    reference = reference_of(case, tmp_path / "a", seed)
    model = fastbert.load(tmp_path / "a")
    inputs = padded(case, seed)
    mask = inputs["attention_mask"]
    with torch.no_grad():
        output, expected = model(**inputs, output_hidden_states=True), reference(**inputs, output_hidden_states=True)
        assert list(output.keys()) == list(expected.keys())
        states = expected.last_hidden_state[mask == 1]
        torch.testing.assert_close(output.last_hidden_state[mask == 1], states, rtol=1e-5, atol=1e-5)
        for actual, other in zip(output.hidden_states, expected.hidden_states, strict=True):
            torch.testing.assert_close(actual[mask == 1], other[mask == 1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model(packed(inputs)).last_hidden_state, states, rtol=1e-5, atol=1e-5)
        chosen = torch.tensor([0, 3, 19, 30, 33])
        rows, _ = model.encode(packed(inputs), token_indices=chosen)
        torch.testing.assert_close(rows, states[chosen], rtol=1e-5, atol=1e-5)
        if case in EXPORTED:
            exported = torch.export.export(model, (), inputs).module()(**inputs).last_hidden_state
            torch.testing.assert_close(exported[mask == 1], states, rtol=1e-5, atol=1e-5)
        # Padding in front, and between tokens.
        gaps = (torch.arange(20) % 5 != 3).long().expand(4, 20) * mask
        for other_mask in (mask.flip(1), gaps):
            ids = inputs["input_ids"].flip(1) if other_mask is not gaps else inputs["input_ids"]
            expected = reference(input_ids=ids, attention_mask=other_mask).last_hidden_state
            actual = model(input_ids=ids, attention_mask=other_mask).last_hidden_state
            torch.testing.assert_close(actual[other_mask == 1], expected[other_mask == 1], rtol=1e-5, atol=1e-5)

    # Gradients, with and without checkpointing.
    model, reference = model.double(), reference.double()
    if case.startswith("modernbert"):  # its eager attention rounds a mask of doubles to -inf
        reference.set_attn_implementation("sdpa")
    weights = torch.randn(sum(LENGTHS), 32, dtype=torch.float64)
    expected = backward(reference, inputs, weights)
    for mode in ("none", "layer", "selective"):
        model.train().checkpoint_activations(mode)
        model.zero_grad()
        for module in model.modules():
            if hasattr(module, "config"):
                module.config = fastbert.models.registry.config_from_dict(
                    {**model.config.to_dict(), **dict.fromkeys(DROPOUTS, 0.0)}
                )
        torch.testing.assert_close(backward(model, inputs, weights), expected, rtol=1e-6, atol=1e-6)
        own = model.architecture.to_file(
            {
                model.key_map.file_name(name): torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                for name, parameter in model.named_parameters()
            }
        )
        others = {name: parameter.grad for name, parameter in reference.named_parameters()}
        assert own.keys() == others.keys()
        for name, gradient in others.items():
            wanted = torch.zeros_like(own[name]) if gradient is None else gradient
            scale = max(1.0, float(wanted.abs().max()))
            torch.testing.assert_close(own[name] / scale, wanted / scale, rtol=1e-5, atol=1e-6, msg=f"{mode}: {name}")

    # Files go both ways.
    model = fastbert.load(tmp_path / "a")
    model.save_pretrained(tmp_path / "b")
    again, info = transformers.AutoModel.from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    original = type(again).from_pretrained(tmp_path / "a").state_dict()
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, original[name]), name
    assert fastbert.load(tmp_path / "b").config == model.config


DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "embedding_dropout", "mlp_dropout",
)  # fmt: skip

"""Accelerated models on the meta device, given memory later, or with weights that another library brings."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastbert
from fastbert.errors import UserError

pytest.importorskip("transformers", reason="needs transformers")
import transformers
from toys import FAMILIES, inputs, masks, real, toy

MASK = masks()["right"]
THERE = real(MASK)


def weightless(model: Any) -> Any:
    """A model of the same class on the meta device."""
    with torch.device("meta"):
        return type(model)(model.config).eval()


def computed(model: Any, seed: int) -> Tensor:
    """Outputs at real tokens."""
    with torch.no_grad():
        result: Tensor = model(**inputs(seed, MASK))[0][THERE]
    return result


def same(model: Any, original: Any, seed: int) -> None:
    torch.testing.assert_close(computed(model, seed), computed(original, seed), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_and_weights_that_come_later(family: str, seed: int) -> None:
    original = toy(f"{family}ForMaskedLM", seed)
    model = fastbert.accelerate(weightless(original))
    ids = torch.zeros(2, 9, dtype=torch.int64, device="meta")
    assert model(input_ids=ids).logits.shape == (2, 9, original.config.vocab_size)
    model.to_empty(device="cpu")
    model.load_state_dict(original.state_dict())
    for (_, empty), (_, buffer) in zip(model.named_buffers(), original.named_buffers(), strict=True):
        empty.copy_(buffer)
    assert not model.base_model.__dict__["forward"].reasons
    same(model, original, seed)


def test_weights_that_are_assigned(seed: int) -> None:
    original = toy("BertModel", seed)
    model = fastbert.accelerate(weightless(original))
    model.load_state_dict(original.state_dict(), assign=True)
    for name, buffer in original.embeddings.named_buffers():
        model.embeddings.register_buffer(name, buffer.clone(), persistent=False)
    same(model, original, seed)
    same(fastbert.restore(model), original, seed)


OFFLOADS: dict[str, Callable[[Any, Any, Path], Any]] = {
    "cpu": lambda library, model, folder: library.cpu_offload(model, execution_device="cpu"),
    "disk": lambda library, model, folder: library.disk_offload(model, str(folder), execution_device="cpu"),
    "layers": lambda library, model, folder: library.dispatch_model(
        model,
        device_map={
            "embeddings": "cpu",
            "encoder.layer.0": "cpu",
            "encoder.layer.1": "disk",
            "encoder.layer.2": "disk",
        },
        main_device="cpu",
        offload_dir=str(folder),
        force_hooks=True,
    ),
}


@pytest.mark.parametrize("kind", OFFLOADS)
def test_weights_that_hooks_bring(kind: str, tmp_path: Path, seed: int) -> None:
    library = pytest.importorskip("accelerate", reason="needs accelerate")
    config = toy("BertModel", seed).config
    original = transformers.BertModel(config, add_pooling_layer=False).eval()
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    model.load_state_dict(original.state_dict())
    offloaded = OFFLOADS[kind](library, copy.deepcopy(model), tmp_path / "before")
    with pytest.raises(UserError, match=r"carries accelerate's hooks: call fastbert\.accelerate before"):
        fastbert.accelerate(offloaded)
    model = OFFLOADS[kind](library, fastbert.accelerate(model), tmp_path / "behind")
    assert any(parameter.is_meta for parameter in model.parameters())
    same(model, original, seed)


def test_torchs_encoder(seed: int) -> None:
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True)
    original = nn.TransformerEncoder(layer, 2).eval()
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True)
        model = fastbert.accelerate(nn.TransformerEncoder(layer, 2).eval())
    x = torch.randn(2, 5, 16)
    assert model(x.to("meta")).shape == x.shape
    model.to_empty(device="cpu")
    model.load_state_dict(original.state_dict())
    torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-5)

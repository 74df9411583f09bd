"""GPT and GPT-2 against transformers, on the same weights: outputs, gradients, files both ways, errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import fastbert
from fastbert.checkpoints.convert import Options, convert
from fastbert.errors import CheckpointError, UserError
from fastbert.models.gpt2.config import GPT2Config
from fastbert.models.openai_gpt.config import OpenAIGPTConfig

transformers = pytest.importorskip("transformers")

SHAPE = {
    "vocab_size": 211, "n_positions": 40, "n_embd": 64, "n_layer": 3, "n_head": 2, "num_labels": 3, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
KINDS = ("Model", "LMHeadModel", "ForSequenceClassification")
both = pytest.mark.parametrize("family", ["GPT2", "OpenAIGPT"])


def reference(family: str, kind: str, folder: Path, seed: int) -> Any:
    """A model of transformers, saved with weights that all matter."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**SHAPE)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{family}{kind}")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return model


def inputs(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 211, (4, 17), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 9:], mask[2, 1:] = 0, 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def real(values: Tensor, mask: Tensor) -> Tensor:
    return values[mask.bool()] if values.dim() == 3 else values


@both
@pytest.mark.parametrize("kind", KINDS)
def test_models_are_those_of_transformers(tmp_path, seed, family, kind):
    theirs = reference(family, kind, tmp_path / "theirs", seed)
    ours = fastbert.load(tmp_path / "theirs")
    assert type(ours).__name__ == f"{family}{kind}"
    assert not ours.new_weights
    batch = inputs(seed)
    mask = batch["attention_mask"]
    for backend in ("eager", None):
        with fastbert.use_backend(backend) if backend else torch.enable_grad():
            mine, other = ours(**batch)[0], theirs(**batch)[0]
            torch.testing.assert_close(real(mine, mask), real(other, mask), rtol=1e-4, atol=1e-4)
            gradient = torch.randn(real(other, mask).shape, generator=torch.Generator().manual_seed(seed))
            for model, output in ((ours, mine), (theirs, other)):
                model.zero_grad()
                real(output, mask).backward(gradient)
    ours.save_pretrained(tmp_path / "ours")
    # Gradients are compared under the names of files, where projections are joined.
    named = {name: parameter.grad for name, parameter in ours.named_parameters()}
    files = ours.architecture.to_file({ours.key_map.file_name(name): grad for name, grad in named.items()})
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert files.keys() == gradients.keys()
    for name, grad in files.items():
        torch.testing.assert_close(grad, gradients[name], rtol=1e-3, atol=1e-4, msg=name)
    again = getattr(transformers, f"{family}{kind}").from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        saved, expected = real(again(**batch)[0], mask), real(theirs(**batch)[0], mask)
        torch.testing.assert_close(saved, expected, rtol=1e-5, atol=1e-5)
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"] == [f"{family}{kind}"]


@both
def test_hidden_states_and_chosen_rows(tmp_path, seed, family):
    theirs = reference(family, "Model", tmp_path, seed)
    ours, batch = fastbert.load(tmp_path), inputs(seed)
    mask = batch["attention_mask"].bool()
    with torch.no_grad():
        mine = ours(**batch, output_hidden_states=True)
        other = theirs(**batch, output_hidden_states=True)
        assert len(mine.hidden_states) == len(other.hidden_states) == 4
        for state, expected in zip(mine.hidden_states, other.hidden_states, strict=True):
            torch.testing.assert_close(state[mask], expected[mask], rtol=1e-4, atol=1e-4)
        packed, _ = fastbert.packing.unpad(batch["input_ids"], batch["attention_mask"])
        rows = torch.tensor([3, 3, 0, 20])
        chosen, _ = ours.encode(packed, token_indices=rows)
        whole, _ = ours.encode(packed)
        torch.testing.assert_close(chosen, whole[rows], rtol=1e-5, atol=1e-5)


@both
def test_pickles_are_converted_and_loaded_through_the_base_model(tmp_path, seed, family):
    theirs = reference(family, "LMHeadModel", tmp_path / "hf", seed)
    (tmp_path / "pickle").mkdir()
    (tmp_path / "pickle" / "config.json").write_text((tmp_path / "hf" / "config.json").read_text())
    # Old files hold causal masks, too.
    state = {**theirs.state_dict(), "transformer.h.0.attn.bias": torch.ones(1, 1, 4, 4).bool()}
    torch.save(state, tmp_path / "pickle" / "pytorch_model.bin")
    report = convert(tmp_path / "pickle", tmp_path / "converted", Options(pickles=True, tokenizer=None))
    assert report.whole
    assert report.model_class == f"{family}LMHeadModel"
    batch = inputs(seed)
    mask = batch["attention_mask"].bool()
    with torch.no_grad():
        expected = theirs(**batch).logits[mask]
        again = getattr(transformers, f"{family}LMHeadModel").from_pretrained(tmp_path / "converted").eval()
        torch.testing.assert_close(again(**batch).logits[mask], expected, rtol=1e-5, atol=1e-5)
        ours = fastbert.load(tmp_path / "converted")
        torch.testing.assert_close(ours(**batch).logits[mask], expected, rtol=1e-4, atol=1e-4)
        # A file without the prefix of the language model.
        theirs.transformer.save_pretrained(tmp_path / "base")
        headed = fastbert.models.registry.load_with_head(tmp_path / "base", "ForCausalLM")
        torch.testing.assert_close(headed(**batch).logits[mask], expected, rtol=1e-4, atol=1e-4)


def test_configurations_are_checked():
    config = GPT2Config.from_dict({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "eos_token_id": 50256})
    assert config.intermediate_size == 256
    assert config.pad_token_id == 50256
    assert config.n_head == config.num_attention_heads == 4
    assert GPT2Config.from_dict(config.to_dict()) == config
    assert transformers.GPT2Config(**{k: v for k, v in config.to_dict().items() if k != "model_type"}).n_inner == 256
    for values, message in (
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True is not supported"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=false"),
        ({"add_cross_attention": True}, "add_cross_attention=true"),
        ({"activation_function": "swish"}, "hidden_act='swish' is not one of"),
        ({"eos_token_id": 50257}, "eos_token_id=50257 lies outside the vocabulary of 50257"),
        ({"embd_pdrop": 1.0}, "embedding_dropout_prob=1.0 must be a number from 0"),
        ({"n_embd": "wide"}, "must be a positive integer"),
    ):
        with pytest.raises(UserError, match=message):
            GPT2Config.from_dict({"model_type": "gpt2", **values})
    with pytest.raises(UserError, match="must be four times hidden_size"):
        OpenAIGPTConfig(intermediate_size=100)
    with pytest.raises(UserError, match="afn='relu' is not supported"):
        OpenAIGPTConfig.from_dict({"afn": "relu"})


def test_joined_projections_of_the_wrong_shape_are_named(tmp_path, seed):
    theirs = reference("GPT2", "LMHeadModel", tmp_path, seed)
    state = {name: tensor.clone() for name, tensor in theirs.transformer.state_dict().items()}
    state["h.1.attn.c_attn.weight"] = torch.zeros(64, 191)
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "fastbert_manifest.json").unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match=r"h\.1\.attn\.c_attn\.weight.*must be \(width, 3 x width\)"):
        fastbert.load(tmp_path)


def test_new_weights_of_residual_projections_are_scaled(seed):
    sizes = {"hidden_size": 128, "num_hidden_layers": 8, "num_attention_heads": 2, "intermediate_size": 512}
    model = fastbert.GPT2LMHeadModel(GPT2Config(vocab_size=211, **sizes))
    model.init_weights(seed=seed)
    layer = model.transformer.encoder.layer[0]
    usual, scaled = layer.intermediate.dense.weight.std(), layer.output.dense.weight.std()
    assert abs(float(usual / scaled) - 4.0) < 0.1


@both
def test_dropout_is_replayed_from_its_keys(seed, family):
    kind = getattr(fastbert, f"{family}LMHeadModel")
    torch.manual_seed(seed)
    model = kind(kind.config_type(vocab_size=211, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=256, max_position_embeddings=40)).train()  # fmt: skip
    batch, _ = fastbert.packing.unpad(*inputs(seed).values())
    keyed = replace(batch, dropout_key=torch.arange(4))
    first, second = (model(keyed).logits for _ in range(2))
    other = model(replace(batch, dropout_key=torch.arange(4) + 9)).logits
    assert torch.equal(first, second)
    assert not torch.allclose(first, other)
    for mode in ("layer", "selective"):
        model.checkpoint_activations(mode)
        torch.testing.assert_close(model(keyed).logits, first, rtol=1e-5, atol=1e-5)

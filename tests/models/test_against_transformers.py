"""The models against transformers on the same weights: outputs, losses, gradients, names and files."""

from pathlib import Path

import pytest
import torch

import fastbert
from fastbert import models
from fastbert.config import BertConfig

transformers = pytest.importorskip("transformers")
CONFIG = BertConfig.preset("tiny", vocab_size=1000, num_labels=3)
HEADS = [
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
]


def pair(name: str, folder: Path, seed: int):
    """Our model and transformers' on the same weights, which are larger than fresh ones so that errors show."""
    torch.manual_seed(seed)
    model = getattr(models, name)(CONFIG)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    reference = getattr(transformers, name).from_pretrained(folder, attn_implementation="eager")
    return model.eval(), reference.eval()


def padded(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones(4, 20).long()
    mask[0, 10:] = 0
    mask[1, 3:7] = 0  # a hole
    mask[3, 1:] = 0
    return {
        # Not 0: transformers gives the padding token's row no gradient, wherever that token stands.
        "input_ids": torch.randint(1, 1000, (4, 20), generator=generator),
        "attention_mask": mask,
        "token_type_ids": torch.randint(0, 2, (4, 20), generator=generator),
    }


@pytest.mark.parametrize("name", HEADS)
def test_outputs_and_names_are_equal(name: str, tmp_path: Path, seed: int) -> None:
    model, reference = pair(name, tmp_path, seed)
    assert model.state_dict().keys() == reference.state_dict().keys()
    inputs = padded(seed)
    mask = inputs["attention_mask"].bool()
    with torch.no_grad():
        mine, other = model(**inputs), reference(**inputs)
    assert list(mine.keys()) == list(other.keys())
    for key, a in mine.items():
        b = other[key]
        if a.shape[:2] == mask.shape:
            assert torch.equal(a[~mask], torch.zeros_like(a[~mask])), "padding must be zeros"
            a, b = a[mask], b[mask]
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", HEADS)
def test_a_saved_model_comes_back_bit_for_bit(name: str, tmp_path: Path, seed: int) -> None:
    model, _ = pair(name, tmp_path, seed)
    again = getattr(models, name).from_pretrained(tmp_path)
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[key]), key
    assert not again.training


def test_losses_and_gradients_of_pretraining(tmp_path: Path, seed: int) -> None:
    # In float64, where rounding cannot hide a wrong term.
    fast, reference = (model.double() for model in pair("BertForPreTraining", tmp_path, seed))
    inputs = padded(seed)
    labels = torch.where(torch.rand(4, 20) < 0.4, inputs["input_ids"], -100)
    labels[inputs["attention_mask"] == 0] = -100
    labels[2, 5] = 17
    relation = torch.tensor([0, 1, 1, 0])
    mine = fast(**inputs, labels=labels, next_sentence_label=relation)
    other = reference(**inputs, labels=labels, next_sentence_label=relation)
    torch.testing.assert_close(mine.loss.double(), other.loss.double(), rtol=1e-6, atol=1e-6)
    mine.loss.backward()
    other.loss.backward()
    gradients = {name: parameter.grad for name, parameter in reference.named_parameters()}
    for name, parameter in fast.named_parameters():
        torch.testing.assert_close(
            parameter.grad, gradients[name], rtol=1e-5, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "BertForTokenClassification", "BertForMaskedLM"])
def test_losses_of_other_heads(name: str, tmp_path: Path, seed: int) -> None:
    model, reference = pair(name, tmp_path, seed)
    inputs = padded(seed)
    if name == "BertForSequenceClassification":
        labels = torch.tensor([0, 2, 1, 1])
    else:
        top = 3 if name == "BertForTokenClassification" else 1000
        labels = torch.randint(0, top, (4, 20)).masked_fill(inputs["attention_mask"] == 0, -100)
    torch.testing.assert_close(
        model(**inputs, labels=labels).loss, reference(**inputs, labels=labels).loss, atol=1e-5, rtol=1e-5
    )


def test_question_answering_loss_on_full_rows(tmp_path: Path, seed: int) -> None:
    # With padding the losses differ by design: ours never gives probability to padding.
    model, reference = pair("BertForQuestionAnswering", tmp_path, seed)
    inputs = padded(seed) | {"attention_mask": torch.ones(4, 20).long()}
    spans = {"start_positions": torch.tensor([0, 5, 19, 3]), "end_positions": torch.tensor([1, 7, 25, 3])}
    torch.testing.assert_close(model(**inputs, **spans).loss, reference(**inputs, **spans).loss, atol=1e-5, rtol=1e-5)


def test_multiple_choice(tmp_path: Path, seed: int) -> None:
    model, reference = pair("BertForMultipleChoice", tmp_path, seed)
    inputs = {name: tensor.view(2, 2, 20) for name, tensor in padded(seed).items()}
    labels = torch.tensor([1, 0])
    mine, other = model(**inputs, labels=labels), reference(**inputs, labels=labels)
    torch.testing.assert_close(mine.logits, other.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine.loss, other.loss, atol=1e-5, rtol=1e-5)


def test_hidden_states_of_every_layer(tmp_path: Path, seed: int) -> None:
    model, reference = pair("BertModel", tmp_path, seed)
    inputs = padded(seed) | {"attention_mask": torch.ones(4, 20).long()}
    mine, other = model(**inputs, output_hidden_states=True), reference(**inputs, output_hidden_states=True)
    assert len(mine.hidden_states) == CONFIG.num_hidden_layers + 1
    for a, b in zip(mine.hidden_states, other.hidden_states):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_packed_equals_padded(tmp_path: Path, seed: int) -> None:
    model, _ = pair("BertModel", tmp_path, seed)
    inputs = padded(seed)
    from fastbert.packing import unpad

    batch, slots = unpad(inputs["input_ids"], inputs["attention_mask"], inputs["token_type_ids"])
    with torch.no_grad():
        packed, full = model(batch), model(**inputs)
    assert torch.equal(packed.last_hidden_state, full.last_hidden_state.flatten(0, 1)[slots])
    assert torch.equal(packed[1], full["pooler_output"])


@pytest.mark.usefixtures("unchecked_folders")
def test_encoder_weights_load_under_heads_and_old_names(tmp_path: Path, seed: int) -> None:
    from safetensors.torch import load_file, save_file

    model, _ = pair("BertModel", tmp_path, seed)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    old["embeddings.position_ids"] = torch.arange(512)[None]
    save_file(old, tmp_path / "model.safetensors")
    headed = models.BertForSequenceClassification.from_pretrained(tmp_path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(headed.bert.state_dict()[name], tensor), name
    assert float(headed.classifier.weight.detach().std()) == pytest.approx(0.02, rel=0.3)


def test_public_names_are_the_models() -> None:
    for name in [*HEADS, "BertForMultipleChoice"]:
        assert getattr(fastbert, name) is getattr(models, name)

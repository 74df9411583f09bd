"""Every head of the newer architectures against transformers on the same weights: logits, losses, gradients of all
parameters, files; packed batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_families import CASES, padded

import fastbert
from fastbert.models import registry

transformers = pytest.importorskip("transformers")

# What else the heads of a config differ in.
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "mpnet": ("mpnet", {}),
    "modernbert": ("modernbert", {}),
    "modernbert-mean": (
        "modernbert-biases-scaled",
        {"classifier_pooling": "mean", "classifier_bias": True, "decoder_bias": False, "classifier_activation": "silu"},
    ),
    "deberta-v3": ("deberta-v3", {}),
    "deberta-narrow": ("deberta-narrow-unbucketed", {"pooler_hidden_act": "tanh"}),
    "nomic": ("nomic", {}),
    "eurobert": ("eurobert", {}),
    "eurobert-mean": ("eurobert-biases-linear", {"classifier_pooling": "mean", "tie_word_embeddings": True}),
    "eurobert-bos": ("eurobert", {"classifier_pooling": "bos"}),
    "albert": ("albert", {}),
    "jina-v3": ("jina-v3", {}),
}
SKIPPED = ("eurobert-bos", "eurobert-mean")  # whose other heads are those of the first


def inputs_of(case: str, kind: str, seed: int) -> dict[str, torch.Tensor]:
    inputs = padded(case, seed)
    if kind == "ForMultipleChoice":
        return {name: tensor.view(2, 2, 20) for name, tensor in inputs.items()} | {"labels": torch.tensor([1, 0])}
    if kind == "ForQuestionAnswering":
        inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])  # transformers scores padding too
        inputs["input_ids"] = inputs["input_ids"].clamp(min=5)
        positions = {"start_positions": torch.tensor([1, 2, 0, 3]), "end_positions": torch.tensor([4, 2, 0, 19])}
        return inputs | positions
    if kind == "ForSequenceClassification":
        return inputs | {"labels": torch.tensor([2, 0, 1, 1])}
    labels = torch.arange(80).view(4, 20) % 3
    inputs["labels"] = labels.masked_fill(inputs["attention_mask"] == 0, -100)
    return inputs | ({"sentence_order_label": torch.tensor([0, 1, 1, 0])} if kind == "ForPreTraining" else {})


@pytest.mark.parametrize("name", HEADS)
def test_heads_equal_transformers(name: str, tmp_path: Path, seed: int) -> None:
    case, changes = HEADS[name]
    prefix, values = CASES[case]
    record = registry.architecture(getattr(transformers, f"{prefix}Config").model_type)
    kinds = [kind.__name__ for kind in record.heads]
    for kind in kinds[1:2] if name in SKIPPED else kinds:
        torch.manual_seed(seed)
        labels = 2 if kind in ("ForQuestionAnswering", "ForPreTraining") else 3
        config = getattr(transformers, f"{prefix}Config")(**{**values, **changes}, num_labels=labels)
        reference = getattr(transformers, f"{prefix}{kind}")(config).eval()
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        folder = tmp_path / kind
        reference.save_pretrained(folder)
        compare(folder, reference, f"{prefix}{kind}", inputs_of(case, kind, seed))


def compare(folder: Path, reference: Any, class_name: str, inputs: dict[str, torch.Tensor]) -> None:
    """Compare the model of a folder with transformers' and save it again."""
    model = fastbert.load(folder)
    assert type(model).__name__ == class_name
    model, reference = model.double(), reference.double()
    ours = dict(inputs)
    if "sentence_order_label" in ours:
        ours["next_sentence_label"] = ours.pop("sentence_order_label")
    output, expected = model(**ours), reference(**inputs)
    mask = inputs["attention_mask"]
    for field, value in expected.items():
        actual = getattr(output, field)
        if value.shape[:2] == mask.shape:
            actual, value = actual[mask == 1], value[mask == 1]
        torch.testing.assert_close(
            actual.double(), value.double(), rtol=1e-5, atol=2e-6, msg=lambda text, f=field: f + text
        )
    output.loss.backward()
    expected.loss.backward()
    names = {name: parameter.grad for name, parameter in model.named_parameters()}
    gradients = {model.key_map.file_name(name): gradient for name, gradient in names.items() if gradient is not None}
    gradients = model.architecture.to_file(gradients)
    for name, parameter in reference.named_parameters(remove_duplicate=False):
        if name not in gradients and name in {model.key_map.file_name(tied) for tied in model.tied_keys}:
            continue
        if parameter.grad is not None and parameter.grad.any():
            torch.testing.assert_close(
                gradients[name], parameter.grad, rtol=1e-4, atol=2e-6, msg=lambda text, n=name: n + text
            )

    model = fastbert.load(folder)
    model.save_pretrained(folder / "again")
    again, info = type(reference).from_pretrained(folder / "again", output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    original = reference.float().state_dict()
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, original[name]), name
    assert fastbert.load(folder / "again").config == model.config


@pytest.mark.parametrize("case", ["mpnet", "modernbert", "deberta-v3", "nomic", "eurobert", "albert"])
def test_training_drops_learns_and_is_checkpointed(case: str, seed: int) -> None:
    prefix, values = CASES[case]
    torch.manual_seed(seed)
    chances = {"hidden_dropout_prob": 0.1, "attention_dropout": 0.1, "mlp_dropout": 0.1, "embedding_dropout": 0.1}
    kind = getattr(fastbert, f"{prefix}Model").config_type
    config = kind.from_dict({**values, **chances, "attention_probs_dropout_prob": 0.1, "num_labels": 3})
    model = getattr(fastbert, f"{prefix}ForMaskedLM")(config).train()
    inputs = inputs_of(case, "ForMaskedLM", seed)
    mask = inputs["attention_mask"] == 1
    lengths = mask.sum(1)
    batch = fastbert.PackedBatch(
        input_ids=inputs["input_ids"][mask],
        cu_seqlens=torch.cat((torch.zeros(1), lengths.cumsum(0))).int(),
        max_seqlen=20,
        dropout_key=torch.arange(4),
        masked_positions=torch.arange(0, int(lengths.sum()), 3),
        labels=inputs["labels"][mask][::3].contiguous(),
    )
    gradients = []
    for mode in ("none", "layer", "selective"):
        model.checkpoint_activations(mode)
        model.zero_grad()
        model(batch).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    for other in gradients[1:]:
        for first, second in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(first, second, rtol=1e-5, atol=5e-7)
    assert model(batch).loss != model.eval()(batch).loss, "nothing is dropped"
    optimizer = torch.optim.Adam(model.train().parameters(), 3e-3)
    losses = []
    for _ in range(8):
        losses.append(model(batch).loss)
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]

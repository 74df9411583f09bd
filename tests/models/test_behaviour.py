"""Behaviour of the models beyond transformers: first losses, dropout by key, checkpointing, and clear refusals."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from batches import random_batch
from torch import nn

from fastbert.config import BertConfig
from fastbert.errors import CheckpointError, UserError
from fastbert.models import (
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)
from fastbert.packing import PackedBatch

TINY = BertConfig.preset("tiny", vocab_size=500)


def test_first_losses_at_mini_scale(seed: int) -> None:
    config = BertConfig.preset("mini")
    model = BertForPreTraining(config)
    model.init_weights(seed=seed)
    output = model.train()(random_batch([128] * 8, config.vocab_size, 512, seed))
    expected = math.log(config.vocab_size) + config.hidden_size * 0.02**2 / 2
    assert output.mlm_loss_sum.item() / 512 == pytest.approx(expected, abs=0.1)
    assert output.nsp_loss_sum.item() / 8 == pytest.approx(math.log(2), abs=0.1)
    assert output.loss.item() == pytest.approx(output.mlm_loss_sum.item() / 512 + output.nsp_loss_sum.item() / 8)


def test_initialisation_is_the_published_one_and_seeded() -> None:
    first, second, other = (BertForPreTraining(TINY) for _ in range(3))
    first.init_weights(seed=3)
    second.init_weights(seed=3)
    other.init_weights(seed=4)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
    table = first.bert.embeddings.word_embeddings.weight
    assert not torch.equal(table, other.bert.embeddings.word_embeddings.weight)
    assert first.cls.predictions.decoder.weight is table
    assert float(table.detach().abs().max()) <= 0.04
    # The standard deviation of a normal truncated at two standard deviations.
    assert float(table.detach().std()) == pytest.approx(0.02 * 0.8796, rel=0.02)


def test_dropout_is_replayed_from_the_keys(seed: int) -> None:
    model = BertForPreTraining(TINY).train()
    batch = random_batch([20, 31, 7], 500, 12, seed)
    first, second = model(batch).loss, model(batch).loss
    assert torch.equal(first, second)
    other = random_batch([20, 31, 7], 500, 12, seed)
    assert torch.equal(model(other).loss, first)
    assert not torch.equal(model(replace(batch, dropout_key=batch.dropout_key + 1)).loss, first)
    unkeyed = replace(batch, dropout_key=None)
    assert not torch.equal(model(unkeyed).loss, model(unkeyed).loss)


def test_checkpointed_activations_change_nothing(seed: int) -> None:
    batch = random_batch([20, 31, 7], 500, 12, seed)
    gradients = []
    for enabled in (False, True):
        model = BertForPreTraining(TINY).train()
        model.init_weights(seed=1)
        model.checkpoint_activations(enabled)
        model(batch).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][name]), name


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        pytest.param([0, 500], "input_ids holds 500, outside the model's table of 500 rows", id="id-too-large"),
        pytest.param([0, -1], "input_ids holds -1, outside", id="negative-id"),
        pytest.param([0] * 513, r"position_ids holds 512, outside .* 512 rows: truncate", id="too-long"),
    ],
)
def test_what_lies_outside_the_tables_is_named(ids: list[int], message: str) -> None:
    cu_seqlens = torch.tensor([0, len(ids)]).int()
    batch = PackedBatch(input_ids=torch.tensor(ids), cu_seqlens=cu_seqlens, max_seqlen=len(ids))
    with pytest.raises(UserError, match=message):
        BertModel(TINY)(batch)


def test_logits_are_returned_at_labelled_positions_only_when_asked(seed: int) -> None:
    model = BertForPreTraining(TINY).eval()
    batch = random_batch([20, 31], 500, 9, seed)
    assert model(batch).prediction_logits is None
    assert model(batch, return_logits=True).prediction_logits.shape == (9, 500)
    from dataclasses import replace

    bare = replace(batch, masked_positions=None, labels=None, next_sentence_label=None)
    output = model(bare)
    assert output.loss is None
    assert output.prediction_logits.shape == (51, 500)


def test_regression_with_one_label(seed: int) -> None:
    model = BertForSequenceClassification(BertConfig.preset("tiny", vocab_size=500, num_labels=1)).eval()
    batch = random_batch([20, 31], 500, 9, seed)
    targets = torch.tensor([0.5, -1.0])
    output = model(batch, labels=targets)
    torch.testing.assert_close(output.loss, (output.logits[:, 0] - targets).square().mean())


class Doubled(nn.Linear):
    """A linear layer with something added, as adapters do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2.0 * super().forward(x)


@pytest.mark.parametrize(
    "place", ["bert.pooler.dense", "cls.predictions.transform.dense", "cls.predictions.decoder", "cls.seq_relationship"]
)
def test_linear_layers_of_the_heads_run_their_own_forward(place: str, seed: int) -> None:
    torch.manual_seed(seed)
    model = BertForPreTraining(TINY).eval()
    batch = random_batch([20, 31], 500, 9, seed)
    plain = model(batch, return_logits=True)
    part = model.get_submodule(place)
    with torch.no_grad():
        for parameter in (part.weight, part.bias):
            parameter.normal_(std=0.1)
    part.__class__ = Doubled
    adapted = model(batch, return_logits=True)
    part.__class__ = nn.Linear
    # As a plain layer of twice the weights; a decoder's are the token embeddings too, so its are made its own.
    part.weight, part.bias = nn.Parameter(2 * part.weight), nn.Parameter(2 * part.bias)
    scaled = model(batch, return_logits=True)
    for name in ("loss", "mlm_count", "mlm_correct", "prediction_logits", "seq_relationship_logits"):
        torch.testing.assert_close(getattr(adapted, name), getattr(scaled, name), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(adapted.loss, plain.loss, atol=1e-3)


def test_linear_layers_of_tasks_run_their_own_forward(seed: int) -> None:
    batch = random_batch([20, 30], 500, 9, seed)
    tasks = [
        (BertForSequenceClassification, "classifier", {}),
        (BertForTokenClassification, "classifier", {}),
        (BertForMultipleChoice, "classifier", {"num_choices": 2}),
        (BertForNextSentencePrediction, "cls.seq_relationship", {}),
        (BertForQuestionAnswering, "qa_outputs", {}),
    ]
    for kind, place, options in tasks:
        model = kind(TINY).eval()
        bare = replace(batch, masked_positions=None, labels=None, next_sentence_label=None)
        plain = model(bare, **options)
        model.get_submodule(place).__class__ = Doubled
        adapted = model(bare, **options)
        name = "start_logits" if place == "qa_outputs" else "logits"
        torch.testing.assert_close(getattr(adapted, name), 2 * getattr(plain, name), msg=kind.__name__)


def test_ambiguous_or_missing_input_is_refused() -> None:
    model = BertModel(TINY)
    ids = torch.zeros(1, 3).long()
    with pytest.raises(UserError, match="given twice"):
        model(ids, input_ids=ids)
    with pytest.raises(UserError, match="takes a PackedBatch or a tensor of input_ids, not NoneType"):
        model()
    with pytest.raises(UserError, match="not both"):
        model(random_batch([3], 500, 1, 0), attention_mask=ids)


@pytest.mark.usefixtures("unchecked_folders")
def test_damaged_and_foreign_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        BertModel.from_pretrained(tmp_path / "absent")
    model = BertModel(TINY)
    model.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="not a complete safetensors file"):
        BertModel.from_pretrained(tmp_path)
    weights.write_bytes(whole)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"vocab_size": 500', '"vocab_size": 501'))
    with pytest.raises(CheckpointError, match=r"word_embeddings.weight has shape \(500, 128\), but config.json says"):
        BertModel.from_pretrained(tmp_path)
    weights.unlink()
    with pytest.raises(UserError, match=r"holds no model.safetensors \(found config.json, fastbert_manifest.json\)"):
        BertModel.from_pretrained(tmp_path)


def test_half_precision_checkpoints_keep_their_dtype(tmp_path: Path) -> None:
    BertModel(TINY).bfloat16().save_pretrained(tmp_path)
    assert BertModel.from_pretrained(tmp_path).dtype == torch.bfloat16
    assert BertModel.from_pretrained(tmp_path, dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("lengths", [[20, 31, 7], [64], [1], [64, 64, 3]], ids=str)
def test_rounding_up_the_rows_changes_no_result(lengths: list[int], seed: int) -> None:
    """In bf16 a batch is filled with a dummy sequence: outputs, losses and counts are those of the batch alone."""
    batch = random_batch(lengths, 500, min(12, sum(lengths)), seed)
    filled = batch.filled(64)
    assert filled.num_tokens % 64 == 0
    assert torch.equal(filled.input_ids[: batch.num_tokens], batch.input_ids)
    model = BertForPreTraining(TINY).eval()
    with torch.no_grad():
        exact = model(batch, return_logits=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = model(batch, return_logits=True)
    assert low.mlm_count == exact.mlm_count == len(batch.labels)
    torch.testing.assert_close(low.loss, exact.loss, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(low.prediction_logits.float(), exact.prediction_logits, rtol=0.1, atol=0.05)


def test_rounding_up_the_rows_needs_no_positions() -> None:
    """Sequences may be longer than the position table where their own positions are in it."""
    model = BertForPreTraining(BertConfig.preset("tiny", vocab_size=500, max_position_embeddings=16)).eval()
    batch = replace(random_batch([20], 500, 5, 0), position_ids=torch.zeros(20, dtype=torch.int64))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(batch).loss.isfinite()


def test_memory_does_not_grow_with_every_new_batch_shape() -> None:
    """Batches of thirty different sizes in bf16; without rounding each would leave compiled kernels behind."""
    model = BertForPreTraining(BertConfig.preset("tiny", vocab_size=500))

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

    def step(length: int) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(random_batch([200, 200, length], 500, 60, 1)).loss.backward()

    for length in (20, 80, 140):  # the shapes that rounding leaves
        step(length)
    before = resident()
    for length in range(50, 110, 2):
        step(length)
    assert resident() - before < 60, f"grew from {before:.0f} to {resident():.0f} MiB"

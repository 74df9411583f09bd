"""Losses of distillation beside the formulas of their papers, and students made of their teachers' layers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from embedding import random_texts, small_model, small_tokenizer
from torch.nn import functional as F

from fastbert import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel
from fastbert.distillation.losses import (
    HiddenProjection,
    attention_loss,
    attention_scores,
    hidden_state_loss,
    soft_regression_loss,
    soft_target_loss,
)
from fastbert.distillation.models import copied_layers, student_from, target_states
from fastbert.errors import UserError
from fastbert.models.pre_norm import PreNormLayer
from fastbert.ops.encoder_layer.spec import NormSpec


@pytest.mark.parametrize("temperature", [1.0, 2.0, 7.5])
def test_soft_targets_are_the_formula(temperature: float, seed: int) -> None:
    torch.manual_seed(seed)
    student = torch.randn(6, 5, requires_grad=True)
    teacher = torch.randn(6, 5, requires_grad=True)
    p, q = ((logits.double() / temperature).softmax(-1) for logits in (teacher.detach(), student))
    expected = temperature**2 * (p * (p.log() - q.log())).sum(-1).mean()
    loss = soft_target_loss(student, teacher, temperature)
    # The difference of two fp32 log-probabilities, each rounded at about 1e-7, is multiplied by T^2.
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=3e-7 * temperature**2)
    loss.backward()
    assert teacher.grad is None
    # Of a row: T (q - p), divided by the rows.
    torch.testing.assert_close(student.grad.double(), temperature * (q - p).detach() / 6, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(soft_target_loss(student, teacher, temperature, rows=12), loss / 2)
    assert soft_target_loss(teacher, teacher, temperature).item() == pytest.approx(0, abs=1e-6)
    assert loss > 0


def test_soft_targets_of_certain_teachers_and_half_precision_are_finite() -> None:
    teacher = torch.tensor([[300.0, -300.0]])
    assert torch.isfinite(soft_target_loss(torch.tensor([[-300.0, 300.0]]), teacher))
    low = soft_target_loss(torch.ones(2, 3, dtype=torch.bfloat16), torch.zeros(2, 3, dtype=torch.float16))
    assert low.dtype == torch.float32
    assert soft_target_loss(torch.zeros(0, 3), torch.zeros(0, 3)).item() == 0


def test_hidden_states_by_cosine_are_distilberts(seed: int) -> None:
    torch.manual_seed(seed)
    student, teacher = torch.randn(9, 8, requires_grad=True), torch.randn(9, 8)
    expected = F.cosine_embedding_loss(student, teacher, torch.ones(9))
    torch.testing.assert_close(hidden_state_loss(student, teacher), expected)
    assert hidden_state_loss(3 * teacher, teacher).item() == pytest.approx(0, abs=1e-6)
    assert hidden_state_loss(student[:0], teacher[:0]).item() == 0


def test_hidden_states_through_a_projection_are_tinyberts(seed: int) -> None:
    torch.manual_seed(seed)
    projection = HiddenProjection(4, 6)
    student, teacher = [torch.randn(7, 4) for _ in range(3)], [torch.randn(7, 6) for _ in range(3)]
    expected = sum(((s @ projection.dense.weight.T - t) ** 2).mean() for s, t in zip(student, teacher, strict=True))
    loss = projection(student, teacher)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert (projection.dense.weight.grad != 0).any()
    with pytest.raises(UserError, match="3 layers of the student are compared with 2 of the teacher"):
        projection(student, teacher[:2])
    with pytest.raises(UserError, match="hidden states of student and teacher must have one shape"):
        projection([torch.zeros(7, 4)], [torch.zeros(8, 6)])


def test_attention_scores_are_those_of_the_layer(seed: int) -> None:
    model = small_model(seed)
    batch = small_tokenizer().pack(random_texts(seed, 4, most=6), max_length=20)
    layer, x = model.encoder.layer[0], torch.randn(batch.num_tokens, 32, requires_grad=True)
    norm = NormSpec(1e-12, place="pre")
    pre_norm = PreNormLayer(replace(layer.spec, attention_norm=norm, output_norm=norm), 0)
    pre_norm.attention.self = layer.attention.self
    torch.nn.init.normal_(pre_norm.attention.LayerNorm.weight)
    normed = pre_norm.attention.LayerNorm(x)
    torch.testing.assert_close(attention_scores(pre_norm, x, batch), attention_scores(layer, normed, batch))
    actual = attention_scores(layer, x, batch)
    attention, blocks = layer.attention.self, []
    for first, end in zip(batch.cu_seqlens.tolist(), batch.cu_seqlens.tolist()[1:], strict=False):
        q, k = (part(x[first:end]).view(-1, 4, 8).transpose(0, 1) for part in (attention.query, attention.key))
        blocks.append((q @ k.transpose(1, 2) / 8**0.5).flatten(1))
    expected = torch.cat(blocks, 1)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    other = torch.randn_like(actual)
    loss = attention_loss([actual, actual], [other, actual])
    torch.testing.assert_close(loss, ((actual - other) ** 2).mean())
    loss.backward()
    assert attention.query.weight.grad is not None
    with pytest.raises(UserError, match=r"attention scores \(heads, pairs\) of student and teacher"):
        attention_loss([actual], [other[:2]])


def test_which_layers_become_the_students() -> None:
    assert copied_layers(12, 6) == [0, 2, 4, 6, 8, 10]
    assert copied_layers(6, 3) == [0, 2, 4]
    assert copied_layers(12, 4) == [0, 3, 6, 9]
    assert copied_layers(5, 5) == [0, 1, 2, 3, 4]
    assert copied_layers(5, 1) == [0]
    assert target_states(12, 4) == [0, 3, 6, 9, 12]
    for layers in (0, 7):
        with pytest.raises(UserError, match=f"layers={layers} must be from 1 to the teacher's 6"):
            copied_layers(6, layers)


def config(layers: int) -> BertConfig:
    return BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=24,
        num_labels=3,
    )


@pytest.mark.parametrize("kind", [BertModel, BertForSequenceClassification, BertForMaskedLM])
def test_a_student_is_every_second_layer_and_a_whole_model(kind: type, tmp_path: Path) -> None:
    teacher = kind(config(6))
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    student = student_from(teacher, 3)
    student_state, teacher_state = student.state_dict(), teacher.state_dict()
    for name, tensor in student_state.items():
        source = name
        for index in (2, 1):
            source = source.replace(f"layer.{index}.", f"layer.{2 * index}.") if f"layer.{index}." in name else source
        assert tensor.equal(teacher_state[source]), name
        assert tensor.data_ptr() != teacher_state[source].data_ptr()
    student.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"] == 3
    again = kind.from_pretrained(tmp_path)
    ids = torch.arange(5, 15)[None]
    with torch.no_grad():
        torch.testing.assert_close(again(ids)[0], student.eval()(ids)[0])
    # Its layers have places of their own for dropout.
    encoder = student if kind is BertModel else student.bert
    assert [layer.index for layer in encoder.encoder.layer] == [0, 1, 2]
    assert encoder.config.num_hidden_layers == teacher.config.num_hidden_layers // 2
    if kind is BertForMaskedLM:
        assert student.cls.predictions.decoder.weight is student.bert.embeddings.word_embeddings.weight
    for parameter in student.parameters():
        parameter.data.zero_()
    assert all(tensor.equal(before[name]) for name, tensor in teacher.state_dict().items())


def test_a_student_learns_what_its_teacher_says(seed: int) -> None:
    torch.manual_seed(seed)
    teacher = BertForSequenceClassification(config(4)).eval()
    for parameter in teacher.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    student = student_from(teacher, 2)
    ids = torch.randint(5, 60, (32, 9))
    with torch.no_grad():
        targets = teacher(ids).logits
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        loss = soft_target_loss(student(ids).logits, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"logits of student and teacher must have one shape, not \(2, 3\) and \(2, 4\)"
    ):
        soft_target_loss(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(UserError, match="temperature=0 must be above 0"):
        soft_target_loss(torch.zeros(2, 3), torch.zeros(2, 3), 0)
    with pytest.raises(UserError, match="outputs of student and teacher"):
        soft_regression_loss(torch.zeros(2), torch.zeros(3))
    assert soft_regression_loss(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])).item() == 2

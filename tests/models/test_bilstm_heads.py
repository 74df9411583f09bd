"""Heads behind a BiLSTM: equal to an LSTM run on each sequence alone, for every head, saved and loaded whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastbert
from fastbert import BertConfig, PackedBatch
from fastbert.errors import UserError
from fastbert.finetuning import recipe
from fastbert.models import loading
from fastbert.models.gpt2.config import GPT2Config
from fastbert.models.roberta.config import RobertaConfig

LENGTHS = (5, 1, 9, 2)
SHAPE: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 32, "bilstm_size": 10, "num_labels": 3, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
CONFIGS = (
    ("Bert", BertConfig(**SHAPE)),
    ("Bert", BertConfig(**SHAPE, is_decoder=True)),
    ("Roberta", RobertaConfig(**{**SHAPE, "pad_token_id": 1})),
    ("GPT2", GPT2Config(**{**SHAPE, "embedding_dropout_prob": 0.0})),
)
HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")


def packed(seed: int) -> PackedBatch:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    return PackedBatch(
        input_ids=torch.randint(3, 50, (sum(LENGTHS),), generator=generator), cu_seqlens=ends, max_seqlen=max(LENGTHS)
    )


def lstm_alone(model: Any, batch: PackedBatch) -> list[Tensor]:
    """The outputs of torch's own LSTM with the model's weights, one sequence after the other."""
    lstm = nn.LSTM(16, 5, bidirectional=True)
    lstm.load_state_dict(model.bilstm.state_dict())
    states = model.base_model.encode(batch)[0].split(LENGTHS)
    return [lstm(state[:, None])[0][:, 0] for state in states]


@pytest.mark.parametrize("head", HEADS)
def test_heads_read_the_lstm_of_each_sequence(tmp_path: Path, head: str, seed: int) -> None:
    for number, (prefix, config) in enumerate(CONFIGS):
        model = getattr(fastbert, f"{prefix}{head}")(config)
        model.init_weights(seed + number)
        folder = tmp_path / str(number)
        model.save_pretrained(folder)
        model = fastbert.load(folder)
        assert type(model).__name__ == f"{prefix}{head}"
        assert not model.new_weights
        assert model.config.bilstm_size == 10
        batch = packed(seed)
        with torch.no_grad():
            outputs = lstm_alone(model, batch)
            if head == "ForTokenClassification":
                mine, expected = model(batch).logits, model.classifier(torch.cat(outputs))
            elif head == "ForQuestionAnswering":
                mine = torch.stack((model(batch).start_logits, model(batch).end_logits), dim=1)
                expected = model.qa_outputs(torch.cat(outputs))
            else:  # the forward half has read a sequence at its last token, the backward half at its first
                ends = torch.stack([torch.cat((output[-1, :5], output[0, 5:])) for output in outputs])
                options = {"num_choices": 2} if head == "ForMultipleChoice" else {}
                mine, expected = model(batch, **options).logits, model.classifier(ends)
                expected = expected.view(mine.shape)
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-6)


def test_training_reaches_all_weights_and_labelled_tokens_alone_give_the_same_loss(seed: int) -> None:
    model = fastbert.BertForTokenClassification(CONFIGS[0][1])
    batch = packed(seed)
    labels = torch.randint(0, 3, (sum(LENGTHS),), generator=torch.Generator().manual_seed(seed))
    labels[::2] = -100
    loss = model(batch, labels=labels).loss
    logits = model(batch).logits
    torch.testing.assert_close(loss, nn.functional.cross_entropy(logits, labels))
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if "key.bias" not in name and "token_type" not in name:
            assert parameter.grad.abs().max() > 0, name
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(batch, labels=labels).loss
    assert abs(rounded.item() - loss.item()) < 0.02


def test_a_pair_in_both_orders_is_one_row(seed: int) -> None:
    """Representations of adjacent sequences are added in front of the classifier, which has one bias."""
    for prefix, config in CONFIGS:
        model = getattr(fastbert, f"{prefix}ForSequenceClassification")(config)
        model.init_weights(seed)
        seen: list[Tensor] = []

        def keep(_: nn.Module, inputs: tuple[Tensor], seen: list[Tensor] = seen) -> None:
            seen.append(inputs[0])

        classifier = model.classifier
        hook = (classifier if isinstance(classifier, nn.Linear) else classifier.dense).register_forward_pre_hook(keep)
        with torch.no_grad():
            model(packed(seed))
            two = model(packed(seed), num_orders=2).logits
        hook.remove()
        assert two.shape == (2, 3)
        torch.testing.assert_close(seen[1], seen[0].view(2, 2, -1).sum(1))
    with pytest.raises(UserError, match="4 sequences cannot be split into pairs in num_orders=3 orders"):
        model(packed(seed), num_orders=3)


def test_new_weights_are_torchs_own_and_follow_the_seed(tmp_path: Path) -> None:
    config = CONFIGS[0][1]
    without = BertConfig(**{**SHAPE, "bilstm_size": None})
    fastbert.BertModel(without).save_pretrained(tmp_path)
    drawn = []
    for seed in (0, 0, 1):
        model = loading.outline(fastbert.BertForTokenClassification, config)
        loading.load(model, loading.find_weights(tmp_path), torch.float32, warn=False)
        assert {name for name in model.new_weights if name.startswith("bilstm.")} == {
            f"bilstm.{name}" for name, _ in nn.LSTM(16, 5, bidirectional=True).named_parameters()
        }
        recipe.reinitialise(model, model.new_weights, config.initializer_range, seed)
        drawn.append(torch.cat([parameter.detach().flatten() for parameter in model.bilstm.parameters()]))
        assert drawn[-1].abs().max() <= 5**-0.5
        assert float(drawn[-1].std()) == pytest.approx((3 * 5) ** -0.5, rel=0.1)  # uniform in +-1 / sqrt(5)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_the_config_is_checked_and_other_heads_have_no_lstm(tmp_path: Path) -> None:
    for value in (7, 0, 1.0, True, "8", 1 << 20):
        with pytest.raises(UserError, match="bilstm_size"):
            BertConfig(bilstm_size=value)  # type: ignore[arg-type]
    assert "bilstm_size" not in BertConfig().to_dict()
    assert fastbert.BertForMaskedLM(CONFIGS[0][1]).bilstm is None
    model = fastbert.BertForTokenClassification(CONFIGS[0][1]).eval()
    with pytest.raises(UserError, match="BiLSTM"):
        torch.jit.trace(model, torch.randint(3, 50, (2, 4)), strict=False)
    empty = PackedBatch(
        input_ids=torch.zeros(0, dtype=torch.int64), cu_seqlens=torch.zeros(1, dtype=torch.int32), max_seqlen=0
    )
    assert model(empty).logits.shape == (0, 3)

"""Models that write: losses, gradients and logits beside transformers' encoder-decoder and a dense prefix mask."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F
from writers import BEGIN, BESIDE, END, KINDS, SHAPE, ragged, targets, writer

from fastbert.errors import UserError
from fastbert.models import BertModel
from fastbert.models.seq2seq.config import SequenceConfig
from fastbert.models.seq2seq.model import BertForSequenceToSequence, EncoderDecoder, PrefixModel
from fastbert.packing import PackedBatch, unpad

CLOSE = {"rtol": 1e-4, "atol": 2e-5}


def assert_near(grad: Tensor | None, expected: Tensor | None) -> None:
    """Sums of many terms, of which each is as exact as the largest."""
    assert grad is not None
    assert expected is not None
    torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()) + 1e-6)


def packed(ids: Tensor, mask: Tensor, **more: Any) -> PackedBatch:
    return replace(unpad(ids, mask)[0], **more)


def in_transformers(model: BertForSequenceToSequence, folder: Path) -> Any:
    model.save_pretrained(folder)
    return transformers.EncoderDecoderModel.from_pretrained(folder).eval()


@pytest.mark.parametrize("name", BESIDE)
def test_an_encoder_decoder_is_transformers(name: str, seed: int, tmp_path: Path) -> None:
    model = writer(name, seed)
    other = in_transformers(model, tmp_path)
    (ids, mask), (target, target_mask) = ragged(seed), targets(seed)
    out = model(ids, target, mask, target_mask, return_logits=True)
    logits = other(
        input_ids=ids,
        attention_mask=mask,
        decoder_input_ids=target[:, :-1],
        decoder_attention_mask=target_mask[:, 1:],
    ).logits
    read = target_mask[:, 1:].bool()
    torch.testing.assert_close(out.logits[read], logits[read], **CLOSE)
    loss = F.cross_entropy(logits[read], target[:, 1:][read])
    torch.testing.assert_close(out.loss, loss, **CLOSE)
    upstream = torch.rand((), generator=torch.Generator().manual_seed(seed)) + 0.5
    (out.loss * upstream).backward()
    (loss * upstream).backward()
    expected = {name: parameter.grad for name, parameter in other.named_parameters()}
    shared = [name for name in model.tied_keys if not name.startswith("decoder.cls.")]
    for place, parameter in model.named_parameters():
        # What we have once is two weights there, whose gradients add up to ours.
        second = next(
            (name for name in shared if name.removeprefix("decoder.bert.") == place.removeprefix("encoder.")), None
        )
        grad = expected[place] if second is None else expected[place] + expected[second]
        assert_near(parameter.grad, grad)


def test_a_prefix_mask_is_the_dense_one(seed: int, tmp_path: Path) -> None:
    model = writer("prefix", seed)
    model.save_pretrained(tmp_path)
    other = transformers.BertForMaskedLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    (ids, mask), (target, target_mask) = ragged(seed), targets(seed)
    out = model(ids, target, mask, target_mask, return_logits=True)
    losses, count = torch.zeros(()), 0
    for row in range(len(ids)):
        source, text = ids[row][mask[row].bool()], target[row][target_mask[row].bool()]
        joined = torch.cat((source, text[1:-1]))
        size, before = len(joined), len(source)
        sees = torch.ones(size, size).tril().bool()
        sees[:before, :before] = True
        bias = torch.zeros(size, size).masked_fill(~sees, -torch.inf)[None, None]
        segments = (torch.arange(size) >= before).long()
        logits = other(input_ids=joined[None], attention_mask=bias, token_type_ids=segments[None]).logits[
            0, before - 1 :
        ]
        torch.testing.assert_close(out.logits[row, : len(text) - 1], logits, **CLOSE)
        losses, count = losses + F.cross_entropy(logits, text[1:], reduction="sum"), count + len(text) - 1
    torch.testing.assert_close(out.loss, losses / count, **CLOSE)
    upstream = torch.rand((), generator=torch.Generator().manual_seed(seed)) + 0.5
    (out.loss * upstream).backward()
    (losses / count * upstream).backward()
    grads = {name: parameter.grad for name, parameter in other.named_parameters()}
    for place, parameter in model.named_parameters():
        assert_near(parameter.grad, grads[place])


@pytest.mark.parametrize("name", KINDS)
def test_packed_rows_are_padded_ones_and_parts_of_a_loss_add_up(name: str, seed: int) -> None:
    model = writer(name, seed)
    source, target = packed(*ragged(seed)), packed(*targets(seed))
    whole = model.losses(source, target)
    (ids, mask), (target_ids, target_mask) = ragged(seed), targets(seed)
    padded = model(ids, target_ids, mask, target_mask)
    torch.testing.assert_close(whole.loss_sum / whole.count, padded.loss, **CLOSE)
    assert int(whole.count) == target.num_tokens - len(target)
    items = int(whole.count)
    parts = [model(source[i : i + 3], target[i : i + 3], num_items_in_batch=items).loss for i in range(0, 7, 3)]
    torch.testing.assert_close(torch.stack(parts).sum(), padded.loss, **CLOSE)


@pytest.mark.parametrize("name", KINDS)
def test_labels_are_smoothed_as_by_torch(name: str, seed: int) -> None:
    model = writer(name, seed)
    (ids, mask), (target, target_mask) = ragged(seed), targets(seed)
    out = model(ids, target, mask, target_mask, return_logits=True, label_smoothing=0.1)
    read = target_mask[:, 1:].bool()
    expected = F.cross_entropy(out.logits[read], target[:, 1:][read], label_smoothing=0.1)
    torch.testing.assert_close(out.loss, expected, **CLOSE)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("mode", ["layer", "selective"])
def test_what_is_computed_again_is_the_same(name: str, mode: Any, seed: int) -> None:
    """With dropout, which is replayed by its keys."""
    model = writer(name, seed, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2).train()
    keys = torch.randint(-(2**62), 2**62, (7,), generator=torch.Generator().manual_seed(seed))
    source, target = (packed(*rows, dropout_key=keys) for rows in (ragged(seed), targets(seed)))
    results = []
    for chosen in ("none", mode):
        model.checkpoint_activations(chosen)
        model.zero_grad()
        loss = model(source, target).loss
        loss.backward()
        results.append((loss.detach(), [parameter.grad.clone() for parameter in model.parameters()]))
    torch.testing.assert_close(results[0][0], results[1][0], **CLOSE)
    for one, other in zip(results[0][1], results[1][1], strict=True):
        assert_near(one, other)
    assert float((model.eval()(source, target).loss - results[0][0]).detach().abs()) > 1e-3, "dropout must do something"


@pytest.mark.parametrize("name", KINDS)
def test_a_sequences_dropout_is_its_keys(name: str, seed: int) -> None:
    """Whatever batch it is in: source, target and both attentions of a target are dropped by the sequence's key."""
    model = writer(name, seed, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3).train()
    keys = torch.randint(-(2**62), 2**62, (7,), generator=torch.Generator().manual_seed(seed))
    source, target = (packed(*rows, dropout_key=keys) for rows in (ragged(seed), targets(seed)))
    whole = model.losses(source, target).loss_sum
    alone = [model.losses(source[i], target[i]).loss_sum for i in range(7)]
    torch.testing.assert_close(whole, torch.stack(alone).sum(), **CLOSE)


def test_masks_of_encoder_and_decoder_differ(seed: int) -> None:
    """A target that is its source, under a decoder that is its encoder, is not dropped alike."""
    model = writer("shared", seed)
    first, last = model.encoder.encoder.layer[0], model.decoder.bert.encoder.layer[0]  # type: ignore[union-attr]
    sites = {layer.index for layer in model.encoder.encoder.layer}  # type: ignore[union-attr]
    assert first.attention is last.attention
    assert not sites & {layer.index for layer in model.decoder.bert.encoder.layer}  # type: ignore[union-attr]


@pytest.mark.parametrize("name", KINDS)
def test_bf16_is_near(name: str, seed: int) -> None:
    """Under autocast, and with weights of bf16, whose rows are rounded up."""
    model = writer(name, seed)
    source, target = packed(*ragged(seed)), packed(*targets(seed))
    exact = model(source, target).loss.detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(source, target).loss
    loss.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    half = model.to(torch.bfloat16)(source, target).loss
    for value in (loss, half):
        torch.testing.assert_close(value.detach().float(), exact, rtol=0.05, atol=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "encoder"}, "kind='encoder' is not one of"),
        ({"sharing": "some"}, "sharing='some' is not one of"),
        ({"decoder_layers": 0}, "decoder_layers=0 must be a positive integer"),
        ({"kind": "bert2bert", "decoder_layers": 3}, "more than the encoder's num_hidden_layers=2"),
        ({"kind": "prefix", "decoder_layers": 1}, "has no decoder beside its encoder"),
        ({"kind": "decoder", "sharing": "all"}, "use kind='bert2bert'"),
        ({"end_token_id": 61}, "end_token_id=61 lies outside the vocabulary"),
    ],
)
def test_configs_that_make_no_model(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SequenceConfig(**{**SHAPE, **changes})


def test_kinds_are_classes() -> None:
    assert isinstance(writer("prefix", 0), PrefixModel)
    assert isinstance(writer("decoder", 0), EncoderDecoder)
    with pytest.raises(UserError, match="makes a PrefixModel, not a EncoderDecoder"):
        EncoderDecoder(SequenceConfig(**{**SHAPE, "kind": "prefix"}))
    with pytest.raises(UserError, match="takes a SequenceConfig"):
        BertForSequenceToSequence(SequenceConfig(**SHAPE).encoder)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["decoder", "prefix"])
def test_rows_that_cannot_be_learnt(name: str, seed: int) -> None:
    model = writer(name, seed)
    source, target = packed(*ragged(seed)), packed(*targets(seed))
    empty = packed(ragged(seed)[0], torch.zeros_like(ragged(seed)[1]))
    with pytest.raises(UserError, match="target is missing"):
        model(source)
    with pytest.raises(UserError, match="there are 3 sources, but 7 targets"):
        model(source[:3], target)
    with pytest.raises(UserError, match="source 0 of the batch has no tokens"):
        model(empty, target)
    with pytest.raises(UserError, match="target 0 of the batch has 1 tokens"):
        model(source[:1], packed(torch.tensor([[BEGIN]]), torch.ones(1, 1)))
    with pytest.raises(UserError, match="position_ids holds"):
        model(source[:1], packed(torch.full((1, 80), 7), torch.ones(1, 80)))
    with pytest.raises(UserError, match="outside the model's table"):
        model(source[:1], packed(torch.tensor([[BEGIN, 99, END]]), torch.ones(1, 3)))


@pytest.mark.parametrize("name", KINDS)
def test_an_empty_target_is_its_end_and_other_layouts_are_read(name: str, seed: int) -> None:
    model = writer(name, seed)
    source, _ = ragged(seed, rows=2)
    target = torch.tensor([[BEGIN, END], [BEGIN, END]])
    loss = model(source, target).loss
    assert loss.isfinite()
    spread = torch.stack((source, source), dim=-1)[..., 0]
    assert not spread.is_contiguous()
    assert torch.equal(model(spread, target.t().contiguous().t()).loss, loss)


def test_the_encoder_is_bert(seed: int) -> None:
    model = writer("bert2bert", seed)
    assert isinstance(model, EncoderDecoder)
    assert type(model.encoder) is BertModel
    with pytest.raises(UserError, match="vocabulary cannot be resized"):
        model.resize_token_embeddings(70)

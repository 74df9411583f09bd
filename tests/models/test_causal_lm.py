"""Left-to-right language models against transformers: logits, losses, gradients, files; packed and padded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fastbert
from fastbert import BertConfig, PackedBatch
from fastbert.data.next_tokens import next_tokens
from fastbert.errors import UserError
from fastbert.models.heads.causal import shifted_labels
from fastbert.packing import unpad

transformers = pytest.importorskip("transformers")

SHAPE = {
    "vocab_size": 211, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 80,
    "max_position_embeddings": 40, "is_decoder": True,
}  # fmt: skip


def reference(kind: str, folder: Path, seed: int, **config: Any) -> Any:
    """A model of transformers, saved with weights that all matter."""
    torch.manual_seed(seed)
    values = transformers.BertConfig(**{**SHAPE, **config})
    values._attn_implementation = "eager"
    model = getattr(transformers, kind)(values)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return model.eval()


def padded(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 211, (4, 17), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 9:], mask[2, 1:] = 0, 0
    return ids, mask, ids.masked_fill(mask == 0, -100)


def packed_with_labels(ids: Tensor, mask: Tensor) -> PackedBatch:
    batch, _ = unpad(ids, mask)
    labels = next_tokens(batch.input_ids.numpy(), batch.cu_seqlens.numpy())
    tensors = {name: torch.from_numpy(array) for name, array in labels.items()}
    return PackedBatch(
        **{name: getattr(batch, name) for name in ("input_ids", "token_type_ids", "position_ids", "sequence_ids")},
        cu_seqlens=batch.cu_seqlens,
        max_seqlen=batch.max_seqlen,
        **tensors,
    )


@pytest.mark.parametrize("backend", ["eager", None])
def test_a_left_to_right_bert_is_that_of_transformers(tmp_path, seed, backend):
    expected = reference("BertLMHeadModel", tmp_path, seed)
    model = fastbert.load(tmp_path)
    assert type(model) is fastbert.BertLMHeadModel
    ids, mask, labels = padded(seed)
    with fastbert.use_backend(backend) if backend else torch.enable_grad():
        ours = model(input_ids=ids, attention_mask=mask, labels=labels)
        theirs = expected(input_ids=ids, attention_mask=mask, labels=labels)
        torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-5, atol=1e-5)
        real = mask.bool()
        torch.testing.assert_close(ours.logits[real], theirs.logits[real], rtol=1e-4, atol=1e-4)
        packed = model(packed_with_labels(ids, mask))
        torch.testing.assert_close(packed.loss, theirs.loss, rtol=1e-5, atol=1e-5)
        assert packed.logits is None
        assert packed.mlm_count == int(mask.sum()) - len(ids)
        predicted = model(packed_with_labels(ids, mask), return_logits=True)
        rows = theirs.logits[:, :-1][mask[:, 1:].bool()]
        torch.testing.assert_close(predicted.logits, rows, rtol=1e-4, atol=1e-4)
        correct = rows.argmax(-1) == ids[:, 1:][mask[:, 1:].bool()]
        assert int(packed.mlm_correct) == int(correct.sum())
        packed.loss.backward()
        theirs.loss.backward()
    gradients = dict(expected.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name].grad, rtol=1e-3, atol=1e-5, msg=name)


def test_saved_models_load_in_transformers(tmp_path, seed):
    torch.manual_seed(seed)
    model = fastbert.BertLMHeadModel(BertConfig(**SHAPE)).eval()
    model.save_pretrained(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(theirs).__name__ == "BertLMHeadModel"
    assert theirs.config.is_decoder
    ids, mask, _ = padded(seed)
    with torch.no_grad():
        ours, logits = (
            model(input_ids=ids, attention_mask=mask).logits,
            theirs(input_ids=ids, attention_mask=mask).logits,
        )
    real = mask.bool()
    torch.testing.assert_close(ours[real], logits[real], rtol=1e-4, atol=1e-4)


def test_later_tokens_change_nothing_before_them(seed):
    torch.manual_seed(seed)
    model = fastbert.BertLMHeadModel(BertConfig(**SHAPE)).eval()
    ids, _, _ = padded(seed)
    changed = ids.clone()
    changed[:, 10] = (changed[:, 10] + 1) % 211
    with torch.no_grad():
        before, after = model(input_ids=ids).logits, model(input_ids=changed).logits
    assert torch.equal(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_heads_over_sequences_read_the_last_token(seed):
    torch.manual_seed(seed)
    model = fastbert.BertForSequenceClassification(BertConfig(**SHAPE, num_labels=3)).eval()
    ids, mask, _ = padded(seed)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits
        states = model.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        last = states[torch.arange(len(ids)), mask.sum(1) - 1]
        expected = model.classifier(model.bert.pooler(last))
        traced = torch.jit.trace(model, (ids, mask))(ids, mask)[0]
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(traced, expected, rtol=1e-5, atol=1e-5)


def test_packed_labels_are_shifted_within_their_sequences(seed):
    ids, mask, labels = padded(seed)
    batch, slots = unpad(ids, mask)
    shifted = shifted_labels(batch.input_ids, batch)
    assert torch.equal(shifted, shifted_labels(labels, batch).flatten()[slots])


def test_an_encoder_that_sees_later_tokens_is_refused(seed):
    model = fastbert.BertLMHeadModel(BertConfig(**{**SHAPE, "is_decoder": False}))
    with pytest.raises(UserError, match="is_decoder=False lets attention see it"):
        model(input_ids=padded(seed)[0])


def test_a_resized_vocabulary_keeps_the_head_tied(seed):
    torch.manual_seed(seed)
    model = fastbert.BertLMHeadModel(BertConfig(**SHAPE))
    model.resize_token_embeddings(220)
    assert model.head.decoder.weight is model.get_input_embeddings().weight
    assert model(input_ids=padded(seed)[0]).logits.shape == (4, 17, 220)

"""Wrong calls of the models raise errors of one clear line: inputs, labels, and arguments of transformers."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fastbert import models
from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.packing import PackedBatch

CONFIG = BertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=12, num_labels=3,
)  # fmt: skip
IDS = torch.arange(14).view(2, 7) + 5
ONES = torch.ones_like(IDS)
CHOICES = torch.stack((IDS, IDS))
PER_TOKEN = torch.full((2, 7), -100)
ADDITIVE = torch.zeros(2, 7).masked_fill(IDS > 16, -1e4)
EMBEDS = torch.randn(2, 7, 16)
HEADS = (
    "BertModel", "BertForPreTraining", "BertForMaskedLM", "BertForNextSentencePrediction",
    "BertForSequenceClassification", "BertForTokenClassification", "BertForQuestionAnswering",
)  # fmt: skip
ALL_HEADS = (*HEADS, "BertForMultipleChoice")


def made(name: str, **changes: Any) -> Any:
    return getattr(models, name)(replace(CONFIG, **changes)).eval()


def arguments_of(name: str) -> dict[str, Tensor]:
    return {"input_ids": CHOICES if name == "BertForMultipleChoice" else IDS}


def at(labels: Tensor, place: tuple[int, ...], value: int) -> Tensor:
    labels = labels.clone()
    labels[place] = value
    return labels


def packed(**changes: Any) -> PackedBatch:
    return PackedBatch(input_ids=IDS.flatten(), cu_seqlens=torch.tensor([0, 7, 14]).int(), max_seqlen=7, **changes)


INPUTS: dict[str, tuple[dict[str, Any], str]] = {
    "float-ids": ({"input_ids": IDS.float()}, "input_ids must be int64, not torch.float32: give the ids"),
    "bool-ids": ({"input_ids": IDS > 9}, "input_ids must be int64, not torch.bool"),
    "flat-ids": ({"input_ids": IDS[0]}, "input_ids must have shape (sequences, length), not (7,)"),
    "ids-of-four-dimensions": ({"input_ids": IDS[None, None]}, "input_ids must have shape (sequences, length)"),
    "a-list": ({"input_ids": IDS.tolist()}, "a PackedBatch or a tensor of input_ids, not list"),
    "a-mapping": ({"batch": {"input_ids": IDS}}, "not dict: call model(**batch)"),
    "no-ids": ({}, "a PackedBatch or a tensor of input_ids, not NoneType"),
    "ids-of-a-larger-vocabulary": (
        {"input_ids": IDS + 40},
        "input_ids holds 58, outside the model's table of 50 rows: use the vocabulary the model was trained with",
    ),
    "negative-ids": ({"input_ids": IDS - 9}, "input_ids holds -4, outside the model's table"),
    "too-long": ({"input_ids": IDS.view(1, 14)}, "position_ids holds 13, outside the model's table of 12 rows"),
    "mask-of-another-shape": (
        {"input_ids": IDS, "attention_mask": ONES[:, :5]},
        "attention_mask has shape (2, 5), but input_ids (2, 7)",
    ),
    "mask-of-four-dimensions": ({"input_ids": IDS, "attention_mask": ONES[:, None, None]}, "shape (2, 1, 1, 7)"),
    "additive-mask": (
        {"input_ids": IDS, "attention_mask": ADDITIVE},
        "attention_mask holds -10000: it must be 1 at tokens and 0 at padding",
    ),
    "a-list-as-mask": (
        {"input_ids": IDS, "attention_mask": [[1] * 7] * 2},
        "attention_mask must be a tensor, not list",
    ),
    "types-beyond": ({"input_ids": IDS, "token_type_ids": 2 * ONES}, "token_type_ids holds 2, outside"),
    "float-types": ({"input_ids": IDS, "token_type_ids": ONES / 2}, "token_type_ids must be int64, not torch.float32"),
    "types-of-another-shape": ({"input_ids": IDS, "token_type_ids": ONES[:1]}, "token_type_ids has shape (1, 7)"),
    "positions-beyond": ({"input_ids": IDS, "position_ids": 12 * ONES}, "position_ids holds 12, outside"),
    "float-positions": ({"input_ids": IDS, "position_ids": ONES / 2}, "position_ids must be int64, not torch.float32"),
    "positions-of-another-shape": ({"input_ids": IDS, "position_ids": ONES[:, :3]}, "position_ids has shape (2, 3)"),
    "ids-and-embeddings": (
        {"input_ids": IDS, "inputs_embeds": EMBEDS},
        "give either input_ids or inputs_embeds, not both",
    ),
    "embeddings-of-ids": (
        {"inputs_embeds": IDS},
        "inputs_embeds must be floating of shape (sequences, length, hidden_",
    ),
    "narrow-embeddings": (
        {"inputs_embeds": EMBEDS[..., :8]},
        "inputs_embeds are 8 wide, but the model's hidden_size=16",
    ),
    "a-batch-and-ids": ({"batch": packed(), "input_ids": IDS}, "give either a PackedBatch or input_ids"),
    "a-batch-and-embeddings": (
        {"batch": packed(), "inputs_embeds": EMBEDS},
        "give either a PackedBatch or inputs_embeds",
    ),
    "twice": ({"batch": IDS, "input_ids": IDS}, "input_ids were given twice"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_that_are_wrong_are_one_line(name: str) -> None:
    arguments, words = INPUTS[name]
    for head in HEADS:
        with pytest.raises(UserError, match=re.escape(words)) as caught:
            made(head)(**arguments)
        assert "\n" not in str(caught.value)


CLASSIFIER, TAGGER, READER = "BertForSequenceClassification", "BertForTokenClassification", "BertForQuestionAnswering"
SEVERAL = {"problem_type": "multi_label_classification"}
LABELS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "class-beyond": (
        CLASSIFIER, {}, {"labels": torch.tensor([0, 3])},
        "labels[1] is 3: it must be from 0 to 2, or -100 to be ignored; correct the labels, or set num_labels",
    ),
    "class-negative": (CLASSIFIER, {}, {"labels": torch.tensor([-1, 0])}, "labels[0] is -1: it must be from 0 to 2"),
    "one-class-too-few": (CLASSIFIER, {}, {"labels": torch.tensor([0])}, "labels have shape (1,), but there are 2 seq"),
    "classes-as-a-list": (CLASSIFIER, {}, {"labels": [0, 1]}, "labels must be a tensor, not list"),
    "classes-as-floats": (
        CLASSIFIER, {"problem_type": "single_label_classification"}, {"labels": torch.tensor([0.0, 1.0])},
        "labels must be int64, one class per sequence, not torch.float32",
    ),
    "numbers-of-another-shape": (
        CLASSIFIER, {"problem_type": "regression"}, {"labels": torch.zeros(2)},
        "labels have shape (2,): regression takes (2, 3), one number for each of num_labels",
    ),
    "several-of-another-shape": (CLASSIFIER, SEVERAL, {"labels": torch.zeros(3, 2)}, "labels have shape (3, 2): multi"),
    "several-beyond": (CLASSIFIER, SEVERAL, {"labels": torch.full((2, 3), 2)}, "labels hold 2: multi_label_classif"),
    "tag-beyond": (TAGGER, {}, {"labels": at(PER_TOKEN, (1, 4), 3)}, "labels[1, 4] is 3: it must be from 0 to 2"),
    "tag-float": (TAGGER, {}, {"labels": PER_TOKEN.float()}, "labels must be int64, one class per token"),
    "tags-of-another-shape": (TAGGER, {}, {"labels": PER_TOKEN[:, :3]}, "labels have shape (2, 3), but the input"),
    "token-beyond": (
        "BertForMaskedLM", {}, {"labels": at(PER_TOKEN, (0, 2), 50)},
        "labels[0, 2] is 50: it must be from 0 to 49, or -100 to be ignored; use the vocabulary",
    ),
    "token-negative": ("BertForMaskedLM", {}, {"labels": at(PER_TOKEN, (1, 6), -1)}, "labels[1, 6] is -1"),
    "pretraining-token": ("BertForPreTraining", {}, {"labels": at(PER_TOKEN, (0, 0), 99)}, "labels[0, 0] is 99"),
    "pretraining-order": (
        "BertForPreTraining", {}, {"next_sentence_label": torch.tensor([0, 2])},
        "next_sentence_label[1] is 2: it must be from 0 to 1",
    ),
    "order": ("BertForNextSentencePrediction", {}, {"labels": torch.tensor([5, 0])}, "labels[0] is 5: it must be"),
    "start-as-floats": (
        READER, {}, {"start_positions": torch.zeros(2), "end_positions": torch.tensor([0, 0])},
        "start_positions must be int64, one position per sequence, not torch.float32",
    ),
    "one-end-too-few": (
        READER, {}, {"start_positions": torch.tensor([0, 0]), "end_positions": torch.tensor([0])},
        "end_positions have shape (1,), but there are 2 sequences",
    ),
    "choice-beyond": (
        "BertForMultipleChoice", {}, {"labels": torch.tensor([0, 2])},
        "labels[1] is 2: it must be from 0 to 1, or -100 to be ignored; number the choices from 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LABELS)
def test_labels_that_are_wrong_are_one_line(name: str) -> None:
    head, changes, labels, words = LABELS[name]
    for training in (False, True):
        with pytest.raises(UserError, match=re.escape(words)) as caught:
            made(head, **changes).train(training)(**arguments_of(head), **labels)
        assert "\n" not in str(caught.value)


def test_labels_of_packed_batches_are_named_too() -> None:
    masked = {"masked_positions": torch.tensor([1, 9])}
    for head in ("BertForMaskedLM", "BertForPreTraining"):
        with pytest.raises(UserError, match=re.escape("labels[1] is 50: it must be from 0 to 49")):
            made(head)(packed(**masked, labels=torch.tensor([4, 50])))
        with pytest.raises(UserError, match=re.escape("labels have shape (1,), but masked_positions (2,)")):
            made(head)(packed(**masked, labels=torch.tensor([4])))
    with pytest.raises(UserError, match=re.escape("next_sentence_label[0] is 7")):
        made("BertForPreTraining")(packed(next_sentence_label=torch.tensor([7, 0])))


def test_labels_that_are_right_stay_so() -> None:
    """Ignored ones, narrow integers, a column, labels at padding, which nothing looks at."""
    mask = at(ONES, (1, 6), 0)
    for dtype in (torch.int64, torch.int32, torch.int16):
        loss = made(CLASSIFIER)(IDS, labels=torch.tensor([2, -100], dtype=dtype)[:, None]).loss
        assert loss.isfinite()
    assert made(TAGGER)(IDS, mask, labels=at(at(PER_TOKEN, (1, 6), 999), (0, 0), 1)).loss.isfinite()
    assert made(CLASSIFIER, **SEVERAL)(IDS, labels=torch.tensor([[0, 1, 1], [0, 0, 0]])).loss.isfinite()


def test_answers_at_padding_are_ignored() -> None:
    """A position behind the sequence's end counts for nothing, whether or not the batch is longer."""
    model, mask = made(READER), at(ONES, (1, 6), 0)
    ends = torch.tensor([3, 2])
    whole = model(IDS[:1], start_positions=torch.tensor([2]), end_positions=ends[:1]).loss
    for behind in (6, 7, -100):
        starts = torch.tensor([2, behind])
        loss = model(IDS, mask, start_positions=starts, end_positions=torch.tensor([3, behind])).loss
        torch.testing.assert_close(loss, whole)


SET: dict[str, tuple[Any, str]] = {
    "head_mask": (torch.ones(1, 2), "head_mask (a Tensor): heads cannot be masked"),
    "encoder_hidden_states": (EMBEDS, "encoder_hidden_states (a Tensor): an encoder has no cross-attention"),
    "encoder_attention_mask": (ONES, "encoder_attention_mask (a Tensor)"),
    "past_key_values": (
        ((EMBEDS, EMBEDS),),
        "past_key_values (a tuple): an encoder keeps no keys",
    ),
    "cache_position": (IDS[0], "cache_position (a Tensor)"),
    "use_cache": (True, "use_cache=True: an encoder keeps no keys"),
    "output_attentions": (True, "output_attentions=True: attention probabilities are never written"),
    "return_dict": (False, "return_dict=False: outputs are also read by index; output.to_tuple()"),
}
IDLE = {**dict.fromkeys(SET), "inputs_embeds": None, "output_hidden_states": None}
FALSE = {"use_cache": False, "output_attentions": False, "return_dict": True, "output_hidden_states": False}


@pytest.mark.parametrize("head", ALL_HEADS)
def test_arguments_of_transformers_pass_idle_and_are_refused_by_name(head: str) -> None:
    model = made(head)
    plain = model(**arguments_of(head)).to_tuple()
    for idle in (IDLE, FALSE, IDLE | FALSE):
        for actual, expected in zip(model(**arguments_of(head), **idle).to_tuple(), plain, strict=True):
            assert torch.equal(actual, expected)
    for name, (value, words) in SET.items():
        with pytest.raises(UserError, match=re.escape(f"{head} does not support {words}")):
            model(**arguments_of(head), **{name: value})
    with pytest.raises(TypeError, match="unexpected keyword argument 'attention_masks'"):
        model(**arguments_of(head), attention_masks=ONES)


@pytest.mark.parametrize("head", ALL_HEADS)
@pytest.mark.parametrize("training", [False, True])
def test_embeddings_stand_in_for_ids(head: str, training: bool) -> None:
    """The rows of the token table as `inputs_embeds` give what their ids give, and get the gradient of those rows."""
    model = made(head, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train(training)
    ids = arguments_of(head)["input_ids"]
    mask = at(torch.ones_like(ids), (..., 1, slice(5, None)), 0)
    table = model.get_input_embeddings().weight
    embeds = table.detach()[ids].requires_grad_()
    outputs = [model(attention_mask=mask, input_ids=ids), model(attention_mask=mask, inputs_embeds=embeds)]
    for of_ids, of_vectors in zip(*(output.to_tuple() for output in outputs), strict=True):
        torch.testing.assert_close(of_vectors, of_ids)
    upstream = torch.randn_like(outputs[0][0])
    (of_table,) = torch.autograd.grad(outputs[0][0], [table], upstream)
    (of_embeds,) = torch.autograd.grad(outputs[1][0], [embeds], upstream)
    assert not of_embeds[mask == 0].any()
    expected = torch.zeros_like(of_table).index_add_(0, ids.flatten(), of_embeds.flatten(0, -2))
    if head not in ("BertForMaskedLM", "BertForPreTraining"):  # whose decoder is the table too
        torch.testing.assert_close(of_table, expected)

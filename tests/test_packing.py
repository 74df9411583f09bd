"""Packed batches: nothing is lost between padded and packed, and slices are batches of their own."""

from dataclasses import fields, replace

import pytest
import torch

from fastbert import BertConfig, BertModel
from fastbert.errors import UserError
from fastbert.packing import PackedBatch, pad, unpad


def batch_of(lengths: list[int]) -> PackedBatch:
    total = sum(lengths)
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).int()
    masked = torch.arange(0, total, 2)
    return PackedBatch(
        input_ids=torch.arange(100, 100 + total),
        cu_seqlens=cu_seqlens,
        max_seqlen=max(lengths, default=0),
        dropout_key=torch.arange(len(lengths)),
        masked_positions=masked,
        labels=masked + 1000,
        next_sentence_label=torch.arange(len(lengths)) % 2,
    )


def test_positions_and_sequences_are_derived() -> None:
    batch = batch_of([3, 0, 2])
    assert batch.sequence_ids.tolist() == [0, 0, 0, 2, 2]
    assert batch.position_ids.tolist() == [0, 1, 2, 0, 1]
    assert batch.token_type_ids.tolist() == [0] * 5
    assert len(batch) == 3
    assert batch.num_tokens == 5


def test_slices_are_batches_of_their_own() -> None:
    batch = batch_of([3, 4, 2])
    part = batch[1:3]
    assert part.input_ids.tolist() == [103, 104, 105, 106, 107, 108]
    assert part.cu_seqlens.tolist() == [0, 4, 6]
    assert part.sequence_ids.tolist() == [0, 0, 0, 0, 1, 1]
    assert part.masked_positions.tolist() == [1, 3, 5]
    assert part.labels.tolist() == [1004, 1006, 1008]
    assert part.dropout_key.tolist() == [1, 2]
    assert batch[-1].input_ids.tolist() == [107, 108]
    assert len(batch[3:]) == 0
    with pytest.raises(IndexError):
        batch[3]
    with pytest.raises(UserError, match="only slices with step 1"):
        batch[::2]


def test_the_longest_sequences_come_first() -> None:
    batch = replace(batch_of([3, 0, 7, 2, 7]), position_ids=torch.arange(19).flip(0))
    ordered = batch.longest_first()
    assert ordered.cu_seqlens.diff().tolist() == [7, 7, 3, 2, 0]
    for i, former in enumerate([2, 4, 0, 3, 1]):
        actual, expected = ordered[i : i + 1], batch[former : former + 1]
        for name in (field.name for field in fields(PackedBatch) if field.name != "max_seqlen"):
            assert torch.equal(getattr(actual, name), getattr(expected, name)), name
    assert ordered.max_seqlen == batch.max_seqlen
    assert ordered.longest_first() is ordered
    bare = PackedBatch(input_ids=torch.arange(3), cu_seqlens=torch.tensor([0, 1, 3], dtype=torch.int32), max_seqlen=2)
    assert bare.longest_first().input_ids.tolist() == [1, 2, 0]


def test_unpack_gives_back_padded_tensors() -> None:
    padded = batch_of([3, 1]).unpack(pad_token_id=7)
    assert padded["input_ids"].tolist() == [[100, 101, 102], [103, 7, 7]]
    assert padded["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert padded["labels"].tolist() == [[1000, -100, 1002], [-100, -100, -100]]
    assert padded["next_sentence_label"].tolist() == [0, 1]


def test_unpad_keeps_columns_as_positions_with_any_mask() -> None:
    ids = torch.arange(12).view(3, 4)
    mask = torch.tensor([[0, 0, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]])
    batch, slots = unpad(ids, mask)
    assert batch.input_ids.tolist() == [2, 3, 4, 6]
    assert batch.position_ids.tolist() == [2, 3, 0, 2]
    assert batch.cu_seqlens.tolist() == [0, 2, 4, 4]
    assert batch.offsets_in_sequence.tolist() == [0, 1, 0, 1]
    assert torch.equal(pad(batch.input_ids, slots, (3, 4)), ids * mask)


def test_pad_is_differentiable(seed: int) -> None:
    torch.manual_seed(seed)
    values = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    slots = torch.tensor([0, 1, 4])
    assert torch.autograd.gradcheck(lambda x: pad(x, slots, (2, 3)), (values,))


def test_padding_to_fixed_shapes_keeps_what_is_real() -> None:
    batch = batch_of([3, 0, 2])
    filled = batch.padded_to(16, 8, 4, max_seqlen=4)
    assert filled.cu_seqlens.tolist() == [0, 3, 3, 5, 9, 13, 16, 16, 16]
    assert filled.cu_seqlens.dtype == torch.int32
    assert filled.input_ids.tolist() == [100, 101, 102, 103, 104] + [0] * 11
    assert filled.token_type_ids.tolist() == [0] * 16
    assert filled.sequence_ids.tolist() == [0, 0, 0, 2, 2] + [3] * 4 + [4] * 4 + [5] * 3
    assert filled.offsets_in_sequence.tolist() == [0, 1, 2, 0, 1] + [0, 1, 2, 3] * 2 + [0, 1, 2]
    assert filled.position_ids.tolist() == [0, 1, 2, 0, 1] + [0] * 11
    assert filled.max_seqlen == 4
    assert filled.masked_positions.tolist() == [0, 2, 4, 0]
    assert filled.labels.tolist() == [1000, 1002, 1004, -100]
    assert filled.next_sentence_label.tolist() == [0, 1, 0] + [-100] * 5
    assert filled.dropout_key.tolist() == [0, 1, 2] + [0] * 5
    same = batch.padded_to(5, 3, 3)
    for name in ("input_ids", "cu_seqlens", "position_ids", "labels", "dropout_key", "next_sentence_label"):
        assert torch.equal(getattr(same, name), getattr(batch, name)), name
    assert batch.padded_to(5, 4).masked_positions is not None, "without a number of them they stay as they are"


@pytest.mark.parametrize(
    ("lengths", "shape", "message"),
    [
        ([3, 2], {"tokens": 4, "sequences": 2}, "tokens=4 are too few for a batch of 5"),
        ([3, 2], {"tokens": 9, "sequences": 3}, r"sequences=3 are too few for a batch of 2 and 2 more that hold 4"),
        ([3, 2], {"tokens": 5, "sequences": 1}, "sequences=1 are too few for a batch of 2"),
        ([3, 2], {"tokens": 5, "sequences": 2, "masked": 2}, "masked=2 does not fit a batch of 5 tokens, 3 of them"),
        ([3, 2], {"tokens": 5, "sequences": 2, "max_seqlen": 2}, "max_seqlen=2 is too short: it must be at least 3"),
        ([], {"tokens": 1, "sequences": 1}, "max_seqlen=0 is too short: it must be at least 1"),
    ],
    ids=["tokens", "dummies", "sequences", "masked", "longest", "no length"],
)
def test_what_does_not_fit_is_named(lengths: list[int], shape: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        batch_of(lengths).padded_to(**shape)


@pytest.mark.parametrize("lengths", [[5, 9], [16, 16], [1], [7, 0, 3]], ids=str)
def test_hidden_states_do_not_see_the_dummies(lengths: list[int], seed: int) -> None:
    config = BertConfig(
        vocab_size=200, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16,
    )  # fmt: skip
    model = BertModel(config)
    model.init_weights(seed=seed)
    batch = replace(batch_of(lengths), input_ids=torch.arange(sum(lengths)))
    for mode in (model.eval(), model.train()):
        with torch.no_grad():
            expected, actual = mode(batch), mode(batch.padded_to(64, 16, max_seqlen=32))
        rows, sequences = sum(lengths), len(lengths)
        torch.testing.assert_close(actual[0][:rows], expected[0], rtol=0, atol=2e-6)
        real = [i for i in range(sequences) if lengths[i]]  # an empty sequence has no first token to pool
        torch.testing.assert_close(actual[1][:sequences][real], expected[1][real], rtol=0, atol=2e-6)
        assert actual[0].isfinite().all()
        assert actual[1].isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_ids": torch.zeros(2, 2).long()}, "input_ids must be flat"),
        ({"cu_seqlens": torch.zeros(0).int()}, "cu_seqlens must have shape"),
    ],
)
def test_wrong_shapes_are_named(arguments: dict, message: str) -> None:
    fields = {"input_ids": torch.zeros(2).long(), "cu_seqlens": torch.tensor([0, 2]).int(), "max_seqlen": 2}
    with pytest.raises(UserError, match=message):
        PackedBatch(**{**fields, **arguments})


def test_a_mask_of_another_shape_is_named() -> None:
    with pytest.raises(UserError, match=r"attention_mask has shape \(2, 3\), but input_ids \(2, 4\)"):
        unpad(torch.zeros(2, 4).long(), torch.ones(2, 3))

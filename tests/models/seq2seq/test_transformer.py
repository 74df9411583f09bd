"""The original Transformer beside torch.nn's layers with the same weights: logits, losses of training, files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

import fastbert
from fastbert.errors import CheckpointError, UserError
from fastbert.finetuning.config import NEW_SIZES
from fastbert.models.seq2seq.transformer.config import PRESETS, TransformerConfig
from fastbert.models.seq2seq.transformer.embeddings import sinusoids
from fastbert.models.seq2seq.transformer.model import TransformerForSequenceToSequence
from fastbert.ops.dispatch import use_backend
from fastbert.packing import PackedBatch, unpad

VOCABULARY, BEGIN, END = 47, 2, 3
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "decoder_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 56,
    "hidden_dropout_prob": 0.0,
    "begin_token_id": BEGIN,
    "end_token_id": END,
}


def model(seed: int, **changes: Any) -> TransformerForSequenceToSequence:
    made = TransformerForSequenceToSequence(TransformerConfig(**{**SHAPE, **changes}))
    made.init_weights(seed)
    return made


def pairs(seed: int, rows: int = 6) -> list[tuple[Tensor, Tensor]]:
    """Sources and targets of 3 to 13 tokens."""
    generator = torch.Generator().manual_seed(seed)
    rows_of_pairs = []
    for _ in range(rows):
        source, target = (
            torch.randint(5, VOCABULARY, (int(torch.randint(1, 12, (), generator=generator)),), generator=generator)
            for _ in range(2)
        )
        begin, end = torch.tensor([BEGIN]), torch.tensor([END])
        rows_of_pairs.append((torch.cat((begin, source, end)), torch.cat((begin, target, end))))
    return rows_of_pairs


def packed(rows: list[Tensor]) -> PackedBatch:
    lengths = torch.tensor([0, *map(len, rows)], dtype=torch.int32)
    return PackedBatch(
        input_ids=torch.cat(rows), cu_seqlens=lengths.cumsum(0, dtype=torch.int32), max_seqlen=int(lengths.max())
    )


class PlainTransformer(nn.Module):
    """The model in torch.nn: padded, with masks, on torch's own encoder and decoder layers."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width = config.hidden_size
        shape = {"d_model": width, "nhead": config.num_attention_heads, "dim_feedforward": config.intermediate_size}
        options = {"dropout": 0.0, "layer_norm_eps": config.layer_norm_eps, "batch_first": True}
        self.table = nn.Embedding(config.vocab_size, width)
        layer: Any = nn.TransformerEncoderLayer(**shape, **options)
        self.encoder = nn.TransformerEncoder(layer, config.num_hidden_layers, enable_nested_tensor=False)
        layer = nn.TransformerDecoderLayer(**shape, **options)
        self.decoder = nn.TransformerDecoder(layer, config.layers_of_decoder)

    def embed(self, ids: Tensor) -> Tensor:
        width = self.table.embedding_dim
        position = torch.arange(ids.shape[1])[:, None]
        angle = position / 10_000 ** (torch.arange(0, width, 2) / width)
        places = torch.zeros(ids.shape[1], width)
        places[:, 0::2], places[:, 1::2] = angle.sin(), angle.cos()
        return self.table(ids) * math.sqrt(width) + places

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        padding = source == 0
        states = self.encoder(self.embed(source), src_key_padding_mask=padding)
        future = torch.ones(target.shape[1], target.shape[1]).triu(1).bool()
        decoded = self.decoder(self.embed(target), states, tgt_mask=future, memory_key_padding_mask=padding)
        return decoded @ self.table.weight.T

    def take(self, ours: TransformerForSequenceToSequence) -> None:
        """Copy the weights of our model."""
        self.table.weight.data.copy_(ours.embeddings.word_embeddings.weight)
        stacks: Any = ((self.encoder.layers, ours.encoder.layer), (self.decoder.layers, ours.decoder.layer))
        for layers, others in stacks:
            for layer, other in zip(layers, others, strict=True):
                attentions = [(layer.self_attn, other.attention)]
                norms = [(layer.norm1, other.attention.output.LayerNorm)]
                if hasattr(layer, "multihead_attn"):
                    attentions.append((layer.multihead_attn, other.crossattention))
                    norms.append((layer.norm2, other.crossattention.output.LayerNorm))
                norms.append((layer.norm3 if len(norms) > 1 else layer.norm2, other.output.LayerNorm))
                for attention, own in attentions:
                    projections = (own.self.query, own.self.key, own.self.value)
                    attention.in_proj_weight.data.copy_(torch.cat([linear.weight for linear in projections]))
                    attention.in_proj_bias.data.copy_(torch.cat([linear.bias for linear in projections]))
                    attention.out_proj.load_state_dict(own.output.dense.state_dict())
                layer.linear1.load_state_dict(other.intermediate.dense.state_dict())
                layer.linear2.load_state_dict(other.output.dense.state_dict())
                for norm, own in norms:
                    norm.load_state_dict(own.state_dict())


def test_logits_and_the_losses_of_training_are_those_of_torch(seed: int) -> None:
    """Twenty steps of AdamW with label smoothing, each model with its own gradients."""
    ours = model(seed).train()
    plain = PlainTransformer(ours.config)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)) * 0.05)
    plain.take(ours)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9) for each in (ours, plain)]
    for step in range(20):
        rows = pairs(seed * 100 + step)
        source, target = (pad_sequence(each, batch_first=True) for each in map(list, zip(*rows)))
        read, labels = target[:, :-1], target[:, 1:]
        logits = plain(source, read)
        if step == 0:
            padded = ours(source, target, (source > 0).long(), (target > 0).long(), return_logits=True).logits
            torch.testing.assert_close(padded[labels > 0], logits[labels > 0], atol=1e-4, rtol=0)
        expected = F.cross_entropy(logits[labels > 0], labels[labels > 0], label_smoothing=0.1)
        result = ours.losses(packed([one for one, _ in rows]), packed([one for _, one in rows]), label_smoothing=0.1)
        loss = result.loss_sum / result.count
        assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-4), step
        for each, optimizer in zip((loss, expected), optimizers, strict=True):
            optimizer.zero_grad()
            each.backward()
            optimizer.step()


def test_sinusoids_are_the_formula() -> None:
    width, positions = 12, [0, 1, 7, 300, 1023]
    expected = [
        [
            (math.sin if feature % 2 == 0 else math.cos)(position / 10_000 ** (2 * (feature // 2) / width))
            for feature in range(width)
        ]
        for position in positions
    ]
    torch.testing.assert_close(sinusoids(torch.tensor(positions), width), torch.tensor(expected), atol=1e-4, rtol=0)


def test_batches_backends_and_recomputation_change_nothing(seed: int) -> None:
    """The loss of packed rows, one by one or together, with dropout from keys, on the kernels and in PyTorch; the
    gradients where activations are recomputed."""
    rows, keys = pairs(seed), torch.arange(6) + 10 * seed
    for changes in ({}, {"hidden_act": "gelu"}, {"similarity": "concat"}):
        ours = model(seed, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2, **changes).train()
        sources, targets = ([row[side] for row in rows] for side in (0, 1))
        whole = ours.losses(
            replace(packed(sources), dropout_key=keys), replace(packed(targets), dropout_key=keys)
        ).loss_sum
        parts = [
            ours.losses(
                replace(packed([source]), dropout_key=key[None]), replace(packed([target]), dropout_key=key[None])
            ).loss_sum
            for source, target, key in zip(sources, targets, keys)
        ]
        torch.testing.assert_close(torch.stack(parts).sum(), whole, rtol=1e-5, atol=1e-5)
        gradients = torch.autograd.grad(whole, list(ours.parameters()))
        for setting in ("eager", "layer"):
            if setting == "layer":
                ours.checkpoint_activations("layer")
            with use_backend("eager" if setting == "eager" else None):
                again = ours.losses(
                    replace(packed(sources), dropout_key=keys), replace(packed(targets), dropout_key=keys)
                ).loss_sum
                others = torch.autograd.grad(again, list(ours.parameters()))
            torch.testing.assert_close(again, whole, rtol=1e-5, atol=1e-5)
            for gradient, other in zip(gradients, others, strict=True):
                torch.testing.assert_close(other, gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max()) + 1e-6)


def test_new_weights_have_the_scale_of_the_paper_and_come_from_the_seed(seed: int) -> None:
    one, other, third = model(seed), model(seed), model(seed + 1)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert not torch.equal(one.embeddings.word_embeddings.weight, third.embeddings.word_embeddings.weight)
    rows = one.embeddings(packed([torch.arange(VOCABULARY)]), None) - sinusoids(torch.arange(VOCABULARY), 32)
    assert float(rows.detach().std()) == pytest.approx(1.0, abs=0.1)
    assert one.lm_head.decoder.weight is one.get_input_embeddings().weight
    assert one.num_parameters() == one.config.num_parameters()


def test_a_folder_holds_the_model(seed: int, tmp_path: Path) -> None:
    for similarity in ("dot", "additive", "concat"):
        ours = model(seed, similarity=similarity, max_position_embeddings=40, hidden_act="gelu").eval()
        assert ours.num_parameters() == ours.config.num_parameters()
        ours.save_pretrained(tmp_path / similarity)
        loaded = fastbert.load(tmp_path / similarity)
        assert type(loaded) is fastbert.TransformerForSequenceToSequence
        assert loaded.config == ours.config
        assert not loaded.training
        rows = pairs(seed)
        batches = packed([source for source, _ in rows]), packed([target for _, target in rows])
        assert torch.equal(loaded.losses(*batches).loss_sum, ours.losses(*batches).loss_sum)
        values = json.loads((tmp_path / similarity / "config.json").read_text())
        assert values["model_type"] == "transformer"
        assert values["architectures"] == ["TransformerForSequenceToSequence"]
        assert not {"id2label", "type_vocab_size", "initializer_range"} & values.keys()
    half = fastbert.load(tmp_path / "dot", dtype=torch.bfloat16)
    assert torch.isfinite(half.losses(*batches).loss_sum)
    resized = fastbert.load(tmp_path / "dot")
    resized.resize_token_embeddings(VOCABULARY + 3)
    assert resized(pairs(seed)[0][0][None], pairs(seed)[0][1][None], return_logits=True).logits.shape[-1] == 50


def test_a_folder_that_lacks_weights_is_refused(seed: int, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model(seed).save_pretrained(tmp_path)
    (tmp_path / "fastbert_manifest.json").unlink()
    tensors = load_file(tmp_path / "model.safetensors")
    assert "lm_head.decoder.weight" not in tensors
    del tensors["decoder.layer.1.crossattention.self.key.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks decoder\.layer\.1\.crossattention\.self\.key\.bias"):
        fastbert.load(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "decoder_layers": 100_000}))
    with pytest.raises(CheckpointError, match="they belong to different models"):
        fastbert.load(tmp_path)


def test_values_that_cannot_make_a_model_are_refused() -> None:
    for changes, message in (
        ({"similarity": "cosine"}, "similarity='cosine' is not one of dot, additive, concat"),
        ({"hidden_act": "tanh"}, "hidden_act='tanh' is not one of relu, gelu"),
        ({"decoder_layers": 0}, "decoder_layers=0 must be a positive integer"),
        ({"hidden_size": 33, "num_attention_heads": 3}, "hidden_size=33 must be even"),
        ({"begin_token_id": VOCABULARY}, "begin_token_id=47 lies outside the vocabulary of 47"),
        ({"max_position_embeddings": 0}, "max_position_embeddings=0 must be a positive integer"),
    ):
        with pytest.raises(UserError, match=message):
            TransformerConfig(**{**SHAPE, **changes})
    with pytest.raises(UserError, match="choose one of tiny, small, base, big"):
        TransformerConfig.preset("medium")
    with pytest.raises(UserError, match="takes a TransformerConfig, not a BertConfig"):
        TransformerForSequenceToSequence(fastbert.BertConfig())  # type: ignore[arg-type]
    assert tuple(PRESETS) == NEW_SIZES
    base = TransformerConfig.preset("base")
    assert (base.num_hidden_layers, base.hidden_size, base.num_attention_heads, base.intermediate_size) == (
        6,
        512,
        8,
        2048,
    )
    assert base == TransformerConfig()


def test_ids_and_positions_outside_of_the_model_are_refused(seed: int) -> None:
    ours = model(seed, max_position_embeddings=8)
    short, long = torch.full((1, 8), 5), torch.full((1, 9), 5)
    ours(short, short)
    with pytest.raises(UserError, match="position_ids holds 8, outside the model's 8: truncate to 8 tokens"):
        ours(long, short)
    with pytest.raises(UserError, match="position_ids holds 8"):
        ours(short, torch.full((1, 10), 5))
    with pytest.raises(UserError, match="input_ids holds 47, outside the model's 47"):
        ours(short, torch.full((1, 4), VOCABULARY))
    with pytest.raises(UserError, match="max_target_length has 9 tokens read, more than max_position_embeddings=8"):
        ours.generate(short, settings=fastbert.models.seq2seq.generation.GenerationSettings(max_target_length=10))
    batch, _ = unpad(short, None, None, None)
    with pytest.raises(UserError, match="1 sources, but 0 targets"):
        ours.losses(batch, batch[:0])

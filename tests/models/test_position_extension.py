"""More positions for a trained model: which rows they get, and what is refused."""

import numpy as np
import pytest
import torch

import fastbert
from fastbert.errors import UserError
from fastbert.models.elmo.config import ElmoConfig
from fastbert.models.gpt2.config import GPT2Config
from fastbert.models.position_extension import extend_positions, with_more_positions
from fastbert.models.roberta.config import RobertaConfig

SHAPE = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}


@pytest.mark.parametrize(
    ("kind", "config", "reserved"),
    [
        pytest.param("BertForMaskedLM", fastbert.BertConfig(**SHAPE, max_position_embeddings=7), 0, id="bert"),
        pytest.param(
            "RobertaForMaskedLM", RobertaConfig(**SHAPE, max_position_embeddings=9, pad_token_id=1), 2, id="roberta"
        ),
        pytest.param("GPT2LMHeadModel", GPT2Config(**SHAPE, max_position_embeddings=7), 0, id="gpt2"),
    ],
)
@pytest.mark.parametrize("positions", [7, 8, 13, 21])
def test_new_rows_repeat_or_interpolate(kind: str, config: fastbert.BertConfig, reserved: int, positions: int) -> None:
    for method in ("repeat", "interpolate"):
        model = getattr(fastbert, kind)(config).eval()
        before = model.base_model.embeddings.position_embeddings.weight.detach().clone()
        extend_positions(model, positions, method)
        after = model.base_model.embeddings.position_embeddings.weight.detach()
        assert len(after) == model.config.max_position_embeddings == positions + reserved
        assert model.base_model.config.max_sequence_length == positions
        assert torch.equal(after[:reserved], before[:reserved])
        old, new = before[reserved:].double().numpy(), after[reserved:].double().numpy()
        if method == "repeat":
            assert np.array_equal(new, np.tile(old, (3, 1))[:positions])
        else:
            places = np.linspace(0, 6, positions)
            expected = np.stack([np.interp(places, np.arange(7), column) for column in old.T], axis=1)
            np.testing.assert_allclose(new, expected, rtol=0, atol=1e-7)
        ids = torch.randint(2, 20, (1, positions))
        assert model(input_ids=ids).logits.isfinite().all()
        with pytest.raises(UserError, match="outside the model's table"):
            model(input_ids=torch.randint(2, 20, (1, positions + 1)))


def test_tables_keep_their_dtype_and_cannot_shrink() -> None:
    model = fastbert.BertModel(fastbert.BertConfig(**SHAPE, max_position_embeddings=7)).bfloat16()
    extend_positions(model, 12, "interpolate")
    assert model.embeddings.position_embeddings.weight.dtype == torch.bfloat16
    assert model.embeddings.position_embeddings.weight.requires_grad
    with pytest.raises(UserError, match="the model has positions for 12 tokens, more than 11; a table of positions"):
        extend_positions(model, 11)
    with pytest.raises(UserError, match="--max-positions 9: model_type='elmo' has no table of positions"):
        with_more_positions(ElmoConfig(), 1 << 30, "--max-positions 9")

"""The function behind `attn_implementation='fastbert'`, call by call: masks, shapes, and what is refused."""

import sys
from typing import Any

import pytest
import torch
from attention_models import COLUMNS, CONFIGS, padding
from torch import Tensor

pytest.importorskip("transformers")

from fastbert.errors import UserError
from fastbert.integrations.transformers import attention
from fastbert.integrations.transformers.attention import register_attention

pytestmark = pytest.mark.usefixtures("attention_interface")


def test_without_padding_there_is_no_mask() -> None:
    from transformers.masking_utils import create_bidirectional_mask

    config = CONFIGS["bert"]()
    config._attn_implementation = "fastbert"
    for mask in (None, torch.ones(3, COLUMNS, dtype=torch.long)):
        assert create_bidirectional_mask(config, torch.zeros(3, COLUMNS, 48), mask) is None
    made = create_bidirectional_mask(config, torch.zeros(3, COLUMNS, 48), padding("left"))
    assert made is not None
    assert made.shape == (3, 1, COLUMNS, COLUMNS)
    assert torch.equal(made[1, 0, 0] == 0, padding("left")[1].bool())


class Plain(torch.nn.Module):
    """An attention module of nobody's."""

    is_causal = False


def heads(rows: int, count: int, columns: int, dim: int, seed: int) -> Tensor:
    return torch.randn(rows, count, columns, dim, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def sdpa(*inputs: Any, **options: Any) -> Tensor:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    result: Tensor = sdpa_attention_forward(*inputs, **options)[0]
    return result


def test_in_inference_mode_a_mask_that_can_be_written_to_has_no_note() -> None:
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    kept = padding("right").bool()
    with torch.inference_mode():
        for function, noted in ((causal_mask_function, False), (bidirectional_mask_function, True)):
            mask = attention.attention_mask(3, 17, 17, 0, 0, function, kept, device="cpu")
            assert (attention._padding(mask) is not None) == noted


@pytest.mark.parametrize("change", ["written", "cut"])
def test_a_mask_that_was_changed_counts_as_it_is(change: str, seed: int) -> None:
    kept = padding("right").bool()
    options: dict[str, Any] = {"device": "cpu", "allow_is_bidirectional_skip": False}
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    function = causal_mask_function if change == "written" else bidirectional_mask_function
    mask = attention.attention_mask(3, 17, 17, 0, 0, function, kept, **options)
    assert mask is not None
    assert attention._padding(mask) is not None
    assert attention._padding(mask.detach()) is not None, "checkpoints of activations detach what they keep"
    if change == "written":
        mask[:, :, 1:, 0] = torch.finfo(mask.dtype).min
    columns = 17 if change == "written" else 9
    mask = mask[..., :columns]
    q, k = heads(3, 2, 17, 8, seed), heads(3, 2, columns, 8, seed + 1)
    actual, _ = attention.attention_forward(Plain(), q, k, k, mask)
    assert torch.allclose(actual, sdpa(Plain(), q, k, k, mask), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({"softcap": 50.0}, "does not compute capped scores", id="softcap"),
        pytest.param({"s_aux": torch.zeros(2)}, "does not compute attention sinks", id="sinks"),
        pytest.param({"sliding_window": 4}, "sliding_window=4 of 17 keys came without its mask", id="window"),
        pytest.param({"cu_seq_lens_q": torch.tensor([0, 17])}, "comes with cu_seq_lens_k", id="half-an-offset"),
    ],
)
def test_what_sdpa_would_leave_out_in_silence_is_refused(options: dict[str, Any], words: str, seed: int) -> None:
    q = heads(1, 2, 17, 8, seed)
    with pytest.raises(UserError, match=words):
        attention.attention_forward(Plain(), q, q, q, None, **options)


@pytest.mark.parametrize(
    ("q", "k", "v", "options"),
    [
        pytest.param((1, 2, 9, 300), (1, 2, 9, 300), (1, 2, 9, 300), {}, id="wide-heads"),
        pytest.param((1, 2, 9, 8), (1, 2, 9, 8), (1, 2, 9, 5), {}, id="values-of-another-width"),
        pytest.param((1, 2, 4, 8), (1, 2, 9, 8), (1, 2, 9, 8), {"is_causal": True}, id="causal-with-more-keys"),
        pytest.param(
            (1, 2, 9, 8), (1, 2, 9, 8), (1, 2, 9, 8), {"position_bias": torch.ones(1, 2, 9, 9).tril()}, id="bias"
        ),
        pytest.param((0, 2, 9, 8), (0, 2, 9, 8), (0, 2, 9, 8), {}, id="no-rows"),
        pytest.param((2, 2, 9, 8), (2, 2, 9, 8), (2, 2, 9, 8), {"is_causal": True}, id="served-causal"),
        pytest.param((2, 2, 4, 8), (2, 2, 9, 8), (2, 2, 9, 8), {}, id="served-fewer-queries"),
        pytest.param((2, 2, 1, 8), (2, 2, 9, 8), (2, 2, 9, 8), {"is_causal": True}, id="served-one-query"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_every_call_is_computed_as_sdpa_computes_it(
    q: Any, k: Any, v: Any, options: dict[str, Any], dtype: torch.dtype, seed: int
) -> None:
    inputs = [heads(*shape, seed + i).to(dtype) for i, shape in enumerate((q, k, v))]
    options = {name: x.to(dtype) if isinstance(x, Tensor) else x for name, x in options.items()}
    actual, weights = attention.attention_forward(Plain(), *inputs, None, scaling=0.3, **options)
    expected = sdpa(Plain(), *inputs, None, scaling=0.3, **options)
    assert weights is None
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    assert torch.allclose(actual, expected, atol=1e-5 if dtype in (torch.float32, torch.float64) else 2e-2)


def test_dropout_drops_a_share_and_scales_the_rest(seed: int) -> None:
    torch.manual_seed(seed)
    q, v = torch.zeros(8, 4, 128, 8), torch.ones(8, 4, 128, 8)
    out, _ = attention.attention_forward(Plain(), q, q, v, None, dropout=0.25)
    assert out.std() > 0.01
    assert abs(float(out.mean()) - 1) < 0.01
    again, _ = attention.attention_forward(Plain(), q, q, v, None, dropout=0.25)
    assert not torch.equal(out, again)


def test_names_of_others_are_not_taken() -> None:
    assert register_attention() == "fastbert"
    for name in ("sdpa", "eager", "flash_attention_2", "paged|fastbert", "someone/kernel"):
        with pytest.raises(UserError, match="is reserved or in use"):
            register_attention(name)


def test_without_transformers_there_is_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"needs transformers 5.10 or later .*pip install"):
        register_attention()

"""New weights from a seed are the same on every device."""

import pytest
import torch
from torch import nn

from fastbert.config import BertConfig
from fastbert.models import BertForPreTraining
from fastbert.models.initialisation import draw

TINY = BertConfig(
    vocab_size=99, hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64,
)  # fmt: skip


def test_another_devices_weight_takes_the_draws_of_the_generators(seed: int) -> None:
    here, elsewhere = (torch.Generator().manual_seed(seed) for _ in range(2))
    draw(nn.init.normal_, torch.empty(3, 5), std=0.5, generator=here)
    draw(nn.init.normal_, torch.empty(3, 5, device="meta"), std=0.5, generator=elsewhere)
    assert torch.equal(here.get_state(), elsewhere.get_state())


def test_without_a_generator_weights_are_drawn_where_they_are() -> None:
    weight = torch.empty(3, 5, device="meta")
    draw(nn.init.uniform_, weight, -1.0, 1.0, generator=None)
    assert weight.is_meta


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_has_the_weights_of_a_cpu(seed: int) -> None:
    here, there = BertForPreTraining(TINY), BertForPreTraining(TINY).to("cuda")
    for model in (here, there):
        model.init_weights(seed)
    assert all(torch.equal(a, b.cpu()) for a, b in zip(here.state_dict().values(), there.state_dict().values()))

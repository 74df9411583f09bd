"""The tagger on features: its mix is ELMo's formula, and sentences of a batch do not see each other."""

import pytest
import torch

from fastbert.errors import UserError
from fastbert.models.bilstm import BiLstmConfig, BiLstmTagger, ScalarMix


def test_the_mix_is_the_formula(seed: int) -> None:
    torch.manual_seed(seed)
    mix, states = ScalarMix(3), torch.randn(5, 3, 7)
    torch.testing.assert_close(mix(states), states.mean(dim=1))
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([1.0, -2.0, 0.5]))
        mix.gamma.fill_(1.7)
    share = torch.exp(mix.weights) / torch.exp(mix.weights).sum()
    expected = 1.7 * sum(share[layer] * states[:, layer] for layer in range(3))
    torch.testing.assert_close(mix(states), expected)
    mix(states).square().sum().backward()
    assert mix.weights.grad is not None
    assert (mix.weights.grad != 0).all()
    assert mix.gamma.grad != 0


@pytest.mark.parametrize("mixed", [True, False])
def test_each_sentence_is_tagged_alone(mixed: bool, seed: int) -> None:
    torch.manual_seed(seed)
    config = BiLstmConfig(input_size=6, input_layers=2, mix=mixed, num_labels=4, hidden_size=10)
    tagger, lengths = BiLstmTagger(config).eval(), torch.tensor([3, 1, 5, 2])
    states = torch.randn(11, 2, 6)
    together = tagger(states, lengths)
    assert together.shape == (11, 4)
    for one, length in zip(states.split(lengths.tolist()), lengths, strict=True):
        alone = tagger(one, length[None])
        place = next(at for at in range(11) if states[at].equal(one[0]))
        torch.testing.assert_close(together[place : place + len(one)], alone)
    # It reads in both directions: a sentence's last word matters for its first.
    changed = states.clone()
    changed[2] += 1
    assert (tagger(changed, lengths)[0] - together[0]).abs().max() > 1e-6
    assert tagger(changed, lengths)[3:].equal(together[3:])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hidden_size": 7}, "hidden_size=7 must be even"),
        ({"num_labels": 0}, "num_labels=0 must be a positive integer"),
        ({"dropout": 1.0}, "dropout=1.0"),
    ],
)
def test_wrong_shapes_are_refused(values: dict, words: str) -> None:
    with pytest.raises(UserError) as caught:
        BiLstmConfig(**{"input_size": 4, "num_labels": 2, **values})
    assert words in str(caught.value)


def test_it_learns(seed: int) -> None:
    torch.manual_seed(seed)
    tagger = BiLstmTagger(BiLstmConfig(input_size=6, input_layers=2, mix=True, num_labels=2, hidden_size=16))
    states, lengths = torch.randn(40, 2, 6), torch.tensor([10, 5, 20, 5])
    tags = (states[:, 1, 0] > 0).long()
    optimizer = torch.optim.Adam(tagger.parameters(), lr=2e-2)
    for _ in range(80):
        loss = torch.nn.functional.cross_entropy(tagger(states, lengths), tags)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (tagger.eval()(states, lengths).argmax(-1) == tags).float().mean() > 0.85

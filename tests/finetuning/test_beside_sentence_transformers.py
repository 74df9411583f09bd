"""Training embedders, sparse encoders and rerankers beside sentence-transformers: the same losses, step by step."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest
import torch

from fastbert.tokenizers import WordPieceTokenizer

pytest.importorskip("sentence_transformers", minversion="6.0")
transformers = pytest.importorskip("transformers")

from fastbert.benchmarks.embedding import parity  # noqa: E402
from fastbert.benchmarks.embedding.examples import Example, without_duplicates  # noqa: E402
from fastbert.benchmarks.embedding.peer_training import Recipe  # noqa: E402

TOPICS, WORDS_PER_TOPIC = 8, 8
WORDS = [f"word{topic}{word}" for topic in "abcdefgh" for word in "abcdefgh"]
WIDTH = 32
RECIPE = Recipe(steps=8, batch_size=8, lr=1e-3, max_length=32)
CASES = {case.name: case for case in parity.cases((WIDTH, 16, 8), pass_tokens=64, mini_batch_size=4)}
MOST = 1e-5
"""Of the relative difference over these few steps; a different attention kernel in the peer gives up to 2e-6."""


def text(draw: Random, topic: int) -> str:
    """4 to 14 words, most of them of a topic."""
    of_topic = WORDS[topic * WORDS_PER_TOPIC : (topic + 1) * WORDS_PER_TOPIC]
    return " ".join(draw.choice(of_topic if draw.random() < 0.7 else WORDS) for _ in range(draw.randint(4, 14)))


def triplet(draw: Random) -> Example:
    """Two texts of a topic and one of a different one."""
    topic, other = draw.sample(range(TOPICS), 2)
    return Example((text(draw, topic), text(draw, topic), text(draw, other)))


def pair(draw: Random) -> Example:
    """Two texts with a score, which is higher for those of one topic."""
    first, second = draw.choices(range(TOPICS), k=2)
    second = draw.choice((first, second))
    return Example((text(draw, first), text(draw, second)), (draw.randint(0, 10) / 20 + 0.5 * (first == second),))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small encoder with the settings of sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules.transformer import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    plain, folder = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("encoder")
    config = transformers.BertConfig(
        vocab_size=5 + len(WORDS), hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=40, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(plain)
    WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]).save_pretrained(plain)
    SentenceTransformer(modules=[Transformer(str(plain)), Pooling(WIDTH, "mean")]).save(str(folder))
    shutil.copy(plain / "vocab.txt", folder)
    return folder


@pytest.fixture(scope="module")
def texts(seed: int) -> tuple[list[Example], list[Example]]:
    """Triplets and pairs with scores, whose texts all differ."""
    draw, count = Random(seed), RECIPE.steps * RECIPE.batch_size
    triplets = without_duplicates(triplet(draw) for _ in range(2 * count))
    scored = without_duplicates(pair(draw) for _ in range(2 * count))
    return triplets, scored


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plot takes longer than the steps."""
    monkeypatch.setattr("fastbert.finetuning.result.plot_trials", lambda *_: None)


@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_sentence_transformers(
    name: str, encoder: Path, texts: tuple[list[Example], list[Example]], tmp_path: Path
) -> None:
    agreement = parity.compare(CASES[name], tmp_path, encoder, *texts, RECIPE)
    assert len(agreement.fastbert) == RECIPE.steps
    assert max(agreement.differences) < MOST, [agreement.fastbert, agreement.peer]
    assert len(set(agreement.fastbert)) == RECIPE.steps, "the loss changes"


def test_another_margin_is_seen(encoder: Path, texts: tuple[list[Example], list[Example]], tmp_path: Path) -> None:
    """The comparison can fail."""
    from dataclasses import replace

    case = CASES["TripletLoss, cosine"]
    other = replace(case, flags={**case.flags, "margin": 0.21})
    assert max(parity.compare(other, tmp_path, encoder, *texts, RECIPE).differences) > 1e-3

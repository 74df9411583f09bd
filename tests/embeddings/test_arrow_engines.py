"""The examples of docs/embeddings.md that run `ArrowEmbedder` inside Ray Data and Spark."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from embedding import random_texts, saved

from fastbert.embeddings.folder import load_embedder

pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "embeddings.md"
HAS_SPARK = find_spec("pyspark") is not None and shutil.which("java") is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("ray", marks=pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")),
        pytest.param("spark", marks=pytest.mark.skipif(not HAS_SPARK, reason="needs pyspark and Java")),
    ],
)
def test_the_example_of_the_guide_writes_the_vectors(tmp_path: Path, seed: int, engine: str) -> None:
    (example,) = (
        block
        for block in re.findall(r"^```py\n(.*?)^```", GUIDE.read_text(), flags=re.MULTILINE | re.DOTALL)
        if f"vectors-{engine}" in block
    )
    saved(tmp_path / "runs/mine/model", seed)
    (tmp_path / "articles").mkdir()
    texts = {f"d{number}": text for number, text in enumerate(random_texts(seed, 60))}
    for part in range(3):
        ids = list(texts)[part::3]
        table = pa.table({"doc": ids, "text": [texts[identifier] for identifier in ids]})
        pq.write_table(table, tmp_path / "articles" / f"{part}.parquet")
    (tmp_path / "example.py").write_text(example)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "RAY_ADDRESS": "local"}
    run = subprocess.run(
        [sys.executable, "-P", "example.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    vectors = pq.read_table(tmp_path / f"vectors-{engine}", columns=["doc", "embedding"])
    by_id = dict(zip(vectors.column("doc").to_pylist(), vectors.column("embedding").to_pylist(), strict=True))
    assert len(by_id) == vectors.num_rows == len(texts)
    from fastbert.tasks.inference import choose_inference

    encoder, tokenizer, _ = load_embedder(tmp_path / "runs/mine/model", dtype=choose_inference("cpu", "auto")[1])
    expected = encoder.embed(list(texts.values()), tokenizer).numpy()
    np.testing.assert_array_equal(np.array([by_id[identifier] for identifier in texts], np.float32), expected)

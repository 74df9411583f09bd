"""`fastbert embed --vectors tokens|sparse` from flags to files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embedding import random_texts
from reranking_models import model_folder
from safetensors import safe_open

pytest.importorskip("tyro", reason="the command line needs tyro")

from fastbert import SparseEncoder, TokenEncoder, cli


def read(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file, those of a table flattened."""
    if path.suffix == ".safetensors":
        with safe_open(path, "np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    table = pytest.importorskip("pyarrow.parquet").read_table(path).to_pydict()
    assert table.pop("index") == list(range(len(table["token_ids"])))
    arrays: dict[str, Any] = {"offsets": np.cumsum([0, *map(len, table["token_ids"])])}
    return arrays | {name: np.concatenate([np.array(row) for row in rows if row]) for name, rows in table.items()}


@pytest.mark.parametrize("suffix", [".safetensors", ".parquet"])
def test_files_hold_what_the_models_give(
    tmp_path: Path, suffix: str, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_folder(tmp_path / "m", "BertForMaskedLM", seed)
    texts = random_texts(seed, 1030, most=6)  # more than a chunk
    file = tmp_path / "t.jsonl"
    file.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    flags = ["--model", model, "--text", file, "--column", "body", "--dtype", "fp32", "--device", "cpu", "--quiet"]

    def embed(*more: object) -> int:
        return cli.main(["embed", *map(str, [*flags, *more])])

    out = tmp_path / f"tokens{suffix}"
    assert embed("--vectors", "tokens", "--out", out, "--role", "query", "--query-length", 12, "--normalize") == 0
    written = read(out)
    tokens = TokenEncoder(model, dtype="fp32").encode(texts, role="query", query_length=12, normalize=True)
    np.testing.assert_array_equal(written["vectors"], tokens.vectors.numpy())
    np.testing.assert_array_equal(written["offsets"], tokens.offsets.numpy())
    np.testing.assert_array_equal(written["token_ids"], tokens.token_ids.numpy())
    printed = capsys.readouterr().out
    assert printed.startswith("1,030 texts, 12,3")
    assert printed.endswith(f"{len(tokens.vectors):,} vectors\n")

    out = tmp_path / f"sparse{suffix}"
    assert embed("--vectors", "sparse", "--out", out, "--top-k", 5, "--pooling", "sum", "--prefix", "a ") == 0
    written = read(out)
    weights = SparseEncoder(model, dtype="fp32").encode(texts, top_k=5, pooling="sum", prefix="a ")
    np.testing.assert_array_equal(written["weights"], weights.weights.numpy())
    np.testing.assert_array_equal(written["offsets"], weights.offsets.numpy())
    np.testing.assert_array_equal(written["token_ids"], weights.token_ids.numpy())
    assert embed("--vectors", "sparse", "--out", out) == 2
    assert "exists" in capsys.readouterr().err

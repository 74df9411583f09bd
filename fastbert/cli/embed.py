"""`fastbert embed`: write one vector per text of a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fastbert.cli.common import require
from fastbert.io.progress import Bars


@dataclass(frozen=True, kw_only=True)
class Config:
    """Write one vector per text of a file, in the order of the texts. Defaults come from the settings in the model's
    folder."""

    model: str | None = None
    """Folder of the model, one of sentence-transformers or any Hugging Face BERT; or its name in the Hub's cache."""
    text: str | None = None
    """File with the texts: .txt, one per line; .jsonl, .csv or .tsv with --column; also .gz and .xz; - reads lines from
    standard input."""
    out: Path | None = None
    """File to write: .npy, fp32 (texts, width); .parquet or .jsonl, with each text's index."""
    column: str | None = None
    """Key or column of the text in .jsonl, .csv and .tsv files (default: text)."""
    pooling: Literal["mean", "max", "cls"] | None = None
    """Pooling of the tokens' vectors (default: the folder's, else mean)."""
    normalize: bool = False
    """Scale each vector to unit length, even if the folder's settings do not."""
    max_length: int | None = None
    """Tokens per model input (default: the folder's, else as many as the model allows)."""
    long: Literal["truncate", "windows", "error"] = "truncate"
    """Longer texts are truncated, split into overlapping windows, or refused."""
    prompt: str | None = None
    """Name of the folder's prompt that precedes each text (default: its default prompt, if it has one)."""
    batch_tokens: int | None = None
    """Tokens per batch (default: 4096, on a GPU 65536); results do not depend on it."""
    dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """Dtype of matmuls: auto is the faster of fp32 and bf16; int8, on CPUs, is faster still and less exact."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device: auto uses a GPU if there is one."""
    overwrite: bool = False
    """Replace the file if it exists."""


def run(config: Config, *, quiet: bool = False) -> int:
    """Embed the file and print a summary."""
    model_name = require(config.model, "--model", "the folder of a trained model")
    text = require(config.text, "--text", "a file with the texts, or - for standard input")
    out = require(config.out, "--out", "the file to write, .npy, .parquet or .jsonl")
    from fastbert.embeddings.embed import EmbedOptions
    from fastbert.embeddings.folder import load_embedder
    from fastbert.embeddings.vector_files import VectorFile, embed_file
    from fastbert.tasks.inference import choose_inference
    from fastbert.tasks.text_files import TextFile

    options = EmbedOptions(
        pooling=config.pooling,
        normalize=config.normalize or None,
        max_length=config.max_length,
        long=config.long,
        prompt=config.prompt,
        batch_tokens=config.batch_tokens,
    )
    # Check the output before loading the model.
    file, texts = VectorFile(out, overwrite=config.overwrite), TextFile(text, config.column)
    device, dtype, why = choose_inference(config.device, config.dtype)
    model, tokenizer, _ = load_embedder(model_name, dtype=dtype)
    if config.dtype == "int8":
        model.quantize("int8")
    with Bars(quiet) as bars:
        bars.message(f"{why} on {device}, {file.path}")
        update = bars.stage("embedding", texts.total_bytes, "texts")

        def progress(position: int, counts: Any) -> None:
            update(position, f"{counts.texts:,} texts", counted=counts.texts)

        report = embed_file(model.to(device), tokenizer, texts, file, options, progress)
    print(str(report))
    return 0

"""`fastbert embed`: a vector for each text of a file."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fastbert.cli.common import output, require
from fastbert.io.progress import Bars


@dataclass(frozen=True, kw_only=True)
class Config:
    """Write one vector for each text of a file, in the order of the texts, as the model's folder says or as asked."""

    model: str | None = None
    """Folder of the model, one of sentence-transformers or any Hugging Face BERT; or its name in the Hub's cache."""
    text: str | None = None
    """File with the texts: .txt, one a line; .jsonl, .csv or .tsv with --column; also .gz and .xz; - for lines from
    standard input."""
    out: Path | None = None
    """File to write: .npy, fp32 (texts, width); .parquet or .jsonl, with each text's index."""
    column: str | None = None
    """Key or column of the text in .jsonl, .csv and .tsv files (default: text)."""
    pooling: Literal["mean", "max", "cls"] | None = None
    """How tokens become a vector (default: as the folder says, else mean)."""
    normalize: bool = False
    """Divide each vector by its length, also where the folder does not say so."""
    max_length: int | None = None
    """Tokens that the model sees at once (default: as the folder says, else as many as it takes)."""
    long: Literal["truncate", "windows", "error"] = "truncate"
    """Longer texts are cut, seen in overlapping windows, or refused."""
    prompt: str | None = None
    """Name of the folder's prompt to put before each text (default: its default one, if it has one)."""
    batch_tokens: int | None = None
    """Tokens to compute at a time (default: 4096, on a GPU 65536); results do not depend on it."""
    dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """What to multiply: auto is the fastest of fp32 and bf16 here; int8, on CPUs, is faster still and less exact."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute: auto takes a GPU if there is one."""
    overwrite: bool = False
    """Replace the file if it exists."""


def run(config: Config, *, quiet: bool = False) -> int:
    """Embed the file and print a line of figures."""
    model_name = require(config.model, "--model", "the folder of a trained model")
    text = require(config.text, "--text", "a file with the texts, or - for standard input")
    out = require(config.out, "--out", "the file to write, .npy, .parquet or .jsonl")
    from fastbert.embeddings.embed import EmbedOptions
    from fastbert.embeddings.folder import load_embedder
    from fastbert.embeddings.text_files import embed_file
    from fastbert.embeddings.vector_files import VectorFile
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
    # What could fail at the end is looked at before the model is loaded.
    file, texts = VectorFile(out, overwrite=config.overwrite), TextFile(text, config.column)
    device, dtype, why = choose_inference(config.device, config.dtype)
    model, tokenizer, _ = load_embedder(model_name, dtype=dtype)
    if config.dtype == "int8":
        model.quantize("int8")
    with Bars(quiet) as bars:
        bars.message(f"{why} on {device}, {file.path}")
        update = bars.stage("embedding", texts.total_bytes)
        began = time.perf_counter()

        def progress(position: int, counts: Any) -> None:
            update(position, f"{counts.texts:,} texts, {counts.texts / (time.perf_counter() - began):,.0f} texts/s")

        report = embed_file(model.to(device), tokenizer, texts, file, options, progress)
    output(str(report))
    return 0

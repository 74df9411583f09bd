"""`fastbert features`: write hidden states of chosen layers to a file, and compute Table 7 of the BERT paper."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fastbert.cli.common import require
from fastbert.errors import UserError
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.progress import Bars

if TYPE_CHECKING:
    from fastbert.features.tagging import Table7Row
    from fastbert.models.encoder import EncoderModel
    from fastbert.tokenizers import WordPieceTokenizer


@dataclass(frozen=True, kw_only=True)
class Config:
    """Write hidden states of a frozen encoder, one vector per token or word of each text; or with --table7 train a
    BiLSTM tagger on six kinds of them, as in Table 7 of the BERT paper."""

    model: str | None = None
    """Folder of the model, or its name in the Hub's cache."""
    text: str | None = None
    """File with the texts: .txt, one per line; .jsonl, .csv or .tsv with --column; also .gz and .xz; - reads lines from
    standard input."""
    out: Path | None = None
    """File to write: .npy, .npz, .safetensors, .parquet or .jsonl; with --table7 a folder."""
    column: str | None = None
    """Key or column of the text in .jsonl, .csv and .tsv files (default: text)."""
    layers: str = "last"
    """embeddings, second-to-last, last, sum-last-four, concat-last-four, sum-all; or numbers such as 0,-2,-1 (0: the
    embeddings), which are concatenated."""
    per: Literal["token", "word"] = "token"
    """One vector per token, or per word, that of its first token (words are separated by spaces)."""
    max_length: int | None = None
    """Tokens per model input (default: as many as the model allows); longer texts are split into parts."""
    batch_tokens: int | None = None
    """Tokens per batch (default: 4096, on a GPU 65536)."""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Dtype of matmuls: auto is the faster of fp32 and bf16."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device: auto uses a GPU if there is one."""
    overwrite: bool = False
    """Replace the file if it exists."""
    table7: bool = False
    """Train on --train, score on --eval, and print the table."""
    train: str | None = None
    """Tagged sentences to train on, CoNLL columns."""
    eval: str | None = None
    """Tagged sentences to score on."""
    epochs: int = 10
    """Passes over the training sentences per row; the best epoch on --eval counts."""
    batch_size: int = 32
    """Sentences per step."""
    lr: float = 1e-3
    """Adam's learning rate for the tagger."""
    hidden_size: int = 768
    """Width of each of the BiLSTM's two layers, half of it from each direction."""
    seed: int = 0
    """Seed of the tagger's weights, its dropout and the order of sentences."""

    def __post_init__(self) -> None:
        if not self.table7 and (self.train is not None or self.eval is not None):
            raise UserError("--train and --eval require --table7; features are written for --text")
        if self.table7 and self.text is not None:
            raise UserError("--text cannot be combined with --table7, which reads --train and --eval")


def run(config: Config, *, quiet: bool = False) -> int:
    """Write the features, or train the taggers."""
    source = require(config.model, "--model", "the folder of a trained model")
    if config.table7:
        return _run_table(config, source, quiet)
    text = require(config.text, "--text", "a file with the texts, or - for standard input")
    out = require(config.out, "--out", "the file to write, .npy, .npz, .safetensors, .parquet or .jsonl")
    from fastbert.features.extract import extract_chunks
    from fastbert.features.files import FeatureFile
    from fastbert.tasks.text_files import TextFile

    file, texts = FeatureFile(out, overwrite=config.overwrite), TextFile(text, config.column)
    model, tokenizer, why = _load(config, source)
    chunks = extract_chunks(
        model,
        tokenizer,
        texts,
        parse_layers(config.layers),
        per=config.per,
        max_length=config.max_length,
        batch_tokens=config.batch_tokens,
    )
    with Bars(quiet) as bars, file:
        bars.message(f"{why}, {file.path}")
        update = bars.stage("features", texts.total_bytes, f"{config.per}s")
        began = time.perf_counter()
        for features in chunks:
            file.append(features)
            update(texts.position, f"{file.items:,} {config.per}s", counted=file.items)
        if not file.texts:
            raise UserError(f"{texts.name} holds no text")
        seconds = time.perf_counter() - began
    print(
        f"{file.texts:,} texts, {file.items:,} {config.per}s, {file.width:,} numbers each: {seconds:.1f} s,"
        f" {file.texts / max(seconds, 1e-9):,.0f} texts/s"
    )
    return 0


def parse_layers(text: str) -> str | tuple[int, ...]:
    """Return a name unchanged, or numbers separated by commas as a tuple. Raises `UserError`."""
    if not any(character.isdigit() for character in text):
        return text
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--layers {text}: give a name, or numbers separated by commas such as 0,-2,-1") from None


def _run_table(config: Config, source: str, quiet: bool) -> int:
    train, dev = require(config.train, "--train", "sentences with tags"), require(config.eval, "--eval", "sentences")
    out = require(config.out, "--out", "the folder to write table7.json to")
    if (out / "table7.json").exists() and not config.overwrite:
        raise UserError(f"{out / 'table7.json'} exists; give another folder, or --overwrite to replace it")
    from fastbert.features.tagging import FeatureTraining, table7
    from fastbert.tasks.readers.conll import read_conll
    from fastbert.tasks.settings import Columns

    training = FeatureTraining(
        hidden_size=config.hidden_size,
        epochs=config.epochs,
        batch_size=config.batch_size,
        lr=config.lr,
        seed=config.seed,
        max_length=config.max_length,
    )
    sets = [read_conll(path, Columns(), labelled=True) for path in (train, dev)]
    model, tokenizer, why = _load(config, source)
    with Bars(quiet) as bars:
        bars.message(f"{why}, {len(sets[0]):,} sentences to train on, {len(sets[1]):,} to score on")
        update = bars.stage("training", 6 * config.epochs, "epochs")
        done = 0

        def progress(name: str, epoch: int, f1: float) -> None:
            nonlocal done
            done += 1
            update(done, f"{name}, epoch {epoch}: {f1:.1f}")

        rows = table7(model, tokenizer, sets[0], sets[1], training, progress=progress)
    out.mkdir(parents=True, exist_ok=True)
    result = {"kind": "table7", "model": source, "train": train, "eval": dev, "rows": [asdict(row) for row in rows]}
    write_json_atomic(out / "table7.json", result)
    print(describe(rows))
    return 0


def describe(rows: list[Table7Row]) -> str:
    """Return the table as text."""
    width = max(len(row.name) for row in rows)
    return "\n".join([f"{'features':<{width}}  dev F1", *(f"{row.name:<{width}}  {row.f1:6.2f}" for row in rows)])


def _load(config: Config, source: str) -> tuple[EncoderModel, WordPieceTokenizer, str]:
    """Return the encoder on its device, its tokenizer, and a description of dtype and device."""
    from fastbert.checkpoints.source import find_source
    from fastbert.models import registry
    from fastbert.tasks.inference import choose_inference
    from fastbert.tokenizers import WordPieceTokenizer

    device, dtype, why = choose_inference(config.device, config.dtype)
    model = registry.load_encoder(source, dtype=dtype)
    return model.to(device), WordPieceTokenizer.from_pretrained(find_source(source)), f"{why} on {device}"

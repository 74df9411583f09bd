"""`fastbert embed`: write vectors of the texts of a file: one per text, one per token, or sparse ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from fastbert.cli.checks import STDIN, check_model, check_texts
from fastbert.cli.counts import counted
from fastbert.cli.model_flags import InferenceFlags
from fastbert.cli.ray_flags import RayFlags, check_local, check_ray, local_out, run_ray
from fastbert.cli.retrieval_flags import RetrievalFlags, check_vectors, write_vectors
from fastbert.errors import UserError
from fastbert.flags import DATA, MODEL, OUTPUT, flag, require, required
from fastbert.io.locations import LocationText
from fastbert.io.output_files import RAGGED, VECTORS, check_output
from fastbert.io.progress import Bars
from fastbert.tasks.text_files import TextFile

if TYPE_CHECKING:
    from fastbert.distributed.world import World
    from fastbert.embeddings.embed import EmbedOptions

EXAMPLES = (
    "fastbert embed --model MiniLM --text sentences.txt --out vectors.npy",
    "fastbert embed --engine ray --model MiniLM --text corpus/ --column body --id-column doc --out vectors --workers 8",
)


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The texts."""

    GROUP: ClassVar = DATA

    text: str | None = required("a file with the texts, or - for standard input")
    """File with the texts: .txt, one per line; .jsonl, .csv or .tsv with --column; also .gz and .xz; - reads lines from
    standard input. With --engine ray: a .parquet file, a folder or a pattern of such files, or a URL of these."""
    column: str | None = None
    """Key or column of the text in .jsonl, .csv, .tsv and .parquet files (default: text)."""
    max_length: int | None = None
    """Tokens per model input (default: the folder's, else as many as the model allows)."""
    long: Literal["truncate", "windows", "error"] = "truncate"
    """Longer texts are truncated, split into overlapping windows, or refused."""


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The model, and how its outputs become vectors."""

    GROUP: ClassVar = MODEL

    model: str | None = required("the folder of a trained model")
    """Folder of the model, one of sentence-transformers or any Hugging Face encoder; or its name in the Hub's cache."""
    pooling: Literal["mean", "max", "cls", "sum"] | None = None
    """Pooling of the tokens' vectors (default: the folder's, else mean); --vectors sparse has max and sum."""
    normalize: bool = False
    """Scale each vector to unit length, even if the folder's settings do not."""
    prompt: str | None = None
    """Name of the folder's prompt that precedes each text (default: its default prompt, if it has one)."""


@dataclass(frozen=True, kw_only=True)
class _Output:
    """The file of vectors."""

    GROUP: ClassVar = OUTPUT

    out: LocationText | None = required("the file to write, .npy, .parquet or .jsonl")
    """File to write: .npy, fp32 (texts, width); .parquet or .jsonl, with each text's index; --vectors tokens and
    sparse write .safetensors or .parquet, with offsets and token ids. With --engine ray: a folder of .parquet files,
    or the URL of one, such as s3://bucket/vectors."""
    overwrite: bool = False
    """Replace the file, or the run in the folder, if it exists."""


@dataclass(frozen=True, kw_only=True)
class Config(RayFlags, InferenceFlags, _Output, RetrievalFlags, _Model, _Data):
    """Write one vector per text of a file, in the order of the texts; or one per token, or sparse ones. Defaults come
    from the settings in the model's folder."""


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    check_model("--model", require(config, "model"))
    if config.engine == "ray":
        check_vectors(config)
        check_ray(config)
        return
    check_local(config)
    check_texts("--text", require(config, "text"), config.column)
    check_vectors(config)
    suffixes = VECTORS if config.vectors == "dense" else RAGGED
    check_output(local_out(config), suffixes, config.overwrite, "--out")


def run(config: Config, *, quiet: bool = False) -> int:
    """Embed the file, with all processes that torchrun started or on a Ray cluster, and print a summary."""
    if config.engine == "ray":
        return run_ray(config, _options(config), quiet)
    from fastbert.distributed.shares import ended_by_torchrun
    from fastbert.distributed.world import joined

    with joined(config.device) as world, world.watched("nothing was written; repeat the command"):
        if world.size > 1 and config.text == STDIN:
            raise UserError("--text -: standard input cannot be shared by several processes; name a file")
        flags = {flag(name): str(value) for name, value in vars(config).items()}
        world.require_equal("command", flags, "start every process with the same command")
        if world.size > 1:
            world.require_equal("inputs", _inputs(config), "give all processes the same files, and devices of one kind")
        with ended_by_torchrun(world):
            if config.vectors == "dense":
                _run(config, world, quiet)
            else:
                write_vectors(config, local_out(config), world, quiet)
    return 0


def _inputs(config: Config) -> dict[str, str]:
    """Return what decides over the vectors beside the flags, which processes have to themselves: rows of other text or
    another dtype would be mixed without an error."""
    from fastbert.checkpoints.source import find_source
    from fastbert.io.checksums import sha256
    from fastbert.tasks.inference import choose_inference

    folder = find_source(require(config, "model"))
    files = sorted(file for file in folder.rglob("*") if file.suffix in (".safetensors", ".bin", ".json", ".txt"))
    device, dtype, _ = choose_inference(config.device, config.dtype)
    return {
        "--device": str(device).partition(":")[0],
        "--dtype": str(dtype),
        "a SHA-256 of --text": sha256(Path(require(config, "text"))),
        "a SHA-256 of --model": " ".join(sha256(file) for file in files),
    }


def _options(config: Config) -> EmbedOptions:
    """Return the options of dense vectors."""
    from fastbert.embeddings.embed import EmbedOptions

    return EmbedOptions(
        pooling=config.pooling,
        normalize=config.normalize or None,
        max_length=config.max_length,
        long=config.long,
        prompt=config.prompt,
        batch_tokens=config.batch_tokens,
    )


def _run(config: Config, world: World, quiet: bool) -> None:
    """Write one vector per text."""
    model_name = require(config, "model")
    text = require(config, "text")
    out = local_out(config)
    from fastbert.embeddings.folder import load_embedder
    from fastbert.embeddings.vector_files import VectorFile, embed_file
    from fastbert.tasks.inference import choose_inference

    options = _options(config)
    # Check the output before loading the model.
    file = VectorFile(out, overwrite=config.overwrite) if world.is_main else None
    world.wait("output")
    texts = TextFile(text, config.column)
    device, dtype, why = choose_inference(config.device, config.dtype)
    model, tokenizer, _ = load_embedder(model_name, dtype=dtype)
    if config.dtype == "int8":
        model.quantize("int8")
    with Bars(quiet) as bars:
        shared = "" if world.size == 1 else f" in each of {world.size} processes"
        bars.message(f"{why} on {device}{shared}, {out}")
        update = bars.stage("embedding", texts.total_bytes, "texts")

        def progress(position: int, done: int) -> None:
            update(position, counted(done, "text"), counted=done)

        report = embed_file(model.to(device), tokenizer, texts, file, options, progress, world)
    if world.is_main:
        print(str(report))

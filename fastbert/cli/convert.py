"""`fastbert convert`: between Hugging Face folders, old pickles, TensorFlow checkpoints and deltas, with a report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fastbert.cli.common import output, require
from fastbert.errors import UserError
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.progress import console

if TYPE_CHECKING:
    from fastbert.checkpoints.convert import Report
    from fastbert.checkpoints.delta.files import DeltaReport

NOT_WHOLE = 1
SHOWN, WIDEST = 12, 200


@dataclass(frozen=True, kw_only=True)
class Config:
    """Convert a model: read a Hugging Face folder, pytorch_model.bin, a TensorFlow checkpoint or a model in the Hub's
    cache; write a Hugging Face folder or a TensorFlow checkpoint. Says what became of every tensor; fails, and writes
    nothing, where weights of the encoder are missing or of the wrong shape. With --base, write what a fine-tuned model
    has that its base has not to a file, or make the model of base and file again."""

    source: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")] = None
    """Folder, TensorFlow prefix (FOLDER/bert_model.ckpt), org/name in the Hub's local cache, or with --base a delta
    file."""
    out: Path | None = None
    """Folder to write; the delta's file where --base is given with a model."""
    base: str | None = None
    """Model that SOURCE was fine-tuned from: write only what differs, or make the model again of what differs."""
    bits: int | None = None
    """Round the differences of matrices to so many bits each, 1 to 8 (default: the model comes back bit by bit)."""
    to: Literal["hf", "tensorflow"] = "hf"
    """What to write: config.json and model.safetensors, or bert_config.json and bert_model.ckpt."""
    dtype: Literal["keep", "fp32", "bf16", "fp16"] = "keep"
    """Of the weights that are written."""
    pickles: bool = False
    """Read pytorch_model.bin; its pickle is not executed."""
    revision: str = "main"
    """Branch, tag or commit of a model in the Hub's cache."""
    model_class: str | None = None
    """BertModel, BertForMaskedLM, ... (default: what the weights in the source are)."""
    tokenizer: Path | None = None
    """Folder or vocab.txt of the tokenizer to take along (default: that beside the weights)."""
    max_shard_size: str | None = None
    """Split larger weights into files of this size, 2GB for example."""
    report: Path | None = None
    """JSON file for the report."""
    overwrite: bool = False
    """Replace a conversion that is in --out already."""
    manifest: bool = False
    """Accept the files in the folder SOURCE as they are: write its fastbert_manifest.json anew, and nothing else."""

    def __post_init__(self) -> None:
        if self.manifest:
            for name in ("out", "base", "bits", "tokenizer", "report"):
                if getattr(self, name) is not None:
                    raise UserError(f"--{name} does not go with --manifest, which writes SOURCE/fastbert_manifest.json")
        if self.max_shard_size is not None and self.to != "hf":
            raise UserError("--max-shard-size belongs to --to hf; a TensorFlow checkpoint has one data file here")
        if self.bits is not None and self.base is None:
            raise UserError("--bits belongs to a delta: name the model that SOURCE was fine-tuned from with --base")
        if self.base is not None:
            usual = {"to": "hf", "dtype": "keep", "pickles": False, "revision": "main"}
            usual |= dict.fromkeys(("model_class", "tokenizer", "max_shard_size"))
            for name, value in usual.items():
                if getattr(self, name) != value:
                    raise UserError(f"--{name.replace('_', '-')} does not go with --base: convert the model first")


def run(config: Config, *, quiet: bool = False) -> int:
    """Convert, and report."""
    source = require(config.source, "SOURCE", "the folder of the model to convert")
    if config.manifest:
        return _run_manifest(Path(source))
    out = require(config.out, "--out", "the folder to write")
    if config.report is not None and config.report.is_dir():
        raise UserError(f"--report {config.report}: is a folder; name a file")
    if config.base is not None:
        return _run_delta(config, source, out, config.base, quiet)
    import torch

    from fastbert.checkpoints.convert import Options, convert

    dtypes = {"keep": None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    options = Options(
        to=config.to,
        dtype=dtypes[config.dtype],
        pickles=config.pickles,
        revision=config.revision,
        model_class=config.model_class,
        tokenizer=config.tokenizer,
        max_shard_size=config.max_shard_size,
        overwrite=config.overwrite,
    )
    with console(quiet).status(f"converting {source}"):
        report = convert(source, out, options)
    if config.report is not None:
        write_json_atomic(config.report, report.to_dict())
    output(describe(report))
    return 0 if report.whole else NOT_WHOLE


def _run_manifest(folder: Path) -> int:
    """Accept a folder's files as they are."""
    from fastbert.checkpoints.manifest import NAME
    from fastbert.checkpoints.tokenizer_files import accept_folder

    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; --manifest takes a model's folder")
    names = accept_folder(folder)
    output(f"{folder / NAME}: lists {', '.join(names)}")
    return 0


def _run_delta(config: Config, source: str, out: Path, base: str, quiet: bool) -> int:
    """From a model to a delta, or back."""
    from fastbert.checkpoints.delta.files import restore_delta, write_delta

    if Path(source).is_file():
        if config.bits is not None or config.report is not None:
            raise UserError(f"{source} is a delta file: --bits and --report belong to writing one")
        with console(quiet).status(f"restoring {source}"):
            files = restore_delta(source, base, out, overwrite=config.overwrite)
        output(f"{source} + {base} -> {out}: wrote {', '.join(files)}")
        return 0
    with console(quiet).status(f"comparing {source} with {base}"):
        report = write_delta(source, base, out, bits=config.bits, overwrite=config.overwrite)
    if config.report is not None:
        write_json_atomic(config.report, report.to_dict())
    output(describe_delta(report))
    return 0


def describe_delta(report: DeltaReport) -> str:
    """The report in lines for people."""
    kept = {"same": "the base's", "exact": "exact differences", "rounded": f"rounded to {report.bits} bits"}
    said = ", ".join(f"{count} {kept.get(coding, 'new')}" for coding, count in report.tensors.items())
    share = 100 * report.bytes / max(report.model_bytes, 1)
    lines = [
        f"{report.model} - {report.base} -> {report.out}: {report.bytes:,} bytes, {share:.2f} % of the model's"
        f" {report.model_bytes:,}",
        f"  {sum(report.tensors.values())} tensors: {said}",
    ]
    if report.error is None:
        lines.append("  comes back bit by bit")
    else:
        error = report.error
        lines.append(
            f"  rounded numbers are off by {error.rms:.2g} (root mean square; at most {error.max:.2g}), of"
            f" {error.difference_rms:.2g} that they differ from the base's"
        )
    return "\n".join(lines)


def describe(report: Report) -> str:
    """The report in lines for people."""
    counts = Counter(what for moved in report.tensors for what in moved.changes)
    said = ", ".join(f"{count} {what}" for what, count in counts.items()) or "under their own names"
    lines = [f"{report.source} -> {report.out}: {report.model_class}, {len(report.tensors)} tensors ({said})"]
    lines += _listed("missing from the source, not made up", report.missing)
    lines += _listed("of the wrong shape", [f"{name} {what}" for name, what in report.wrong_shape.items()])
    reasons: dict[str, list[str]] = {}
    for name, reason in report.left_out.items():
        reasons.setdefault(reason, []).append(name)
    for reason, left_out in reasons.items():
        lines += _listed(f"left out, {reason}", left_out)
    if report.whole:
        lines.append(f"wrote {', '.join(report.files)}")
    else:
        lines.append("wrote nothing: the encoder is not whole")
    return "\n".join(lines)


def _listed(title: str, names: list[str]) -> list[str]:
    """A line with how many there are, and one for each of the first."""
    if not names:
        return []
    more = [f"    and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    from fastbert.io.untrusted_input import shown

    # Names are the file's: they may hold anything.
    lines = [name if name.isprintable() and len(name) < WIDEST else shown(name) for name in names[:SHOWN]]
    return [f"  {title}: {len(names)}", *(f"    {line}" for line in lines), *more]

"""`fastbert convert`: convert between Hugging Face folders, old pickles, TensorFlow checkpoints and deltas, and to ONNX
files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro

from fastbert.cli.checks import check_exists, check_folder, check_model, check_new_file
from fastbert.cli.counts import counted
from fastbert.errors import UserError
from fastbert.flags import MODEL, OUTPUT, require, required
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.progress import console
from fastbert.io.untrusted_input import shown

if TYPE_CHECKING:
    from fastbert.checkpoints.convert import Report
    from fastbert.checkpoints.delta.files import DeltaReport
    from fastbert.integrations.onnx.export import Export

NOT_WHOLE = 1
SHOWN, WIDEST = 12, 200

EXAMPLES = (
    "fastbert convert uncased_L-2_H-128/bert_model.ckpt --out tiny",
    "fastbert convert runs/finetune --base MiniLM --bits 4 --out finetune.delta",
    "fastbert convert MiniLM --to onnx --pooled --dtype int8 --out MiniLM-onnx",
)


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The source."""

    GROUP: ClassVar = MODEL

    source: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")] = required(
        "the folder of the model to convert", name="SOURCE"
    )
    """Folder, TensorFlow prefix (FOLDER/bert_model.ckpt), org/name in the Hub's local cache, or with --base a delta
    file."""
    base: str | None = None
    """Model that SOURCE was fine-tuned from: write the difference only, or restore the model from it."""
    pickles: bool = False
    """Read pytorch_model.bin; its pickle is not executed."""
    revision: str = "main"
    """Branch, tag or commit of a model in the Hub's cache."""
    model_class: str | None = None
    """BertModel, BertForMaskedLM, ... (default: the class of the weights in the source)."""
    tokenizer: Path | None = None
    """Folder, vocab.txt or tokenizer.json of the tokenizer to copy (default: the one next to the weights)."""


@dataclass(frozen=True, kw_only=True)
class _Output:
    """The folder or file to write."""

    GROUP: ClassVar = OUTPUT

    out: Path | None = required("the folder to write", unless=("manifest",))
    """Folder to write; with --base and a model, the delta file."""
    to: Literal["hf", "tensorflow", "onnx"] = "hf"
    """Output format: config.json and model.safetensors; bert_config.json and bert_model.ckpt; or model.onnx, in fp32,
    which is compared with fastbert in ONNX Runtime."""
    dtype: Literal["keep", "fp32", "bf16", "fp16", "int8"] = "keep"
    """Dtype of the written weights. int8 is for --to onnx, which has fp32 otherwise: activations are quantised at run
    time."""
    pooled: bool = False
    """With --to onnx: add the output sentence_embedding, pooled and normalised by the settings of the folder."""
    bits: int | None = None
    """Round the differences of matrices to this many bits, 1 to 8 (default: none, which restores the model exactly)."""
    max_shard_size: str | None = None
    """Split larger weights into files of this size, 2GB for example."""
    report: Path | None = None
    """JSON file for the report."""
    overwrite: bool = False
    """Replace an existing conversion in --out."""
    manifest: bool = False
    """Accept the files in the folder SOURCE as they are: write a new fastbert_manifest.json, and nothing else."""


@dataclass(frozen=True, kw_only=True)
class Config(_Output, _Model):
    """Convert a model: read a Hugging Face folder, pytorch_model.bin, a TensorFlow checkpoint or a model in the Hub's
    cache; write a Hugging Face folder, a TensorFlow checkpoint or an ONNX file. Reports on every tensor; fails, and
    writes nothing, if weights of the encoder are missing or have the wrong shape. With --base, write the difference of
    a fine-tuned model from its base to a file, or restore the model from base and file."""

    def __post_init__(self) -> None:
        if self.manifest:
            for name in ("out", "base", "bits", "tokenizer", "report"):
                if getattr(self, name) is not None:
                    raise UserError(
                        f"--{name} cannot be combined with --manifest, which writes SOURCE/fastbert_manifest.json"
                    )
        if self.max_shard_size is not None and self.to != "hf":
            raise UserError(f"--max-shard-size requires --to hf; --to {self.to} writes one file of weights")
        if self.pooled and self.to != "onnx":
            raise UserError("--pooled requires --to onnx: other formats have no outputs")
        if self.pooled and self.model_class is not None:
            raise UserError("--pooled is for the encoder alone: leave out --model-class")
        if self.dtype == "int8" and self.to != "onnx":
            raise UserError("--dtype int8 requires --to onnx")
        if self.dtype in ("bf16", "fp16") and self.to == "onnx":
            raise UserError(f"--to onnx: --dtype {self.dtype} is not supported; use fp32 or int8")
        if self.bits is not None and self.base is None:
            raise UserError("--bits is for a delta: name the model that SOURCE was fine-tuned from with --base")
        if self.base is not None:
            for name in ("to", "dtype", "pickles", "revision", "model_class", "tokenizer", "max_shard_size"):
                if getattr(self, name) != getattr(Config, name):
                    raise UserError(
                        f"--{name.replace('_', '-')} cannot be combined with --base: convert the model first"
                    )


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    source = require(config, "source")
    if config.manifest:
        check_folder("SOURCE", Path(source))
        return
    if config.base is None or not Path(source).is_file():  # else a delta
        check_model("SOURCE", source, config.revision)
    check_model("--base", config.base)
    check_exists("--tokenizer", config.tokenizer)
    check_new_file("--report", config.report)
    if config.to == "onnx":
        from fastbert.integrations.onnx.packages import check_packages

        check_packages()


def run(config: Config, *, quiet: bool = False) -> int:
    """Convert a model and print the report."""
    source = require(config, "source")
    if config.manifest:
        return _run_manifest(Path(source))
    out = require(config, "out")
    if config.base is not None:
        return _run_delta(config, source, out, config.base, quiet)
    if config.to == "onnx":
        return _run_onnx(config, source, out, quiet)
    from fastbert.checkpoints.convert import Options, convert
    from fastbert.tasks.inference import LONG_NAMES

    options = Options(
        to=config.to,
        dtype=LONG_NAMES.get(config.dtype),
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
    print(describe(report))
    return 0 if report.whole else NOT_WHOLE


def _run_onnx(config: Config, source: str, out: Path, quiet: bool) -> int:
    """Write an ONNX file and print how far its outputs, in ONNX Runtime, are from fastbert's."""
    from fastbert.integrations.onnx.export import Options, export_onnx

    options = Options(
        dtype="int8" if config.dtype == "int8" else "fp32",
        pooled=config.pooled,
        pickles=config.pickles,
        revision=config.revision,
        model_class=config.model_class,
        tokenizer=config.tokenizer,
        overwrite=config.overwrite,
    )
    with console(quiet).status(f"exporting {source}"):
        export = export_onnx(source, out, options)
    if config.report is not None:
        write_json_atomic(config.report, export.to_dict())
    print(describe_onnx(export))
    return 0


def _run_manifest(folder: Path) -> int:
    """Write a manifest of a folder's current files."""
    from fastbert.checkpoints import manifest, tokenizer_files

    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; --manifest takes a model's folder")
    print(f"{folder / manifest.NAME}: lists {', '.join(tokenizer_files.accept_folder(folder))}")
    return 0


def _run_delta(config: Config, source: str, out: Path, base: str, quiet: bool) -> int:
    """Write a delta of a model, or restore a model from a delta."""
    from fastbert.checkpoints.delta.files import restore_delta, write_delta

    if Path(source).is_file():
        if config.bits is not None or config.report is not None:
            raise UserError(f"{source} is a delta file: --bits and --report are for writing one")
        with console(quiet).status(f"restoring {source}"):
            files = restore_delta(source, base, out, overwrite=config.overwrite)
        print(f"{source} + {base} -> {out}: wrote {', '.join(files)}")
        return 0
    with console(quiet).status(f"comparing {source} with {base}"):
        report = write_delta(source, base, out, bits=config.bits, overwrite=config.overwrite)
    if config.report is not None:
        write_json_atomic(config.report, report.to_dict())
    print(describe_delta(report))
    return 0


def describe_onnx(export: Export) -> str:
    """Return the report on an ONNX file as text."""
    lines = [
        f"{export.source} -> {export.out}: {export.model_class} in {export.dtype}, opset {export.opset}",
        f"  {', '.join(export.inputs)} -> {', '.join(export.outputs)}",
    ]
    lines += [f"  {comparison.describe()}" for comparison in export.comparisons]
    lines += [f"  left out, {reason}: {name}" for name, reason in export.left_out.items()]
    lines.append(f"wrote {', '.join(export.files)}")
    return "\n".join(lines)


def describe_delta(report: DeltaReport) -> str:
    """Return the report on a delta as text."""
    codings = {"same": "the base's", "exact": "exact differences", "rounded": f"rounded to {report.bits} bits"}
    counts = ", ".join(f"{count} {codings.get(coding, 'new')}" for coding, count in report.tensors.items())
    share = 100 * report.bytes / max(report.model_bytes, 1)
    lines = [
        f"{report.model} - {report.base} -> {report.out}: {report.bytes:,} bytes, {share:.2f} % of the model's"
        f" {report.model_bytes:,}",
        f"  {counted(sum(report.tensors.values()), 'tensor')}: {counts}",
    ]
    if report.error is None:
        lines.append("  restores the model exactly")
    else:
        error = report.error
        lines.append(
            f"  rounding error {error.rms:.2g} (root mean square; at most {error.max:.2g}) of a difference of"
            f" {error.difference_rms:.2g} from the base"
        )
    return "\n".join(lines)


def describe(report: Report) -> str:
    """Return the report on a conversion as text."""
    counts = Counter(change for tensor in report.tensors for change in tensor.changes)
    changes = ", ".join(f"{count} {change}" for change, count in counts.items()) or "under their own names"
    lines = [
        f"{report.source} -> {report.out}: {report.model_class}, {counted(len(report.tensors), 'tensor')} ({changes})"
    ]
    lines += _listed("missing from the source", report.missing)
    lines += _listed("of the wrong shape", [f"{name} {shapes}" for name, shapes in report.wrong_shape.items()])
    reasons: dict[str, list[str]] = {}
    for name, reason in report.left_out.items():
        reasons.setdefault(reason, []).append(name)
    for reason, left_out in reasons.items():
        lines += _listed(f"left out, {reason}", left_out)
    lines.append(f"wrote {', '.join(report.files)}" if report.whole else "wrote nothing: the encoder is not whole")
    return "\n".join(lines)


def _listed(title: str, names: list[str]) -> list[str]:
    """Return a line with the number of names, and one for each of the first."""
    if not names:
        return []
    more = [f"    and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    # Names from a file may contain anything.
    lines = [name if name.isprintable() and len(name) < WIDEST else shown(name) for name in names[:SHOWN]]
    return [f"  {title}: {len(names)}", *(f"    {line}" for line in lines), *more]

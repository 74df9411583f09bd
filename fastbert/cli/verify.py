"""`fastbert verify`: compare a model of transformers with its accelerated version, on your own text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro

from fastbert.checkpoints.source import find_masked_lm, find_source
from fastbert.cli.checks import SMALL, check_file, check_new_file, check_source, named
from fastbert.cli.counts import counted
from fastbert.errors import UserError
from fastbert.flags import DATA, MACHINE, MODEL, OUTPUT, DeviceFlags, require, required
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.progress import Bars
from fastbert.io.untrusted_input import open_regular

if TYPE_CHECKING:
    from fastbert.integrations.verify import VerifyReport

AGREE, DISAGREE = 0, 1

EXAMPLES = (
    "fastbert verify MiniLM --text sentences.txt",
    "fastbert verify runs/finetune --task text-classification --text sentences.txt --dtype bf16 --json report.json",
)


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The texts."""

    GROUP: ClassVar = DATA

    text: Path | None = required("a file with one text per line, for example sentences.txt")
    """Your text, UTF-8, one text per line."""
    max_length: int = 512
    """Tokens per text, at most as many as the model allows; longer texts are truncated."""
    batch_size: int = 32
    """Texts per batch, in the order of the file."""


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The model, and what is compared."""

    GROUP: ClassVar = MODEL

    model: Annotated[str, tyro.conf.Positional] = required(
        "the folder of a Hugging Face model", name="MODEL", default=""
    )
    """Folder of the model, or the id of one in the local Hub cache; nothing is downloaded."""
    task: Literal["base", "fill-mask", "text-classification", "token-classification"] = "base"
    """Head to compare: base compares the hidden states of AutoModel, the others a head's logits."""
    tolerance: float = 2e-5
    """fp32: the largest difference of an output that counts as agreement."""
    min_cosine: float = 0.999
    """bf16, fp16: the lowest cosine of a token's vectors that counts as agreement."""


@dataclass(frozen=True, kw_only=True)
class _Output:
    """The report."""

    GROUP: ClassVar = OUTPUT

    json: Path | None = None
    """File to write the report to."""


@dataclass(frozen=True, kw_only=True)
class _Machine(DeviceFlags):
    """Device and dtype of both models."""

    GROUP: ClassVar = MACHINE

    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Dtype of both models."""
    threads: int | None = None
    """Threads of both (default: all)."""
    rounds: int = 5
    """Timed repetitions of each; medians are shown."""


@dataclass(frozen=True, kw_only=True)
class Config(_Machine, _Output, _Model, _Data):
    """Run a Hugging Face model, original and accelerated, on your text and compare outputs and speed; the exit code is
    0 if they agree, 1 if not, and 2 for wrong input."""


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    check_source("MODEL", require(config, "model"))
    text = require(config, "text")
    check_file("--text", text)
    if text.stat().st_size <= SMALL:
        with named("--text"):
            _texts(text)
    check_new_file("--json", config.json)


def run(config: Config, *, quiet: bool = False) -> int:
    """Compare both, print the report, and return 0 if they agree."""
    from fastbert.integrations.verify import verify

    name = require(config, "model")
    if Path(name).is_dir():  # else an id of the Hub, by which transformers finds it too
        name = str(find_masked_lm(name) if config.task == "fill-mask" else find_source(name))
    texts = _texts(require(config, "text"))
    device = config.device
    if device == "auto":
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    with Bars(quiet) as bars:
        report = verify(
            name, texts, task=config.task, max_length=config.max_length, batch_size=config.batch_size,
            dtype=config.dtype, device=device, threads=config.threads, tolerance=config.tolerance,
            min_cosine=config.min_cosine, rounds=config.rounds, progress=bars.count,
        )  # fmt: skip
    print(table(report))
    if config.json is not None:
        write_json_atomic(config.json, report.to_dict())
    return AGREE if report.agrees else DISAGREE


def table(report: VerifyReport) -> str:
    """Return a report as text."""
    original, accelerated = report.original, report.accelerated
    threads = f", {counted(report.threads, 'thread')}" if report.threads else ""
    rows = [
        (
            "texts/s",
            f"{original.texts_per_second:,.4g}",
            f"{accelerated.texts_per_second:,.4g}",
            f"{report.speedup:.2f} x",
        ),
        ("tokens/s", f"{original.tokens_per_second:,.0f}", f"{accelerated.tokens_per_second:,.0f}", ""),
    ]
    if original.peak_bytes and accelerated.peak_bytes:
        left, right = (f"{size / 2**20:,.0f} MiB" for size in (original.peak_bytes, accelerated.peak_bytes))
        rows.append(("peak memory", left, right, f"{accelerated.peak_bytes / original.peak_bytes:.2f} x"))
    lines = [
        f"model        {report.model}: {report.architecture}, {report.parameters / 1e6:,.1f} M parameters,"
        f" {report.dtype} on {report.device}{threads}",
        f"text         {counted(report.texts, 'text')}, {counted(report.tokens, 'token')}; batches of"
        f" {report.batch_size} in order, {report.padding_share:.0%} padding",
        "",
        f"{'':<13}{'original':>14}{'accelerated':>14}",
        *(f"{name:<13}{left:>14}{right:>14}   {ratio}".rstrip() for name, left, right, ratio in rows),
        "",
        f"difference   largest {report.max_abs_difference:.2g}, mean {report.mean_abs_difference:.2g}",
        f"cosine       of token vectors: lowest {report.min_token_cosine:.7f}, mean {report.mean_token_cosine:.7f}",
        f"             of text vectors:  lowest {report.min_text_cosine:.7f}, mean {report.mean_text_cosine:.7f}",
    ]
    lines += [f"{'' if index else 'as before':<13}{note}" for index, note in enumerate(report.notes)]
    return "\n".join((*lines, "", verdict(report)))


def verdict(report: VerifyReport) -> str:
    """Return the conclusion, with the measure that decided."""
    agreement = "They agree" if report.agrees else "THEY DO NOT AGREE"
    if report.dtype == "fp32":
        measure, value, bound = "difference", f"{report.max_abs_difference:.2g}", f"--tolerance {report.tolerance:g}"
        side = "is within" if report.agrees else "is over"
        return f"{agreement}: the largest {measure}, {value}, {side} {bound}."
    side = "reaches" if report.agrees else "is below"
    value, bound = f"{report.min_token_cosine:.7f}", f"--min-cosine {report.min_cosine:g}"
    return f"{agreement}: the lowest cosine of a token vector, {value}, {side} {bound}."


def _texts(file: Path) -> list[str]:
    try:
        with open_regular(file) as stream:
            texts = stream.read().decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: byte {error.start} is not UTF-8; convert the file, with iconv for example") from None
    if not any(text.strip() for text in texts):
        raise UserError(f"{file}: holds no text; it should have one text per line")
    return texts

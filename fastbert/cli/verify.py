"""`fastbert verify`: a model of transformers and the same model accelerated, on your own text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fastbert.cli.common import output, require
from fastbert.errors import UserError
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.progress import Bars
from fastbert.io.untrusted_input import open_regular

if TYPE_CHECKING:
    from fastbert.integrations.verify import VerifyReport

AGREE, DISAGREE = 0, 1


@dataclass(frozen=True, kw_only=True)
class Config:
    """Run a Hugging Face model as it is and accelerated, side by side on your text; the exit code is 0 where they
    agree, 1 where they do not, and 2 for wrong input."""

    model: Annotated[str, tyro.conf.Positional] = ""
    """Folder of the model, or the id of one in the local Hub cache; nothing is downloaded."""
    text: Path | None = None
    """Your text, UTF-8, one text a line."""
    task: Literal["base", "fill-mask", "text-classification", "token-classification"] = "base"
    """Which head is compared: base compares the hidden states of AutoModel, the others a head's logits."""
    max_length: int = 512
    """Tokens at which a text is cut; never more than the model reads."""
    batch_size: int = 32
    """Texts per batch, in the order of the file."""
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """In which dtype both run."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where both run: auto takes a GPU where there is one."""
    threads: int | None = None
    """Threads of both (default: all)."""
    tolerance: float = 2e-5
    """fp32: the largest difference of an output with which they agree."""
    min_cosine: float = 0.999
    """bf16, fp16: the lowest cosine of a token's vectors with which they agree."""
    rounds: int = 5
    """How often each is timed; medians are shown."""
    json: Path | None = None
    """File to write the report to."""


def run(config: Config, *, quiet: bool = False) -> int:
    """Compare, print the report, and say by the exit code whether both agree."""
    from fastbert.integrations.verify import verify

    name = require(config.model or None, "MODEL", "the folder of a Hugging Face model")
    texts = _texts(require(config.text, "--text", "a file with one text a line, for example sentences.txt"))
    device = config.device
    if device == "auto":
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    with Bars(quiet) as bars:
        stages: dict[str, Callable[..., None]] = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bars.stage(stage, total)
            stages[stage](done)

        report = verify(
            name, texts, task=config.task, max_length=config.max_length, batch_size=config.batch_size,
            dtype=config.dtype, device=device, threads=config.threads, tolerance=config.tolerance,
            min_cosine=config.min_cosine, rounds=config.rounds, progress=progress,
        )  # fmt: skip
    output(table(report))
    if config.json is not None:
        write_json_atomic(config.json, report.to_dict())
    return AGREE if report.agrees else DISAGREE


def table(report: VerifyReport) -> str:
    """A report for the terminal."""
    one, other = report.original, report.accelerated
    threads = f", {report.threads} thread{'s' * (report.threads != 1)}" if report.threads else ""
    rows = [
        ("texts/s", f"{one.texts_per_second:,.4g}", f"{other.texts_per_second:,.4g}", f"{report.speedup:.2f} x"),
        ("tokens/s", f"{one.tokens_per_second:,.0f}", f"{other.tokens_per_second:,.0f}", ""),
    ]
    if one.peak_bytes and other.peak_bytes:
        left, right = (f"{size / 2**20:,.0f} MiB" for size in (one.peak_bytes, other.peak_bytes))
        rows.append(("peak memory", left, right, f"{other.peak_bytes / one.peak_bytes:.2f} x"))
    lines = [
        f"model        {report.model}: {report.architecture}, {report.parameters / 1e6:,.1f} M parameters,"
        f" {report.dtype} on {report.device}{threads}",
        f"text         {report.texts:,} texts, {report.tokens:,} tokens; batches of {report.batch_size} as they come,"
        f" {report.padding_share:.0%} padding",
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
    """Return whether both agree, and by which measure."""
    if report.dtype == "fp32":
        measure, found, bound = "difference", f"{report.max_abs_difference:.2g}", f"--tolerance {report.tolerance:g}"
        side = "is within" if report.agrees else "is over"
        return f"{_word(report)}: the largest {measure}, {found}, {side} {bound}."
    side = "reaches" if report.agrees else "is below"
    found, bound = f"{report.min_token_cosine:.7f}", f"--min-cosine {report.min_cosine:g}"
    return f"{_word(report)}: the lowest cosine of a token vector, {found}, {side} {bound}."


def _word(report: VerifyReport) -> str:
    return "They agree" if report.agrees else "THEY DO NOT AGREE"


def _texts(file: Path) -> list[str]:
    try:
        with open_regular(file) as stream:
            texts = stream.read().decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: byte {error.start} is no UTF-8; convert the file, with iconv for example") from None
    if not any(text.strip() for text in texts):
        raise UserError(f"{file}: holds no text; it should have one text a line")
    return texts

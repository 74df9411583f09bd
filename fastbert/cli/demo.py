"""`fastbert demo`: pre-train a small model from text and fill in blanks, in three minutes."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from pathlib import Path

from fastbert.cli.checks import check_corpus_paths, check_new_folder
from fastbert.cli.training_view import shown
from fastbert.errors import UserError
from fastbert.io.locations import LocationText

EXAMPLES = (
    "fastbert demo",
    "fastbert demo --corpus my_text/ --minutes 20 --out runs/mine",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Pre-train a small BERT on the English that comes with Python, plot it, and fill in three blanks. No arguments and
    no network are needed."""

    corpus: tuple[LocationText, ...] = ()
    """Your own text instead: files, folders, globs or URLs, as --corpus of `fastbert pretrain`."""
    minutes: float | None = None
    """Minutes of training (default: 4 million tokens, at most 2.5 minutes)."""
    steps: int | None = None
    """Optimiser steps, instead of --minutes."""
    out: Path | None = None
    """Folder of the run (default: runs/demo, or runs/demo-2 and so on if that exists)."""
    seed: int = 0
    """Seed of all random numbers."""
    overwrite: bool = False
    """Replace the run in --out."""


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    if config.minutes is not None and not 0 < config.minutes < math.inf:
        raise UserError(f"--minutes {config.minutes:g} must be a finite number above 0")
    if config.steps is not None and config.steps < 1:
        raise UserError(f"--steps {config.steps} must be at least 1")
    if config.corpus:
        check_corpus_paths(config.corpus)
    check_new_folder("--out", config.out, parents=True)


def run(config: Config, *, quiet: bool = False) -> int:
    """Run the demonstration and print its result."""
    from fastbert.training.demo import free_folder, run_demo

    out = config.out or free_folder(Path("runs/demo"))
    with shown("pretrain", out, quiet) as reporter:
        text = "your text" if config.corpus else "the English that comes with Python"
        reporter.on_message(f"fastbert demo: {text} -> {out}")
        result = run_demo(
            out,
            corpus=config.corpus,
            minutes=config.minutes,
            steps=config.steps,
            seed=config.seed,
            overwrite=config.overwrite,
            reporter=reporter,
        )
    validation, unigram = result.run.validation, result.run.unigram_cross_entropy
    gap = unigram - validation.mlm_loss
    lines = [
        "",
        f"masked-LM loss on held-out documents  {validation.mlm_loss:.2f} nats"
        f"  (word frequencies alone: {unigram:.2f}, so {abs(gap):.2f} {'better' if gap > 0 else 'worse'})",
        f"masked-LM accuracy                    {validation.mlm_accuracy:.1%}",
        f"next-sentence accuracy                {validation.nsp_accuracy:.1%}  (chance is 50 %)",
        f"trained on                            {validation.tokens:,} tokens in {validation.seconds:.0f} s"
        f" ({validation.tokens / max(validation.seconds, 1e-9):,.0f} tokens/s)",
        "",
    ]
    for prompt, guesses in result.blanks:
        lines.append(prompt)
        lines.append("   " + "   ".join(f"{guess.token} {guess.probability:.0%}" for guess in guesses))
    lines += [
        "",
        f"loss curve   {result.run.loss_curve}",
        f"model        {result.run.model}  (a Hugging Face folder)",
        f"checkpoints  {out / 'checkpoints'}",
        "",
        "What to run next:",
        f'  fastbert fill-mask --model {shlex.quote(str(result.run.model))} "Returns the [MASK] of the list."',
        "  fastbert pretrain --corpus YOUR_TEXT --model mini --out runs/mine     (your own text)",
        "  fastbert demo --minutes 20                                            (a better model)",
        "  fastbert doctor                                                       (what runs where, and why)",
    ]
    print("\n".join(lines))
    return 0

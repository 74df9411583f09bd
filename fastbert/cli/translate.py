"""`fastbert translate`: translate the lines of a file with a sequence-to-sequence model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fastbert.checkpoints.source import find_source
from fastbert.cli.checks import check_file, check_model, check_new_file, named
from fastbert.cli.counts import counted
from fastbert.cli.model_flags import InferenceFlags
from fastbert.errors import UserError
from fastbert.flags import DATA, MODEL, OUTPUT, require, required
from fastbert.io.atomic_write import write_atomic
from fastbert.io.progress import Bars
from fastbert.tasks.seq2seq.translation import TranslationSettings, check_translator, translate

EXAMPLES = (
    "fastbert translate --model runs/en-de --text test.en --out test.de",
    'echo "A fine day." | fastbert translate --model runs/en-de --text - --beams 1',
)


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The texts."""

    GROUP: ClassVar = DATA

    text: str | None = required("a file with one text per line, or - for standard input")
    """File with one text per line, also .gz and .xz; - reads standard input. Empty lines stay empty."""
    max_length: int | None = None
    """Tokens per line, longer ones are truncated (default: as in training)."""


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The model, and how it is searched for translations."""

    GROUP: ClassVar = MODEL

    model: str | None = required("the folder of a sequence-to-sequence model, or of its run")
    """Folder of a model trained with --task seq2seq, or of its run."""
    beams: int = 4
    """Hypotheses of beam search; 1 takes the most probable token at each step."""
    max_new_tokens: int | None = None
    """Most new tokens per translation (default: as in training)."""
    length_penalty: float = 0.6
    """Above 0 favours long translations: the exponent of (5 + tokens) / 6, by which scores are divided."""


@dataclass(frozen=True, kw_only=True)
class _Output:
    """The translations."""

    GROUP: ClassVar = OUTPUT

    out: Path | None = None
    """File to write, one translation per line (default: standard output)."""
    overwrite: bool = False
    """Replace the file if it exists."""


@dataclass(frozen=True, kw_only=True)
class Config(InferenceFlags, _Output, _Model, _Data):
    """Translate the lines of a file: one translation per line, in the same order. Any model of --task seq2seq writes
    texts for texts this way, whatever it was trained for."""

    def settings(self) -> TranslationSettings:
        """Return the settings of translation. Raises `UserError`."""
        return TranslationSettings(
            beams=self.beams, max_new_tokens=self.max_new_tokens, length_penalty=self.length_penalty
        )


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    values = check_model("--model", require(config, "model"))
    with named("--model"):
        check_translator(find_source(require(config, "model")), values)
    check_file("--text", require(config, "text"))
    config.settings()
    if config.max_length is not None and config.max_length < 3:
        raise UserError(f"--max-length {config.max_length} must be at least 3: two tokens surround the text")
    positions = values.get("max_position_embeddings")
    if config.max_length is not None and isinstance(positions, int) and config.max_length > positions:
        raise UserError(f"--max-length {config.max_length} is more than the {positions} positions of {config.model}")
    check_new_file("--out", config.out)
    if config.out is not None and config.out.exists() and not config.overwrite:
        raise UserError(f"--out {config.out}: exists; replace it with --overwrite")


def run(config: Config, *, quiet: bool = False) -> int:
    """Print or write a translation for each line."""
    from fastbert.tasks.finetuned_model import load_trained
    from fastbert.tasks.readers.tables import read_lines

    with named("--text"):
        texts = read_lines(require(config, "text"))
    if not any(text.strip() for text in texts):
        raise UserError(f"--text {config.text}: holds no text; name a file that does")
    with Bars(quiet) as bars:
        trained = load_trained(
            require(config, "model"),
            task="seq2seq",
            device=config.device,
            dtype=config.dtype,
            max_length=config.max_length,
        )
        bars.message(f"translates {trained.how}")
        update = bars.stage("translating", 1.0, "lines")
        translations = translate(
            trained,
            texts,
            config.settings(),
            batch_tokens=config.batch_tokens,
            progress=lambda rows, finished: update(finished, counted(rows, "line"), counted=rows),
        )
    lines = "".join(f"{text}\n" for text in translations)
    if config.out is None:
        print(lines, end="")
        return 0
    write_atomic(config.out, lines)
    print(f"{config.out}: {counted(len(translations), 'translation')}")
    return 0

"""`fastbert generate`: continue texts with a left-to-right language model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from fastbert.cli.checks import check_model, check_texts
from fastbert.cli.counts import counted
from fastbert.errors import UserError
from fastbert.flags import DATA, MACHINE, MODEL, OUTPUT, DeviceFlags, require, required
from fastbert.io.atomic_write import atomic_write
from fastbert.io.output_files import check_output
from fastbert.io.progress import Bars
from fastbert.tasks.text_files import TextFile

if TYPE_CHECKING:
    from fastbert.tasks.text_generation import Continuation

EXAMPLES = (
    'fastbert generate --model runs/gpt --prompt "The film was" --max-new-tokens 30 --top-p 0.9',
    "fastbert generate --model runs/gpt --prompts beginnings.txt --beams 4 --out texts.jsonl",
)


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The prompts."""

    GROUP: ClassVar = DATA

    prompt: tuple[str, ...] = required(
        "the beginning of a text, in quotes; or give --prompts", unless=("prompts",), default=()
    )
    """The beginning of a text, or several (each in quotes)."""
    prompts: str | None = None
    """File of prompts: .txt, one per line; .jsonl, .csv or .tsv with --column; - reads lines from standard input."""
    column: str | None = None
    """Key or column of the prompt in .jsonl, .csv and .tsv files (default: text)."""


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The model, and how tokens are chosen."""

    GROUP: ClassVar = MODEL

    model: str | None = required("the folder of a left-to-right language model, or of its run")
    """Folder of a model trained with --objective ltr, or of its run."""
    max_new_tokens: int = 64
    """Most new tokens per text."""
    beams: int = 1
    """Hypotheses of beam search; 1 takes the most probable token at each step."""
    temperature: float | None = None
    """Draw tokens, from logits divided by this: below 1 for likelier texts, above 1 for more varied ones."""
    top_k: int | None = None
    """Draw tokens from the k most probable ones."""
    top_p: float | None = None
    """Draw tokens from the fewest that have at least this probability together (nucleus sampling)."""
    samples: int = 1
    """Texts per prompt, if tokens are drawn."""
    seed: int = 0
    """Seed of the draws; a text depends on it and on the prompt's number, not on the batch."""


@dataclass(frozen=True, kw_only=True)
class _Output:
    """The texts."""

    GROUP: ClassVar = OUTPUT

    out: Path | None = None
    """File to write, .jsonl: prompt, text, number of tokens, score, and whether the model ended the text (default: the
    texts on standard output)."""
    overwrite: bool = False
    """Replace the file if it exists."""


@dataclass(frozen=True, kw_only=True)
class _Machine(DeviceFlags):
    """Device and dtype."""

    GROUP: ClassVar = MACHINE

    dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """Dtype of matmuls: auto is the faster of fp32 and bf16; int8, on CPUs, is less exact."""


@dataclass(frozen=True, kw_only=True)
class Config(_Machine, _Output, _Model, _Data):
    """Continue texts with a left-to-right language model: the most probable tokens, beam search, or tokens drawn from
    the most probable ones."""


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    check_model("--model", require(config, "model"))
    if config.prompt and config.prompts is not None:
        raise UserError("give either --prompt or --prompts, not both")
    if config.prompts is not None:
        check_texts("--prompts", config.prompts, config.column)
    elif config.column is not None:
        raise UserError("--column names a column of --prompts; leave it out")
    if config.out is not None:
        check_output(config.out, (".jsonl",), config.overwrite, "--out")


def run(config: Config, *, quiet: bool = False) -> int:
    """Print or write a text per prompt."""
    from fastbert.models.causal_generation import TextSettings
    from fastbert.tasks.inference import choose_inference
    from fastbert.tasks.text_generation import continue_texts, load_language_model

    settings = TextSettings(
        max_new_tokens=config.max_new_tokens,
        beams=config.beams,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        seed=config.seed,
    )
    device, dtype, why = choose_inference(config.device, config.dtype)
    model, tokenizer = load_language_model(require(config, "model"), dtype)
    model = model.to(device)
    if config.dtype == "int8":
        model.quantize("int8")
    prompts = config.prompt if config.prompts is None else TextFile(config.prompts, config.column)

    def texts(bars: Bars) -> list[Continuation] | None:
        """Return the texts, or write them to the file."""
        update = bars.stage("generating", None, "prompts")
        results = continue_texts(
            model,
            tokenizer,
            prompts,
            settings,
            samples=config.samples,
            progress=lambda done: update(done, counted(done, "prompt"), counted=done),
        )
        if config.out is None:
            return list(results)
        with atomic_write(config.out) as path, path.open("w", encoding="utf-8") as file:
            for result in results:
                file.write(json.dumps(_record(result), ensure_ascii=False) + "\n")
        return None

    with Bars(quiet) as bars:
        bars.message(f"{why} on {device}")
        shown = texts(bars)
    for result in shown or ():
        print(f"{result.prompt}{result.text}")
    if config.out is not None:
        print(f"texts: {config.out}")
    return 0


def _record(result: Continuation) -> dict[str, object]:
    """Return a line of the output file."""
    values = vars(result)
    return {name: values[name] for name in ("prompt", "text", "tokens", "score", "ended")}

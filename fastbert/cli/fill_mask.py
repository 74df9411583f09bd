"""`fastbert fill-mask`: fill in the blanks of a sentence with a pre-trained model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fastbert.checkpoints.source import find_masked_lm
from fastbert.cli.checks import check_model
from fastbert.flags import require, required

EXAMPLES = (
    'fastbert fill-mask "The capital of France is [MASK]." --model runs/mine',
    'fastbert fill-mask "A [MASK] day." "Two [MASK] words [MASK]." --model MiniLM --top-k 10',
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Fill in each [MASK] of the text (or <mask>, whichever the model's tokenizer has)."""

    text: Annotated[tuple[str, ...], tyro.conf.Positional] = required(
        "a sentence with a [MASK] in it, in quotes", name="TEXT", default=()
    )
    """One sentence or several (in quotes), each with at least one [MASK]."""
    model: Path | None = required("the folder of a trained model, or of its run")
    """Folder of a pre-training run, of its model, or any Hugging Face folder of a masked language model."""
    top_k: int = 5
    """Candidates shown per blank."""


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    check_model("--model", config.model)


def run(config: Config, *, quiet: bool = False) -> int:
    """Print the candidates of each blank with their probabilities."""
    from fastbert.models import registry
    from fastbert.tasks.fill_mask import fill_mask
    from fastbert.tokenizers.loading import load_tokenizer

    folder = find_masked_lm(require(config, "model"))
    require(config, "text")
    registry.refuse_decoder(registry.read_config(folder), f"--model {config.model}")
    model = registry.load_with_head(folder, "ForMaskedLM")
    tokenizer = load_tokenizer(folder)
    for text in config.text:
        blanks = fill_mask(model, tokenizer, text, config.top_k)
        print(text)
        for guesses in blanks:
            print("   " + "   ".join(f"{guess.token} {guess.probability:.1%}" for guess in guesses))
    return 0

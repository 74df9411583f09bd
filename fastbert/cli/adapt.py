"""`fastbert adapt`: from the text of a domain to an embedder for it."""

from __future__ import annotations

from collections.abc import Sequence

from fastbert.adaptation.config import AdaptConfig as Config
from fastbert.cli.checks import check_corpus, check_length, check_model, check_new_folder, check_no_run
from fastbert.cli.training_view import shown
from fastbert.flags import given_flags

__all__ = ["Config", "run"]
EXAMPLES = (
    "fastbert adapt --corpus my_text/ --model MiniLM --out runs/domain",
    "fastbert adapt --corpus reports.txt --model MiniLM --pretrain-steps 2000 --pairs dropout --out runs/reports",
)


def complete(config: Config, words: Sequence[str]) -> Config:
    """Return the flags, marked with those that `words` hold."""
    return config.marked(given_flags(words, config))


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    if config.resume and (config.out / "config.json").exists():
        return  # a run does not need its corpus once it has read it; it checks its other inputs itself
    check_new_folder("--out", config.out, parents=True)
    if not config.overwrite:
        check_no_run(config.out, "results.json", "model", "pretrain")
    if config.corpus:
        check_corpus(config)
    check_length(config.max_length, check_model("--model", config.model), config.model)


def run(config: Config, *, quiet: bool = False) -> int:
    """Adapt. Raises `Stopped` after Ctrl-C and SIGTERM, with a checkpoint."""
    from fastbert.adaptation.run import adapt

    with shown("adapt", config.out, quiet) as reporter:
        result = adapt(config, reporter)
    print(f"{result.results.table()}\n\nmodel:   {result.model}\nresults: {result.folder / 'results.json'}")
    return 0

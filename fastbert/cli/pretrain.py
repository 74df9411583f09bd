"""`fastbert pretrain`: from raw text or token shards to a pre-trained model."""

from __future__ import annotations

from collections.abc import Sequence
from shutil import get_terminal_size
from textwrap import wrap

from fastbert.cli.checks import (
    check_corpus,
    check_exists,
    check_file,
    check_model,
    check_new_folder,
    check_no_run,
    check_shards,
)
from fastbert.cli.training_view import shown
from fastbert.distributed.environment import is_main_process
from fastbert.flags import given_flags
from fastbert.tokenizers.piece_training import check_kind_size
from fastbert.training.config import PretrainConfig as Config
from fastbert.training.config import default_kind, default_objective
from fastbert.training.recipes import with_recipe
from fastbert.training.reference_curves import check_reference, find_reference
from fastbert.training.tracking_flags import check_tracking

WIDTH = 100  # of the last lines at most

__all__ = ["Config", "run"]
EXAMPLES = (
    "fastbert pretrain --corpus my_text/ --model mini --out runs/mine",
    "fastbert pretrain --data shards --model base --hours 8 --out runs/base --resume",
)


def complete(config: Config, words: Sequence[str]) -> Config:
    """Return the flags with the values of --recipe for those that `words` leave out, and marked with those given."""
    given = given_flags(words, config)
    return with_recipe(config, given).marked(given)


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    check_tracking(config)
    if config.compare is not None:
        derived = config.model.endswith(".json") or config.initial_folder is not None
        known = not config.resume and (config.objective is not None or not derived)
        objective = config.objective or default_objective(config.architecture)
        find_reference(config.compare, objective) if known else check_reference(config.compare)
    if config.resume and (config.out / "config.json").exists():
        return  # a run that has its vocabulary and shards needs no corpus; any other checks its inputs itself
    check_new_folder("--out", config.out, parents=True)
    if not config.overwrite and (config.out / "config.json").exists():
        check_no_run(config.out, "model")
    if config.vocab_size is not None:
        check_kind_size(config.vocab_kind or default_kind(config.architecture), config.vocab_size)
    if config.corpus:
        check_corpus(config)
    if config.model.endswith(".json"):
        check_file("--model", config.model)
    if config.data is not None:
        check_shards(config.data, config.stream_options)
    check_exists("--tokenizer", config.tokenizer)
    check_model("--teacher", config.teacher)
    if config.initial_folder is not None:
        config.find_initial()
        check_model("--init", config.initial_folder)


def run(config: Config, *, quiet: bool = False) -> int:
    """Pre-train. Raises `Stopped` after Ctrl-C and SIGTERM, with a checkpoint."""
    from fastbert.training.pretrain import pretrain

    with shown("pretrain", config.out, quiet) as reporter:
        result = pretrain(config, reporter)
    if not is_main_process():
        return 0
    validation = result.validation
    lines = [
        f"validation: {result.title} loss {validation.mlm_loss:.3f} nats (word frequencies alone:"
        f" {result.unigram_cross_entropy:.3f}), accuracy {validation.mlm_accuracy:.1%}",
    ]
    if validation.nsp_accuracy is not None:
        pairs = "sentence-order" if result.objective == "mlm+sop" else "next-sentence"
        lines.append(f"            {pairs} accuracy {validation.nsp_accuracy:.1%} (chance is 50 %)")
    if validation.rtd_loss is not None and validation.rtd_accuracy is not None:
        original = 1 - (validation.rtd_replaced or 0)
        lines.append(
            f"            replaced tokens: loss {validation.rtd_loss:.3f} nats, accuracy {validation.rtd_accuracy:.1%}"
            f" (of tokens, {original:.1%} are original), precision {_share(validation.rtd_precision)}, recall"
            f" {_share(validation.rtd_recall)}"
        )
    if validation.forward_perplexity is not None and validation.backward_perplexity is not None:
        forward, backward = validation.forward_perplexity, validation.backward_perplexity
        lines.append(f"            perplexity {forward:,.1f} from left to right, {backward:,.1f} from right to left")
    lines += [f"model:      {result.model}", f"loss curve: {result.loss_curve}"]
    if result.generator is not None:
        lines.insert(-1, f"generator:  {result.generator}")
    # Flags stay whole.
    lines += wrap(result.verdict, min(WIDTH, get_terminal_size().columns), break_on_hyphens=False)
    print("\n".join(lines))
    return 0


def _share(value: float | None) -> str:
    """Return a share as text; that of nothing is undefined."""
    return "undefined" if value is None else f"{value:.1%}"

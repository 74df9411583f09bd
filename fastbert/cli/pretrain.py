"""`fastbert pretrain`: from raw text or token shards to a pre-trained model."""

from __future__ import annotations

from fastbert.cli.common import output
from fastbert.cli.training_view import TrainingView
from fastbert.io.progress import Bars
from fastbert.training.config import PretrainConfig as Config

__all__ = ["Config", "run"]


def run(config: Config, *, quiet: bool = False) -> int:
    """Pre-train; return 130 after Ctrl-C and 143 after SIGTERM, both with a checkpoint."""
    from fastbert.training.pretrain import pretrain
    from fastbert.training.stopping import Stopped

    with Bars(quiet) as bars:
        try:
            result = pretrain(config, TrainingView(bars).reporter())
        except Stopped as stopped:
            bars.message(f"saved {stopped.saved}; continue with: fastbert pretrain --out {config.out} --resume")
            return 128 + stopped.signal
    validation = result.validation
    lines = [
        f"validation: masked-LM loss {validation.mlm_loss:.3f} nats (word frequencies alone:"
        f" {result.unigram_cross_entropy:.3f}), accuracy {validation.mlm_accuracy:.1%}",
    ]
    if validation.nsp_accuracy is not None:
        pairs = "sentence-order" if config.objective == "mlm+sop" else "next-sentence"
        lines.append(f"            {pairs} accuracy {validation.nsp_accuracy:.1%} (chance is 50 %)")
    lines += [f"model:      {result.model}", f"loss curve: {result.loss_curve}"]
    output("\n".join(lines))
    return 0

"""Suggest the flag that a user means by one that a command does not have."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastbert.cli.flag_table import Flag, flags_of

Configs = Callable[[], Mapping[str, type[Any]]]
"""Returns the dataclass of each command."""

# What other programs call a flag.
ALIASES = {
    "batch-size": "bs batch train-batch-size per-device-train-batch-size",
    "checkpoint-activations": "gradient-checkpointing activation-checkpointing",
    "corpus": "input input-file text-file train-file data-dir files text train",
    "device": "gpu cuda cpu",
    "dropout": "dropout-prob hidden-dropout-prob",
    "dtype": "precision fp16 bf16 fp32 mixed-precision torch-dtype",
    "early-stopping": "patience",
    "epochs": "num-epochs num-train-epochs n-epochs",
    "eval": "dev dev-file eval-file test test-file validation validation-file",
    "eval-every": "eval-steps eval-interval",
    "checkpoint-every": "save-steps save-every",
    "frozen": "freeze freeze-encoder",
    "gold": "eval test labels references",
    "init": "initialization initialisation init-weights weight-init",
    "label-column": "labels label",
    "log-every": "logging-steps",
    "lora": "lora-rank lora-r",
    "lr": "learning-rate learningrate",
    "mask-prob": "mlm-probability mlm-prob",
    "max-grad-norm": "clip grad-clip",
    "max-length": "max-seq-length max-seq-len seq-length seq-len sequence-length max-len max-tokens",
    "micro-batch": "micro-batch-size per-device-batch-size",
    "model": "model-name model-name-or-path model-path model-dir checkpoint pretrained",
    "out": "output output-dir output-file output-folder outdir out-dir save save-dir o",
    "overwrite": "force overwrite-output-dir",
    "predictions": "preds pred",
    "resume": "resume-from-checkpoint restart",
    "seeds": "num-seeds",
    "steps": "max-steps num-steps train-steps total-steps iterations iters",
    "text": "input input-file file texts corpus data sentences",
    "tokenizer": "vocab vocab-file tokenizer-name",
    "top-k": "k topk",
    "train": "train-file train-data training-file data dataset input",
    "warmup": "warmup-ratio warmup-steps warmup-proportion",
}
_CLOSE = 0.7
_MOST_COMMANDS = 3  # a flag of more commands tells nothing about the one that is meant


def unknown_flags(words: Sequence[str], listed: Sequence[Flag], command: str, configs: Configs) -> str:
    """Return an error for the flags among `words` that a command does not have, empty if there are none.

    `configs` returns the dataclasses of all commands, of which another one may have the flag.
    """
    known = {flag.name.removeprefix("--") for flag in listed if not flag.positional}
    names = [word.partition("=")[0].removeprefix("--").replace("_", "-") for word in words if word != "--"]
    unknown = [name for name in dict.fromkeys(names) if name not in known]
    if not unknown:
        return ""
    message = f"unknown flag {', '.join(f'--{name}' for name in unknown)}"
    close = [guess for name in unknown if (guess := _closest(name, known))]
    if close:
        return f"{message}; did you mean {', '.join(f'--{name}' for name in dict.fromkeys(close))}?"
    for flag in listed:
        if flag.positional and unknown[0] in (flag.field, flag.field.removesuffix("s")):
            return f"{message}; give {flag.name} without a flag: `fastbert {command} {flag.name}`"
    others = [
        other for other, config in configs().items() if any(flag.name == f"--{unknown[0]}" for flag in flags_of(config))
    ]
    if 0 < len(others) <= _MOST_COMMANDS:
        return f"{message}, which `fastbert {'` and `fastbert '.join(others)}` {'has' if len(others) == 1 else 'have'}"
    return f"{message}; `fastbert {command} --help` shows the flags"


def _closest(name: str, known: set[str]) -> str | None:
    """Return the flag that a user means: what another program calls so, or a name with a slip in it."""
    called = [flag for flag, aliases in ALIASES.items() if flag in known and name in aliases.split()]
    begins = sorted((flag for flag in known if flag.startswith(name) or name.startswith(f"{flag}-")), key=len)
    similar = difflib.get_close_matches(name, sorted(known), n=1, cutoff=_CLOSE)
    return next(iter((*called, *similar, *begins)), None)

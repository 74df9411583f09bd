"""Model cards: the README.md beside a trained model, as the Hub shows it, with data, recipe, curve, scores and command.

A card says what is known and leaves out what is not: a license and a language are for whoever publishes the model to
add. Values come from files and flags of the run, so they are escaped for Markdown, and the metadata is written as JSON
strings, which YAML reads.
"""

from __future__ import annotations

import json
import platform
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from fastbert import tuning_tables
from fastbert.distributed.environment import launcher, processes
from fastbert.errors import UserError
from fastbert.flags import flag
from fastbert.io.atomic_write import write_atomic
from fastbert.io.sizes import size_text
from fastbert.io.text import whole_characters
from fastbert.training.config import PretrainConfig
from fastbert.training.metrics import Metrics
from fastbert.training.run_config import RunConfig

FILE, CURVE = "README.md", "loss.png"
MOST_POINTS = 12  # rows of the table of validations
UNRECORDED = frozenset(("out", "resume", "overwrite", "track", "track_dir", "profile", "profile_steps"))
"""Flags that say nothing about the model."""
_SPECIAL = re.compile(r"([\\`*_\[\]<>#!|~$])")
_HUB_ID = re.compile(r"[\w][\w.-]*(?:/[\w][\w.-]*)?", re.ASCII)
Rows = Sequence[Sequence[object]]


@dataclass(frozen=True)
class Section:
    """A heading and the Markdown below it."""

    heading: str
    body: str


@dataclass(frozen=True)
class Card:
    """A model card."""

    title: str
    summary: str
    sections: Sequence[Section]
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def render(self) -> str:
        """Return the content of README.md."""
        front = [f"{name}: {_yaml(value)}" for name, value in self.metadata.items() if value not in (None, [], {}, "")]
        parts = ["---\n" + "\n".join(front) + "\n---", f"# {self.title}", self.summary]
        parts += [f"## {section.heading}\n\n{section.body}" for section in self.sections if section.body]
        return whole_characters("\n\n".join(parts)) + "\n"


@dataclass(frozen=True, kw_only=True)
class TextFacts:
    """The text of a pre-training run."""

    tokens: int
    documents: int
    vocab_size: int
    fingerprint: str
    """SHA-256 of the index of its token shards, which holds those of the shards."""


def write_card(folder: Path, card: Card, curve: Path | None = None) -> None:
    """Write a model's README.md, and a copy of its run's loss curve beside it if there is one. Raises OSError."""
    if curve is not None and curve.is_file():
        shutil.copyfile(curve, folder / CURVE)
    write_atomic(folder / FILE, card.render())


def pretraining_card(
    config: PretrainConfig,
    model: Mapping[str, Any],
    history: Sequence[Metrics],
    text: TextFacts,
    *,
    unigram: float,
    device: torch.device,
    parameters: int,
    judged: str = "",
) -> Card:
    """Return the card of a pre-trained model.

    Args:
        config: the run's flags, with what they left open resolved.
        model: the model's config.json.
        history: the lines of the run's metrics.jsonl, with a validation.
        text: what it was trained on.
        unigram: the cross-entropy of word frequencies on the validation text, in nats.
        device: that the run used.
        parameters: of the model.
        judged: the verdict on the run, in words.
    """
    kind = str(model.get("model_type", "bert"))
    objective = str(config.objective or "mlm")
    validations = [line for line in history if line.split == "validation"]
    last = validations[-1]
    memory = max((line.memory_bytes for line in history if line.memory_bytes is not None), default=None)
    texts = [*map(str, config.corpus), *(config.data or ())]
    names = [text.rstrip("/").rpartition("/")[2] or text for text in texts]
    initial = config.initial_folder
    base = None if initial is None else base_model(initial)
    began = "from scratch" if initial is None else f"from {escaped(base or Path(initial).name)}"
    metadata = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation"
        if objective == "ltr"
        else "fill-mask"
        if objective.startswith("mlm")
        else None,
        "tags": ["fastbert", kind, objective],
        "base_model": base,
        "datasets": names,
    }
    losses = [["loss on predicted tokens, nats", last.mlm_loss], ["of word frequencies alone, nats", unigram]]
    losses += [["accuracy on predicted tokens", last.mlm_accuracy]]
    if last.nsp_accuracy is not None:
        losses += [["accuracy on sentence pairs", last.nsp_accuracy]]
    if last.rtd_loss is not None:
        losses += [["loss on replaced tokens, nats", last.rtd_loss], ["recall of replaced tokens", last.rtd_recall]]
    data = [
        ["text", ", ".join(names) or "-"],
        ["documents", f"{text.documents:,}"],
        ["tokens", f"{text.tokens:,}"],
        ["held out for validation", f"{config.validation_fraction:g} of the documents"],
        ["vocabulary", f"{text.vocab_size:,} entries"],
        ["SHA-256 of the index of the token shards", text.fingerprint],
    ]
    curve = [[f"{line.step:,}", f"{line.tokens:,}", line.mlm_loss, line.mlm_accuracy] for line in evenly(validations)]
    shape = f"{model.get('num_hidden_layers', '?')} layers, {model.get('hidden_size', '?')} wide"
    return Card(
        title=f"{escaped(config.out.absolute().name)}: {kind}, {size_of(parameters)} parameters",
        summary=f"A `{kind}` model ({shape}), pre-trained {began} with fastbert (objective `{objective}`)."
        + (f"\n\n{escaped(judged)}" if judged else ""),
        sections=[
            Section("Data", table(["", ""], data)),
            Section("Scores", table(["on the validation text", "value"], losses)),
            Section("Recipe", recipe(config)),
            Section("Curve", f"![loss curve]({CURVE})\n\n" + table(["step", "tokens", "loss", "accuracy"], curve)),
            Section("Reproduce", command("pretrain", config)),
            Section("Environment", environment(device, last.seconds, memory)),
        ],
        metadata=metadata,
    )


def environment(device: torch.device, seconds: float, memory: int | None = None) -> str:
    """Return the hardware, the time, the peak of memory in bytes if it is known, and the versions as a table."""
    gpu = device.type == "cuda"
    threads = torch.get_num_threads()
    hardware = torch.cuda.get_device_name(device) if gpu else tuning_tables.cpu_model()
    rows: list[list[object]] = [
        ["hardware", hardware if gpu else f"{hardware}, {threads} thread{'s' * (threads != 1)}"]
    ]
    if processes() > 1:
        rows.append(["processes", processes()])
    rows.append(["time of training", duration(seconds)])
    if memory is not None:
        rows.append(["peak memory", size_text(memory)])
    rows.append(["fastbert-engine", version("fastbert-engine")])
    rows.append(["torch", torch.__version__])
    rows.append(["Python", platform.python_version()])
    return table(["", ""], rows)


def recipe(config: RunConfig, main: Iterable[str] = ()) -> str:
    """Return the flags of a run that differ from their defaults, and those named in `main`, as a table."""
    names = set(main)
    rows = [
        [f"`{flag(item.name)}`", shown(getattr(config, item.name))]
        for item in fields(config)
        if item.name not in UNRECORDED and (getattr(config, item.name) != item.default or item.name in names)
    ]
    return table(["flag", "value"], rows)


def command(name: str, config: RunConfig) -> str:
    """Return the command that repeats a run, in a block of code: every flag that is not at its default, those of a
    recipe one by one, as others have replaced some of them."""
    words = [*launcher(), "fastbert", name]
    scheduled = any(getattr(config, other, None) is not None for other in ("batch_schedule", "batch_tokens"))
    implied = {"recipe", *(["batch_size"] if scheduled else [])}  # the second is their mean
    for item in fields(config):
        value = getattr(config, item.name)
        if item.name in implied or item.name in UNRECORDED or value in (item.default, None, ()):
            continue
        words.append(flag(item.name))
        if value is True:
            continue
        words += map(_word, value) if isinstance(value, tuple) else [_word(value)]
    words += ["--out", str(getattr(config, "out", ""))]
    line = shlex.join(words).replace("\n", " ")
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", line)), default=0))
    return f"{fence}sh\n{line}\n{fence}"


def base_model(source: str) -> str | None:
    """Return the name of a model on the Hub, None for a folder, which nobody else has."""
    return source if _HUB_ID.fullmatch(source) and not Path(source).exists() else None


def table(header: Sequence[str], rows: Rows) -> str:
    """Return rows as a Markdown table, numbers with four digits; empty without rows."""
    if not rows:
        return ""
    lines = [header, ["---"] * len(header), *([_cell(value) for value in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def evenly(values: Sequence[Any], most: int = MOST_POINTS) -> list[Any]:
    """Return at most `most` values, evenly spaced, the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round((index + 1) * len(values) / most) - 1] for index in range(most)]


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def shown(value: object) -> str:
    """Return a flag's value as a user types it."""
    if isinstance(value, tuple):
        return " ".join(map(_word, value))
    return {True: "yes", False: "no"}.get(value, _word(value)) if isinstance(value, bool) else _word(value)


def duration(seconds: float) -> str:
    """Return a time as text: "45 s", "12 min", "3.4 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def size_of(parameters: int) -> str:
    """Return a number of parameters as text: "4.4 M", "110 M"."""
    millions = parameters / 1e6
    return f"{millions:.2g} M" if millions < 9.5 else f"{millions:,.0f} M"


def _word(value: object) -> str:
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return repr(value) if isinstance(value, float) and float(short) != value else short


def _cell(value: object) -> str:
    if value is None:
        return "undefined"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    code = re.fullmatch(r"`[^`]*`", text)
    return " ".join(text.split()).replace("|", "\\|") if code else escaped(text)


def _yaml(value: Any) -> str:
    """Return a value as YAML on one line: JSON is YAML."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError as error:
        raise UserError(f"metadata of a model card: {error}") from None

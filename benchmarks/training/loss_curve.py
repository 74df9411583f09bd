"""Compare the loss of one small pre-training run in fastbert's dtypes with eager torch in fp32, on the same batches.

Text, weights and order are fixed and dropout is off, so curves differ by rounding alone. Every step amplifies the
rounding of the one before; eager torch in bf16 shows how far that goes in a dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.measure import FASTBERT
from fastbert.config import BertConfig
from fastbert.io.figures import BLACK, BLUE, GREEN, ORANGE, figure_file, finish_axes

SEED = 3
VOCABULARY, TEXT_BYTES = 2048, 2_000_000
SEQUENCES, LENGTH = 32, 64
LEARNING_RATE, WARMUP = 1e-3, 0.1
TAIL = 0.1  # share of the last steps whose mean is the final loss; curves are smoothed over as many
REFERENCE = "eager fp32"
# Color, line, width: the curves overlap, so those drawn first are wider.
STYLES = {
    REFERENCE: (BLACK, "-", 4.0),
    "fastbert fp32": (ORANGE, "-", 2.5),
    "fastbert bf16": (BLUE, "--", 1.5),
    "eager bf16": (GREEN, ":", 1.8),
}
Progress = Callable[[int, int, str], None]
Say = Callable[[str], None]


class Kind(NamedTuple):
    """A run: a forced backend or fastbert's choice, a dtype of autocast, and fastbert's or torch's optimizer."""

    backend: str | None
    dtype: str
    own_optimizer: bool


KINDS = {
    REFERENCE: Kind("eager", "fp32", False),
    "fastbert fp32": Kind(None, "fp32", True),
    "fastbert bf16": Kind(None, "bf16", True),
    "eager bf16": Kind("eager", "bf16", False),
}


@dataclass(frozen=True)
class Curve:
    """The losses of a run, and their differences from the reference's: relative to the final loss, at the end
    (`final_off`, signed), and the largest of the smoothed curves anywhere (`drift`)."""

    name: str
    losses: list[float]
    final_loss: float
    final_off: float
    drift: float


@dataclass(frozen=True)
class Curves:
    """The curves of one measurement, the reference's first, and the trained model's configuration."""

    curves: list[Curve]
    config: BertConfig

    @property
    def steps(self) -> int:
        """Return the length of each curve."""
        return len(self.curves[0].losses)

    @property
    def window(self) -> int:
        """Return the number of steps over which a curve is smoothed."""
        return window_of(self.steps)


def measure(config: BertConfig, steps: int, text: Path | None, folder: Path, say: Say, progress: Progress) -> Curves:
    """Train `config` (its vocabulary and dropout are replaced) once for each of `KINDS`."""
    batches, config = prepared(config, steps, text, folder)
    tokens = sum(batch.num_tokens for batch in batches)
    say(f"loss curve: {config.num_hidden_layers} layers, {config.hidden_size} wide; {tokens:,} tokens")
    losses_by_name: dict[str, list[float]] = {}
    for number, (name, kind) in enumerate(KINDS.items()):

        def report(step: int, name: str = name, number: int = number) -> None:
            progress(number * steps + step, len(KINDS) * steps, name)

        say(f"{name}: {steps} steps")
        losses_by_name[name] = train(config, batches, kind, report)
    return Curves([compare(name, losses, losses_by_name[REFERENCE]) for name, losses in losses_by_name.items()], config)


def prepared(config: BertConfig, steps: int, text: Path | None, folder: Path) -> tuple[list[Any], BertConfig]:
    """Return the batches of a run on a text, or on the English text that comes with Python, and the model for them."""
    from fastbert.data.corpus import Corpus
    from fastbert.data.prepare import prepare
    from fastbert.data.pretraining import PretrainingData
    from fastbert.data.python_text import python_documents
    from fastbert.data.shards import TokenShards
    from fastbert.tokenizers import WordPieceTokenizer, train_vocabulary

    source = python_documents(TEXT_BYTES) if text is None else up_to(Corpus.find(text).documents(), TEXT_BYTES)
    documents = list(source)
    learned = train_vocabulary((sentence for document in documents for sentence in document), VOCABULARY)
    tokenizer = WordPieceTokenizer(learned)
    prepare(documents, tokenizer, folder / "shards")
    length = min(LENGTH, config.max_position_embeddings)
    data = PretrainingData(TokenShards.open(folder / "shards"), max_length=length, seed=SEED)
    batches = [data.samples(range(step * SEQUENCES, (step + 1) * SEQUENCES)) for step in range(steps)]
    config = replace(config, vocab_size=tokenizer.vocab_size, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return batches, config


def up_to(documents: Any, limit: int) -> Any:
    """Yield documents of at most `limit` characters in total, but at least one."""
    used = 0
    for document in documents:
        size = sum(map(len, document))
        if used and used + size > limit:
            return
        used += size
        yield document


def train(config: BertConfig, batches: Sequence[Any], kind: Kind, report: Callable[[int], None]) -> list[float]:
    """Return the loss of every step."""
    import torch

    from fastbert import BertForPreTraining, use_backend
    from fastbert.benchmarks.peers.fastbert_training import FastbertUpdate
    from fastbert.benchmarks.peers.training import AUTOCAST, PlainUpdate
    from fastbert.training.optimizer import set_learning_rate
    from fastbert.training.schedules import learning_rate_factor

    model = BertForPreTraining(config)
    model.init_weights(seed=SEED)
    model.train()
    update: Any = (FastbertUpdate if kind.own_optimizer else PlainUpdate)(model, LEARNING_RATE)
    dtype, losses = AUTOCAST[kind.dtype], []
    with use_backend(kind.backend):  # type: ignore[arg-type]
        for step, batch in enumerate(batches):
            rate = LEARNING_RATE * learning_rate_factor((step + 0.5) / len(batches), WARMUP)
            set_learning_rate(update.optimizer, rate)
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                loss = model(batch).loss
            assert loss is not None
            loss.backward()
            update.clip()
            update.step()
            losses.append(float(loss.detach()))
            report(step + 1)
    return losses


def compare(name: str, losses: list[float], reference: list[float]) -> Curve:
    """Return a curve with its differences from the reference."""
    window = window_of(len(losses))
    curve, reference_curve = smoothed(losses, window), smoothed(reference, window)
    final = reference_curve[-1]
    drift = max(abs(a - b) for a, b in zip(curve, reference_curve)) / final
    return Curve(name, losses, curve[-1], (curve[-1] - final) / final, drift)


def window_of(steps: int) -> int:
    """Return a tenth of the steps."""
    return max(1, math.ceil(TAIL * steps))


def smoothed(losses: Sequence[float], window: int) -> list[float]:
    """Return the mean of each `window` losses in a row."""
    return [sum(losses[end - window : end]) / window for end in range(window, len(losses) + 1)]


# Results


def show(curves: Curves, console: Any = None) -> None:
    """Print final losses and differences."""
    from rich.console import Console
    from rich.table import Table

    console = console or Console(highlight=False)
    grid = Table(box=None, header_style="bold", pad_edge=False)
    grid.add_column("contender", no_wrap=True)
    for name in ("first loss", "final loss", f"off {REFERENCE}", "largest drift"):
        grid.add_column(name, justify="right")
    for curve in curves.curves:
        cells = (f"{curve.losses[0]:.4f}", f"{curve.final_loss:.4f}", f"{curve.final_off:+.3%}", f"{curve.drift:.3%}")
        grid.add_row(curve.name, *cells, style="bold" if curve.name.startswith(FASTBERT) else "")
    console.print(f"loss over {curves.steps} steps; final: mean of the last {curves.window}", style="bold")
    console.print(grid)


def write(path: Path, curves: Curves, threads: int) -> None:
    """Write the curves as a record."""
    settings = {
        "reference": REFERENCE,
        "steps": curves.steps,
        "smoothed_over": curves.window,
        "batch": {"sequences": SEQUENCES, "longest": LENGTH, "learning_rate": LEARNING_RATE, "warmup": WARMUP},
        "threads": threads,
        "model": curves.config.to_dict(),
    }
    rows = [{"workload": "loss per step", **asdict(curve)} for curve in curves.curves]
    records.write(path, records.record("loss-curves", rows, settings=settings))


def chart(path: Path, curves: Curves, title: str) -> None:
    """Draw the smoothed losses, and below them their differences from the reference."""
    smooth = {curve.name: smoothed(curve.losses, curves.window) for curve in curves.curves}
    reference = smooth[REFERENCE]
    steps = range(curves.window, curves.steps + 1)
    with figure_file(path, 8, 6.4) as figure:
        above, below = figure.subplots(2, 1, sharex=True)
        for curve in curves.curves:
            color, line, width = STYLES[curve.name]
            style = {"color": color, "linestyle": line, "linewidth": width, "marker": "." if len(steps) == 1 else None}
            above.plot(steps, smooth[curve.name], **style, label=f"{curve.name}, final {curve.final_loss:.4f}")
            if curve.name != REFERENCE:
                difference = [100 * (a - b) / reference[-1] for a, b in zip(smooth[curve.name], reference)]
                below.plot(steps, difference, **style, label=f"{curve.name}, final {curve.final_off:+.3%}")
        above.set_ylabel(f"loss, mean of {curves.window} steps")
        below.axhline(0, color="black", linewidth=0.8)
        below.set_ylabel(f"difference from {REFERENCE},\n% of the final loss")
        below.set_xlabel("step")
        for axis in (above, below):
            finish_axes(axis, legend=True)
        figure.suptitle(title, fontsize=10)

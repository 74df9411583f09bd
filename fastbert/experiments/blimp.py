"""Minimal pairs of sentences (BLiMP), by phenomenon: BERT, with and without NSP, a left-to-right model, and n-grams, on
the same text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fastbert.data.corpus import Corpus
from fastbert.errors import UserError
from fastbert.experiments.registry import Experiment
from fastbert.experiments.summary import Row, Score, Summary
from fastbert.experiments.workspace import Workspace
from fastbert.io.figures import bar_style, figure_file, finish_axes, legend_below
from fastbert.scoring.blimp import Paradigm, accuracies, read_pairs, score_pairs
from fastbert.scoring.ngram import train_ngrams
from fastbert.scoring.scorer import load_scorer
from fastbert.scoring.tokenized_texts import Scorer
from fastbert.tokenizers.loading import load_tokenizer

PAIRS = {"smoke": 5, "mini": 150}
"""Pairs of each paradigm by scale, the first ones; others score all."""
OVERALL = "all paradigms"
CHANCE = 50.0
# Name of the system, and objective.
SYSTEMS = (("BERT", "mlm+nsp"), ("No NSP", "mlm"), ("LTR", "ltr"))


def rows(workspace: Workspace) -> Iterator[Row]:
    """Score every system on all pairs; yield a row per phenomenon."""
    if workspace.data.pairs is None:
        raise UserError(f"--data {workspace.data.name}: holds no blimp/ with minimal pairs")
    paradigms = read_pairs(workspace.data.pairs, PAIRS.get(workspace.scale.name))
    results: dict[str, dict[str, Any]] = {}
    for name, objective in SYSTEMS:
        pretrained = workspace.pretrain(objective.replace("+", "-"), objective=objective)
        make = partial(load_scorer, pretrained.model, workspace.resolved_device())
        results[name] = _scored(workspace, name, paradigms, make)
        results[name] |= {"loss": pretrained.loss, "steps": pretrained.steps, "tokens": pretrained.tokens}
    ngrams = _scored(workspace, "n-grams", paradigms, lambda: _train_ngrams(workspace))
    results[f"{ngrams['order']}-grams"] = ngrams
    workspace.details["paradigms"] = {name: result["paradigms"] for name, result in results.items()}
    workspace.details["runs"] = {
        name: {key: result[key] for key in ("loss", "steps", "tokens") if key in result}
        for name, result in results.items()
    }
    counts = {paradigm.phenomenon: 0 for paradigm in paradigms}
    for paradigm in paradigms:
        counts[paradigm.phenomenon] += len(paradigm.pairs)
    for phenomenon in sorted(counts):
        yield Row(
            name=phenomenon.replace("_", " "),
            scores={name: _score(result["phenomena"][phenomenon]) for name, result in results.items()},
            numbers={"pairs": counts[phenomenon]},
        )
    overall = {name: _score(result["overall"]) for name, result in results.items()}
    yield Row(name=OVERALL, scores=overall, numbers={"pairs": sum(counts.values())})


def _score(accuracy: float) -> Score:
    return Score(metric="accuracy", values=(accuracy,))


def _scored(workspace: Workspace, name: str, paradigms: list[Paradigm], scorer: Callable[[], Scorer]) -> dict[str, Any]:
    """Return the accuracies of a system, which is made if they are not known yet."""

    def run() -> dict[str, Any]:
        began, system = time.perf_counter(), scorer()
        update = workspace.reporter.on_stage(f"BLiMP, {name}", 1.0, "pairs")
        result = accuracies(score_pairs(system, paradigms, update))
        more = {} if name != "n-grams" else {"order": system.order, "tokens": system.tokens}  # type: ignore[attr-defined]
        return {**result, **more, "seconds": time.perf_counter() - began}

    result = workspace.cached(f"blimp-{name}", run)
    workspace.say(f"{name} on {result['pairs']:,} pairs: accuracy {result['overall']:.1f} ({result['seconds']:,.0f} s)")
    return result


def _train_ngrams(workspace: Workspace) -> Scorer:
    """Return a model of the corpora's n-grams of word pieces."""
    corpus = Corpus.find(workspace.data.corpora, text_format="lines")
    report = workspace.reporter.on_stage("n-grams", corpus.total_bytes)
    sentences = (sentence for document in corpus.documents(report) for sentence in document)
    return train_ngrams(sentences, load_tokenizer(workspace.shards()))


def draw(summary: Summary, out: Path) -> Path:
    """Draw the accuracies of each phenomenon as bars beside each other, one per system."""
    systems, names = summary.columns(), [row.name for row in summary.rows]
    height = 0.8 / len(systems)
    with figure_file(out, 7.5, 0.42 * len(names) + 0.9) as figure:
        axes = figure.subplots()
        for index, system in enumerate(systems):
            values = [row.scores[system].mean for row in summary.rows]
            positions = [number + (index - (len(systems) - 1) / 2) * height for number in range(len(names))]
            axes.barh(positions, values, height, label=system, **bar_style(index))
            for y, value in zip(positions, values, strict=True):
                axes.annotate(f"{value:.0f}", (value, y), (2, 0), va="center", textcoords="offset points", size=7)
        axes.axvline(CHANCE, color="0.3", linestyle=":", linewidth=1.4, label="chance")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set(xlabel="accuracy on minimal pairs, %", xlim=(0, 105))
        finish_axes(axes)
        legend_below(figure, axes.get_legend_handles_labels()[0])
    return out


EXPERIMENT = Experiment(
    title="Grammar: minimal pairs of sentences, by phenomenon",
    paper=(
        "Not in BERT's paper. Warstadt et al. (2020) report 61.2 for a 5-gram model of 3 billion words, 69.8 for an"
        " LSTM, 81.5 for GPT-2 large and 88.6 for people; Salazar et al. (2020) 84.2 for BERT-base by"
        " pseudo-log-likelihood, without fine-tuning."
    ),
    limits=(
        "Models score a sentence by the sum of the log-probabilities of its tokens, each given all others (BERT), or"
        " those before it (LTR, n-grams); chance is 50. One model each, no seeds; at the scale mini"
        " 150 pairs of each of the 67 paradigms are scored."
    ),
    rows=rows,
    finetunes=False,
    picture=draw,
)

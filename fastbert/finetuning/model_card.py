"""The model card of a fine-tuned model: task, data, scores beside their baselines, recipe, curve and command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fastbert.finetuning import results
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.results import TrialResult
from fastbert.finetuning.retrieval_card import KINDS, LIBRARY, RetrievalFacts, retrieval_sections
from fastbert.training.model_card import (
    CURVE,
    Card,
    Section,
    base_model,
    command,
    environment,
    escaped,
    evenly,
    recipe,
    table,
)
from fastbert.training.reporter import Record

PIPELINES = {
    "classification": "text-classification",
    "multilabel": "text-classification",
    "regression": "text-classification",
    "tagging": "token-classification",
    "span": "question-answering",
    "choice": "multiple-choice",
    "seq2seq": "text2text-generation",
    **{task: kind.pipeline for task, kind in KINDS.items()},
}
"""The Hub's name of each task."""


def finetuning_card(
    config: FinetuneConfig,
    model: Mapping[str, Any],
    done: Sequence[TrialResult],
    lines: Sequence[Record],
    *,
    metric: str,
    examples: Mapping[str, int],
    fingerprint: str,
    labels: Sequence[str] | None,
    baselines: Mapping[str, Mapping[str, Mapping[str, float]]],
    device: torch.device,
    retrieval: RetrievalFacts | None = None,
) -> Card:
    """Return the card of a fine-tuned model.

    Args:
        config: the run's flags, with what they left open resolved.
        model: the model's config.json.
        done: the finished trials.
        lines: those of the run's metrics.jsonl.
        metric: that selects the best model.
        examples: file -> number of examples, the training file first.
        fingerprint: SHA-256 of the base model's weights and of all examples, as config.json has it.
        labels: of the task, None for a task without.
        baselines: file -> baseline -> metric -> score.
        device: that the run used.
        retrieval: facts of an embedder, a cross-encoder, or a model of sparse or of token vectors.
    """
    kind, task = str(model.get("model_type", "bert")), str(config.task)
    kept = results.best_trial(done)
    point = [result for result in done if results.point_of(result.trial) == results.point_of(kept.trial)]
    summary, means = results.summary([kept]), results.summary(point)
    source = str(config.model)
    base = None if config.architecture is not None else base_model(source)
    tags = KINDS[task].tags if task in KINDS else ()
    metadata: dict[str, Any] = {
        "library_name": LIBRARY if task in KINDS else "transformers",
        "pipeline_tag": PIPELINES.get(task),
        "tags": ["fastbert", kind, task, *(tag for tag in tags if tag != task)],
        "base_model": base,
        "datasets": list(examples),
        "metrics": sorted({name for scores in summary.values() for name in scores}),
    }
    if summary:
        metadata["model-index"] = [_index(config, task, summary)]
    settings = results.settings([kept])
    several = len(point) > 1
    header = ["file", "metric", "this model", *(["mean", "std", "seeds"] if several else []), "baselines"]
    scores: list[list[object]] = []
    for file, metrics in summary.items():
        for name, own in metrics.items():
            row: list[object] = [file, name, own["mean"]]
            if several:
                values = means.get(file, {}).get(name)
                row += ["-"] * 3 if values is None else [values["mean"], values["std"], len(values["per_seed"])]
            scores.append([*row, _baselines(baselines.get(file, {}), name)])
    data: list[list[object]] = [[file, f"{count:,} examples"] for file, count in examples.items()]
    if labels:
        more = f" and {len(labels) - 20} more" if len(labels) > 20 else ""
        data.append(["labels", ", ".join(labels[:20]) + more])
    data.append(["SHA-256 of base model and examples", fingerprint])
    epochs = f"{settings['epochs']:g} epoch{'s' * (settings['epochs'] != 1)}"
    chosen = f"learning rate {settings['lr']:g}, batches of {settings['batch_size']}, {epochs}"
    chosen += f" (seed {kept.trial.seed}"
    chosen += f", the best of {len(done)} trials by {escaped(metric)})" if len(done) > 1 else ")"
    title = config.out.absolute().name
    usage = [] if retrieval is None else retrieval_sections(retrieval, model, title)
    began = "new weights" if config.architecture is not None else base or Path(source).name
    return Card(
        title=f"{escaped(title)}: {kind} for {task}",
        summary=f"A `{kind}` model, fine-tuned from {escaped(began)} with fastbert for the task `{task}`: {chosen}.",
        sections=[
            *usage,
            Section("Scores", table(header, scores)),
            Section("Data", table(["", ""], data)),
            Section("Recipe", recipe(config, ("lr", "batch_size", "epochs", "max_length", "seeds"))),
            Section("Curve", f"![loss curve]({CURVE})\n\n{_curve(lines, kept, metric)}".rstrip()),
            Section("Reproduce", command("finetune", config)),
            Section("Environment", environment(device, sum(result.seconds for result in done))),
        ],
        metadata=metadata,
    )


def _index(config: FinetuneConfig, task: str, summary: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the scores as the Hub's model-index has them."""
    described = {"type": PIPELINES.get(task, task)}
    return {
        "name": config.out.absolute().name,
        "results": [
            {
                "task": described,
                "dataset": {"name": file, "type": file},
                "metrics": [{"type": name, "value": values["mean"]} for name, values in metrics.items()],
            }
            for file, metrics in summary.items()
        ],
    }


def _baselines(by_name: Mapping[str, Mapping[str, float]], metric: str) -> str:
    return ", ".join(f"{name} {scores[metric]:.4g}" for name, scores in by_name.items() if metric in scores)


def _curve(lines: Sequence[Record], kept: TrialResult, metric: str) -> str:
    """Return the evaluations of the kept trial on the first file as a table."""
    trial = vars(kept.trial)
    validations = [
        line for line in lines if line.get("scores") and all(line.get(name) == value for name, value in trial.items())
    ]
    if not validations:
        return ""
    file = next(iter(validations[0]["scores"]))
    rows = [[f"{line['step']:,}", line["scores"].get(file, {}).get(metric)] for line in evenly(validations)]
    return table(["step", f"{escaped(metric)} on {escaped(file)}"], rows)

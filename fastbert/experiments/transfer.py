"""Transfer with few and many examples: from scratch, frozen, fine-tuned, and fine-tuned as ULMFiT is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastbert.experiments.registry import Experiment
from fastbert.experiments.sets import chosen, first_examples
from fastbert.experiments.summary import TRIVIAL, Row, Summary
from fastbert.experiments.workspace import Workspace
from fastbert.io.figures import figure_file, finish_axes, legend_below, line_style
from fastbert.models import registry
from fastbert.tokenizers.loading import load_tokenizer

SETS, COUNTS = ("SST-2", "SNLI", "POS"), (100, 1000)
MOST_EPOCHS = 40.0  # the steps of a scale are thousands of epochs of a hundred examples
# Howard and Ruder (2018): rates that rise fast and fall slowly, layers thawed from the top, lower ones slower.
ULMFIT: dict[str, Any] = {"schedule": "slanted-triangular", "gradual_unfreezing": True, "layer_decay": 1 / 2.6}
WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("from scratch", {}),
    ("frozen", {"frozen": True}),
    ("fine-tuned", {}),
    ("fine-tuned as ULMFiT", ULMFIT),
)

COMPARED = {"fine-tuned as ULMFiT": "fine-tuned"}  # others are compared with training from scratch


def rows(workspace: Workspace) -> Iterator[Row]:
    """Train on a hundred, a thousand and all examples of each set."""
    pretrained = workspace.pretrain("mlm-nsp", objective="mlm+nsp")
    untrained = _untrained(workspace, pretrained.model)
    most = workspace.scale.train_examples
    for count in (*(count for count in COUNTS if count < most), most):
        for way, flags in WAYS:
            scores = {}
            for task in chosen(workspace, SETS):
                subset = task if count == most else first_examples(task, count, workspace.folder / "sets" / "parts")
                model = untrained if way == "from scratch" else pretrained.model
                key = f"{way.replace(' ', '-')}-{count}"
                scores[task.name] = workspace.finetune(key, model, subset, epochs=(MOST_EPOCHS,), **flags)
            shown = "all" if count == most else f"{count:,}"
            yield Row(
                name=f"{way}, {shown} examples",
                scores=scores,
                numbers={"examples": count},
                compared_with=f"{COMPARED.get(way, WAYS[0][0])}, {shown} examples",
            )


def picture(summary: Summary, out: Path) -> Path:
    """Draw the scores over the number of examples to `out`, a panel per set and a line per way of training."""
    columns = summary.columns()
    with figure_file(out, 3.6 * len(columns), 2.9) as figure:
        panels = figure.subplots(1, len(columns), squeeze=False)[0]
        for axes, name in zip(panels, columns, strict=True):
            for index, (way, _) in enumerate(WAYS):
                rows = [row for row in summary.rows if row.name.partition(",")[0] == way and name in row.scores]
                if rows:
                    counts, scores = [row.numbers["examples"] for row in rows], [row.scores[name] for row in rows]
                    means, spreads = [score.mean for score in scores], [score.std or 0.0 for score in scores]
                    axes.errorbar(counts, means, yerr=spreads, capsize=3, label=way, **line_style(index))
            counts = sorted({row.numbers["examples"] for row in summary.rows})
            axes.set_xscale("log")
            axes.set_xticks(counts, [f"{count:,.0f}" for count in counts])
            axes.minorticks_off()
            score = summary.rows[0].scores[name]
            if score.baseline is not None:
                axes.axhline(score.baseline, color="0.3", linestyle=":", linewidth=1.4, label=TRIVIAL)
            seeds = f", {len(score.values)} seeds" if len(score.values) > 1 else ""
            axes.set(title=name, xlabel="training examples", ylabel=f"{score.metric}{seeds}")
            finish_axes(axes)
        legend_below(figure, panels[0].get_legend_handles_labels()[0])
    return out


def _untrained(workspace: Workspace, model: Path) -> Path:
    """Return a folder with a model of the same shape and random weights."""
    folder = workspace.folder / "models" / "untrained"
    if not (folder / "config.json").exists():
        config = registry.read_config(model)
        untrained = registry.head_class(config, "ForPreTraining")(config)
        untrained.init_weights(seed=0)
        load_tokenizer(model).save_pretrained(folder)
        untrained.save_pretrained(folder)
    return folder


EXPERIMENT = Experiment(
    title="Transfer with few and many examples",
    paper=(
        "The paper fine-tunes only. Howard and Ruder (2018) report that a fine-tuned language model matches training"
        " from scratch on ten times and more as many examples."
    ),
    limits=(
        "A corpus of millions of words, where the published models have seen billions. The 100 and 1,000 examples are"
        " the same for all seeds, so the noise of drawing them is not in the standard deviations; no run is longer than"
        " 40 epochs. ULMFiT's recipe has the peak learning rate of plain fine-tuning here, which its decay makes 100"
        " times smaller for the embeddings; its paper has larger ones."
    ),
    rows=rows,
    picture=picture,
)

"""Transfer with few and many examples: from scratch, frozen, fine-tuned, and fine-tuned as ULMFiT is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastbert.experiments.registry import Experiment
from fastbert.experiments.sets import chosen, first_examples
from fastbert.experiments.summary import Row
from fastbert.experiments.workspace import Workspace
from fastbert.models import registry
from fastbert.tokenizers import WordPieceTokenizer

SETS, COUNTS = ("SST-2", "SNLI", "POS"), (100, 1000)
MOST_EPOCHS = 40.0  # the steps of a scale are thousands of epochs of a hundred examples
# Howard and Ruder (2018): rates that rise fast and fall slowly, layers thawed from the top, lower ones slower.
ULMFIT = {"schedule": "slanted-triangular", "gradual_unfreezing": True, "layer_decay": 1 / 2.6}
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
                part = task if count == most else first_examples(task, count, workspace.folder / "sets" / "parts")
                model = untrained if way == "from scratch" else pretrained.model
                key = f"{way.replace(' ', '-')}-{count}"
                scores[task.name] = workspace.finetune(key, model, part, epochs=(MOST_EPOCHS,), **flags)
            shown = "all" if count == most else f"{count:,}"
            yield Row(
                name=f"{way}, {shown} examples",
                scores=scores,
                numbers={"examples": count},
                compared_with=f"{COMPARED.get(way, WAYS[0][0])}, {shown} examples",
            )


def _untrained(workspace: Workspace, model: Path) -> Path:
    """Return a folder with a model of the same shape and random weights."""
    folder = workspace.folder / "models" / "untrained"
    if not (folder / "config.json").exists():
        config = registry.read_config(model)
        untrained = registry.head_class(config, "ForPreTraining")(config)
        untrained.init_weights(seed=0)
        WordPieceTokenizer.from_pretrained(model).save_pretrained(folder)
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
)

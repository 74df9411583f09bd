"""Models of several sizes (Devlin et al. 2019, Table 6)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fastbert.experiments.registry import Experiment
from fastbert.experiments.sets import chosen, counted
from fastbert.experiments.summary import Row
from fastbert.experiments.workspace import Workspace

SETS = ("SNLI", "SST-2")


def rows(workspace: Workspace) -> Iterator[Row]:
    """Pre-train and fine-tune models of half to twice the depth and of half the width and all of it."""
    scale, sets = workspace.scale, chosen(workspace, SETS, ("classification",))
    width, layers, heads = scale.hidden_size, scale.layers, scale.heads
    half = max(heads // 2, 1)
    shapes = ((max(layers // 2, 1), width // 2, half), (layers, width // 2, half), (max(layers // 2, 1), width, heads),
              (layers, width, heads), (2 * layers, width, heads))  # fmt: skip
    for depth, wide, head_count in shapes:
        name = f"L{depth}-H{wide}-A{head_count}"
        model = {"num_hidden_layers": depth, "hidden_size": wide, "num_attention_heads": head_count}
        pretrained = workspace.pretrain(name, model=model, objective="mlm+nsp")
        scores = {task.name: workspace.finetune(name, pretrained.model, task) for task in sets}
        numbers = {**pretrained.numbers(), "perplexity": round(math.exp(min(pretrained.loss, 50)), 2)}
        yield Row(name=f"{counted(depth)}, {wide} wide, {counted(head_count, 'head')}", scores=scores, numbers=numbers)


EXPERIMENT = Experiment(
    title="Sizes of the model",
    paper=(
        "Held-out perplexity of masked words and MNLI accuracy: L3 H768 A12 5.84, 77.9; L6 A3 5.24, 80.6; L6 A12 4.68,"
        " 81.9; L12 A12 3.99, 84.4; L12 H1024 A16 3.54, 85.7; L24 H1024 A16 3.23, 86.6."
    ),
    limits="Every size is trained for the same number of steps: larger ones would gain more from more of them.",
    rows=rows,
)

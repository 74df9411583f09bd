"""Ablation of BERT's pre-training objectives (Devlin et al. 2019, Table 5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastbert.experiments.registry import Experiment
from fastbert.experiments.sets import chosen
from fastbert.experiments.summary import Row
from fastbert.experiments.workspace import Workspace

SETS = ("SNLI", "QNLI", "SST-2", "SQuAD", "UNER")
# GPT's auxiliary language-model loss is left out, which the other rows do not have.
LABELS_ALONE = {"lm_weight": 0.0}
# Name of the row, objective, and flags of fine-tuning.
ROWS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("BERT", "mlm+nsp", {}),
    ("No NSP", "mlm", {}),
    ("LTR & No NSP", "ltr", LABELS_ALONE),
    ("LTR & No NSP + BiLSTM", "ltr", {"bilstm": 0, **LABELS_ALONE}),
)


def rows(workspace: Workspace) -> Iterator[Row]:
    """Pre-train with each objective, fine-tune on every set."""
    sets = chosen(workspace, SETS)
    for name, objective, flags in ROWS:
        pretrained = workspace.pretrain(objective.replace("+", "-"), objective=objective)
        key = name.lower().replace(" & ", "-").replace(" + ", "-").replace(" ", "-")
        scores = {task.name: workspace.finetune(key, pretrained.model, task, **flags) for task in sets}
        yield Row(name=name, scores=scores, numbers=pretrained.numbers())


EXPERIMENT = Experiment(
    title="Ablation of the pre-training objectives",
    paper=(
        "BERT-base: MNLI 84.4, QNLI 88.4, MRPC 86.7, SST-2 92.7, SQuAD F1 88.5; No NSP: 83.9, 84.9, 86.5, 92.6, 87.9;"
        " LTR & No NSP: 82.1, 84.3, 77.5, 92.1, 77.8; + BiLSTM: 82.1, 84.1, 75.7, 91.6, 84.9."
    ),
    limits=(
        "The same number of optimiser steps and tokens for every row. Left-to-right training predicts every token and"
        " masked training one in seven, so that the former learns faster per step; the paper's models were trained for"
        " a thousand times longer, where this matters less than the context on both sides. The BiLSTM begins with new"
        " weights and is trained at the encoder's learning rate, for which entities have too few steps."
    ),
    rows=rows,
)

"""Students of half the layers: pre-trained alone, and by a teacher."""

from __future__ import annotations

from collections.abc import Iterator

from fastbert.experiments.registry import Experiment
from fastbert.experiments.sets import chosen, counted
from fastbert.experiments.summary import Row
from fastbert.experiments.workspace import Workspace

SETS = ("SNLI", "SST-2", "UNER")


def rows(workspace: Workspace) -> Iterator[Row]:
    """Pre-train the teacher, and two students of the same size for as many steps."""
    sets = chosen(workspace, SETS)
    teacher = workspace.pretrain("mlm-nsp", objective="mlm+nsp")
    half = max(workspace.scale.layers // 2, 1)
    yield Row(
        name=f"teacher, {counted(workspace.scale.layers)}",
        scores={task.name: workspace.finetune("teacher", teacher.model, task) for task in sets},
        numbers=teacher.numbers(),
    )
    alone = workspace.pretrain("student-alone", model={"num_hidden_layers": half}, objective="mlm+nsp")
    yield Row(
        name=f"{counted(half)}, trained alone",
        scores={task.name: workspace.finetune("student-alone", alone.model, task) for task in sets},
        numbers=alone.numbers(),
    )
    taught = workspace.pretrain("student-taught", teacher=str(teacher.model), student_layers=half, objective="mlm+nsp")
    yield Row(
        name=f"{counted(half)}, with the teacher",
        scores={task.name: workspace.finetune("student-taught", taught.model, task) for task in sets},
        numbers=taught.numbers(),
    )


EXPERIMENT = Experiment(
    title="Distillation at the same size",
    paper="Not in the paper. Sanh et al. (2019): DistilBERT, half of the layers, keeps 97 % of BERT's score on GLUE.",
    limits="The student with the teacher starts from the teacher's layers, as DistilBERT does.",
    rows=rows,
)

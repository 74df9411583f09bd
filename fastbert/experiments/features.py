"""A BiLSTM on frozen features of six kinds, beside fine-tuning (Devlin et al. 2019, Table 7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastbert.experiments.registry import Experiment
from fastbert.experiments.sets import chosen, tagging_examples
from fastbert.experiments.summary import Row, Score
from fastbert.experiments.workspace import Workspace
from fastbert.features.tagging import FeatureTraining, table7
from fastbert.models import registry
from fastbert.tokenizers.loading import load_tokenizer

SETS = ("UNER",)


def rows(workspace: Workspace) -> Iterator[Row]:
    """Train six taggers with every seed, and fine-tune the model."""
    task = chosen(workspace, SETS, ("tagging",))[0]
    pretrained = workspace.pretrain("mlm-nsp", objective="mlm+nsp")
    by_name: dict[str, list[float]] = {}
    for seed in range(workspace.seeds):

        def train(seed: int = seed) -> dict[str, Any]:
            model = registry.load_encoder(pretrained.model)
            tokenizer = load_tokenizer(pretrained.model)
            sets = tagging_examples(task)
            training = FeatureTraining(
                hidden_size=workspace.scale.hidden_size,
                epochs=workspace.scale.feature_epochs,
                seed=seed,
                last_epoch=True,
            )
            return {"rows": [[row.name, row.f1] for row in table7(model, tokenizer, sets[0], sets[1], training)]}

        for name, score in workspace.cached(f"features-{seed}", train)["rows"]:
            by_name.setdefault(name, []).append(score)
        workspace.say(f"features, seed {seed}: " + ", ".join(f"{k} {v[-1]:.1f}" for k, v in by_name.items()))
    yield Row(name="Fine-tuning", scores={task.name: workspace.finetune("fine-tuning", pretrained.model, task)})
    for name, values in by_name.items():
        yield Row(name=name, scores={task.name: Score(metric=task.metric, values=tuple(values))})


EXPERIMENT = Experiment(
    title="Fine-tuning and frozen features",
    paper=(
        "CoNLL-2003, F1 on the development set, BERT-base: fine-tuning 96.4; embeddings 91.0, second-to-last hidden"
        " 95.6, last hidden 94.9, weighted sum of the last four 95.9, concatenation of the last four 96.1, weighted sum"
        " of all twelve layers 95.5."
    ),
    limits=(
        "The set is smaller than CoNLL-2003, and the model has fewer layers than the paper's; with four layers the two"
        " weighted sums are the same. The BiLSTM on features is as wide as the encoder, as in the paper, and is trained"
        " for more steps than fine-tuning."
    ),
    rows=rows,
)

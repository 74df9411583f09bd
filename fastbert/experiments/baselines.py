"""Baselines of BERT on the same text and sets: GPT, ELMo, static word vectors and an HMM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fastbert.experiments.data import TaskSet
from fastbert.experiments.hmm import check_nltk, tag_with_hmm
from fastbert.experiments.registry import Experiment
from fastbert.experiments.sets import chosen, tagging_examples
from fastbert.experiments.summary import Row, Score
from fastbert.experiments.systems import (
    FrozenStates,
    elmo_features,
    encoder_features,
    pretrain_elmo,
    tag_features,
    train_static_vectors,
    vector_features,
)
from fastbert.experiments.workspace import Workspace
from fastbert.tasks.metrics.tagging import tagging_scores
from fastbert.vectors.training import VectorTraining

SETS = ("UNER", "POS", "SNLI", "SST-2")


def rows(workspace: Workspace) -> Iterator[Row]:
    """Train every system; fine-tune BERT and GPT, and train taggers on the frozen features of the others."""
    check_nltk()
    VectorTraining().check_packages()
    sets = chosen(workspace, SETS, ("tagging", "classification"))
    sets.sort(key=lambda task: task.task != "tagging")  # the sets of all rows first
    tagging = [task for task in sets if task.task == "tagging"]

    def frozen(name: str, features: Callable[[], FrozenStates]) -> dict[str, Score]:
        return {task.name: tag_features(workspace, name, task, features) for task in tagging}

    def fine_tuned(name: str, model: Any) -> dict[str, Score]:
        return {task.name: workspace.finetune(name, model, task) for task in sets}

    bert = workspace.pretrain("mlm-nsp", objective="mlm+nsp")
    yield Row(name="BERT, fine-tuned", scores=fine_tuned("bert", bert.model), numbers=bert.numbers())
    yield Row(name="BERT, features", scores=frozen("bert", lambda: encoder_features(bert.model)))
    shape = {"model_type": "openai-gpt", "n_head": workspace.scale.heads}
    gpt = workspace.pretrain("gpt", model=shape, objective="ltr")
    yield Row(name="GPT, fine-tuned", scores=fine_tuned("gpt", gpt.model), numbers=gpt.numbers())
    elmo = pretrain_elmo(workspace)
    yield Row(name="ELMo, features", scores=frozen("elmo", lambda: elmo_features(elmo.model)), numbers=elmo.numbers())
    vectors = train_static_vectors(workspace)
    yield Row(name="static vectors, features", scores=frozen("static", lambda: vector_features(vectors)))
    yield Row(name="HMM", scores={task.name: _hmm(workspace, task) for task in tagging})


def _hmm(workspace: Workspace, task: TaskSet) -> Score:
    """Return the score of a hidden Markov model, in which nothing is random."""

    def train() -> dict[str, Any]:
        training, held_out = tagging_examples(task)
        predicted = tag_with_hmm(
            [(example.words, example.tags or ()) for example in training], [example.words for example in held_out]
        )
        return {"value": tagging_scores([list(example.tags or ()) for example in held_out], predicted)[task.metric]}

    score = Score(metric=task.metric, values=(workspace.cached(f"hmm-{task.name}", train)["value"],))
    workspace.say(f"HMM on {task.name}: {task.metric} {score}")
    return score


EXPERIMENT = Experiment(
    title="BERT, GPT, ELMo, static vectors and an HMM",
    paper=(
        "CoNLL-2003, F1 on the test set (Table 7): BERT-base fine-tuned 92.4, ELMo 92.2; on the development set"
        " BERT-base fine-tuned 96.4, its features 96.1, ELMo 95.7. GLUE (Table 1): BERT-base MNLI 84.6, SST-2 93.5; GPT"
        " 82.1, 91.3; BiLSTM + ELMo + attention 76.4, 90.4."
    ),
    limits=(
        "The same text for all, and the same number of steps and sequences for BERT, GPT and ELMo, whose tokens are"
        " words; static vectors pass over the corpus 5 to 20 times, the others at the scale mini about once. Taggers on"
        " features are trained by epochs, for more steps than fine-tuning, so compare frozen systems with each other."
        " GPT is fine-tuned with its auxiliary language-model loss, as its paper has it. Losses of different"
        " vocabularies and tasks cannot be compared."
    ),
    rows=rows,
)

"""The micro-batches of a run of `fastbert pretrain` or `finetune`, as padded tensors in a file that other loops read.

They come from fastbert's own pipeline, so that both train on the same tokens, masks and pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from fastbert.finetuning import order, start
from fastbert.finetuning.config import FinetuneConfig, Trial
from fastbert.tasks.registry import make_task
from fastbert.tasks.rows import Rows
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.training.preparation import batches_of, budget_of, read_inputs
from fastbert.training.run_folder import recorded_run

if TYPE_CHECKING:
    from fastbert.tasks.base import Task

Padded = dict[str, Tensor]


def pretraining_batches(folder: Path, processes: int) -> Iterator[Padded]:
    """Yield the micro-batches of the run in `folder`: per step the first one of each process, then the second ones.

    Processes must have the same number of micro-batches.
    """
    run = recorded_run(folder)
    phases = read_inputs(run).phases
    data, budget = batches_of(run.config, phases), budget_of(run.config, phases)
    assert budget.steps is not None
    assert run.config.micro_batch is not None
    cursor = data.start
    for step in range(budget.steps):
        spec = data.spec(step + 1, cursor, budget.progress(step + 0.5, 0.0))
        shares = [data.batches(spec, run.config.micro_batch, rank, processes) for rank in range(processes)]
        for parts in zip(*shares, strict=True):
            yield from (batch.unpack() for batch in parts)
        cursor = spec.after


class Finetuning:
    """The first trial of a fine-tuning run for classification: its initial model and its micro-batches."""

    def __init__(self, flags: dict[str, Any]) -> None:
        """`flags` are those of the run."""
        many = {name: (flags[name],) for name in ("lr", "batch_size", "epochs")}
        paths = {name: Path(flags[name]) for name in ("train", "out")}
        self.config: FinetuneConfig = FinetuneConfig(**{**flags, **many, **paths})
        self.trial: Trial
        (self.trial,) = self.config.trials()
        self.folder: Path = Path(flags["model"])
        self.tokenizer: WordPieceTokenizer = WordPieceTokenizer.from_pretrained(self.folder)
        self.task: Task[Any] = make_task("classification", self.config.task_settings())
        train = self.task.read(str(self.config.train), labelled=True)
        self.task.learn_labels(train)
        self.rows: Rows = self.task.encode(train, self.tokenizer, labelled=True)

    def save_initial(self, folder: Path) -> None:
        """Write the model with the head that the trial begins with."""
        start.begin(self.task, self.folder, self.config, self.trial.seed).save_pretrained(folder)

    def batches(self, processes: int) -> Iterator[Padded]:
        """Yield the micro-batches of all steps: per step the first one of each process, then the second ones.

        A run shares the sequences of a step by their tokens; the Trainer's processes must have the same number of
        micro-batches, so here each has the same number of sequences. The loss of a step does not depend on that.
        """
        count, trial, size = self.rows.units, self.trial, self.config.micro_batch
        assert size is not None
        _, total = order.steps_of(count, trial.batch_size, trial.epochs, self.config.steps)
        for _, units in order.batches(count, trial.batch_size, trial.seed, 0, total):
            shares = [units[rank::processes] for rank in range(processes)]
            for begin in range(0, len(shares[0]), size):
                for share in shares:
                    batch = self.rows.batch(share[begin : begin + size])
                    yield {**batch.inputs.unpack(), "labels": batch.targets["labels"]}


def write_batches(path: Path, batches: Iterable[Padded]) -> None:
    """Write micro-batches to a safetensors file."""
    tensors = {
        f"{index}/{name}": tensor.contiguous() for index, batch in enumerate(batches) for name, tensor in batch.items()
    }
    save_file(tensors, path)


def read_batches(path: Path) -> list[Padded]:
    """Read the micro-batches of a file in their order."""
    batches: dict[int, Padded] = {}
    for key, tensor in load_file(path).items():
        number, _, name = key.partition("/")
        batches.setdefault(int(number), {})[name] = tensor
    return [batches[number] for number in range(len(batches))]

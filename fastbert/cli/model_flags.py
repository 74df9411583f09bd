"""The flags of the commands that use a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fastbert.cli.counts import counted
from fastbert.errors import UserError
from fastbert.flags import DATA, MACHINE, MODEL, DeviceFlags
from fastbert.tasks.registry import TaskName

if TYPE_CHECKING:
    from fastbert.tasks.base import Task
    from fastbert.tasks.finetuned_model import Trained


@dataclass(frozen=True, kw_only=True)
class InferenceFlags(DeviceFlags):
    """Device, dtype and batches."""

    GROUP: ClassVar = MACHINE

    dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """Dtype of matmuls: auto is the faster of fp32 and bf16; int8, on CPUs, is faster still and less exact."""
    batch_tokens: int | None = None
    """Tokens per batch (default: 4096, on a GPU 65536); results do not depend on it."""

    def __post_init__(self) -> None:
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise UserError(f"--batch-tokens {self.batch_tokens} must be at least 1")


@dataclass(frozen=True, kw_only=True)
class _ColumnFlags:
    """The columns of a file with examples."""

    GROUP: ClassVar = DATA

    text_column: str | None = None
    """Column of the text (the first of a pair, the question, the prompt, the source), by its name or number from 1."""
    pair_column: str | None = None
    """Column of the second text of a pair."""
    id_column: str | None = None
    """Column of the examples' ids."""
    skip_bad: bool = False
    """Skip rows that cannot be read and report how many, instead of refusing the file."""


@dataclass(frozen=True, kw_only=True)
class _TrainedFlags:
    """A fine-tuned model."""

    GROUP: ClassVar = MODEL

    model: str | None = None
    """Folder of a fine-tuned model, or of its run."""
    task: TaskName | None = None
    """Kind of the task, if the model's folder does not name it."""


@dataclass(frozen=True, kw_only=True)
class _MachineFlags(InferenceFlags):
    """Device, dtype and batches of a fine-tuned model."""

    GROUP: ClassVar = MACHINE

    dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """Dtype of matmuls: auto is the --dtype of the model's run if it had one, else the faster of fp32 and bf16; int8,
    on CPUs, is faster still and less exact."""


@dataclass(frozen=True, kw_only=True)
class ModelFlags(_MachineFlags, _TrainedFlags, _ColumnFlags):
    """The model, the columns of the file, device and dtype."""

    def columns(self) -> Any:
        """Return the columns that the flags name."""
        from fastbert.tasks.settings import Columns

        label = getattr(self, "label_column", None)
        return Columns(text=self.text_column, pair=self.pair_column, label=label, id=self.id_column)

    def find_task(self, **settings: Any) -> Task[Any]:
        """Return the task of the model, before torch is imported; see `finetuned_model.find_task`. Raises
        `UserError`."""
        from fastbert.checkpoints.source import find_source
        from fastbert.tasks.finetuned_model import find_task

        assert self.model is not None
        folder = find_source(self.model)
        return find_task(folder, task=self.task, columns=self.columns(), skip_bad=self.skip_bad, **settings)

    def load(self, **settings: Any) -> Trained:
        """Load the model with its task and tokenizer."""
        from fastbert.tasks.finetuned_model import load_trained

        assert self.model is not None
        compute = {"device": self.device, "dtype": self.dtype}
        return load_trained(
            self.model, task=self.task, columns=self.columns(), skip_bad=self.skip_bad, **compute, **settings
        )

    def predict(self, trained: Trained, dataset: Any, stage: Callable[..., Any]) -> list[dict[str, Any]]:
        """Return a prediction for each example, with a progress bar."""
        from fastbert.tasks.predicting import predict

        update = stage("predicting", 1.0, "rows")
        return predict(
            trained.task,
            trained.model,
            trained.tokenizer,
            dataset,
            batch_tokens=self.batch_tokens,
            progress=lambda rows, finished: update(finished, counted(rows, "row"), counted=rows),
        )

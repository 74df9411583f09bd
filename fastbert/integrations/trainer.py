"""transformers' Trainer with checkpoints that `from_pretrained` loads.

`transformers.Trainer` itself trains and evaluates fastbert's models, but of models that are not a `PreTrainedModel` of
its own library it saves a bare state dict, without a config, and fails on tied weights.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fastbert.checkpoints.formats.names import WEIGHTS
from fastbert.checkpoints.tokenizer_files import accept_folder
from fastbert.errors import UserError
from fastbert.io.atomic_write import write_json_atomic
from fastbert.models.base import PreTrainedModel


class SavesModels:
    """A mix-in for Trainers of transformers, to be listed before them, that saves complete model folders."""

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """Write the weights and config of a fastbert model as `save_pretrained` does, then what a Trainer adds."""
        trainer: Any = self
        model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
        if not isinstance(model, PreTrainedModel):
            super()._save(output_dir, state_dict)  # type: ignore[misc]
            return
        folder = Path(trainer.args.output_dir if output_dir is None else output_dir)
        tensors = model.state_dict() if state_dict is None else state_dict
        untied = {name: tensor.contiguous() for name, tensor in tensors.items() if name not in model.tied_keys}
        # The weights may be mapped from the very file, which the library writes to in place.
        before, aside = folder / WEIGHTS, folder / f"{WEIGHTS}.before"
        if before.is_file():
            before.replace(aside)
        super()._save(os.fspath(folder), untied)  # type: ignore[misc]
        aside.unlink(missing_ok=True)
        write_json_atomic(folder / "config.json", model.config.to_dict(architecture=type(model).__name__))
        accept_folder(folder)


if TYPE_CHECKING:
    import transformers

    class Trainer(SavesModels, transformers.Trainer):
        """Made on first use, since it needs transformers."""


def __getattr__(name: str) -> object:
    if name != "Trainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from transformers import Trainer as Base
    except ImportError as error:
        raise UserError(
            f"the Trainer requires transformers and accelerate ({error}): `pip install -U transformers accelerate`"
        ) from None

    class Trainer(SavesModels, Base):
        """`transformers.Trainer` whose checkpoints and `save_model` folders `from_pretrained` loads, fastbert's and
        transformers'."""

    Trainer.__qualname__ = Trainer.__name__
    globals()[name] = Trainer
    return Trainer

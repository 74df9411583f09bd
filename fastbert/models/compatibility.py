"""Attributes and methods that transformers' Trainer and pipelines expect of a model."""

from __future__ import annotations

import inspect
import warnings
from typing import Any, ClassVar

import torch
from torch import nn

from fastbert.errors import UserError
from fastbert.models.outputs import HeadOutput, ModelOutput


def is_traced_root(module: nn.Module) -> bool:
    """Return whether torch.jit, or the ONNX exporter on top of it, traces this very module."""
    modules = torch.jit._trace._trace_module_map
    if not modules:
        return False
    # torch.jit keeps the root under a name of its own; the exporter names every module, and the root first.
    return modules.get("__module") is module or next(iter(modules)) is module


class Compatibility(nn.Module):
    """The interface that transformers' Trainer, pipelines and peft expect of a model."""

    main_input_name: ClassVar[str] = "input_ids"
    input_modalities: ClassVar[str] = "text"
    accepts_loss_kwargs: ClassVar[bool] = False
    """True if forward accepts `num_items_in_batch`, the number of labels in all batches of an optimiser step."""
    tied_keys: tuple[str, ...] = ()

    def _slow_forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run forward while torch.jit traces, which reads tuples and dictionaries, not our outputs: the traced model
        returns a tuple."""
        # The ONNX exporter passes keyword-only arguments by position too, in the order of the signature.
        named = dict(zip(inspect.signature(self.forward).parameters, args, strict=False))
        with warnings.catch_warnings():
            # Our checks of shapes are not recorded, so the trace holds for other shapes; other code still warns.
            warnings.filterwarnings("ignore", category=torch.jit.TracerWarning, module=r"fastbert\.")
            output = super()._slow_forward(**named, **kwargs)
        if not isinstance(output, ModelOutput):
            return output
        if is_traced_root(self):
            return output.to_tuple()
        if isinstance(output, HeadOutput):
            output.fill_dictionary()
        return output

    @property
    def _keys_to_ignore_on_save(self) -> list[str] | None:
        """Return the names of tied parameters, which files leave out."""
        return list(self.tied_keys) or None

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Return whether activations are recomputed in the backward pass."""
        return any(getattr(module, "checkpointing", "none") != "none" for module in self.modules())

    def gradient_checkpointing_enable(
        self,
        gradient_checkpointing_kwargs: dict[str, Any] | None = None,
        every_n_layers: int = 1,
        offload: bool = False,
    ) -> None:
        """Run `checkpoint_activations("layer")`, under transformers' name.

        `gradient_checkpointing_kwargs` have no effect: no random state is replayed. Raises `UserError` for other values
        of `every_n_layers` and `offload`.
        """
        if every_n_layers != 1 or offload:
            raise UserError(
                f"every_n_layers={every_n_layers}, offload={offload}: fastbert saves the input of every layer, on its"
                ' device; model.checkpoint_activations("selective") recomputes less'
            )
        self.checkpoint_activations("layer")

    def gradient_checkpointing_disable(self) -> None:
        """Run `checkpoint_activations("none")`, under transformers' name."""
        self.checkpoint_activations("none")

    def checkpoint_activations(self, mode: Any = "layer") -> None:
        """Set what is recomputed in the backward pass; models implement it."""
        raise NotImplementedError

    def can_generate(self) -> bool:
        """Return False: an encoder does not generate text."""
        return False

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """Return the number of parameters, tied ones once: of all, of trainable ones, or without embedding tables."""
        tables = {id(module.weight) for module in self.modules() if isinstance(module, nn.Embedding)}
        return sum(
            parameter.numel()
            for parameter in self.parameters()
            if (parameter.requires_grad or not only_trainable) and not (exclude_embeddings and id(parameter) in tables)
        )

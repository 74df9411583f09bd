"""What transformers' Trainer and pipelines ask of a model, as far as it is true of ours."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from fastbert.errors import UserError


class Compatibility(nn.Module):
    """Names that transformers' Trainer and pipelines look for."""

    main_input_name: ClassVar[str] = "input_ids"
    input_modalities: ClassVar[str] = "text"
    accepts_loss_kwargs: ClassVar[bool] = False
    """Whether forward takes `num_items_in_batch`, the labels of all batches whose gradients are summed."""
    tied_keys: tuple[str, ...] = ()

    @property
    def _keys_to_ignore_on_save(self) -> list[str] | None:
        """Parameters that files leave out, since they are others under a second name."""
        return list(self.tied_keys) or None

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether activations are computed again in the backward pass."""
        return any(getattr(module, "checkpointing", "none") != "none" for module in self.modules())

    def gradient_checkpointing_enable(
        self,
        gradient_checkpointing_kwargs: dict[str, Any] | None = None,
        every_n_layers: int = 1,
        offload: bool = False,
    ) -> None:
        """`checkpoint_activations("layer")` under the name that transformers has for it; `use_reentrant` and the like
        change nothing, since no random state has to be replayed."""
        if every_n_layers != 1 or offload:
            raise UserError(
                f"every_n_layers={every_n_layers}, offload={offload}: fastbert keeps the input of every layer, where it"
                ' is; model.checkpoint_activations("selective") recomputes less'
            )
        self.checkpoint_activations("layer")

    def gradient_checkpointing_disable(self) -> None:
        """`checkpoint_activations("none")` under the name that transformers has for it."""
        self.checkpoint_activations("none")

    def checkpoint_activations(self, mode: Any = "layer") -> None:
        """Models say how."""
        raise NotImplementedError

    def can_generate(self) -> bool:
        """An encoder does not write text."""
        return False

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """The number of distinct parameters (tied ones count once), of those that are trained, or without tables."""
        tables = {id(module.weight) for module in self.modules() if isinstance(module, nn.Embedding)}
        return sum(
            parameter.numel()
            for parameter in self.parameters()
            if (parameter.requires_grad or not only_trainable) and not (exclude_embeddings and id(parameter) in tables)
        )

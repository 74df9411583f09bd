"""A model's parameters, gradients and AdamW's moments in flat buffers of one layout, with a half-precision copy.

The parameters stay what they are, with their names, shapes and places in checkpoints; their memory becomes views of one
fp32 buffer, in which a layer's query, key and value weights are adjacent, and so are the vectors that one kernel sums.
A step is then three launches over the buffers (`kernels/optimizer/adamw.py`), which also write the copy of the weights
that the next forward pass multiplies by, and clear the gradients.

The copy is right after a step of this optimiser and after `refresh`. `active` uses it for a block of code, and first
compares the parameters with what they were after the last step: it takes back those that have moved
(`parameter.data = x`, `model.to`), and refreshes the copy if torch has counted a write (`load_state_dict`, `copy_`,
another optimiser). Writes that torch does not count, through `.data` or by fused optimisers, need a call of
`refresh`.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fastbert.errors import UserError
from fastbert.models.modules import Layer
from fastbert.ops import dispatch
from fastbert.ops.encoder_layer import flat_layer
from fastbert.ops.encoder_layer.arguments import LayerParameters
from fastbert.ops.encoder_layer.flat_layer import FlatLayer, LayerGradients
from fastbert.ops.encoder_layer.operands import Operands, are_adjacent, joined
from fastbert.training.update_rules import Rule

if TYPE_CHECKING:
    from fastbert.kernels.optimizer.adamw import StepTensors

# Fields of LayerParameters whose tensors one kernel reads or writes as one.
JOINED = (
    ("query", "key", "value"),
    ("query_bias", "key_bias", "value_bias"),
    ("attention_norm", "attention_norm_bias", "attention_output_bias"),
    ("output_norm", "output_norm_bias", "output_bias"),
)
_STATE = ("step", "exp_avg", "exp_avg_sq")


def reason_not_flat(parameters: Sequence[Tensor], device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why a run keeps ordinary parameters, None if flat ones make it faster; `dtype` is that of its matmuls."""
    if device.type != "cuda":
        return f"there is no kernel for a device of type {device.type}"
    if dtype != torch.bfloat16:
        return (
            f"matmuls are in {str(dtype).removeprefix('torch.')}: only bf16 needs a copy of the weights and no scaling"
        )
    if dispatch.preferred_backend("encoder_layer", device) != "triton":
        return "the Triton kernels are not used"
    if any(hasattr(parameter, "to_local") for parameter in parameters):
        return "the parameters are sharded"
    if any(parameter.dtype != torch.float32 or parameter.device != parameters[0].device for parameter in parameters):
        return "the parameters are not all fp32 on one device"
    return None


class FlatParameters:
    """The flat buffers of all parameters of an optimiser, and the views of each."""

    def __init__(
        self, model: nn.Module, groups: Sequence[dict[str, Any]], dtype: torch.dtype, rule: Rule = "adamw"
    ) -> None:
        """Move the parameters of `groups`, fp32 on one device, into the buffers; `dtype` is that of their copy."""
        from fastbert.kernels.optimizer import adamw

        group_of = {id(parameter): i for i, group in enumerate(groups) for parameter in group["params"]}
        self.parameters: list[nn.Parameter] = _ordered(model, groups)
        self.dtype = dtype
        self.rule = rule
        first = self.parameters[0]
        if any(p.dtype != torch.float32 or p.device != first.device for p in self.parameters):
            raise UserError("flat parameters must all be fp32, on one device")
        unit, block = adamw.UNIT, adamw.block_elements(first.device) // adamw.UNIT
        self._starts: list[int] = []
        blocks: list[tuple[int, int, int, int]] = []
        spans: list[tuple[int, int]] = []
        total = 0
        for index, parameter in enumerate(self.parameters):
            self._starts.append(total * unit)
            units = -(-parameter.numel() // unit)
            spans.append((len(blocks), -(-units // block)))
            blocks += [(total + at, index, min(block, units - at), int(at == 0)) for at in range(0, units, block)]
            total += units

        def zeros(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=kind, device=first.device)

        count = len(self.parameters)
        shadow = zeros(total * unit, kind=dtype)
        self.tensors: StepTensors = adamw.StepTensors(
            weights=zeros(total * unit),
            gradients=zeros(total * unit),
            exp_avg=zeros(total * unit),
            exp_avg_sq=zeros(total * unit),
            shadow=shadow,
            steps=zeros(count),
            used=zeros(count, kind=torch.int32),
            groups=torch.tensor([group_of[id(p)] for p in self.parameters], dtype=torch.int32, device=first.device),
            settings=zeros(len(groups), adamw.SETTINGS, kind=torch.float64),
            rates=zeros(len(groups)),
            blocks=torch.tensor(blocks, dtype=torch.int32, device=first.device).view(-1, 4),
            norm=zeros(1),
            factors=zeros(adamw.FACTORS, count),
        )
        if rule != "adamw":
            sizes = [parameter.numel() for parameter in self.parameters]
            self.tensors = self.tensors._replace(
                spans=torch.tensor(spans, dtype=torch.int32, device=first.device).view(-1, 2),
                sizes=torch.tensor(sizes, dtype=torch.int64, device=first.device),
            )
        self._weights, self._gradients, exp_avg, exp_avg_sq, self._shadows = (
            self._views(flat) for flat in (*self.tensors[:4], shadow)
        )
        self._states = [
            dict(zip(_STATE, state, strict=True))
            for state in zip(self.tensors.steps.unbind(), exp_avg, exp_avg_sq, strict=True)
        ]
        self._indices = {id(parameter): index for index, parameter in enumerate(self.parameters)}
        self._layers: dict[tuple[int, ...], FlatLayer | None] = {}
        self._used: list[bool] | None = None
        self._settings: list[list[float]] | None = None
        self._begun = False
        self._versions: list[int] = []
        self._take_back()
        self._hook()

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [
            flat[start : start + parameter.numel()].view(parameter.shape)
            for start, parameter in zip(self._starts, self.parameters, strict=True)
        ]

    @torch.no_grad()
    def _take_back(self) -> None:
        """Copy parameters that lie elsewhere into the buffer, which becomes their memory; refresh the copy."""
        for parameter, view in zip(self.parameters, self._weights, strict=True):
            if parameter.data_ptr() != view.data_ptr() and parameter.numel():
                if parameter.shape != view.shape or parameter.dtype != view.dtype:
                    raise UserError(
                        f"a parameter was {tuple(view.shape)} {view.dtype} when its optimiser was made, and is"
                        f" {tuple(parameter.shape)} {parameter.dtype}: make the optimiser again"
                    )
                view.copy_(parameter)
                parameter.data = view
        self.refresh()

    def _hook(self) -> None:
        """Make autograd's first gradient of a parameter a view of the buffer, without keeping the buffers alive."""
        reference = weakref.ref(self)

        def hook(parameter: Tensor) -> None:
            flat = reference()
            if flat is not None:
                flat.claim(parameter)

        for parameter in self.parameters:
            if parameter.requires_grad:  # `begin` takes the gradients of those that are unfrozen later
                parameter.register_post_accumulate_grad_hook(hook)

    def compile(self) -> None:
        """Compile the kernels of a step, which changes nothing before the first gradient. Raises `KernelError`."""
        from fastbert.kernels.optimizer import adamw

        self._begin(1.0)
        adamw.update(self.tensors, clear=True)

    def _begin(self, max_norm: float) -> None:
        """Write the norm and the factors of an update."""
        from fastbert.kernels.optimizer import adamw, tensor_rates

        adamw.begin(self.tensors, max_norm)
        if self.rule != "adamw":
            tensor_rates.scale(self.tensors, lamb=self.rule == "lamb")

    def refresh(self) -> None:
        """Write the copy of the weights, after writes that torch does not count."""
        assert self.tensors.shadow is not None
        self.tensors.shadow.copy_(self.tensors.weights)
        self._versions = [parameter._version for parameter in self.parameters]

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Compute layers by the copies of their weights within the block, and add gradients to the buffer."""
        if any(p.data_ptr() != view.data_ptr() for p, view in zip(self.parameters, self._weights, strict=True)):
            self._take_back()
        elif self._versions != [parameter._version for parameter in self.parameters]:
            self.refresh()
        with flat_layer.activate(self):
            yield

    def layer(self, parameters: LayerParameters, dtype: torch.dtype) -> FlatLayer | None:
        """Return a layer's weights in `dtype` and its gradients; None unless all of it is here and trained."""
        if dtype != self.dtype or id(parameters.query) not in self._indices:
            return None
        key = tuple(map(id, parameters))
        if key not in self._layers:
            self._layers[key] = self._layer(parameters)
        return self._layers[key] if all(parameter.requires_grad for parameter in parameters) else None

    def _layer(self, parameters: LayerParameters) -> FlatLayer | None:
        if any(id(parameter) not in self._indices for parameter in parameters):
            return None
        copies, gradients = (
            LayerParameters(*[views[self._indices[id(parameter)]] for parameter in parameters])
            for views in (self._shadows, self._gradients)
        )
        if not all(are_adjacent([getattr(gradients, name) for name in names]) for names in JOINED):
            return None  # narrow layers, whose vectors are padded to a unit
        weights, biases, attention_vectors, output_vectors = (
            joined([getattr(gradients, name) for name in names]) for names in JOINED
        )
        projections, projection_bias = (joined([getattr(copies, name) for name in names]) for names in JOINED[:2])
        operands = Operands(
            projections, projection_bias,
            copies.attention_output, copies.intermediate, copies.output,
        )  # fmt: skip
        return FlatLayer(
            operands,
            LayerGradients(
                weights, biases, gradients.attention_output, attention_vectors, gradients.intermediate,
                gradients.intermediate_bias, gradients.output, output_vectors,
            ),
        )  # fmt: skip

    def shadow(self, weight: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Return the copy of a weight in `dtype`."""
        index = self._indices.get(id(weight))
        return None if index is None or dtype != self.dtype else self._shadows[index]

    def claim(self, parameter: Tensor) -> Tensor:
        """Make a parameter's gradient a view of the buffer, with the value that it has; return the view."""
        index = self._indices[id(parameter)]
        view, gradient = self._gradients[index], parameter.grad
        if gradient is not view:
            with torch.no_grad():
                if gradient is None:
                    view.zero_()
                else:
                    view.copy_(gradient)
            parameter.grad = view
        return view

    @torch.no_grad()
    def begin(self, optimizer: torch.optim.Optimizer, max_norm: float = math.inf) -> Tensor:
        """Begin a step: return the norm of all gradients, an fp32 scalar on the device, which `step` clips to
        `max_norm`. The next `begin` overwrites it."""
        self._read_groups(optimizer)
        used = [parameter.grad is not None for parameter in self.parameters]
        for index, (parameter, state) in enumerate(zip(self.parameters, self._states, strict=True)):
            if used[index]:
                self.claim(parameter)
                _take_state(optimizer.state[parameter], state)
        if used != self._used:
            self.tensors.used.copy_(torch.tensor(used, dtype=torch.int32))
            self._used = used
        self._begin(max_norm)
        self._begun = True
        return self.tensors.norm[0]

    def _read_groups(self, optimizer: torch.optim.Optimizer) -> None:
        """Copy the learning rates and, where they have changed, the other settings to the device."""
        if getattr(optimizer, "grad_scale", None) is not None:
            raise UserError("a GradScaler scales the gradients of fp16: flat parameters are for bf16, without one")
        groups = optimizer.param_groups
        if sum(len(group["params"]) for group in groups) != len(self.parameters) or len(groups) != len(
            self.tensors.settings
        ):
            raise UserError(
                "parameter groups were added to an optimiser with flat parameters: add them before the first"
            )
        settings = []
        for index, group in enumerate(groups):
            rate = group["lr"]
            if isinstance(rate, Tensor):
                self.tensors.rates[index].copy_(rate)
            else:
                self.tensors.rates[index].fill_(rate)
            betas = [float(beta) for beta in group["betas"]]
            logs = [math.log2(beta) if beta else -math.inf for beta in betas]
            settings.append([*logs, *(1.0 - beta for beta in betas), group["eps"], group["weight_decay"]])
        if settings != self._settings:
            self.tensors.settings.copy_(torch.tensor(settings, dtype=torch.float64))
            self._settings = settings

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer, *, clear: bool) -> None:
        """Take a step by all gradients, which `clear` then zeroes; nothing changes if their norm is not finite."""
        from fastbert.kernels.optimizer import adamw

        if not self._begun:
            self.begin(optimizer)
        self._begun = False
        adamw.update(self.tensors, clear=clear)
        # The kernel's write is one that torch does not count.
        torch.autograd.graph.increment_version(self.parameters)
        self._versions = [parameter._version for parameter in self.parameters]

    @torch.no_grad()
    def zero_grad(self) -> None:
        """Zero all gradients; parameters that were used stay in use."""
        self.tensors.gradients.zero_()
        for parameter, view in zip(self.parameters, self._gradients, strict=True):
            if parameter.grad is not None:
                parameter.grad = view
        self._begun = False


def _take_state(state: dict[str, Any], views: dict[str, Tensor]) -> None:
    """Make the state of a parameter the views of the buffers, with the values that it has: of a checkpoint."""
    for name, view in views.items():
        value = state.get(name)
        if value is view:
            continue
        if value is None:
            view.zero_()
        else:
            view.copy_(value)
        state[name] = view


def _ordered(model: nn.Module, groups: Sequence[dict[str, Any]]) -> list[nn.Parameter]:
    """Return the parameters of `groups`, those that belong together behind one another."""
    trained = {id(parameter): parameter for group in groups for parameter in group["params"]}
    ordered: dict[int, nn.Parameter] = {}
    for module in model.modules():
        parameters = module.fusible_parameters() if isinstance(module, Layer) else None
        for names in JOINED if parameters is not None else ():
            members = [getattr(parameters, name) for name in names]
            if all(id(member) in trained for member in members):
                ordered |= {id(member): member for member in members}
    return list((ordered | trained).values())

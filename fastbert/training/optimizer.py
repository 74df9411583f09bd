"""AdamW with a native step on CPUs."""

from __future__ import annotations

import contextlib
import inspect
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fastbert import _C
from fastbert.errors import KernelError, UserError
from fastbert.ops.native import prepacked_weights

if TYPE_CHECKING:
    from fastbert.training.flat_parameters import FlatParameters

_PLAIN = frozenset((Tensor, nn.Parameter))


class GradientError(UserError):
    """A non-finite gradient; no weight has been changed. `where` names the parameter and the element."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"the gradient of {where}: no weight has been changed; lower the learning rate, or skip the batch with"
            " zero_grad()"
        )
        self.where = where


@dataclass(frozen=True)
class _Clip:
    """A pending factor of all gradients, and their addresses and versions."""

    factor: float
    gradients: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Entry:
    """A parameter with a gradient, its group, and its index in the group."""

    parameter: Tensor
    gradient: Tensor
    group: int
    index: int


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW, whose step on a CPU is one native pass over contiguous fp32 parameters and gradients.

    Arguments, state and state dict are torch's; the result has the bits of torch's fused step on x86 processors with
    FMA (the portable kernels round differently with a probability of 2^-29 per number). The pass also applies the
    factor of `clip_gradients` and rewrites prepacked weights. torch's step is used for amsgrad, maximize, foreach,
    capturable, differentiable, a learning rate in a tensor, other dtypes, devices and layouts, and under a GradScaler
    that checks for infinities itself.

    A non-finite gradient on a CPU raises `GradientError` before any weight changes; it names the parameter if the
    optimiser was given named parameters. A GradScaler and a capturable step skip such steps instead.

    After `flatten` a step is three Triton launches over flat buffers, without a host-device sync.
    """

    changed_by_torch: Sequence[Tensor] | None = None
    """The parameters that torch's step updated last; the prepacked copies of all others are up to date."""
    flat: FlatParameters | None = None
    """The flat buffers of all parameters after `flatten`."""
    _clip: _Clip | None = None
    # The wrapped method imports torch's compiler on its first call, which takes seconds.
    add_param_group = inspect.unwrap(torch.optim.AdamW.add_param_group)

    def flatten(self, model: nn.Module, dtype: torch.dtype) -> FlatParameters:
        """Move the parameters, fp32 on one device, into flat buffers, with a copy of the weights in `dtype`.

        `model` tells which parameters belong together. From then on gradients are views of a buffer that `zero_grad`
        and `step(clear=True)` zero; parameters that no backward pass has reached have none, and are left alone. A
        non-finite norm skips the step. Raises `UserError` for settings that the kernels lack.
        """
        from fastbert.training.flat_parameters import FlatParameters

        for group in self.param_groups:
            unsupported = [name for name in ("amsgrad", "maximize", "differentiable") if group[name]]
            if unsupported or any(isinstance(beta, Tensor) for beta in group["betas"]):
                raise UserError(
                    f"flat parameters do not support {unsupported[0] if unsupported else 'betas in tensors'}"
                )
        self.flat = FlatParameters(model, self.param_groups, dtype)
        return self.flat

    def flatten_if_faster(self, model: nn.Module, device: torch.device, dtype: torch.dtype) -> str | None:
        """Flatten the parameters of a run whose matmuls are in `dtype` where that makes its steps faster.

        Return the reason if they stay ordinary. The kernels of a step are compiled here.
        """
        from fastbert.training import flat_parameters

        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        reason = flat_parameters.reason_not_flat(parameters, device, dtype)
        if reason is None:
            try:
                self.flatten(model, dtype).compile()
            except KernelError as error:
                self.flat, reason = None, str(error)
        return reason

    def copies(self) -> contextlib.AbstractContextManager[None]:
        """Let layers multiply by the copies of their weights, if they are flat, in the passes of the block."""
        return contextlib.nullcontext() if self.flat is None else self.flat.active()

    def step(self, closure: Callable[[], Any] | None = None, *, clear: bool = False) -> Any:
        """Take a step; return the result of `closure`, which recomputes the gradients.

        `clear` zeroes the gradients in the same pass, in place of `zero_grad(set_to_none=False)`. Where nothing holds
        the gradients, `zero_grad()` is faster: their memory is reused, and the next backward writes without reading.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.changed_by_torch = None
        if self.flat is not None:
            self.flat.step(self, clear=clear)
            return loss
        with torch.no_grad():
            used = self._used()
            scaled = getattr(self, "grad_scale", None) is not None or getattr(self, "found_inf", None) is not None
            native = [] if scaled else [entry for entry in used if self._is_supported(entry)]
            clip, self._clip = self._clip, None
            if clip is None or clip.gradients != _versions(used):
                if clip is not None and clip.factor != 1.0:
                    raise UserError("gradients changed between clip_gradients and step: clip them last, then step")
                if not scaled:
                    self._check(used)
            factor = 1.0 if clip is None else clip.factor
            if native and not self._native_step(native, factor, clear):
                native = []
            taken = {id(entry.parameter) for entry in native}
            self._torch_step([entry for entry in used if id(entry.parameter) not in taken], factor, clear)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and a pending factor of `clip_gradients`."""
        self._clip = None
        if self.flat is not None:
            self.flat.zero_grad()
            return
        inspect.unwrap(torch.optim.AdamW.zero_grad)(self, set_to_none)

    @property
    def clip_factor(self) -> float:
        """Return the factor by which the next step multiplies all gradients."""
        return 1.0 if self._clip is None else self._clip.factor

    @torch.no_grad()
    def clip_gradients(self, max_norm: float) -> Tensor:
        """Clip the joint norm of all gradients to `max_norm` in the next step; return the norm before, a scalar.

        On a CPU this is one read-only pass: sums of squares in fp64 over fixed blocks. Elsewhere, and for gradients
        that are not fp32 and contiguous, torch scales them immediately. Raises `GradientError` as `step` does. After
        `flatten` the norm is an fp32 scalar on the device, which the next call overwrites.
        """
        if not max_norm >= 0.0:
            raise UserError(f"max_norm={max_norm} must be 0 or more")
        if self.flat is not None:
            return self.flat.begin(self, max_norm)
        used = self._used()
        if not all(_is_plain(entry.gradient) for entry in used):
            self._check(used)
            return nn.utils.clip_grad_norm_([entry.parameter for entry in used], max_norm)
        norm = torch.tensor(self._norm(used), dtype=torch.float64, device="cpu")
        # As torch computes it: in fp32 within its range.
        total = norm.float() if norm <= torch.finfo(torch.float32).max else norm
        factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
        self._clip = _Clip(float(factor), _versions(used))
        return norm

    def _used(self) -> list[_Entry]:
        return [
            _Entry(parameter, parameter.grad, group, index)
            for group, settings in enumerate(self.param_groups)
            for index, parameter in enumerate(settings["params"])
            if parameter.grad is not None
        ]

    def _is_supported(self, entry: _Entry) -> bool:
        """Return True if the native step supports a parameter; initialise its state like torch."""
        group = self.param_groups[entry.group]
        options = ("amsgrad", "maximize", "foreach", "capturable", "differentiable")
        if any(group[name] for name in options) or not group.get("decoupled_weight_decay", True):
            return False
        if isinstance(group["lr"], Tensor) or any(isinstance(beta, Tensor) for beta in group["betas"]):
            return False
        weight, gradient = entry.parameter, entry.gradient
        if not (_is_plain(weight) and _is_plain(gradient)) or weight.shape != gradient.shape or weight.is_inference():
            return False
        state = self.state[weight]
        if not state:
            state["step"] = torch.tensor(0.0, dtype=torch.float32, device=weight.device)
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
        moments = [state.get("exp_avg"), state.get("exp_avg_sq")]
        step = state.get("step")
        return (
            all(x is not None and _is_plain(x) and x.shape == weight.shape for x in moments)
            and isinstance(step, Tensor)
            and _is_plain(step)
            and step.numel() == 1
        )

    def _native_step(self, entries: Sequence[_Entry], factor: float, clear: bool) -> bool:
        """Take the step; return False, with nothing written, if tensors share memory."""
        parameters = []
        for entry in entries:
            weight, state = entry.parameter, self.state[entry.parameter]
            rows, columns = weight.shape if weight.dim() == 2 else (1, weight.numel())
            tensors = (weight, entry.gradient, state["exp_avg"], state["exp_avg_sq"], state["step"])
            w, g, m, v, steps = (x.data_ptr() for x in tensors)
            parameters.append((w, g, m, v, steps, rows, columns, entry.group))
        settings = []
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            values = (group["lr"], beta1, beta2, group["eps"], group["weight_decay"])
            # Groups with tensors as values are not used here.
            lr, beta1, beta2, eps, decay = (0.0 if isinstance(value, Tensor) else float(value) for value in values)
            settings.append((lr, beta1, beta2, eps, decay))
        refresh = prepacked_weights.Refresh([entry.parameter for entry in entries])
        if not _C.adamw(parameters, settings, refresh.parts, factor, clear):
            return False
        torch.autograd.graph.increment_version([entry.parameter for entry in entries])
        if clear:
            torch.autograd.graph.increment_version([entry.gradient for entry in entries])
        refresh.done()
        return True

    def _torch_step(self, rest: Sequence[_Entry], factor: float, clear: bool) -> None:
        """Take torch's step for these parameters, with the settings of their groups."""
        self.changed_by_torch = [entry.parameter for entry in rest]
        if not rest:
            return
        if factor != 1.0:
            torch._foreach_mul_([entry.gradient for entry in rest], factor)
        groups = self.param_groups
        self.param_groups = [
            {**group, "params": [entry.parameter for entry in rest if entry.group == index]}
            for index, group in enumerate(groups)
        ]
        # Hooks already run around this class's step.
        step: Any = torch.optim.AdamW.step
        while getattr(step, "hooked", False):
            step = step.__wrapped__
        try:
            step(self)
        finally:
            self.param_groups = groups
        if clear:
            torch._foreach_zero_([entry.gradient for entry in rest])

    def _norm(self, used: Sequence[_Entry]) -> float:
        """Return the joint norm of plain gradients. Raises `GradientError` if one is not finite."""
        total, bad = _C.sum_of_squares([(entry.gradient.data_ptr(), entry.gradient.numel()) for entry in used])
        if bad is not None:
            tensor, element = bad
            raise self._error(used[tensor], element)
        return math.sqrt(total)

    def _check(self, used: Sequence[_Entry]) -> None:
        """Raise `GradientError` for a non-finite gradient on a CPU."""
        plain = [entry for entry in used if _is_plain(entry.gradient)]
        self._norm([entry for entry in plain if not self.param_groups[entry.group]["capturable"]])
        for entry in used:
            gradient = entry.gradient
            if _is_plain(gradient) or gradient.device.type != "cpu" or self.param_groups[entry.group]["capturable"]:
                continue
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            if not bool(values.isfinite().all()):
                raise self._error(entry, int((~values.isfinite()).flatten().nonzero()[0]))

    def _error(self, entry: _Entry, element: int) -> GradientError:
        group, shape = self.param_groups[entry.group], tuple(entry.parameter.shape)
        names = group.get("param_names")
        name = names[entry.index] if names else f"parameter {entry.index} of group {entry.group}"
        gradient = entry.gradient.coalesce().values() if entry.gradient.is_sparse else entry.gradient
        index: list[int] = []
        rest = element
        for size in reversed(gradient.shape):
            rest, coordinate = divmod(rest, size)
            index.insert(0, coordinate)
        return GradientError(f"{name}, of shape {shape}, is {float(gradient[tuple(index)])} at {index}")


def _is_plain(x: Tensor) -> bool:
    """Return True if a tensor is contiguous fp32 memory on the CPU that the native step can access."""
    return (
        type(x) in _PLAIN
        and x.is_cpu
        and x.dtype == torch.float32
        and x.layout == torch.strided
        and x.is_contiguous()
        and not x.is_neg()
        and (x.data_ptr() != 0 or x.numel() == 0)
    )


def _versions(used: Sequence[_Entry]) -> tuple[tuple[int, int], ...]:
    """Return the gradients' addresses and versions, which change when one is written or replaced."""
    return tuple(
        (entry.gradient.data_ptr(), -1 if entry.gradient.is_inference() else entry.gradient._version) for entry in used
    )


def decayed(name: str, parameter: nn.Parameter) -> bool:
    """Return True unless a parameter is a bias or a LayerNorm's (Devlin et al. 2019, appendix A.2 and its code)."""
    return parameter.dim() > 1 and "LayerNorm" not in name and not name.endswith("bias")


def adamw(model: nn.Module, *, lr: float, weight_decay: float) -> AdamW:
    """Return AdamW with betas 0.9 and 0.999, eps 1e-6, and weight decay on matrices only."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [(name, p) for name, p in named if decayed(name, p)], "weight_decay": weight_decay},
        {"params": [(name, p) for name, p in named if not decayed(name, p)], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=lr, betas=(0.9, 0.999), eps=1e-6, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of the next step, rounded to fp32.

    A step in a CUDA graph reads its rate from an fp32 tensor; rounding it everywhere gives both kinds equal bits.
    """
    (rounded,) = struct.unpack("f", struct.pack("f", lr))
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rounded)
        else:
            group["lr"] = rounded


def make_capturable(optimizer: torch.optim.AdamW, device: torch.device) -> tuple[Tensor, Tensor]:
    """Prepare AdamW for CUDA graphs: its rate becomes a tensor on the device, shared by all groups.

    Return an fp32 scalar that disables a step while it is 1 (for a non-finite gradient), and the rate.
    """
    lr = torch.tensor(float(optimizer.param_groups[0]["lr"]), dtype=torch.float32, device=device)
    for group in optimizer.param_groups:
        group["lr"], group["capturable"] = lr, True
    skip = torch.zeros((), dtype=torch.float32, device=device)
    optimizer.found_inf = skip  # type: ignore[attr-defined]  # where torch's fused step looks for it
    return skip, lr


def clip_and_step(
    optimizer: torch.optim.AdamW, parameters: Iterable[nn.Parameter], max_norm: float, skip: Tensor
) -> Tensor:
    """Clip the joint norm of all gradients to `max_norm` and take a step, without a host-device sync.

    A norm that is not finite changes no weight: `skip`, the optimiser's `found_inf`, then becomes 1. Return the norm,
    an fp32 scalar, which the next call may overwrite. Gradients are zeroed if the optimiser is flat.
    """
    if isinstance(optimizer, AdamW) and optimizer.flat is not None:
        norm = optimizer.clip_gradients(max_norm)
        optimizer.step(clear=True)
        return norm
    norm = clip_gradients(parameters, max_norm)
    skip.copy_(norm.isfinite().logical_not())
    optimizer.step()
    return norm


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Clip the joint norm of all gradients to `max_norm`; return the norm before, an fp32 scalar."""
    return nn.utils.clip_grad_norm_(parameters, max_norm)

"""AdamW as BERT uses it, its native step on CPUs, and the learning-rate schedule."""

from __future__ import annotations

import inspect
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fastbert import _C
from fastbert.errors import UserError
from fastbert.ops.native import prepacked_weights

_PLAIN = frozenset((Tensor, nn.Parameter))


class GradientError(UserError):
    """A gradient holds a number that is not finite; no weight has been changed. `where` names parameter and place."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"the gradient of {where}: no weight has been changed; lower the learning rate, or skip the batch with"
            " zero_grad()"
        )
        self.where = where


@dataclass(frozen=True)
class _Clip:
    """What all gradients are still to be multiplied by, and which they were: addresses and versions."""

    factor: float
    gradients: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Used:
    """A parameter with a gradient, and where it stands: its place in its group."""

    parameter: Tensor
    gradient: Tensor
    group: int
    place: int


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW, whose step on a CPU is one native pass over contiguous fp32 parameters and gradients.

    Arguments, state and state dict are torch's; the result has the bits of torch's fused step on x86 processors with
    FMA (from the portable kernels, with a chance of 2^-29 a number, a neighbouring one). The pass also applies the
    factor of `clip_gradients` and writes the packed copies of the weights anew. What it does not serve (amsgrad,
    maximize, foreach, capturable, differentiable, a learning rate in a tensor, other dtypes, devices and layouts, and
    steps under a GradScaler that looks for infinities itself) takes torch's step.

    A gradient on a CPU that is not finite raises `GradientError`, which names the parameter, before any weight changes;
    give the optimiser named parameters for that. Not under a GradScaler or in a capturable step, which skip such steps.
    """

    changed_by_torch: Sequence[Tensor] | None = None
    """Of the last step: the parameters that took torch's; the packed copies of the others are fresh."""
    _clip: _Clip | None = None
    # torch's own imports its compiler when it is first called, which takes seconds.
    add_param_group = inspect.unwrap(torch.optim.AdamW.add_param_group)

    def step(self, closure: Callable[[], Any] | None = None, *, clear: bool = False) -> Any:
        """One step; returns what `closure`, which computes the gradients anew, returned.

        `clear` writes zeros to the gradients in the pass, for those who keep them and would call
        `zero_grad(set_to_none=False)` next. Where nothing keeps them `zero_grad()` is better: their memory is used
        again, and the next backward writes it without reading.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.changed_by_torch = None
        with torch.no_grad():
            used = self._used()
            scaled = getattr(self, "grad_scale", None) is not None or getattr(self, "found_inf", None) is not None
            ours = [] if scaled else [one for one in used if self._serves(one)]
            clip, self._clip = self._clip, None
            if clip is None or clip.gradients != _versions(used):
                if clip is not None and clip.factor != 1.0:
                    raise UserError("gradients changed between clip_gradients and step: clip them last, then step")
                if not scaled:
                    self._check(used)
            factor = 1.0 if clip is None else clip.factor
            if ours and not self._native_step(ours, factor, clear):
                ours = []
            taken = {id(one.parameter) for one in ours}
            self._torch_step([one for one in used if id(one.parameter) not in taken], factor, clear)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """torch's, and forgets a factor of `clip_gradients` that no step has applied."""
        self._clip = None
        inspect.unwrap(torch.optim.AdamW.zero_grad)(self, set_to_none)

    @property
    def clip_factor(self) -> float:
        """What the next step multiplies all gradients by."""
        return 1.0 if self._clip is None else self._clip.factor

    @torch.no_grad()
    def clip_gradients(self, max_norm: float) -> Tensor:
        """Have the next step scale all gradients so that their joint norm is at most `max_norm`; returns the norm
        before, a scalar.

        On a CPU this is one pass that only reads: sums of squares in fp64, cut at fixed places. Elsewhere, and for
        gradients that are not fp32 and contiguous, torch scales them at once. Raises GradientError as `step` does.
        """
        if not max_norm >= 0.0:
            raise UserError(f"max_norm={max_norm} must be 0 or more")
        used = self._used()
        if not all(_is_plain(one.gradient) for one in used):
            self._check(used)
            return nn.utils.clip_grad_norm_([one.parameter for one in used], max_norm)
        norm = torch.tensor(self._norm(used), dtype=torch.float64, device="cpu")
        # As torch computes it, in fp32 as far as that reaches.
        total = norm.float() if norm <= torch.finfo(torch.float32).max else norm
        factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
        self._clip = _Clip(float(factor), _versions(used))
        return norm

    def _used(self) -> list[_Used]:
        return [
            _Used(parameter, parameter.grad, group, place)
            for group, settings in enumerate(self.param_groups)
            for place, parameter in enumerate(settings["params"])
            if parameter.grad is not None
        ]

    def _serves(self, one: _Used) -> bool:
        """Whether the native step takes a parameter; makes its state as torch does."""
        group = self.param_groups[one.group]
        if any(group[name] for name in ("amsgrad", "maximize", "foreach", "capturable", "differentiable")):
            return False
        if not group.get("decoupled_weight_decay", True):
            return False
        if isinstance(group["lr"], Tensor) or any(isinstance(beta, Tensor) for beta in group["betas"]):
            return False
        weight, gradient = one.parameter, one.gradient
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

    def _native_step(self, ours: Sequence[_Used], factor: float, clear: bool) -> bool:
        """Take the step; False, with nothing written, where tensors share memory."""
        parameters = []
        for one in ours:
            weight, state = one.parameter, self.state[one.parameter]
            rows, columns = weight.shape if weight.dim() == 2 else (1, weight.numel())
            tensors = (weight, one.gradient, state["exp_avg"], state["exp_avg_sq"], state["step"])
            w, g, m, v, steps = (x.data_ptr() for x in tensors)
            parameters.append((w, g, m, v, steps, rows, columns, one.group))
        settings = []
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            values = (group["lr"], beta1, beta2, group["eps"], group["weight_decay"])
            # Those of a group with tensors among them are not used here.
            lr, beta1, beta2, eps, decay = (0.0 if isinstance(value, Tensor) else float(value) for value in values)
            settings.append((lr, beta1, beta2, eps, decay))
        refresh = prepacked_weights.Refresh([one.parameter for one in ours])
        if not _C.adamw(parameters, settings, refresh.parts, factor, clear):
            return False
        torch.autograd.graph.increment_version([one.parameter for one in ours])
        if clear:
            torch.autograd.graph.increment_version([one.gradient for one in ours])
        refresh.done()
        return True

    def _torch_step(self, rest: Sequence[_Used], factor: float, clear: bool) -> None:
        """torch's own step of these parameters, each with its group's settings."""
        self.changed_by_torch = [one.parameter for one in rest]
        if not rest:
            return
        if factor != 1.0:
            torch._foreach_mul_([one.gradient for one in rest], factor)
        every = self.param_groups
        self.param_groups = [
            {**group, "params": [one.parameter for one in rest if one.group == index]}
            for index, group in enumerate(every)
        ]
        # Hooks run round our step already.
        step: Any = torch.optim.AdamW.step
        while getattr(step, "hooked", False):
            step = step.__wrapped__
        try:
            step(self)
        finally:
            self.param_groups = every
        if clear:
            torch._foreach_zero_([one.gradient for one in rest])

    def _norm(self, used: Sequence[_Used]) -> float:
        """The joint norm of plain gradients; GradientError where it has none."""
        total, bad = _C.sum_of_squares([(one.gradient.data_ptr(), one.gradient.numel()) for one in used])
        if bad is not None:
            tensor, element = bad
            raise self._error(used[tensor], element)
        return math.sqrt(total)

    def _check(self, used: Sequence[_Used]) -> None:
        """Raise GradientError where a gradient on a CPU is not finite."""
        plain = [one for one in used if _is_plain(one.gradient)]
        self._norm([one for one in plain if not self.param_groups[one.group]["capturable"]])
        for one in used:
            gradient = one.gradient
            if _is_plain(gradient) or gradient.device.type != "cpu" or self.param_groups[one.group]["capturable"]:
                continue
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            if not bool(values.isfinite().all()):
                raise self._error(one, int((~values.isfinite()).flatten().nonzero()[0]))

    def _error(self, one: _Used, element: int) -> GradientError:
        group, shape = self.param_groups[one.group], tuple(one.parameter.shape)
        names = group.get("param_names")
        name = names[one.place] if names else f"parameter {one.place} of group {one.group}"
        gradient = one.gradient.coalesce().values() if one.gradient.is_sparse else one.gradient
        index: list[int] = []
        rest = element
        for size in reversed(gradient.shape):
            rest, at = divmod(rest, size)
            index.insert(0, at)
        value = float(gradient[tuple(index)])
        return GradientError(f"{name}, of shape {shape}, is {value} at {index}")


def _is_plain(x: Tensor) -> bool:
    """Whether the native step may read and write a tensor's memory as so many fp32 numbers."""
    return (
        type(x) in _PLAIN
        and x.is_cpu
        and x.dtype == torch.float32
        and x.layout == torch.strided
        and x.is_contiguous()
        and not x.is_neg()
        and (x.data_ptr() != 0 or x.numel() == 0)
    )


def _versions(used: Sequence[_Used]) -> tuple[tuple[int, int], ...]:
    """What changes when somebody writes to a gradient or puts another in its place."""
    return tuple(
        (one.gradient.data_ptr(), -1 if one.gradient.is_inference() else one.gradient._version) for one in used
    )


def decayed(name: str, parameter: nn.Parameter) -> bool:
    """Whether weight decay applies: not to biases and LayerNorm (Devlin et al. 2019, appendix A.2 and its code)."""
    return parameter.dim() > 1 and "LayerNorm" not in name and not name.endswith("bias")


def adamw(model: nn.Module, *, lr: float, weight_decay: float) -> AdamW:
    """AdamW with betas 0.9 and 0.999, eps 1e-6, decay on matrices only; what ours leaves to torch is fused there."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [(name, p) for name, p in named if decayed(name, p)], "weight_decay": weight_decay},
        {"params": [(name, p) for name, p in named if not decayed(name, p)], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=lr, betas=(0.9, 0.999), eps=1e-6, fused=True)


def learning_rate_factor(progress: float, warmup: float) -> float:
    """Linear warm-up over the first `warmup` of the run, then linear decay to zero; `progress` from 0 to 1."""
    if progress < warmup:
        return progress / warmup
    return (1.0 - progress) / (1.0 - warmup)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Use `lr`, rounded to fp32, for the next step.

    A step in a CUDA graph reads its rate from an fp32 tensor: rounded everywhere, both kinds of step give equal bits.
    """
    (rounded,) = struct.unpack("f", struct.pack("f", lr))
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rounded)
        else:
            group["lr"] = rounded


def make_capturable(optimizer: torch.optim.AdamW, device: torch.device) -> tuple[Tensor, Tensor]:
    """Prepare AdamW for CUDA graphs: its rate becomes a tensor on the device, shared by all groups.

    Returns the fp32 scalar that makes a step change nothing while it is 1 (for a gradient that is not finite), and the
    rate.
    """
    lr = torch.tensor(float(optimizer.param_groups[0]["lr"]), dtype=torch.float32, device=device)
    for group in optimizer.param_groups:
        group["lr"], group["capturable"] = lr, True
    skip = torch.zeros((), dtype=torch.float32, device=device)
    optimizer.found_inf = skip  # type: ignore[attr-defined]  # where torch's fused step looks for it
    return skip, lr


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale all gradients so that their joint norm is at most `max_norm`; returns the norm before, fp32 scalar."""
    return nn.utils.clip_grad_norm_(parameters, max_norm)

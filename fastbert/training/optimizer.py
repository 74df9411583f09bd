"""AdamW, StableAdamW and LAMB with a native step on CPUs and one over flat buffers on GPUs.

One file: the three share state, checks and steps, and differ in a rule.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from fastbert import _C
from fastbert.errors import KernelError, UserError
from fastbert.ops.native import prepacked_weights
from fastbert.training.optimizer_entries import Clip, Entry, is_plain, local, used_entries, versions
from fastbert.training.update_rules import Part, ReduceSums, Rule, rate_scales, torch_step

if TYPE_CHECKING:
    from fastbert.training.flat_parameters import FlatParameters


class GradientError(UserError):
    """A non-finite gradient; no weight has been changed. `where` names the parameter and the element."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"the gradient of {where}: no weight has been changed; lower the learning rate, or skip the batch with"
            " zero_grad()"
        )
        self.where = where


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW, whose step on a CPU is one native pass over contiguous fp32 parameters and gradients.

    Arguments, state and state dict are torch's; the result has the bits of torch's fused step on x86 processors with
    FMA (the portable kernels round differently with a probability of 2^-29 per number). The pass also applies the
    factor of `clip_gradients` and rewrites prepacked weights. torch's step is used for amsgrad, maximize, foreach,
    capturable, differentiable, a learning rate in a tensor, other dtypes, devices and layouts, and under a GradScaler
    that checks for infinities itself.

    A non-finite gradient on a CPU raises `GradientError` before any weight changes; it names the parameter if the
    optimiser was given named parameters. A GradScaler and a capturable step skip such steps instead.

    After `flatten` a step is three Triton launches over flat buffers, without a host-device sync; two more for
    StableAdamW and LAMB.

    With `masters` the state of a parameter in half precision has an fp32 copy of it, `master`, beside fp32 moments: the
    step updates the copy and rounds it to the parameter. The native step supports bf16.

    Parameters may be DTensors, as FSDP2 makes them: each process updates its own shards, and `reduce_sums` sums over
    the processes what the norm of all gradients, StableAdamW and LAMB need.
    """

    RULE: ClassVar[Rule] = "adamw"
    reduce_sums: ReduceSums | None = None
    """Returns the sum of an fp64 tensor over the processes that hold shards of the parameters; None: not sharded."""

    changed_by_torch: list[Tensor] | None = None
    """The parameters that torch's step updated last; the prepacked copies of all others are up to date."""
    flat: FlatParameters | None = None
    """The flat buffers of all parameters after `flatten`."""
    _clip: Clip | None = None
    # The wrapped method imports torch's compiler on its first call, which takes seconds.
    add_param_group: Callable[..., None] = inspect.unwrap(torch.optim.AdamW.add_param_group)

    def __init__(self, params: Any, *arguments: Any, masters: bool = False, **options: Any) -> None:
        super().__init__(params, *arguments, **options)
        self.defaults["masters"] = masters  # copies of an optimiser keep nothing else

    @property
    def masters(self) -> bool:
        """Return whether parameters in half precision have fp32 masters in the state."""
        return bool(self.defaults.get("masters"))

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
        self.flat = FlatParameters(model, self.param_groups, dtype, self.RULE)
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

    def share(self, rank: int, size: int, sum_over_processes: Callable[[Tensor], object]) -> None:
        """Share out what each process would compute of a step in the same way: nothing of AdamW's."""

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
            used = used_entries(self.param_groups)
            scaled = getattr(self, "grad_scale", None) is not None or getattr(self, "found_inf", None) is not None
            clip, self._clip = self._clip, None
            if clip is None or clip.gradients != versions(used):
                if clip is not None and clip.factor != 1.0:
                    raise UserError("gradients changed between clip_gradients and step: clip them last, then step")
                if not scaled:
                    self._check(used)
            factor = 1.0 if clip is None else clip.factor
            rest = self._special_step(used, factor, clear)
            native = [] if scaled else [entry for entry in rest if self._is_supported(entry)]
            if native and not self._native_step(native, factor, clear):
                native = []
            taken = {id(entry.parameter) for entry in native}
            self._torch_step([entry for entry in rest if id(entry.parameter) not in taken], factor, clear)
            if len(rest) < len(used):
                left = {id(entry.parameter) for entry in rest}
                changed = [entry.parameter for entry in used if id(entry.parameter) not in left]
                self.changed_by_torch = [*(self.changed_by_torch or ()), *changed]
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
        used = used_entries(self.param_groups)
        if not all(is_plain(entry.gradient, *self._dtypes) for entry in used):
            self._check(used)
            return _whole(nn.utils.clip_grad_norm_([entry.parameter for entry in used], max_norm))
        norm = torch.tensor(self._norm(used), dtype=torch.float64, device="cpu")
        # As torch computes it: in fp32 within its range.
        total = norm.float() if norm <= torch.finfo(torch.float32).max else norm
        factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
        self._clip = Clip(float(factor), versions(used))
        return norm

    def _special_step(self, used: Sequence[Entry], factor: float, clear: bool) -> list[Entry]:
        """Take the step of parameters that a subclass updates in a way of its own; return the other entries."""
        return list(used)

    def _is_supported(self, entry: Entry) -> bool:
        """Return True if the native step supports a parameter; initialise its state like torch."""
        group = self.param_groups[entry.group]
        options = ("amsgrad", "maximize", "foreach", "capturable", "differentiable")
        if any(group[name] for name in options) or not group.get("decoupled_weight_decay", True):
            return False
        if isinstance(group["lr"], Tensor) or any(isinstance(beta, Tensor) for beta in group["betas"]):
            return False
        weight, gradient = entry.weight, entry.gradient
        if not (is_plain(weight, *self._dtypes) and is_plain(gradient, weight.dtype)):
            return False
        if weight.shape != gradient.shape or weight.is_inference():
            return False
        state = self._state(entry)
        names = ("exp_avg", "exp_avg_sq", *(["master"] if weight.dtype != torch.float32 else []))
        stored = [local(state[name]) if name in state else None for name in names]
        step = state.get("step")
        return (
            all(x is not None and is_plain(x) and x.shape == weight.shape for x in stored)
            and isinstance(step, Tensor)
            and is_plain(step)
            and step.numel() == 1
        )

    @property
    def _dtypes(self) -> tuple[torch.dtype, ...]:
        """Return the dtypes of parameters that the native step supports."""
        return (torch.float32, torch.bfloat16) if self.masters else (torch.float32,)

    def _state(self, entry: Entry) -> dict[str, Any]:
        """Return the state of a parameter, at first that of torch's optimiser and, if it has one, its master."""
        parameter, state = entry.parameter, self.state[entry.parameter]
        if not state:
            source = parameter.detach()
            if self.masters and source.dtype in (torch.bfloat16, torch.float16):
                state["master"] = source = source.float()
            state["step"] = torch.tensor(0.0, dtype=torch.float32, device=entry.weight.device)
            state["exp_avg"] = torch.zeros_like(source)
            state["exp_avg_sq"] = torch.zeros_like(source)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state dict; masters and what is beside them stay fp32, which torch casts to the parameter's dtype."""
        super().load_state_dict(dict(state_dict))
        indices = [index for group in state_dict["param_groups"] for index in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for index, parameter in zip(indices, parameters, strict=True):
            saved = state_dict["state"].get(index, {})
            for name in saved.keys() - {"step"} if "master" in saved else ():
                self.state[parameter][name] = saved[name].detach().to(parameter.device, torch.float32, copy=True)

    def _native_step(self, entries: Sequence[Entry], factor: float, clear: bool) -> bool:
        """Take the step; return False, with nothing written, if tensors share memory."""
        parameters, narrow = [], []
        for entry in entries:
            weight, state = entry.weight, self.state[entry.parameter]
            rows, columns = weight.shape if weight.dim() == 2 else (1, weight.numel())
            fp32 = weight.dtype == torch.float32
            tensors = (
                *(weight if fp32 else local(state["master"]), entry.gradient),
                *(local(state["exp_avg"]), local(state["exp_avg_sq"]), state["step"]),
            )
            w, g, m, v, steps = (x.data_ptr() for x in tensors)
            parameters.append((w, g, m, v, steps, rows, columns, entry.group))
            narrow.append(0 if fp32 else weight.data_ptr())
        settings = []
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            values = (group["lr"], beta1, beta2, group["eps"], group["weight_decay"])
            # Groups with tensors as values are not used here.
            lr, beta1, beta2, eps, decay = (0.0 if isinstance(value, Tensor) else float(value) for value in values)
            settings.append((lr, beta1, beta2, eps, decay))
        rates: list[float] = []
        if self.RULE != "adamw":
            sums = torch.tensor(_C.adam_sums(parameters, settings, factor, self.RULE, narrow), dtype=torch.float64)
            rates = self._rate_scales(entries, sums).tolist()
        refresh = prepacked_weights.Refresh([entry.parameter for entry in entries])
        if not _C.adamw(parameters, settings, refresh.parts, factor, clear, rates, narrow):
            return False
        torch.autograd.graph.increment_version([entry.parameter for entry in entries])
        if clear:
            torch.autograd.graph.increment_version([entry.gradient for entry in entries])
        refresh.done()
        return True

    def _rate_scales(self, entries: Sequence[Entry], sums: Tensor) -> Tensor:
        """Return the factors of the learning rate of parameters whose sums over their shards are given."""
        if self.reduce_sums is not None:
            sums = self.reduce_sums(sums)
        scales = torch.ones(len(entries), dtype=torch.float64)
        for group, settings in enumerate(self.param_groups):
            chosen = [i for i, entry in enumerate(entries) if entry.group == group]
            if chosen:
                sizes = [entries[i].parameter.numel() for i in chosen]
                scales[chosen] = rate_scales(self.RULE, sums[chosen], sizes, bool(settings["weight_decay"]))
        return scales

    def _torch_step(self, rest: Sequence[Entry], factor: float, clear: bool) -> None:
        """Take a step in PyTorch operations, with the settings of the parameters' groups: torch's own for AdamW."""
        self.changed_by_torch = [entry.parameter for entry in rest]
        if not rest:
            return
        if self.RULE != "adamw" or self.masters:
            self._rule_step(rest, factor)
            if clear:
                torch._foreach_zero_([entry.gradient for entry in rest])
            return
        if factor != 1.0:
            torch._foreach_mul_([entry.gradient for entry in rest], factor)
        groups = self.param_groups
        self.param_groups: list[dict[str, Any]] = [
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

    def _rule_step(self, rest: Sequence[Entry], factor: float) -> None:
        """Take the step of `update_rules`, group by group."""
        by_group: dict[tuple[int, torch.device], list[Entry]] = {}
        for entry in rest:
            by_group.setdefault((entry.group, entry.weight.device), []).append(entry)
        for (index, _), chosen in by_group.items():
            group, parts = self.param_groups[index], []
            for name in ("amsgrad", "maximize", "differentiable"):
                if group[name]:
                    raise UserError(f"{type(self).__name__} with {name} is not supported; leave {name} out")
            for entry in chosen:
                state, weight = self._state(entry), entry.weight
                master, narrow = (local(state["master"]), weight) if "master" in state else (weight, None)
                moments = (local(state["exp_avg"]), local(state["exp_avg_sq"]))
                size = entry.parameter.numel()
                parts.append(Part(master, entry.gradient, *moments, state["step"], narrow, size))
            torch_step(
                self.RULE,
                parts,
                group,
                grad_factor=factor,
                grad_scale=getattr(self, "grad_scale", None),
                found_inf=getattr(self, "found_inf", None),
                reduce_sums=self.reduce_sums,
            )

    def _norm(self, used: Sequence[Entry]) -> float:
        """Return the joint norm of plain gradients over all shards. Raises `GradientError` if one is not finite."""
        spans = [(entry.gradient.data_ptr(), entry.gradient.numel()) for entry in used]
        total, bad = _C.sum_of_squares(spans, [entry.gradient.dtype == torch.bfloat16 for entry in used])
        if self.reduce_sums is not None:  # all processes raise, or none
            sums = torch.tensor([math.nan if bad else total], dtype=torch.float64)
            total = float(self.reduce_sums(sums)[0])
        if bad is not None:
            tensor, element = bad
            raise self._error(used[tensor], element)
        if not math.isfinite(total):
            raise GradientError("a shard in another process is NaN or infinite")
        return math.sqrt(total)

    def _check(self, used: Sequence[Entry]) -> None:
        """Raise `GradientError` for a non-finite gradient on a CPU."""
        plain = [entry for entry in used if is_plain(entry.gradient, *self._dtypes)]
        self._norm([entry for entry in plain if not self.param_groups[entry.group]["capturable"]])
        for entry in used:
            gradient = entry.gradient
            if gradient.device.type != "cpu" or is_plain(gradient, *self._dtypes):
                continue
            if self.param_groups[entry.group]["capturable"]:
                continue
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            if not bool(values.isfinite().all()):
                raise self._error(entry, int((~values.isfinite()).flatten().nonzero()[0]))

    def _error(self, entry: Entry, element: int) -> GradientError:
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


class StableAdamW(AdamW):
    """AdamW whose learning rate is divided by the root mean square of a parameter's update if that is above 1.

    Wortsman et al. 2023, algorithm 2; see `update_rules`. Arguments, state, native step, flat buffers and errors are
    those of `AdamW`, with another pass that reads gradients and second moments. Needs no clipping of gradients.
    """

    RULE: ClassVar[Rule] = "stableadamw"


class Lamb(AdamW):
    """LAMB: AdamW whose step is scaled to a parameter's norm, for large batches.

    You et al. 2020, algorithm 2; see `update_rules`. Arguments, state, native step, flat buffers and errors are those
    of `AdamW`, with another pass that reads weights, gradients and moments.
    """

    RULE: ClassVar[Rule] = "lamb"


OPTIMIZERS: dict[Rule, type[AdamW]] = {kind.RULE: kind for kind in (AdamW, StableAdamW, Lamb)}


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
    """Clip the joint norm of all gradients to `max_norm`; return the norm before, an fp32 scalar, also of the parts of
    FSDP2."""
    parameters = list(parameters)
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients or any(gradient.dtype != torch.bfloat16 for gradient in gradients):
        return _whole(nn.utils.clip_grad_norm_(parameters, max_norm))
    # torch would round the norm and the factor to bf16.
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float32)))
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.copy_(gradient.float() * factor)
    return norm


def _whole(norm: Tensor) -> Tensor:
    """Return a norm as a plain tensor: that of DTensors is one too, of parts that are still to be summed."""
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

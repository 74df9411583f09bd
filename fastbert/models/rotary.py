"""Read the rotary embeddings of a config, and compute their tables (Su et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.io.untrusted_input import shown
from fastbert.ops.encoder_layer.spec import RotarySpec

# The ways to stretch frequencies whose tables do not depend on the input's length, and the numbers that they need.
KINDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
_OPTIONS = {
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "llama3": (),
    "linear": (),
    "default": (),
}
_ORIGINAL = "original_max_position_embeddings"


def rotary_parameters(values: Mapping[str, Any], theta: float) -> dict[str, Any]:
    """Return what a config.json says of rotary embeddings, `rope_parameters` or the older `rope_theta` and
    `rope_scaling`, as `rope_parameters`; `theta` is the architecture's own base."""
    parameters = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping):
        raise UserError(f"rope_parameters={shown(parameters)} must be an object")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    base = values.get("rope_theta")
    rest = {name: value for name, value in parameters.items() if name != "type"}
    return {"rope_theta": theta if base is None else base, **rest, "rope_type": kind}


def rotary_spec(parameters: Mapping[str, Any], width: int, longest: int) -> RotarySpec:
    """Return the spec of `rope_parameters` for heads of a width, in a model for texts of up to `longest` tokens.

    Raises `UserError` for an odd width, a base that is not positive, and for ways to stretch frequencies other than
    `KINDS`, or whose numbers are missing.
    """
    kind = parameters.get("rope_type", "default")
    if not isinstance(kind, str) or kind not in KINDS:
        raise UserError(f"rope_type={shown(kind)} is not supported: it must be one of {', '.join(KINDS)}")
    if parameters.get("partial_rotary_factor", 1.0) not in (None, 1, 1.0):
        raise UserError(
            f"partial_rotary_factor={shown(parameters['partial_rotary_factor'])} is not supported: heads turn whole"
        )
    base = parameters.get("rope_theta")
    if isinstance(base, bool) or not isinstance(base, int | float):
        raise UserError(f"rope_theta={shown(base)} must be a positive number")
    scaling: dict[str, float | str | bool] = {}
    if kind != "default":
        scaling["rope_type"] = kind
        original = parameters.get(_ORIGINAL)
        numbers = {name: parameters.get(name) for name in KINDS[kind]}
        numbers[_ORIGINAL] = longest if original is None else original
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise UserError(f"rope_parameters: {name}={shown(value)} must be a positive number for {kind!r}")
            scaling[name] = value
        for name in _OPTIONS[kind]:
            if parameters.get(name) is not None:
                value = parameters[name]
                if name != "truncate" and (isinstance(value, bool) or not isinstance(value, int | float)):
                    raise UserError(f"rope_parameters: {name}={shown(value)} must be a number")
                scaling[name] = value
    return RotarySpec(float(base), width, tuple(sorted(scaling.items())))


def frequencies(spec: RotarySpec) -> tuple[Tensor, float]:
    """Return the angles per position of a spec, fp32 (width / 2,), and the factor of their cosines and sines.

    Stretched by "linear" interpolation (Chen et al. 2023), by "yarn" (Peng et al. 2023), or as Llama 3.1's.
    """
    scaling, width = dict(spec.scaling), spec.width
    powers = spec.base ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    inverse = 1.0 / powers
    kind = scaling.get("rope_type", "default")
    if kind == "default":
        return inverse, 1.0
    factor, original = _number(scaling["factor"]), _number(scaling[_ORIGINAL])
    if kind == "linear":
        return inverse / factor, 1.0
    if kind == "llama3":
        low, high = _number(scaling["low_freq_factor"]), _number(scaling["high_freq_factor"])
        wavelengths = 2 * math.pi / inverse
        stretched = torch.where(wavelengths > original / low, inverse / factor, inverse)
        share = (original / wavelengths - low) / (high - low)
        between = (1 - share) * stretched / factor + share * stretched
        is_between = ~(wavelengths < original / high) & ~(wavelengths > original / low)
        return torch.where(is_between, between, stretched), 1.0
    return _yarn(powers, scaling, width, spec.base, factor, original)


def _yarn(
    powers: Tensor, scaling: Mapping[str, Any], width: int, base: float, factor: float, original: float
) -> tuple[Tensor, float]:
    """Return `frequencies` of YaRN: short wavelengths as they are, long ones interpolated, a ramp between."""

    def dim(rotations: float) -> float:
        return (width * math.log(original / (rotations * 2 * math.pi))) / (2 * math.log(base))

    low, high = dim(scaling.get("beta_fast") or 32), dim(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(width // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    inverse = 1.0 / (factor * powers) * (1 - kept) + 1.0 / powers * kept
    attention = scaling.get("attention_factor")
    if attention is None:
        scale, all_dims = scaling.get("mscale"), scaling.get("mscale_all_dim")
        both = bool(scale and all_dims)
        attention = _magnitude(factor, scale) / _magnitude(factor, all_dims) if both else _magnitude(factor)
    return inverse, float(attention)


def _magnitude(factor: float, weight: Any = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * float(weight) * math.log(factor) + 1.0


def _number(value: Any) -> float:
    assert isinstance(value, int | float)
    return value


def rotary_table(spec: RotarySpec, positions: Tensor) -> Tensor:
    """Return cosines, then sines, of the angles of positions int64 (rows,): fp32 (rows, width), on their device."""
    inverse, factor = frequencies(spec)
    angles = positions.to(torch.float32)[:, None] * inverse.to(positions.device)
    return torch.cat((angles.cos() * factor, angles.sin() * factor), dim=1)

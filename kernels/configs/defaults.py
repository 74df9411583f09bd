"""The default configurations of all kernels, by GPU and kernel, from every module of this package that has TABLES."""

from __future__ import annotations

import importlib
import pkgutil

import fastbert.kernels.configs as package
from fastbert.kernels.configs.configuration import Table

_modules = [
    importlib.import_module(f"{package.__name__}.{module.name}")
    for module in pkgutil.iter_modules(package.__path__)
    if module.name != "defaults"
]
_FAMILIES = [module for module in _modules if hasattr(module, "TABLES")]
DEFAULTS: dict[str, Table] = {}
for _family in _FAMILIES:
    for _target, _table in _family.TABLES.items():
        DEFAULTS.setdefault(_target, {}).update(_table)
# By kernel: the constants of its configurations, and the values that each may have.
SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    kernel: {name: family.SIZES[name] for name in next(iter(entries.values())).constants}
    for family in _FAMILIES
    for kernel, entries in family.TABLES["sm_90"].items()
}

"""The modules that operations add to their kernels' packages: compile cases, tuning cases."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from types import ModuleType

import fastbert.kernels


def operation_modules(name: str) -> list[ModuleType]:
    """Import the module `name` of every package of kernels that has one, in alphabetical order of the packages."""
    prefix = fastbert.kernels.__name__
    packages = (package.name for package in pkgutil.iter_modules(fastbert.kernels.__path__) if package.ispkg)
    paths = [f"{prefix}.{package}.{name}" for package in packages]
    return [importlib.import_module(path) for path in paths if importlib.util.find_spec(path) is not None]

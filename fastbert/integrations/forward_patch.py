"""Replace the forward of a module, and restore it."""

from __future__ import annotations

import inspect
from copy import copy
from typing import Any, Self

import torch
from torch import nn

from fastbert.integrations.module_checks import PATCH
from fastbert.io.log import logger
from fastbert.ops.compiling import is_exporting
from fastbert.ops.native import prepacked_weights


class ForwardPatch:
    """A replacement of one module's forward, which falls back to the original for unsupported calls."""

    def __init__(self, module: nn.Module, where: str) -> None:
        self.module = module
        self.where = where
        self.enabled: bool = True
        self.reasons: dict[str, None] = {}
        """Why calls fell back to the original forward, in order of first occurrence."""
        signature = inspect.signature(type(module).forward)
        self.__signature__: inspect.Signature = signature.replace(parameters=list(signature.parameters.values())[1:])

    @property
    def __code__(self) -> Any:
        """The code of the original forward, from which exporters read the names of its arguments."""
        return inspect.unwrap(type(self.module).forward).__code__

    def install(self) -> None:
        """Replace the module's forward, or update the earlier patch if another library has wrapped that."""
        before = patch_of(self.module)
        if before is not None and self.module.__dict__.get("forward") is not before:
            before.__dict__.update(self.__dict__)
            return
        self.module.__dict__[PATCH] = self
        self.module.__dict__["forward"] = self
        # torch copies a module by it for each of several GPUs in one process.
        self.module.__dict__["_replicate_for_data_parallel"] = self.replicate
        prepacked_weights.forget(self.module.parameters())

    def remove(self) -> None:
        """Restore the module's forward; a wrapper that was put around this one calls the original from now on."""
        self.enabled = False
        del self.module.__dict__[PATCH]
        self.module.__dict__.pop("_replicate_for_data_parallel", None)
        if self.module.__dict__.get("forward") is self:
            del self.module.__dict__["forward"]
        prepacked_weights.forget(self.module.parameters())

    def replicate(self) -> nn.Module:
        """Return a copy of the module, whose forward computes with the copy's weights."""
        replica: nn.Module = type(self.module)._replicate_for_data_parallel(self.module)
        patch = self.copy_for(replica)
        replica.__dict__.update({PATCH: patch, "forward": patch})
        return replica

    def copy_for(self, module: nn.Module) -> Self:
        """Return the same patch for another module."""
        other = copy(self)
        other.module = module
        return other

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.enabled:
            return self.original(*args, **kwargs)
        if torch.compiler.is_dynamo_compiling() and not is_exporting():
            from fastbert.ops.dynamo_break import outside_graph

            return outside_graph(self.compute, args, kwargs)
        return self.compute(*args, **kwargs)

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the module's output in place of its forward."""
        raise NotImplementedError

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward of the module's class."""
        return type(self.module).forward(self.module, *args, **kwargs)

    def fall_back(self, reason: str) -> None:
        """Record, and log once, why a call falls back to the original forward."""
        if reason not in self.reasons:
            self.reasons[reason] = None
            logger.warning("%s falls back to its original forward for calls with %s", self.where, reason)


def patch_of(module: nn.Module) -> ForwardPatch | None:
    """Return the patch of a module's forward, or None."""
    patch = module.__dict__.get(PATCH)
    return patch if isinstance(patch, ForwardPatch) else None

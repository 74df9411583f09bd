"""What stands in for a module's forward, and how it goes again."""

from __future__ import annotations

import inspect
import logging
from copy import copy
from typing import Any, Self

import torch
from torch import nn

from fastbert.integrations.module_checks import KEPT
from fastbert.ops.native import prepacked_weights

logger = logging.getLogger("fastbert")


class Replaced:
    """Knows the module, and takes the original forward where it must."""

    def __init__(self, module: nn.Module, where: str) -> None:
        self.module = module
        self.where = where
        self.enabled = True
        self.reasons: dict[str, None] = {}
        """Why calls took the original forward, in the order in which that first happened."""
        signature = inspect.signature(type(module).forward)
        self.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])

    @property
    def __code__(self) -> Any:
        """What exporters read the names of a forward's arguments from."""
        return inspect.unwrap(type(self.module).forward).__code__

    def put(self) -> None:
        """Become the module's forward, or part of it where another library has wrapped one of ours."""
        before = kept(self.module)
        if before is not None and self.module.__dict__.get("forward") is not before:
            before.__dict__.update(self.__dict__)
            return
        self.module.__dict__[KEPT] = self
        self.module.__dict__["forward"] = self
        # By which torch copies a module for each of several GPUs in one process.
        self.module.__dict__["_replicate_for_data_parallel"] = self.replicate
        prepacked_weights.forget(self.module.parameters())

    def take_away(self) -> None:
        """Give the module its own forward back; what has wrapped this one meanwhile calls that from now on."""
        self.enabled = False
        del self.module.__dict__[KEPT]
        self.module.__dict__.pop("_replicate_for_data_parallel", None)
        if self.module.__dict__.get("forward") is self:
            del self.module.__dict__["forward"]
        prepacked_weights.forget(self.module.parameters())

    def replicate(self) -> nn.Module:
        """A copy of the module whose forward computes with the copy's weights."""
        replica: nn.Module = type(self.module)._replicate_for_data_parallel(self.module)
        own = self.of(replica)
        replica.__dict__.update({KEPT: own, "forward": own})
        return replica

    def of(self, module: nn.Module) -> Self:
        """The same for another module."""
        other = copy(self)
        other.module = module
        return other

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.enabled:
            return self.original(*args, **kwargs)
        if torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting():
            from fastbert.integrations.dynamo_break import outside_graph

            return outside_graph(self.compute, args, kwargs)
        return self.compute(*args, **kwargs)

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes now."""
        raise NotImplementedError

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """What the module's class computes."""
        return type(self.module).forward(self.module, *args, **kwargs)

    def fall_back(self, reason: str) -> None:
        """Say once that, and why, calls take the original forward."""
        if reason not in self.reasons:
            self.reasons[reason] = None
            logger.warning("%s takes its original forward for calls with %s", self.where, reason)


def kept(module: nn.Module) -> Replaced | None:
    """What stands in for a module's forward, if anything does."""
    found = module.__dict__.get(KEPT)
    return found if isinstance(found, Replaced) else None

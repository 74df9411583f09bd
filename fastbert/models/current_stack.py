"""The stack that computes the layers of a model in inference, made again when the model has changed.

For one short text, finding out layer by layer whether the parameters alone decide what a layer computes, and whether
the copies of its weights are fresh, takes as long as the kernels. Here one look at the whole encoder does: are its
modules, their hooks and their parameters the same objects, and is their memory unchanged, as far as `prepacked_weights`
tells?
"""

from __future__ import annotations

import weakref
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from fastbert.models.encoder_stack import EncoderStack, stack_of
from fastbert.models.modules import Encoder
from fastbert.ops.native import prepacked_weights

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
ATTRIBUTES = ("quantization", "spec", "eps", "position_offset", "max_norm", "padding_idx")
"""What modules of the stack have besides parameters."""


def current_stack(model: Any, tokens: int) -> EncoderStack | None:
    """Return the stack that computes the layers of a model for a batch of so many tokens, with their bits; None where
    they compute themselves: with gradients, for layers that are not BERT's, with hooks or adapters, and for
    batches that are large enough to hash all bytes of the weights (`prepacked_weights`)."""
    encoder = model.encoder
    if not isinstance(encoder, Encoder):
        return None
    if encoder.stack is not None:
        return encoder.stack  # the model does not change
    if torch.is_grad_enabled() or encoder.training:
        _stacks.pop(encoder, None)  # the copies are repacked in place if nothing else refers to them
        return None
    if prepacked_weights.CHECK_ALL or tokens >= min(prepacked_weights.HASHED_ROWS.values()):
        return None
    if torch.compiler.is_compiling() or _has_any_global_hook():
        return None
    cached = _stacks.get(encoder)
    if cached is None or not cached.is_current(model):
        cached = _stacks[encoder] = _CachedStack(model)
    return cached.stack


class _CachedStack:
    """A stack, or None for a model that has none, and what must be unchanged for it to be valid."""

    def __init__(self, model: Any) -> None:
        self._changes = prepacked_weights.changes()
        self._parts = _other_parts(model)
        self._structure = _Structure(model.encoder, model.embeddings)
        self.stack = None if self._structure.has_hooks else stack_of(model)
        tensors = [] if self.stack is None else [*model.encoder.parameters()]  # the embeddings' are read anyway
        if any(tensor.is_inference() for tensor in tensors):  # without a count of their changes
            self.stack, tensors = None, []
        self._matrices = [tensor for tensor in tensors if tensor.dim() > 1]
        self._vectors = [tensor for tensor in tensors if tensor.dim() == 1]
        self._memory = self._read_memory()

    def is_current(self, model: Any) -> bool:
        """Return whether nothing has changed; two models may share an encoder."""
        if self._changes != prepacked_weights.changes() or self._parts != _other_parts(model):
            return False
        if not self._structure.is_current():
            return False
        if self.stack is None:
            return True
        return self._memory == self._read_memory() and self.stack.is_current()

    def _read_memory(self) -> list[tuple[Any, ...]]:
        # The values of vectors are compared by the stack.
        matrices = [
            (each.data_ptr(), each._version, each.shape, each.stride(), each.is_neg()) for each in self._matrices
        ]
        return [*matrices, *[(each.data_ptr(), each.shape, each.is_neg()) for each in self._vectors]]


def _other_parts(model: Any) -> tuple[nn.Module, nn.Module | None]:
    """Return the modules of a model in front of its encoder, which compare by identity."""
    return model.embeddings, model.embeddings_project


class _Structure:
    """The modules of encoder and embeddings, and what they have: read and compared by functions in C, since there are
    hundreds."""

    def __init__(self, encoder: nn.Module, embeddings: nn.Module) -> None:
        # Without the encoder itself, which the cache must not keep alive, but for its dictionary.
        self._modules = [module for module in chain(encoder.modules(), embeddings.modules()) if module is not encoder]
        self._encoder = weakref.ref(encoder)
        dictionaries = [encoder.__dict__, *[module.__dict__ for module in self._modules]]
        self._dictionaries = dictionaries
        self._hooks = [dictionary[name] for dictionary in dictionaries for name in HOOKS]
        self._children = [dictionary["_modules"] for dictionary in dictionaries if dictionary["_modules"]]
        self._parameters = [dictionary["_parameters"] for dictionary in dictionaries if dictionary["_parameters"]]
        self._attributes = [
            (dictionary, name) for dictionary in dictionaries for name in ATTRIBUTES if name in dictionary
        ]
        self._expected = self._read()

    @property
    def has_hooks(self) -> bool:
        """Return whether any module has hooks."""
        return any(self._hooks)

    def is_current(self) -> bool:
        """Return whether all modules, hooks and parameters are the same."""
        return self._read() == self._expected

    def _read(self) -> tuple[Any, ...]:
        dictionaries = self._dictionaries
        return (
            self.has_hooks,
            [*map(type, self._modules), type(self._encoder())],
            ["forward" in dictionary for dictionary in dictionaries],
            [dictionary["training"] for dictionary in dictionaries],
            [*map(id, chain.from_iterable(map(dict.values, self._children)))],
            [*map(id, chain.from_iterable(map(dict.values, self._parameters)))],
            [dictionary[name] for dictionary, name in self._attributes],
        )


_stacks: weakref.WeakKeyDictionary[nn.Module, _CachedStack] = weakref.WeakKeyDictionary()
prepacked_weights.on_change(_stacks.clear)

"""The forward of an accelerated encoder of transformers: unpadded once, packed through all layers, padded once."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.checkpoint import checkpoint

from fastbert import ops
from fastbert.integrations.families import Family
from fastbert.integrations.layout import Layout, lay_out, with_ids
from fastbert.integrations.packed_layers import (
    LayerParts,
    dropped,
    has_hooks,
    is_plain_norm,
    is_touched,
    library_multiplies_bf16,
    run_layer,
)
from fastbert.models.bert import ROWS_MULTIPLE, multiplies_in_bf16
from fastbert.models.layers import Dropouts
from fastbert.models.plain import PLAIN_TENSORS, project
from fastbert.ops.dropout import Site, TokenDropout
from fastbert.packing import PackedBatch

logger = logging.getLogger("fastbert")
# Arguments of transformers' forwards that change nothing here.
IDLE = ("return_dict", "output_hidden_states", "output_attentions", "use_cache", "num_items_in_batch")
# On hidden states whose padding is zeros: where their tokens are, for heads that compute of tokens alone.
SLOTS = "_fastbert_slots"


class Replaced:
    """What stands in for a module's forward: knows the module, and takes the original where it must."""

    def __init__(self, module: nn.Module, where: str) -> None:
        self.module = module
        self.where = where
        self.reasons: dict[str, None] = {}
        """Why calls took the original forward, in the order in which that first happened."""
        self.__signature__ = inspect.signature(type(module).forward).replace()
        parameters = list(self.__signature__.parameters.values())[1:]
        self.__signature__ = self.__signature__.replace(parameters=parameters)

    @property
    def __code__(self) -> Any:
        """What exporters read the names of a forward's arguments from."""
        return inspect.unwrap(type(self.module).forward).__code__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting():
            from fastbert.integrations.uncompiled import outside_graph

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


class PackedForward(Replaced):
    """An encoder's forward. Outputs at padding are zeros; what it does not serve takes the original forward."""

    def __init__(self, module: nn.Module, where: str, family: Family, *, reads_first: bool, int8: bool) -> None:
        super().__init__(module, where)
        self.family = family
        self.reads_first = reads_first
        self.int8 = int8

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(self.family.order, args, strict=False)), **kwargs}
        reason = f"{len(args)} arguments by position" if len(args) > len(self.family.order) else self._unserved(given)
        if reason is None:
            layout = self._lay_out(given)
            if isinstance(layout, Layout):
                return self._run(layout, given)
            reason = layout
        if reason:
            self.fall_back(reason)
        return self.original(*args, **kwargs)

    def _asked(self, given: dict[str, Any], name: str) -> Any:
        value = given.get(name)
        return getattr(self.module.config, name, None) if value is None else value

    def _unserved(self, given: dict[str, Any]) -> str | None:
        """Why a call takes the original forward; empty: without a word, since tracing does not compute."""
        module, mask = self.module, given.get("attention_mask")
        ids, embeds = given.get("input_ids"), given.get("inputs_embeds")
        if torch.jit.is_tracing() or torch.compiler.is_exporting():
            return ""
        if (
            (ids is None) == (embeds is None)
            or (ids is not None and ids.dim() != 2)
            or (embeds is not None and embeds.dim() != 3)
        ):
            return ""  # which says what is wrong with it
        if self.family.decodes(module):
            return "a config that makes the encoder a decoder"
        if mask is not None and mask.dim() != 2:
            return f"an attention mask of {mask.dim()} dimensions"
        if self._asked(given, "output_attentions"):
            return "output_attentions=True"
        if not isinstance(self._asked(given, "output_hidden_states") or False, bool):
            return "a list of layers as output_hidden_states"
        if _has_any_global_hook():
            return "hooks on all modules"
        stack, layers = self.family.stack(module)
        if (
            has_hooks(stack)
            or has_hooks(layers)
            or "forward" in stack.__dict__
            or type(stack).__module__ != self.family.home
        ):
            return f"a {type(stack).__name__} that has hooks or is another class"
        for name, value in given.items():
            if name not in self.family.order and name not in IDLE and value is not None and value is not False:
                return name
        return None

    def _lay_out(self, given: dict[str, Any]) -> Layout | str:
        """Where the tokens are, or why the original forward is taken after all."""
        ids, embeds, mask = given.get("input_ids"), given.get("inputs_embeds"), given.get("attention_mask")
        if ids is None:
            assert embeds is not None
            ids = torch.zeros(embeds.shape[:2], dtype=torch.int64, device=embeds.device)
        if ids.numel() == 0:
            return ""
        layout = lay_out(ids, mask)
        if layout.slots is not None and self.reads_first and mask is not None and not bool(mask[:, 0].all()):
            return "padding in the first column, which the pooler or the head reads"
        return layout

    def _run(self, layout: Layout, given: dict[str, Any]) -> Any:
        family, module = self.family, self.module
        layers = family.stack(module)[1]
        parts = [family.parts(layer) if self._is_open(layer) else None for layer in layers]
        keep_all = bool(self._asked(given, "output_hidden_states"))
        x, batch, dropouts = self._embed(layout, given, parts)
        states = [x] if keep_all else []
        for index, (layer, own) in enumerate(zip(layers, parts, strict=True)):
            if own is None:
                x = self._original_layer(layer, x, layout, given)
            elif getattr(layer, "gradient_checkpointing", False) and layer.training and torch.is_grad_enabled():
                x = checkpoint(run_layer, own, x, batch, dropouts, index, self.int8, use_reentrant=False)
            else:
                x = run_layer(own, x, batch, dropouts, index, self.int8)
            if keep_all:
                states.append(x)
        last, *before = (self._restored(state, layout) for state in (x, *states[:-1]))
        return self._output(last, (*before, last) if keep_all else None, given)

    def closed_layers(self) -> Iterator[tuple[int, str]]:
        """Layers that run their own forward, and why."""
        for index, layer in enumerate(self.family.stack(self.module)[1]):
            if not self._is_open(layer):
                yield index, "it has hooks or is of another kind"

    def _is_open(self, layer: nn.Module) -> bool:
        """Whether a layer may be computed from its parts: no hooks anywhere, no containers of another kind."""
        return self.family.as_written(layer) and not is_touched(layer)

    def _embed(
        self, layout: Layout, given: dict[str, Any], parts: list[LayerParts | None]
    ) -> tuple[Tensor, PackedBatch, Dropouts]:
        """The vectors (tokens, hidden_size) that go into the first layer, their batch, and what it drops."""
        module, family, ids = self.module, self.family, given.get("input_ids")
        embeddings: Any = module.embeddings
        positions, segments = given.get("position_ids"), given.get("token_type_ids")
        tables = family.tables(embeddings)
        plain = ids is not None and self._plain_embeddings(embeddings, tables)
        if plain and positions is None:
            assert ids is not None
            positions = family.positions(embeddings, ids)
        batch = with_ids(layout, positions, segments) if plain else layout.batch
        if self._library_multiplies_bf16(parts, batch.num_tokens):
            batch = batch.filled(ROWS_MULTIPLE)
        known = [part for part in parts if part is not None]
        p = dropped(embeddings.dropout)[0] if plain else 0.0
        hidden = max((p, *(max(part.attention_output_p, part.output_p) for part in known)))
        dropouts = Dropouts(batch, hidden, max((part.attention_p for part in known), default=0.0), training=True)
        if plain:
            x = _embedded(batch, embeddings, tables, dropouts.tokens(Site.EMBEDDING, p=p))
        else:
            named = {"input_ids": ids, "inputs_embeds": given.get("inputs_embeds"), "position_ids": positions}
            named |= {"token_type_ids": segments} if len(tables) > 2 else {}
            x = layout.pack(embeddings(**named))
            x = F.pad(x, (0, 0, 0, batch.num_tokens - len(x)))
        projection = family.projection(module)
        return x if projection is None else project(projection, x), batch, dropouts

    def _plain_embeddings(self, embeddings: Any, tables: list[nn.Module]) -> bool:
        if (
            is_touched(embeddings)
            or type(embeddings).__module__ != self.family.home
            or "forward" in embeddings.__dict__
        ):
            return False
        return is_plain_norm(embeddings.LayerNorm) and all(_is_plain_table(table) for table in tables)

    def _library_multiplies_bf16(self, parts: list[LayerParts | None], tokens: int) -> bool:
        """Whether torch's bf16 library multiplies on a CPU: it prepares a kernel for each number of rows it meets, so
        that it should meet few."""
        if not multiplies_in_bf16(next(self.module.parameters())):
            return False
        known = [part for part in parts if part is not None]
        return library_multiplies_bf16(known, tokens, torch.bfloat16, self.int8)

    def _original_layer(self, layer: nn.Module, x: Tensor, layout: Layout, given: dict[str, Any]) -> Tensor:
        """A layer with hooks, or of another kind, sees the padded states and the mask that it always saw."""
        from transformers.masking_utils import create_bidirectional_mask

        tokens, filling = layout.batch.num_tokens, x[layout.batch.num_tokens :]
        padded = layout.restore(x[:tokens])
        config: Any = self.module.config
        mask = given.get("attention_mask")
        mask = create_bidirectional_mask(config=config, inputs_embeds=padded, attention_mask=mask)
        result = layer(padded, mask)
        packed = layout.pack(result[0] if isinstance(result, tuple) else result)
        return torch.cat((packed, filling.to(packed.dtype))) if len(filling) else packed

    def _restored(self, x: Tensor, layout: Layout) -> Tensor:
        padded = layout.restore(x if len(x) == layout.batch.num_tokens else x[: layout.batch.num_tokens])
        # Under autocast a LayerNorm's output has its weight's dtype in transformers.
        weight = next(self.module.parameters())
        if torch.is_autocast_enabled(padded.device.type) and padded.dtype != weight.dtype:
            padded = padded.to(weight.dtype)
        if layout.slots is not None:
            setattr(padded, SLOTS, layout.slots)
        return padded

    def _output(self, last: Tensor, states: tuple[Tensor, ...] | None, given: dict[str, Any]) -> Any:
        from transformers import modeling_outputs

        pooler = self.family.pooler(self.module)
        fields: dict[str, Any] = {"last_hidden_state": last, "hidden_states": states}
        if pooler is not None:
            fields["pooler_output"] = pooler(last)
        output = getattr(modeling_outputs, self.family.output)(**fields)
        return output if self._asked(given, "return_dict") is not False else output.to_tuple()


def _embedded(batch: PackedBatch, embeddings: Any, tables: list[Any], dropout: TokenDropout | None) -> Tensor:
    """Sum of the tables' rows, LayerNorm and dropout of packed tokens."""
    ids = (batch.input_ids, batch.position_ids, batch.token_type_ids)[: len(tables)]
    weights = [_without_padding(table) for table in tables]
    norm = embeddings.LayerNorm
    return ops.embedding_layer_norm(ids, weights, norm.weight, norm.bias, norm.eps, dropout)


def _is_plain_table(table: nn.Module) -> bool:
    kind = type(table) is nn.Embedding and "forward" not in table.__dict__ and not has_hooks(table)
    return (
        kind and type(table._parameters.get("weight")) in PLAIN_TENSORS and table.max_norm is None and not table.sparse
    )


def _without_padding(table: nn.Embedding) -> Tensor:
    """A table whose padding row gets no gradient, as `nn.Embedding` has it."""
    weight = table.weight
    if table.padding_idx is None or not torch.is_grad_enabled() or not weight.requires_grad:
        return weight
    return _KeepRow.apply(weight, table.padding_idx)


class _KeepRow(torch.autograd.Function):
    """A table as it is, one of whose rows stays out of the gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, row: int) -> Tensor:
        ctx.row = row
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad = grads[0].clone()
        grad[ctx.row] = 0
        return grad, None

"""The forward of an accelerated encoder of transformers: unpadded once, packed through all layers, padded once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.checkpoint import checkpoint

from fastbert.integrations.forward_patch import ForwardPatch
from fastbert.integrations.layer_modules import PackedLayer, largest_dropout, library_multiplies_bf16
from fastbert.integrations.module_checks import (
    CAPTURING,
    dropout_probability,
    has_hooks_inside,
    is_library_module,
    is_tokenwise_linear,
    norm_eps,
    torch_is_patched,
)
from fastbert.integrations.transformers import embeddings as packed_embeddings
from fastbert.integrations.transformers import layouts
from fastbert.integrations.transformers.head import SLOTS
from fastbert.integrations.transformers.layer_calls import call_layer, token_mask
from fastbert.integrations.transformers.spec_layer import plain_norm
from fastbert.integrations.transformers.spec_layouts import EncoderSpec, applications
from fastbert.integrations.transformers.unpadding import Unpadding, has_holes, unpad, with_ids
from fastbert.models.architecture import TransformersLayout
from fastbert.models.convolution import ACTIVATIONS, convolve
from fastbert.models.fusibility import has_hooks, project
from fastbert.models.joined_projections import join_projections
from fastbert.models.layers import ROWS_MULTIPLE, layer_batch
from fastbert.ops.compiling import is_exporting
from fastbert.ops.dropout.arguments import Site
from fastbert.ops.encoder_layer.arguments import LayerBatch
from fastbert.ops.native import buffers

# Arguments of transformers' forwards that do not change what is computed.
IDLE = ("return_dict", "output_hidden_states", "output_attentions", "use_cache", "num_items_in_batch")
# Attention implementations that compute what ours does; a custom one may not.
ATTENTIONS = ("eager", "sdpa", "fastbert", "flex_attention", "flash", "kernels-community/")
INTEGERS = (torch.int64, torch.int32)


class PackedForward(ForwardPatch):
    """An encoder's forward on packed tokens, with zeros at padding; unsupported calls fall back to the original."""

    def __init__(
        self, module: nn.Module, where: str, layout: TransformersLayout, *, reads_first: bool, int8: bool
    ) -> None:
        super().__init__(module, where)
        self.layout = layout
        self.encoder_spec: EncoderSpec | None = EncoderSpec(layout, module) if layout.parts else None
        self.reads_first = reads_first
        self.int8 = int8

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Run the encoder packed, or the original forward where that is not supported."""
        arguments = dict(self.__signature__.bind(*args, **kwargs).arguments) if args else kwargs
        if "kwargs" in arguments:
            arguments |= arguments.pop("kwargs")
        reason = self._malformed(arguments)
        if reason is None:
            reason = self._unsupported(arguments)
        if reason is None:
            unpadding = self._unpad(arguments)
            if isinstance(unpadding, Unpadding):
                return self._run(unpadding, arguments)
            reason = unpadding
        if reason:
            self.fall_back(reason)
        return self.original(*args, **kwargs)

    def _option(self, arguments: dict[str, Any], name: str) -> Any:
        """Return an argument of the call, else the config's default."""
        return arguments[name] if name in arguments else getattr(self.module.config, name, None)

    def _malformed(self, arguments: dict[str, Any]) -> str | None:
        """Return an empty reason if the original forward must compute, or report, a call without a warning."""
        ids, embeds, mask = arguments.get("input_ids"), arguments.get("inputs_embeds"), arguments.get("attention_mask")
        if torch.jit.is_tracing() or is_exporting() or buffers.is_transformed():
            return ""
        first, dimensions = (embeds, 3) if ids is None else (ids, 2)
        if first is None or (ids is not None and embeds is not None) or first.dim() != dimensions:
            return ""
        if (ids is not None and ids.dtype not in INTEGERS) or first.numel() == 0 or first.is_meta:
            return ""
        for name in ("position_ids", "token_type_ids"):
            extra = arguments.get(name)
            if extra is not None and (extra.dtype not in INTEGERS or not _spreads(extra, first.shape[:2])):
                return ""
        if isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape != first.shape[:2]:
            return ""
        weight = self._weight()
        if weight.is_meta:  # without values, unless hooks of another library bring them for the original forward
            return ""
        return "" if weight.dtype == torch.float64 and torch.is_autocast_enabled(weight.device.type) else None

    def _unsupported(self, arguments: dict[str, Any]) -> str | None:
        """Return why a call must fall back to the original forward, or None."""
        module, mask = self.module, arguments.get("attention_mask")
        if layouts.decodes(module):
            return "a config that makes the encoder a decoder"
        if mask is not None and not isinstance(mask, Tensor):
            return f"an attention mask that is a {type(mask).__name__}"
        if mask is not None and mask.dim() != 2:
            return f"an attention mask of {mask.dim()} dimensions"
        if self._option(arguments, "output_attentions"):
            return "output_attentions=True"
        if not isinstance(self._option(arguments, "output_hidden_states") or False, bool):
            return "a list of layers as output_hidden_states"
        attention = getattr(module.config, "_attn_implementation", None)
        if attention is not None and not str(attention).startswith(ATTENTIONS):
            return f"attn_implementation={attention!r}"
        if _has_any_global_hook() or torch_is_patched():
            return "hooks on all modules, or torch.nn changed"
        stack, layers = layouts.stack(self.layout, module)
        inner = stack is not module  # hooks of the encoder itself run around this forward
        if (
            has_hooks(layers, CAPTURING)
            or (inner and has_hooks(stack, CAPTURING))
            or (inner and not is_library_module(stack, self.layout.module))
        ):
            return f"a {type(stack).__name__} that has hooks or a forward of its own"
        if getattr(module, "z_steps", 0) > 1:
            return "z_steps, further applications of the last layer"
        for name, value in arguments.items():
            if (
                name not in (*self.layout.positional, *self.layout.ignored, *IDLE)
                and value is not None
                and value is not False
            ):
                return name
        return None

    def _unpad(self, arguments: dict[str, Any]) -> Unpadding | str:
        """Return the unpadded batch, or why the call must fall back to the original forward."""
        ids, embeds, mask = arguments.get("input_ids"), arguments.get("inputs_embeds"), arguments.get("attention_mask")
        if ids is None:
            assert embeds is not None
            ids = torch.zeros(embeds.shape[:2], dtype=torch.int64, device=embeds.device)
        unpadding = unpad(ids, mask)
        if unpadding.slots is not None and self.reads_first and mask is not None and not bool(mask[:, 0].all()):
            return "padding in the first column, which the pooler or a head reads"
        if unpadding.slots is not None and mask is not None and self._reads_distances() and has_holes(mask):
            return "padding between tokens, whose distances count"
        return unpadding

    def _reads_distances(self) -> bool:
        return self.encoder_spec is not None and self.encoder_spec.reader.by_distance

    def _run(self, unpadding: Unpadding, arguments: dict[str, Any]) -> Any:
        layers = applications(self.layout, self.module)
        modules = [self._layer_modules(layer, index) for index, layer in enumerate(layers)]
        output_hidden_states = bool(self._option(arguments, "output_hidden_states"))
        x, batch = self._embed(unpadding, arguments, modules)
        embedded = x
        states: list[Tensor] = []
        for index, (layer, leaves) in enumerate(zip(layers, modules, strict=True)):
            if output_hidden_states:
                x = self._record_state(x, unpadding, states)
            if leaves is None:
                x = self._original_layer(layer, x, unpadding, arguments)
            elif getattr(layer, "gradient_checkpointing", False) and layer.training and torch.is_grad_enabled():
                x = checkpoint(leaves.run, x, batch, index, self.int8, use_reentrant=False)
            else:
                x = leaves.run(x, batch, index, self.int8)
            if index == 0 and self.layout.convolution is not None:
                x = self._convolve(embedded, x, batch, unpadding, arguments)
        last = self._restore(self._normalise(x, unpadding), unpadding)
        return self._output(last, (*states, last) if output_hidden_states else None, arguments)

    def _record_state(self, x: Tensor, unpadding: Unpadding, states: list[Tensor]) -> Tensor:
        """Append a layer's padded input to `states`; return it packed again, so that gradients flow through it."""
        states.append(self._restore(x, unpadding))
        if not torch.is_grad_enabled():
            return x
        packed, tokens = unpadding.pack(states[-1]).to(x.dtype), unpadding.batch.num_tokens
        return packed if len(x) == tokens else torch.cat((packed, x[tokens:]))

    def closed_layers(self) -> Iterator[tuple[int, str]]:
        """Yield the indices of layers that run their own forward, each with the reason."""
        for index, layer in enumerate(applications(self.layout, self.module)):
            if self._layer_modules(layer, index) is None:
                yield index, "it has hooks or is not as the library wrote it"

    def join_projections(self) -> None:
        """Lay the projections of each layer out as one weight, which calls on a GPU would otherwise concatenate."""
        for index, layer in enumerate(applications(self.layout, self.module)):
            modules = self._layer_modules(layer, index)
            if modules is not None and modules.projections:
                join_projections(*modules.projections)

    def _layer_modules(self, layer: nn.Module, index: int) -> PackedLayer | None:
        """Return the leaves of a layer; None where the layer must run as a whole, for its hooks for example."""
        if has_hooks_inside(layer) or not layouts.is_as_written(self.layout, layer):
            return None
        leaves: PackedLayer | None
        if self.encoder_spec is None:
            leaves = layouts.layer_modules(self.layout, layer)
        else:
            leaves = self.encoder_spec.layer(layer, index)
        return leaves if leaves is not None and leaves.is_tokenwise() else None

    def _embed(
        self, unpadding: Unpadding, arguments: dict[str, Any], modules: list[PackedLayer | None]
    ) -> tuple[Tensor, LayerBatch]:
        """Return the first layer's input (tokens, hidden_size), and the layers' view of its batch."""
        ids, layout = arguments.get("input_ids"), self.layout
        embeddings: Any = None if layout.embeddings is None else layouts.module_at(self.module, layout.embeddings)
        positions, segments = arguments.get("position_ids"), arguments.get("token_type_ids")
        tables = layouts.tables(layout, self.module)
        plain = ids is not None and packed_embeddings.are_fusible(embeddings, tables.values(), layout)
        batch, p = unpadding.batch, 0.0
        if plain:
            assert ids is not None
            if positions is None and "position_ids" in tables:
                positions = layouts.positions(layout, embeddings, ids)
            if segments is None and "token_type_ids" in tables and positions is not None:
                segments = packed_embeddings.token_segments(embeddings, positions.long())
            batch = with_ids(unpadding, positions, segments)
            p = 0.0 if embeddings is None else dropout_probability(getattr(embeddings, layout.embedding_dropout)) or 0.0
        elif self.encoder_spec is not None:
            batch = with_ids(unpadding, positions, None)
        if library_multiplies_bf16(modules, batch.num_tokens, self._weight(), self.int8):
            batch = batch.filled(ROWS_MULTIPLE)
        hidden, attention = largest_dropout(modules)
        relative = None if self.encoder_spec is None else self.encoder_spec.positions(self.module, batch)
        layers = layer_batch(
            batch,
            max(p, hidden),
            attention,
            training=True,
            other_p=self._convolution_p(),
            positions=relative,
        )
        projection = layouts.part(self.module, layout.projection)
        is_tokenwise = projection is None or (is_tokenwise_linear(projection) and not has_hooks_inside(projection))
        if plain:
            dropout = layers.token_dropout(Site.EMBEDDING, p=p)
            x = packed_embeddings.embed_tokens(batch, embeddings, tables, layout, dropout)
        else:
            x = unpadding.pack(self._original_embeddings(embeddings, tables, arguments, positions))
            x = F.pad(x, (0, 0, 0, batch.num_tokens - len(x)))
        if projection is not None and is_tokenwise:
            x = project(projection, x)
        elif projection is not None:
            x = self._padded(projection, x, unpadding)
        return x, layers

    def _original_embeddings(
        self, embeddings: Any, tables: dict[str, Any], arguments: dict[str, Any], positions: Tensor | None
    ) -> Tensor:
        """Return the own forward of the embeddings (rows, columns, width)."""
        ids, embeds = arguments.get("input_ids"), arguments.get("inputs_embeds")
        if embeddings is None:
            rows: Tensor = tables["input_ids"](ids) if embeds is None else embeds
            return rows
        accepted = self.layout.embedding_arguments
        named = {"input_ids": ids, "inputs_embeds": embeds, "position_ids": positions}
        if "token_type_ids" in tables:
            named["token_type_ids"] = arguments.get("token_type_ids")
        if "mask" in accepted:
            first = embeds if ids is None else ids
            assert first is not None
            named["mask"] = token_mask(first, arguments.get("attention_mask"))
        padded: Tensor = embeddings(**{name: value for name, value in named.items() if name in accepted})
        return padded

    def _padded(self, module: nn.Module, x: Tensor, unpadding: Unpadding) -> Tensor:
        """Return a module's own forward of packed states, which it receives padded; what fills the batch up is 0."""
        tokens = unpadding.batch.num_tokens
        y = unpadding.pack(module(unpadding.restore(x[:tokens])))
        return F.pad(y, (0, 0, 0, len(x) - tokens))

    def _normalise(self, x: Tensor, unpadding: Unpadding) -> Tensor:
        """Return the norm behind the last layer of x, (tokens, hidden_size) each; x itself where there is none."""
        if self.layout.final_norm is None:
            return x
        norm, home = layouts.module_at(self.module, self.layout.final_norm), self.layout.module
        if norm_eps(norm, home) is not None:
            return plain_norm(norm, x, home)
        return self._padded(norm, x, unpadding)

    def _convolution_p(self) -> float:
        """Return the dropout probability of the convolution, 0 if there is none or it runs its own forward."""
        module = layouts.part(self.module, self.layout.convolution)
        return 0.0 if module is None else dropout_probability(module.dropout) or 0.0

    def _convolve(
        self, embedded: Tensor, x: Tensor, batch: LayerBatch, unpadding: Unpadding, arguments: dict[str, Any]
    ) -> Tensor:
        """Return the first layer's output with the convolution of the embeddings, if the encoder has one."""
        module = layouts.part(self.module, self.layout.convolution)
        if module is None:
            return x
        home, kind = self.layout.module, module.conv_act
        plain = is_library_module(module, home) and not has_hooks_inside(module) and type(module.conv) is nn.Conv1d
        if plain and kind in ACTIVATIONS and dropout_probability(module.dropout) is not None:
            total = convolve(module.conv, embedded, x, batch, kind, self._convolution_p())
            norm: Any = module.LayerNorm
            return plain_norm(norm, total, home) if norm_eps(norm, home) is not None else norm(total)
        tokens = unpadding.batch.num_tokens
        padded, residual = unpadding.restore(embedded[:tokens]), unpadding.restore(x[:tokens])
        y = unpadding.pack(module(padded, residual, token_mask(padded, arguments.get("attention_mask"))))
        return F.pad(y, (0, 0, 0, len(x) - tokens))

    def _weight(self) -> Tensor:
        """Return a tensor of the module's dtype and device, also in a replica, which has no parameters."""
        weight: Tensor = layouts.module_at(self.module, self.layout.weight).weight
        return weight

    def is_on_gpu(self) -> bool:
        """Return whether the encoder is on a GPU."""
        return self._weight().is_cuda

    def _original_layer(self, layer: nn.Module, x: Tensor, unpadding: Unpadding, arguments: dict[str, Any]) -> Tensor:
        """Run a layer's own forward on the padded states and the mask that the library would pass."""
        tokens = unpadding.batch.num_tokens
        filling, padded = x[tokens:], unpadding.restore(x[:tokens])
        mask, positions = arguments.get("attention_mask"), arguments.get("position_ids")
        packed = unpadding.pack(call_layer(self.layout, self.module, layer, padded, mask, positions))
        return torch.cat((packed, filling.to(packed.dtype))) if len(filling) else packed

    def _restore(self, x: Tensor, unpadding: Unpadding) -> Tensor:
        padded = unpadding.restore(x if len(x) == unpadding.batch.num_tokens else x[: unpadding.batch.num_tokens])
        # Under autocast a LayerNorm's output has its input's dtype in transformers: behind a matmul, autocast's.
        weight = self._weight()
        if torch.is_autocast_enabled(padded.device.type) and not self._projects():
            padded = padded.to(weight.dtype)
        if unpadding.slots is not None:
            setattr(padded, SLOTS, unpadding.slots)
        return padded

    def _projects(self) -> bool:
        """Return whether a matmul is between the tables and the layers."""
        if layouts.part(self.module, self.layout.projection) is not None:
            return True
        layout = self.layout
        if layout.embeddings is None or layout.embedding_projection is None:
            return False
        return getattr(layouts.module_at(self.module, layout.embeddings), layout.embedding_projection) is not None

    def _output(self, last: Tensor, states: tuple[Tensor, ...] | None, arguments: dict[str, Any]) -> Any:
        from transformers import modeling_outputs

        pooler = layouts.part(self.module, self.layout.pooler)
        fields: dict[str, Any] = {"last_hidden_state": last, "hidden_states": states}
        if pooler is not None and self.layout.pooler_activation is not None:
            activation = layouts.module_at(self.module, self.layout.pooler_activation)
            fields["pooler_output"] = activation(pooler(last[:, 0]))
        elif pooler is not None:
            fields["pooler_output"] = pooler(last)
        output = getattr(modeling_outputs, self.layout.output)(**fields)
        if self._option(arguments, "return_dict") is not False:
            return output
        if self.layout.tuple_keeps_pooler and pooler is None:
            return (last, None) if states is None else (last, None, states)
        return output.to_tuple()


def _spreads(ids: Tensor, shape: torch.Size) -> bool:
    """Return whether ids broadcast to `shape` (rows, columns)."""
    if ids.dim() > 2:
        return False
    return all(size in (1, target) for size, target in zip(ids.shape[::-1], shape[::-1], strict=False))

"""`accelerate(model)`: one line that makes a model of another library fast, in place; `restore(model)` undoes it.

Nothing of the model changes but the forward of its encoders: parameters stay where they are, so state dicts,
optimizers, saving, hooks and adapters work on as before, in either state.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Literal, TypeVar

from torch import nn

from fastbert.errors import UserError
from fastbert.integrations.forward_patch import Replaced, kept
from fastbert.integrations.torch_nn import encoder as torch_encoder
from fastbert.integrations.torch_nn.encoder import TorchEncoderForward
from fastbert.integrations.transformers import layouts
from fastbert.integrations.transformers.encoder import PackedForward
from fastbert.integrations.transformers.heads import PackedHead
from fastbert.models import registry
from fastbert.models.architecture import TransformersLayout

logger = logging.getLogger("fastbert")
Model = TypeVar("Model", bound=nn.Module)
# Models that give the first column of hidden states no part of its own.
READ_ALL = ("ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering", "SentenceTransformer")


def accelerate(model: Model, *, quantize: Literal["int8"] | None = None) -> Model:
    """Run a model's encoders on fastbert's kernels, in place; returns the same object.

    `model` is, or holds somewhere inside (a SentenceTransformer for example), encoders of transformers 5, BertModel and
    every BertFor*, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, DistilBERT, or a `torch.nn.TransformerEncoder` (post-LN,
    batch_first). Parameters are used where they are, in their dtype, in training and in inference; state
    dicts, output classes and arguments stay the same. Padded batches are unpadded once, inside.

    What differs: outputs at padding are zeros, and dropout masks come from fastbert's own generator. What is not served
    (4-D masks, output_attentions, decoders, ...) takes the original forward, and a warning says so once; layers with
    hooks run their own forward on padded states, LoRA, quantised and parametrised modules theirs on packed ones.
    `quantize="int8"`: in inference on CPUs, layers multiply integers (see `BertModel.quantize`).

    Raises UserError, with the model as it was, where it holds no encoder that is known, or one that cannot be served.
    """
    if quantize not in (None, "int8"):
        raise UserError(f'quantize={quantize!r}: choose "int8", or leave it out')
    if not isinstance(model, nn.Module):
        raise UserError(f"accelerate takes a torch.nn.Module, not {type(model).__name__}")
    replacements = list(_replacements(model, quantize == "int8"))
    if not any(isinstance(found, PackedForward | TorchEncoderForward) for _, found in replacements):
        if _is_ours(model):
            return model
        raise UserError(_unknown(model))
    for _, found in replacements:
        found.put()
    for line in explain(model):
        logger.info("%s", line)
    return model


def restore(model: Model) -> Model:
    """Give a model that `accelerate` changed its own forward back, in place; returns the same object."""
    for module in model.modules():
        found = kept(module)
        if found is not None:
            found.take_away()
    return model


def explain(model: nn.Module) -> list[str]:
    """What of a model is accelerated and what is not, a line each: encoders, layers that run their own forward, and
    why calls so far took the original forward."""
    lines = []
    for module in model.modules():
        found = kept(module)
        if found is None:
            continue
        if isinstance(found, PackedForward | TorchEncoderForward):
            decodes = isinstance(found, PackedForward) and layouts.decodes(module)
            runs = "its original forward, since it decodes" if decodes else "fastbert's kernels"
            lines.append(f"{found.where}: {type(module).__name__} on {runs}")
            lines += [f"{found.where}: layer {i} runs its own forward: {why}" for i, why in found.closed_layers()]
        lines += [f"{found.where}: the original forward for calls with {reason}" for reason in found.reasons]
    return lines


def _replacements(model: nn.Module, int8: bool) -> Iterator[tuple[nn.Module, Replaced]]:
    """The modules whose forward is to be replaced, each with what stands in for it; checks all before any is."""
    reads_all = type(model).__name__.endswith(READ_ALL)
    for name, module in model.named_modules():
        where = name or type(model).__name__
        layout = layouts.layout_of(module)
        encoder = layout is not None or torch_encoder.is_encoder(module)
        if not encoder and layouts.head_layout(module) is None:
            continue
        own = module.__dict__.get("forward")
        if own is not None and kept(module) is None:
            if not encoder:
                continue
            if hasattr(module, "_hf_hook"):
                raise UserError(
                    f"{where} ({type(module).__name__}) carries accelerate's hooks: call fastbert.accelerate before"
                    " cpu_offload, disk_offload or dispatch_model; the model is unchanged"
                )
            raise UserError(
                f"{where} ({type(module).__name__}) has a forward of its own, put there by {_origin(own)}: undo that"
                " first, the model is unchanged"
            )
        if layout is not None:
            _check(module, layout, where)
            first = layouts.part(module, layout.pooler) is not None or not (reads_all or module is model)
            yield module, PackedForward(module, where, layout, reads_first=first, int8=int8)
        elif encoder:
            torch_encoder.check(module, where)
            yield module, TorchEncoderForward(module, where, int8=int8)
        else:
            yield module, PackedHead(module, where)


def _check(module: nn.Module, layout: TransformersLayout, where: str) -> None:
    """Refuse an encoder that is not built as this version of fastbert knows it."""
    try:
        for layer in layouts.stack(layout, module)[1]:
            if layouts.is_as_written(layout, layer):
                layouts.layer_modules(layout, layer)
        layouts.tables(layout, module)
    except AttributeError as error:
        raise UserError(
            f"{where} ({type(module).__name__}) is built in another way than in transformers 5: {error}; the model is"
            " unchanged"
        ) from None


def _origin(function: Any) -> str:
    return str(getattr(function, "__module__", None) or type(function).__module__)


def _is_ours(model: nn.Module) -> bool:
    from fastbert.models.base import PreTrainedModel

    return any(isinstance(module, PreTrainedModel) for module in model.modules())


def _unknown(model: nn.Module) -> str:
    """Which module stops acceleration."""
    known = ", ".join(layout.model for layout in registry.layouts())
    stopping: nn.Module = model
    name = ""
    for path, module in model.named_modules():
        # The outermost encoder of transformers, inside heads and pipelines.
        base: Any = getattr(module, "base_model", None)
        if hasattr(module, "config") and base is module:
            stopping, name = module, path
            break
    place = f"{name} ({type(stopping).__name__})" if name else type(stopping).__name__
    return (
        f"{place} is no encoder that fastbert can accelerate: it knows {known} of transformers and"
        " torch.nn.TransformerEncoder; the model is unchanged"
    )

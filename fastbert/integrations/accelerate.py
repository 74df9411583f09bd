"""`accelerate(model)`: run a model of another library on fastbert's kernels, in place; `restore(model)` undoes it.

Only the forward of its encoders is replaced: parameters stay what they are, so state dicts, optimizers, saving, hooks
and adapters work as before, in either state. On a GPU the memory of query, key and value weights becomes one tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeVar

from torch import nn

from fastbert.errors import UserError
from fastbert.integrations.forward_patch import ForwardPatch, patch_of
from fastbert.integrations.torch_nn import encoder as torch_encoder
from fastbert.integrations.transformers import layouts
from fastbert.integrations.transformers.encoder import PackedForward
from fastbert.integrations.transformers.head import PackedDecoder, PackedHead
from fastbert.integrations.transformers.spec_layouts import EncoderSpec, applications
from fastbert.io.log import logger
from fastbert.models import registry
from fastbert.models.architecture import TransformersLayout
from fastbert.models.base import PreTrainedModel

Model = TypeVar("Model", bound=nn.Module)
# Models that do not treat the first column of hidden states differently from the others.
READ_ALL = ("ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering", "SentenceTransformer")


def accelerate(model: Model, *, quantize: Literal["int8"] | None = None) -> Model:
    """Run a model's encoders on fastbert's kernels, in place, and return the same object.

    `model` is or contains (as a SentenceTransformer does) encoders of transformers 5 (BertModel and every BertFor*,
    RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, DistilBERT, MPNet, ModernBERT, DeBERTa-v2 and -v3, NomicBERT, EuroBERT,
    ALBERT, jina-embeddings v3) or a `torch.nn.TransformerEncoder` (post-LN, batch_first).
    Parameters are used where they are, in their dtype, in training and in inference; state dicts, output classes and
    arguments stay the same. Padded batches are unpadded once, inside.

    Outputs at padding are zeros, and dropout masks come from fastbert's own generator. Unsupported calls (4-D masks,
    output_attentions, decoders, ...) warn once and fall back to the original forward. Layers with hooks run their own
    forward on padded states; LoRA, quantised and parametrised modules run theirs on packed ones. `quantize="int8"`
    multiplies integers in inference on CPUs (see `BertModel.quantize`).

    Raises `UserError` if the model contains no known encoder (classes of remote code are unknown), or one that is not
    supported; it is then unchanged.

    Example:
        >>> import fastbert
        >>> from transformers import BertModel, BertTokenizerFast
        >>> tokenizer = BertTokenizerFast.from_pretrained("runs/mine/model")
        >>> model = fastbert.accelerate(BertModel.from_pretrained("runs/mine/model").eval())
        >>> output = model(**tokenizer(["a short one.", "one"], padding=True, return_tensors="pt"))
        >>> output.last_hidden_state.shape
        torch.Size([2, 6, 16])
    """
    if quantize not in (None, "int8"):
        raise UserError(f'quantize={quantize!r}: choose "int8", or leave it out')
    if not isinstance(model, nn.Module):
        raise UserError(f"accelerate takes a torch.nn.Module, not {type(model).__name__}")
    replacements = list(_replacements(model, quantize == "int8"))
    if not any(isinstance(patch, PackedForward | torch_encoder.TorchEncoderForward) for _, patch in replacements):
        if any(isinstance(module, PreTrainedModel) for module in model.modules()):  # fastbert's need no acceleration
            return model
        raise UserError(_unknown(model))
    for _, patch in replacements:
        patch.install()
        if isinstance(patch, PackedForward) and patch.is_on_gpu():
            patch.join_projections()
    for line in explain(model):
        logger.info("%s", line)
    return model


def restore(model: Model) -> Model:
    """Undo `accelerate`: restore the original forwards, in place, and return the same object.

    Example:
        >>> import fastbert
        >>> from transformers import BertModel
        >>> model = fastbert.accelerate(BertModel.from_pretrained("runs/mine/model"))
        >>> fastbert.restore(model) is model
        True
    """
    for module in model.modules():
        patch = patch_of(module)
        if patch is not None:
            patch.remove()
    return model


def explain(model: nn.Module) -> list[str]:
    """Return one line per accelerated encoder, per layer that runs its own forward, and per reason for which calls have
    fallen back to the original forward."""
    lines = []
    for module in model.modules():
        patch = patch_of(module)
        if patch is None:
            continue
        if isinstance(patch, PackedForward | torch_encoder.TorchEncoderForward):
            decodes = isinstance(patch, PackedForward) and layouts.decodes(module)
            runs = "its original forward, since it decodes" if decodes else "fastbert's kernels"
            lines.append(f"{patch.where}: {type(module).__name__} on {runs}")
            lines += [f"{patch.where}: layer {i} runs its own forward: {why}" for i, why in patch.closed_layers()]
        lines += [f"{patch.where}: the original forward for calls with {reason}" for reason in patch.reasons]
    return lines


def _replacements(model: nn.Module, int8: bool) -> Iterator[tuple[nn.Module, ForwardPatch]]:
    """Return the modules to patch, each with its patch. Raises UserError before any module has been changed."""
    reads_all = type(model).__name__.endswith(READ_ALL)
    for name, module in model.named_modules():
        where = name or type(model).__name__
        path = layouts.decoder_path(module)
        decoder = None if path is None else layouts.part(module, path)
        if type(decoder) is nn.Linear and ("forward" not in decoder.__dict__ or patch_of(decoder) is not None):
            yield decoder, PackedDecoder(decoder, f"{name}.{path}" if name else str(path))
        layout = layouts.layout_of(module)
        encoder = layout is not None or torch_encoder.is_encoder(module)
        if not encoder and layouts.head_layout(module) is None:
            continue
        patched = module.__dict__.get("forward")
        if patched is not None and patch_of(module) is None:
            if not encoder:
                continue
            if hasattr(module, "_hf_hook"):
                raise UserError(
                    f"{where} ({type(module).__name__}) carries accelerate's hooks: call fastbert.accelerate before"
                    " cpu_offload, disk_offload or dispatch_model; the model is unchanged"
                )
            raise UserError(
                f"{where} ({type(module).__name__}) has a patched forward, set by"
                f" {getattr(patched, '__module__', None) or type(patched).__module__}: undo that first, the model is"
                " unchanged"
            )
        if layout is not None:
            _check(module, layout, where)
            first = layouts.part(module, layout.pooler) is not None or not (reads_all or module is model)
            yield module, PackedForward(module, where, layout, reads_first=first, int8=int8)
        elif encoder:
            torch_encoder.check(module, where)
            yield module, torch_encoder.TorchEncoderForward(module, where, int8=int8)
        else:
            yield module, PackedHead(module, where)


def _check(module: nn.Module, layout: TransformersLayout, where: str) -> None:
    """Raise UserError for an encoder whose modules are not where its layout expects them."""
    try:
        spec = EncoderSpec(layout, module) if layout.parts else None
        for index, layer in enumerate(applications(layout, module)):
            if layouts.is_as_written(layout, layer):
                if spec is None:
                    layouts.layer_modules(layout, layer)
                else:
                    spec.layer(layer, index)
        layouts.tables(layout, module)
    except UserError as error:
        raise UserError(
            f"{where} ({type(module).__name__}) cannot be accelerated: {error}; the model is unchanged"
        ) from None
    except AttributeError as error:
        raise UserError(
            f"{where} ({type(module).__name__}) is built differently than in transformers 5: {error}; the model is"
            " unchanged"
        ) from None


def _unknown(model: nn.Module) -> str:
    """Return the message for a model without a known encoder, which names the outermost module of transformers."""
    known = ", ".join(layout.model for layout in registry.layouts())
    # The outermost encoder of transformers, inside heads and pipelines.
    encoders = (
        (path, module)
        for path, module in model.named_modules()
        if hasattr(module, "config") and getattr(module, "base_model", None) is module
    )
    name, encoder = next(encoders, ("", model))
    where = f"{name} ({type(encoder).__name__})" if name else type(encoder).__name__
    return (
        f"{where} is not an encoder that fastbert can accelerate: it supports {known} of transformers and"
        " torch.nn.TransformerEncoder; the model is unchanged"
    )

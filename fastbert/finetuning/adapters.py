"""LoRA and IA3 on fastbert models through peft, in peft's file format.

Adapters are inserted into the model itself, which is used, trained and evaluated as before; adapted layers run the
forward of their modules. The head is trained with them. peft has no bottleneck adapters (Houlsby et al. 2019).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fastbert.checkpoints import manifest, tokenizer_files
from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.checkpoints.formats.safetensors import read_safetensors
from fastbert.errors import CheckpointError, UserError, require_package, require_whole
from fastbert.io.untrusted_input import read_json_file, shown
from fastbert.models.base import PreTrainedModel
from fastbert.ops.native import prepacked_weights

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
KINDS = ("LORA", "IA3")
IA3_TARGETS, IA3_FEED_FORWARD = ("key", "value", "output.dense"), ("output.dense",)


@dataclass(frozen=True, kw_only=True)
class Size:
    """The number of trained parameters, head included, and of the model's parameters without adapters."""

    trained: int
    model: int

    @property
    def share(self) -> float:
        """Return the trained fraction."""
        return self.trained / max(self.model, 1)


def add_lora(
    model: PreTrainedModel,
    rank: int = 8,
    alpha: float = 16,
    targets: Sequence[str] = ("query", "value"),
    dropout: float = 0.0,
) -> Any:
    """Add LoRA (Hu et al. 2021) to the modules whose names end in `targets`, linear layers or embeddings: W x becomes
    W x + (alpha / rank) B A x, and A (rank, in), B (out, rank) and the head are trained.

    Return peft's wrapper of `model`, for `save_adapter` and `merge`; `model` itself is adapted in place. Raises
    `UserError` for numbers out of range, and for targets that the model does not have.
    """
    peft = require_peft()
    require_whole("rank", rank, 1)
    if not alpha > 0 or not 0 <= dropout < 1:
        raise UserError(f"alpha={alpha!r} must be above 0, and dropout={dropout!r} at least 0 and below 1")
    _check_targets(model, targets)
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=list(targets),
        modules_to_save=head_of(model) or None,
    )
    return _wrapped(peft, model, config)


def add_ia3(
    model: PreTrainedModel,
    targets: Sequence[str] = IA3_TARGETS,
    feed_forward: Sequence[str] = IA3_FEED_FORWARD,
) -> Any:
    """Add IA3 (Liu et al. 2022) to the linear layers whose names end in `targets`: learned vectors scale their outputs,
    or for those of `feed_forward` their inputs. Otherwise as `add_lora`."""
    peft = require_peft()
    _check_targets(model, targets)
    if not set(feed_forward) <= set(targets):
        raise UserError(f"feed_forward={list(feed_forward)!r} must be some of targets={list(targets)!r}")
    config = peft.IA3Config(
        target_modules=list(targets), feedforward_modules=list(feed_forward), modules_to_save=head_of(model) or None
    )
    return _wrapped(peft, model, config)


def head_of(model: PreTrainedModel) -> list[str]:
    """Return the names of the modules that are trained with adapters: the head, unless it is tied to the encoder, and a
    newly initialised pooler."""
    if not isinstance(getattr(model, model.base_model_prefix, None), nn.Module):
        return []
    tied = {key.partition(".")[0] for key in model.tied_keys}
    names = [name for name, child in model.named_children() if name not in (model.base_model_prefix, *tied)]
    return [*names, "pooler"] if any("pooler." in name for name in model.new_weights) else names


def size_of(model: nn.Module) -> Size:
    """Return the numbers of parameters of a model with adapters: trained, and without the adapters."""
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    original = sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if not any(part in name for part in (".lora_", ".ia3_", ".modules_to_save."))
    )
    return Size(trained=trained, model=original)


def save_adapter(adapted: Any, folder: str | Path, base: str | None = None) -> list[str]:
    """Write the result of `add_lora` or `add_ia3` in peft's format, head included: adapter_config.json and
    adapter_model.safetensors, which `PeftModel.from_pretrained` loads into fastbert and transformers models, and
    config.json with the head's labels. Return the names of the files.

    `base` is the base model's name or folder, which is stored in the file.
    """
    model = _base(adapted)
    if base is not None:
        for config in adapted.peft_config.values():
            config.base_model_name_or_path = base
    with atomic_folder(Path(folder), superseded=("adapter_model.*",)) as partial:
        adapted.save_pretrained(partial, safe_serialization=True, save_embedding_layers=False)
        # The safetensors library makes its file readable by the owner only.
        shutil.copymode(partial / CONFIG_FILE, partial / WEIGHTS_FILE)
        (partial / "README.md").unlink(missing_ok=True)  # a model card with nothing on it
        text = json.dumps(model.config.to_dict(architecture=type(model).__name__), indent=2) + "\n"
        (partial / "config.json").write_text(text, encoding="utf-8")
        tokenizer_files.accept_folder(partial)
        return sorted(path.name for path in partial.iterdir())


def load_adapter(model: PreTrainedModel, folder: str | Path, *, trained: bool = False) -> Any:
    """Load adapters in peft's format into a model with the weights they were trained on; `trained` continues their
    training. Return the same as `add_lora`.

    Raises `UserError` for a folder without adapters, adapters of a kind other than LoRA and IA3, files that are damaged
    or pickled, and adapters that do not fit the model.
    """
    peft = require_peft()
    folder = Path(folder)
    stored = check_adapter(folder)
    try:
        adapted = peft.PeftModel.from_pretrained(model, str(folder), is_trainable=trained)
        expected = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise UserError(f"{folder}: these adapters do not fit {type(model).__name__} ({_line(error)})") from error
    wrong = sorted(stored ^ expected.keys())
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise UserError(f"{folder}: these adapters do not fit {type(model).__name__}: {wrong[0]}{more}")
    prepacked_weights.forget(model.parameters())
    return adapted.train(model.training)


def check_adapter(folder: Path) -> set[str]:
    """Verify a folder in peft's format; return the names of its tensors. Raises `UserError`."""
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"{folder}: holds no {CONFIG_FILE}; name a folder that save_adapter or peft wrote")
    manifest.verify_files(folder, manifest.ADAPTER, manifest.MODEL)
    config = read_json_file(folder / CONFIG_FILE)
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind not in KINDS:
        raise UserError(f"{folder / CONFIG_FILE}: peft_type {shown(kind)} is not supported; {' and '.join(KINDS)} are")
    if not (folder / WEIGHTS_FILE).is_file():
        raise CheckpointError(
            f"{folder}: holds no {WEIGHTS_FILE} (pickled adapters are not read); save it again with peft"
        )
    return set(read_safetensors(folder / WEIGHTS_FILE))


def merge(adapted: Any, folder: str | Path | None = None) -> PreTrainedModel:
    """Merge the adapters into the weights; return the plain model with the trained head. Write it to `folder` if
    given."""
    new_weights = _base(adapted).new_weights
    merged: PreTrainedModel = adapted.merge_and_unload(safe_merge=True)
    merged.new_weights = new_weights
    merged.tie_weights()
    prepacked_weights.forget(merged.parameters())
    merged.requires_grad_(True)
    if folder is not None:
        merged.save_pretrained(folder)
    return merged


def _base(adapted: Any) -> PreTrainedModel:
    """Return the fastbert model in peft's wrapper."""
    model = adapted.get_base_model() if hasattr(adapted, "get_base_model") else None
    if not isinstance(model, PreTrainedModel):
        raise UserError(
            f"{type(adapted).__name__} has no adapters; give what add_lora, add_ia3 or load_adapter returned"
        )
    return model


def _check_targets(model: PreTrainedModel, targets: Sequence[str]) -> None:
    """Raise `UserError` for a target that is not the end of a module's name."""
    if isinstance(targets, str) or not targets:
        raise UserError(f"targets={targets!r} must be a list of names, as ('query', 'value')")
    named = dict(model.named_modules())
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in named):
            leaves = {
                name.rpartition(".")[2] for name, part in named.items() if isinstance(part, nn.Linear | nn.Embedding)
            }
            raise UserError(f"targets: {type(model).__name__} has no {target!r}; it has {', '.join(sorted(leaves))}")


def _wrapped(peft: Any, model: PreTrainedModel, config: Any) -> Any:
    if any(name.endswith((".base_layer", ".modules_to_save")) for name, _ in model.named_modules()):
        raise UserError("the model has adapters already; merge them first")
    try:
        adapted = peft.get_peft_model(model, config)
    except (ValueError, TypeError) as error:
        raise UserError(f"peft does not support these adapters on {type(model).__name__} ({_line(error)})") from error
    # Prepacked copies of weights that are no longer trained are stale.
    prepacked_weights.forget(model.parameters())
    return adapted


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else f"{text[:197]}..."


def require_peft() -> Any:
    """Return the package peft. Raises `UserError` if it is missing."""
    return require_package("peft", "adapters need the package peft: `pip install peft`")

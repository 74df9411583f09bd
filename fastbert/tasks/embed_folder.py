"""Folders of sentence-transformers and of plain models, read for embeddings.

`modules.json` lists what a sentence-transformers model is made of, each with a folder of its own: the encoder, pooling,
perhaps linear layers, perhaps division by the length. What is none of these is refused by name. Nothing is imported or
executed that a folder names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from fastbert.checkpoints.source import find_source
from fastbert.errors import CheckpointError, UserError
from fastbert.models.bert import BertModel
from fastbert.tasks.embed_settings import ACTIVATIONS, Dense, EmbedSettings
from fastbert.tasks.pooling import POOLINGS
from fastbert.tokenizers import WordPieceTokenizer

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
DENSE_WEIGHTS = "model.safetensors"
MOST_JSON_BYTES = 1 << 24
# Older releases gave a file to each kind of encoder.
ENCODER_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# Releases before 6 have a key for each way to pool.
OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def load_embedder(
    source: str | Path, *, dtype: torch.dtype | None = None
) -> tuple[BertModel, WordPieceTokenizer, EmbedSettings]:
    """A model in eval mode, its tokenizer, and what its folder says of embeddings, which `model.embed` then follows.

    `source` is a folder of sentence-transformers, or a plain Hugging Face one, whose embeddings are the mean of all
    tokens, or the name of either in the Hub's local cache. Raises UserError for parts that are not supported, by name,
    and CheckpointError for damaged files.
    """
    folder = find_source(source)
    if not folder.is_dir():
        raise UserError(f"{folder}: is no folder; name that of a sentence-transformers or Hugging Face model")
    place, settings, lower_case = read_settings(folder)
    model = BertModel.from_pretrained(place, dtype=dtype)
    model.embed_settings = settings  # type: ignore[assignment]
    tokenizer = WordPieceTokenizer.from_pretrained(place)
    if lower_case and not tokenizer.do_lower_case:
        # Accents stay, as sentence-transformers has it, unless the tokenizer says otherwise.
        options = {"do_lower_case": True, "strip_accents": bool(tokenizer.strip_accents)}
        tokenizer = WordPieceTokenizer.from_pretrained(place, **options)
    return model, tokenizer, settings


def read_settings(folder: Path) -> tuple[Path, EmbedSettings, bool]:
    """The folder that holds the encoder, how its vectors become embeddings, and whether texts are lower-cased."""
    place, found = folder, dict[str, Any]()
    dense: list[Dense] = []
    if (folder / MODULES).is_file():
        for index, (kind, where) in enumerate(_modules(folder)):
            if (kind == "Transformer") != (index == 0):
                raise _refused(folder, kind, "the first module must be a Transformer, and no other one")
            if kind == "Transformer":
                place = where
            elif kind == "Pooling" and "pooling" not in found:
                found["pooling"] = _pooling(where)
            elif kind == "Dense" and "pooling" in found and not found.get("normalize"):
                dense.append(_dense(where))
            elif kind == "Normalize" and "pooling" in found:
                found["normalize"] = True
            elif kind != "Dropout":  # which does nothing in inference
                known = "Transformer, Pooling, Dense and Normalize, in this order"
                raise _refused(folder, kind, f"supported are {known}")
        if "pooling" not in found:
            raise UserError(f"{folder / MODULES}: names no Pooling, so the model has no embeddings of texts")
    encoder = next((_object(place / name) for name in ENCODER_CONFIGS if (place / name).is_file()), {})
    prompts = _object(folder / PROMPTS) if (folder / PROMPTS).is_file() else {}
    settings = EmbedSettings(
        **found,
        **_prompts(prompts, folder / PROMPTS),
        dense=tuple(dense),
        max_length=_length(encoder.get("max_seq_length"), place),
    )
    return place, settings, bool(encoder.get("do_lower_case"))


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """The last part of each module's type, and its folder."""
    path = folder / MODULES
    listed = _json(path)
    if not isinstance(listed, list) or not listed or not all(isinstance(entry, dict) for entry in listed):
        raise CheckpointError(f"{path}: must hold a list of modules; restore the file")
    found = []
    for entry in listed:
        kind, name = entry.get("type"), entry.get("path")
        if not isinstance(kind, str) or not isinstance(name, str) or name in (".", "..") or Path(name).name != name:
            raise CheckpointError(f"{path}: a module of type {kind!r} in {name!r}; restore the file")
        found.append((kind.rpartition(".")[2], folder / name))
    return found


def _refused(folder: Path, kind: str, why: str) -> UserError:
    return UserError(f"{folder / MODULES}: the module {kind} cannot be used here; {why}")


def _pooling(folder: Path) -> str:
    path = folder / "config.json"
    config = _object(path)
    modes = config.get("pooling_mode")
    if modes is None:
        old = {key: mode for key, mode in OLD_POOLINGS.items() if key in config}
        modes = [mode for key, mode in old.items() if config[key]] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or len(modes) != 1 or modes[0] not in POOLINGS:
        raise UserError(f"{path}: pooling {modes!r} cannot be used here; supported is one of {', '.join(POOLINGS)}")
    if config.get("include_prompt") is False:
        raise UserError(f"{path}: leaves the tokens of a prompt out of pooling (include_prompt), which is unsupported")
    found: str = modes[0]
    return found


def _dense(folder: Path) -> Dense:
    path = folder / "config.json"
    config = _object(path)
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if activation not in ACTIVATIONS:
        raise UserError(f"{path}: the activation {activation} is unsupported; supported are {', '.join(ACTIVATIONS)}")
    if config.get("module_input_name", "sentence_embedding") != "sentence_embedding":
        raise UserError(f"{path}: a Dense of {config['module_input_name']} is unsupported: only of sentence_embedding")
    weights = folder / DENSE_WEIGHTS
    if not weights.is_file():
        raise UserError(
            f"{folder}: holds no {DENSE_WEIGHTS}; save the model again with sentence-transformers 3 or later"
        )
    try:
        tensors = load_file(weights)
    except SafetensorError as error:
        raise CheckpointError(f"{weights}: not a whole safetensors file ({error})") from None
    weight, bias = tensors.get("linear.weight"), tensors.get("linear.bias")
    shape = (config.get("out_features"), config.get("in_features"))
    if weight is None or tuple(weight.shape) != shape or (bias is not None and tuple(bias.shape) != shape[:1]):
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        raise CheckpointError(f"{weights}: holds {shapes}, but {path.name} says linear.weight {shape}")
    return Dense(weight.float(), None if bias is None else bias.float(), activation)


def _prompts(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    texts = isinstance(prompts, dict) and all(isinstance(text, str) for text in prompts.values())
    if not texts or (default is not None and default not in prompts):
        raise CheckpointError(f"{path}: prompts must be texts by name, the default one ({default!r}) among them")
    return {"prompts": prompts, "default_prompt": default}


def _length(value: Any, folder: Path) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 3):
        raise CheckpointError(f"{folder}: max_seq_length={value!r} must be a whole number, at least 3")
    return value


def _object(path: Path) -> dict[str, Any]:
    value = _json(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object, not {type(value).__name__}; restore the file")
    return value


def _json(path: Path) -> Any:
    try:
        if path.stat().st_size > MOST_JSON_BYTES:
            raise CheckpointError(f"{path}: larger than {MOST_JSON_BYTES >> 20} MiB, which no such file is")
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: not JSON ({error}); restore the file") from None
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing; restore the file") from None

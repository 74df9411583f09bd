"""Folders of sentence-transformers and of plain models, read for embeddings.

`modules.json` lists what a sentence-transformers model is made of, each with a folder of its own: the encoder, pooling,
perhaps linear layers, perhaps division by the length. What is none of these is refused by name. Nothing is imported or
executed that a folder names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fastbert.checkpoints.bounded import read_json_file
from fastbert.checkpoints.pipeline_files import ENCODER_CONFIGS, MODULES, PROMPTS, listed_modules
from fastbert.checkpoints.safetensors_files import WEIGHTS, read_safetensors
from fastbert.checkpoints.source import find_source
from fastbert.errors import CheckpointError, UserError
from fastbert.models.bert import BertModel
from fastbert.tasks.embed_settings import ACTIVATIONS, Dense, EmbedSettings
from fastbert.tasks.pooling import POOLINGS
from fastbert.tokenizers import WordPieceTokenizer

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
    model.embed_settings = settings
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
        for index, (kind, where) in enumerate(listed_modules(folder)):
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
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise UserError(f"{folder}: holds no {WEIGHTS}; save the model again with sentence-transformers 3 or later")
    tensors = {name: stored.read() for name, stored in read_safetensors(weights).items()}
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
    value = read_json_file(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object, not {type(value).__name__}; restore the file")
    return value

"""Load an embedder from a folder of sentence-transformers or of a plain model.

`modules.json` lists the modules of a sentence-transformers model, each with its folder: the encoder, pooling, optional
linear layers, optional normalisation. Other modules are refused by name. Nothing that a folder names is imported or
executed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fastbert.checkpoints.formats.names import WEIGHTS
from fastbert.checkpoints.formats.safetensors import read_safetensors
from fastbert.checkpoints.manifest import EMBEDDER, verify_files
from fastbert.checkpoints.pipeline_files import CONFIG, ENCODER_CONFIGS, MODULES, PROMPTS, read_modules
from fastbert.checkpoints.source import config_folder, find_source
from fastbert.embeddings.lower_case import load_with_case
from fastbert.embeddings.pooling import POOLINGS
from fastbert.embeddings.settings import ACTIVATIONS, SIMILARITIES, Dense, EmbedSettings
from fastbert.errors import CheckpointError, UserError
from fastbert.io.untrusted_input import read_json_object, shown
from fastbert.models import registry
from fastbert.models.encoder import EncoderModel
from fastbert.tokenizers.tokenizer import Tokenizer

MOST_WIDTH = 1 << 16
MOST_PROMPT = 10_000  # characters, which precede each text of a chunk
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Releases before 6 have one key per pooling.
OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

# Heads of other uses, by the end of their class's name: the classes of Hugging Face folders that are no embedders.
_HEADS = {
    "ForSequenceClassification": "fastbert.Classifier, or fastbert.CrossEncoder for a reranker",
    "ForTokenClassification": "fastbert.predict",
    "ForQuestionAnswering": "fastbert.predict",
    "ForMultipleChoice": "fastbert.predict",
}


def load_embedder(
    source: str | Path, *, dtype: torch.dtype | None = None
) -> tuple[EncoderModel, Tokenizer, EmbedSettings]:
    """Load a model in eval mode, its tokenizer, and its settings, which `model.embed` follows.

    `source` is a folder of sentence-transformers, a plain Hugging Face folder (whose embeddings are the mean of all
    tokens), or the name of either in the Hub's local cache. Raises UserError for unsupported modules, by name, and
    CheckpointError for damaged files.
    """
    folder = find_source(source)
    if not folder.is_dir():
        raise UserError(f"{folder}: is not a folder; name that of a sentence-transformers or Hugging Face model")
    verify_files(folder, EMBEDDER)
    encoder_folder, settings, lower_case = read_settings(folder)
    model = registry.load_encoder(encoder_folder, dtype=dtype)
    settings.check_width(model.config.hidden_size, str(folder))
    tokenizer = load_with_case(encoder_folder, lower_case)
    model.embed_settings = settings
    return model, tokenizer, settings


def refuse_other_models(source: Path) -> None:
    """Raise UserError for the folder of a model with a head of another use. An encoder with one could be embedded all
    the same (`fastbert.load_embedder`), but its vectors are rarely what is meant."""
    folder = config_folder(source)
    if (folder / MODULES).exists() or not (folder / CONFIG).is_file():
        return
    classes = read_json_object(folder / CONFIG).get("architectures")
    for name in classes if isinstance(classes, list) else ():
        for head, use in _HEADS.items():
            if str(name).endswith(head):
                raise UserError(
                    f"{source}: holds a {name}, not an embedder: use {use}; fastbert.load_embedder loads its encoder"
                )


def read_settings(folder: Path) -> tuple[Path, EmbedSettings, bool]:
    """Return the encoder's folder, the settings, and True if texts are lower-cased."""
    encoder_folder, values = folder, dict[str, Any]()
    dense: list[Dense] = []
    if not os.path.lexists(folder / MODULES):  # other files of a plain model are not read
        return encoder_folder, EmbedSettings(), False
    for index, (kind, where) in enumerate(read_modules(folder)):
        if (kind == "Transformer") != (index == 0):
            raise _refused(folder, kind, "only the first module must be a Transformer")
        if kind == "Transformer":
            encoder_folder = where
        elif kind == "Pooling" and "pooling" not in values:
            values["pooling"] = _pooling(where)
        elif kind == "Dense" and "pooling" in values and not values.get("normalize"):
            dense.append(read_dense(where))
        elif kind == "Normalize" and "pooling" in values:
            if os.path.lexists(where / "config.json"):
                check_names(where / "config.json", "Normalize")
            values["normalize"] = True
        elif kind != "Dropout":  # which does nothing in inference
            known = "Transformer, Pooling, Dense and Normalize, in this order"
            raise _refused(folder, kind, f"supported are {known}")
    if "pooling" not in values:
        raise UserError(f"{folder / MODULES}: names no Pooling, so the model has no embeddings of texts")
    encoder = next(
        (read_json_object(encoder_folder / name) for name in ENCODER_CONFIGS if os.path.lexists(encoder_folder / name)),
        {},
    )
    prompts = read_json_object(folder / PROMPTS) if os.path.lexists(folder / PROMPTS) else {}
    settings = EmbedSettings(
        **values,
        **_prompts(prompts, folder / PROMPTS),
        dense=tuple(dense),
        max_length=_length(encoder.get("max_seq_length"), encoder_folder),
        # As in sentence-transformers, names that are not of single vectors count as none.
        similarity=name if (name := prompts.get("similarity_fn_name")) in SIMILARITIES else None,
    )
    return encoder_folder, settings, bool(encoder.get("do_lower_case"))


def _refused(folder: Path, kind: str, why: str) -> UserError:
    name = kind if kind.isidentifier() and len(kind) < 100 else shown(kind)
    return UserError(f"{folder / MODULES}: the module {name} cannot be used here; {why}")


def _pooling(folder: Path) -> str:
    path = folder / "config.json"
    config = read_json_object(path)
    modes = config.get("pooling_mode")
    if modes is None:
        old = {key: mode for key, mode in OLD_POOLINGS.items() if key in config}
        modes = [mode for key, mode in old.items() if config[key]] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or len(modes) != 1 or modes[0] not in POOLINGS:
        raise UserError(
            f"{path}: pooling {shown(modes)} cannot be used here; supported is one of {', '.join(POOLINGS)}"
        )
    if config.get("include_prompt") is False:
        raise UserError(f"{path}: excludes the tokens of a prompt from pooling (include_prompt), which is unsupported")
    return str(modes[0])


def read_dense(folder: Path, of: str = "sentence_embedding") -> Dense:
    """Return the linear layer in a module's folder; `of` names what it maps.

    Raises UserError for unsupported options, and CheckpointError for damaged files.
    """
    path = folder / "config.json"
    config = check_names(path, "Dense", of)
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    home, _, activation = name.rpartition(".")
    if activation not in ACTIVATIONS or not f"{home}.".startswith("torch.nn."):
        raise UserError(f"{path}: the activation {shown(name)} is unsupported; supported are {', '.join(ACTIVATIONS)}")
    if config.get("use_residual"):
        raise UserError(f"{path}: a Dense with a residual connection (use_residual) is unsupported")
    weights = folder / WEIGHTS
    if not os.path.lexists(weights):
        raise UserError(f"{folder}: holds no {WEIGHTS}; save the model again with sentence-transformers 3 or later")
    stored = read_safetensors(weights)
    shape = (config.get("out_features"), config.get("in_features"))
    if not all(isinstance(size, int) and 0 < size <= MOST_WIDTH for size in shape):
        raise CheckpointError(f"{path}: out_features and in_features {shown(shape)} must be from 1 to {MOST_WIDTH:,}")
    expected = {"linear.weight": shape, "linear.bias": shape[:1]}
    for name, tensor in stored.items():
        if name not in expected or tensor.shape != expected[name] or tensor.dtype not in _FLOATS:
            raise CheckpointError(
                f"{weights}: holds {shown(name)} of {tensor.dtype} {shown(tensor.shape)}, but {path.name} requires"
                f" linear.weight {shown(shape)} and perhaps linear.bias, in floats"
            )
    if "linear.weight" not in stored:
        raise CheckpointError(f"{weights}: holds no linear.weight; restore the file")
    bias = stored.get("linear.bias")
    weight = stored["linear.weight"].read().float()
    return Dense(weight, None if bias is None else bias.read().float(), activation)


def check_names(path: Path, kind: str, of: str = "sentence_embedding") -> dict[str, Any]:
    """Return the config of a module that maps embeddings of texts, or what `of` names. Raises UserError for other
    inputs or outputs."""
    config = read_json_object(path)
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, of):
            raise UserError(f"{path}: a {kind} with {key} {shown(config[key])} is unsupported: only {of} is")
    return config


def _prompts(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    texts = isinstance(prompts, dict) and all(isinstance(text, str) for text in prompts.values())
    if not texts or (default is not None and (not isinstance(default, str) or default not in prompts)):
        raise CheckpointError(f"{path}: prompts must be texts by name, the default one ({shown(default)}) among them")
    longest = max(map(len, prompts.values()), default=0)
    if longest > MOST_PROMPT:
        raise CheckpointError(f"{path}: a prompt of {longest:,} characters, more than the limit of {MOST_PROMPT:,}")
    return {"prompts": prompts, "default_prompt": default}


def _length(value: Any, folder: Path) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 3):
        raise CheckpointError(f"{folder}: max_seq_length={shown(value)} must be a whole number, at least 3")
    return value

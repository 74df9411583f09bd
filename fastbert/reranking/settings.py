"""Settings of cross-encoders: activation, length and prompts, as sentence-transformers stores them. Imports no torch.

Releases from 6 read the activation from `config_sentence_transformers.json`, 4 and 5 from config.json under
`sentence_transformers`, and earlier ones under `sbert_ce_default_activation_function`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastbert.checkpoints.manifest import read_manifest
from fastbert.checkpoints.pipeline_files import (
    CONFIG,
    ENCODER_CONFIGS,
    MODULES,
    PROMPTS,
    check_free,
    read_modules,
    write_pipeline,
)
from fastbert.errors import CheckpointError, UserError, require_whole
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.log import logger
from fastbert.io.untrusted_input import read_json_object, shown

# The activations by name, as the paths of their classes.
ACTIVATIONS = {
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "identity": "torch.nn.modules.linear.Identity",
}
# The key of config.json under which releases 4 and 5 keep settings, and that of earlier ones.
SECTION, KEY, OLD_KEY = "sentence_transformers", "activation_fn", "sbert_ce_default_activation_function"
PROMPT = "query"
"""The name under which the prompt is saved."""
SHORTEST = 4
"""Tokens of the shortest input: three special ones and one of a text."""


@dataclass(frozen=True, kw_only=True)
class CrossEncoderSettings:
    """Settings in a cross-encoder's folder."""

    activation: str | None = None
    """"sigmoid", "identity", or the path of its class, as `config_sentence_transformers.json` has it; None: that in the
    model's config, the sigmoid by default."""
    max_length: int | None = None
    """Tokens per pair, special ones included; None: as many as tokenizer and model allow."""
    prompt: str = ""
    """Precedes each query."""
    lower_case: bool = False
    """True if texts are lower-cased before they are tokenized."""

    def __post_init__(self) -> None:
        require_whole("max_length", self.max_length, SHORTEST, optional=True)
        if not isinstance(self.prompt, str):
            raise UserError(f"prompt={self.prompt!r} must be a text")

    def check_width(self, width: int, source: str) -> None:
        """Accept models of every width. Raises UserError for an activation that is not supported."""
        self.activation_class()

    def check_folder(self, folder: Path) -> None:
        """Raise UserError, before anything is written, if a link or a folder is in the way of `save`."""
        check_free(folder, ())

    def save(self, folder: Path, width: int = 0) -> None:
        """Write the settings next to a saved classifier with one label, for all releases of sentence-transformers; the
        activation is added to its config.json too.

        `modules.json` is written last, and every file atomically. Raises `UserError` for a model of a different kind,
        and `CheckpointError` for a folder without one and if writing fails.
        """
        activation, path = self.activation_class(), folder / CONFIG
        config = read_json_object(path)
        check_labels(config, folder)
        check_free(folder, ())
        settings: dict[str, Any] = {"model_type": "CrossEncoder", "prompts": {}, "default_prompt_name": None}
        if self.prompt:
            settings |= {"prompts": {PROMPT: self.prompt}, "default_prompt_name": PROMPT}
        if activation is not None:
            settings[KEY] = activation
            section = config.get(SECTION)
            config[SECTION] = {**(section if isinstance(section, dict) else {}), KEY: activation}
            try:
                write_json_atomic(path, config)
            except OSError as error:
                raise CheckpointError(f"{path}: could not be written ({error}); free some disk space") from error
        encoder = {
            "transformer_task": "sequence-classification",
            "max_seq_length": self.max_length,
            "do_lower_case": self.lower_case,
        }
        manifest = read_manifest(folder)
        listed = manifest is not None and CONFIG in manifest.files
        write_pipeline(folder, (), encoder=encoder, settings=settings, beside=(CONFIG,) if listed else ())

    def activation_class(self) -> str | None:
        """Return the path of the activation's class, None where the model's config decides. Raises UserError for an
        activation that is not supported."""
        if self.activation is None or self.activation in ACTIVATIONS:
            return ACTIVATIONS.get(self.activation or "")
        return ACTIVATIONS[activation_of({}, stored=self.activation)]


def read_settings(folder: Path) -> CrossEncoderSettings:
    """Return the settings of a folder of sentence-transformers, or the defaults for a plain Hugging Face folder.

    Raises UserError for modules behind the model, and for settings of the wrong kind.
    """
    if not os.path.lexists(folder / MODULES):  # other files of a plain model are not read
        return CrossEncoderSettings()
    for index, (kind, where) in enumerate(read_modules(folder)):
        if index or kind != "Transformer" or where != folder:
            raise UserError(
                f"{folder / MODULES}: the module {shown(kind)} cannot be used here; name a cross-encoder, which is a"
                " single Transformer with a classifier (fastbert embed serves models of embeddings)"
            )
    values = read_json_object(folder / PROMPTS) if os.path.lexists(folder / PROMPTS) else {}
    encoder: Mapping[str, Any] = next(
        (read_json_object(folder / name) for name in ENCODER_CONFIGS if os.path.lexists(folder / name)), {}
    )
    length = encoder.get("max_seq_length")
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < SHORTEST):
        raise UserError(f"{folder}: max_seq_length={shown(length)} must be a whole number, at least {SHORTEST}")
    return CrossEncoderSettings(
        activation=values.get(KEY),
        max_length=length,
        prompt=_default_prompt(values, folder),
        lower_case=bool(encoder.get("do_lower_case")),
    )


def _default_prompt(values: Mapping[str, Any], folder: Path) -> str:
    prompts, name = values.get("prompts") or {}, values.get("default_prompt_name")
    if name is None:
        return ""
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    if not isinstance(prompt, str):
        raise UserError(f"{folder / PROMPTS}: default_prompt_name={shown(name)} names no text among the prompts")
    return prompt


def activation_of(config: Mapping[str, Any], *, stored: Any = None) -> str:
    """Return the activation of a cross-encoder's scores, one of `ACTIVATIONS`.

    `config` holds the keys of config.json; `stored` is the path of a class in a newer file, which takes precedence.
    Without either it is the sigmoid, and so it is, with a warning, for a class outside torch, whose code would have to
    be executed. Raises UserError for other activations of torch.
    """
    section = config.get(SECTION)
    paths = (stored, section.get(KEY) if isinstance(section, Mapping) else None, config.get(OLD_KEY))
    for path in paths:
        if path is None:
            continue
        if not isinstance(path, str) or not path.startswith("torch."):
            logger.warning("the activation %s is not torch's and is not executed: scores pass a sigmoid", shown(path))
            continue
        name = path.rpartition(".")[2].lower()
        if name not in ACTIVATIONS:
            raise UserError(f"the activation {shown(path)} is not supported here; supported are Sigmoid and Identity")
        return name
    return "sigmoid"


def check_labels(values: Mapping[str, Any], source: object) -> None:
    """Raise UserError unless the keys of a config.json describe a classifier with one label."""
    listed = values.get("architectures")
    classes = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    if classes and not any(name.endswith("ForSequenceClassification") for name in classes):
        raise UserError(
            f"{source}: is a {classes[0]}, which scores no pairs of texts; name a cross-encoder, a"
            " ...ForSequenceClassification with one label"
        )
    names, number = values.get("id2label"), values.get("num_labels")
    count = len(names) if isinstance(names, dict) else number if isinstance(number, int) else 2
    if count != 1:
        raise UserError(several_labels(source, count))


def several_labels(source: object, count: int) -> str:
    """Return the message for a model with several labels, or with a config that has the default number."""
    return (
        f"{source}: has {count} labels, and ranking needs a model with one score per text; name a cross-encoder with"
        " one label (fastbert predict serves classifiers)"
    )

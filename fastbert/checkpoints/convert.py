"""From any checkpoint to a Hugging Face folder or a TensorFlow checkpoint, with an account of every tensor.

Tensors are copied from file to file under other names, and no model computes or is initialised on the way: what the
source lacks is not made up, and what it holds beyond the model is named.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastbert.checkpoints import key_mapping
from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.checkpoints.file_tensors import FileTensor, fill
from fastbert.checkpoints.formats.safetensors import in_bytes, write_safetensors
from fastbert.checkpoints.formats.tensorflow import write_bundle
from fastbert.checkpoints.hub import MAIN
from fastbert.checkpoints.key_mapping import is_encoders, is_training_state, is_transposed, match, to_tensorflow
from fastbert.checkpoints.manifest import EMBEDDER, MODEL, TOKENIZER, verify_files
from fastbert.checkpoints.pipeline_files import ENCODER_CONFIG, MODULES, PIPELINE_FILES, PROMPTS, is_there
from fastbert.checkpoints.source import Weights, config_place, find_source, find_weights
from fastbert.checkpoints.tokenizer_files import Target, accept_folder, carry_tokenizer
from fastbert.config import CONFIGS, BertConfig
from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.untrusted_input import read_json_file
from fastbert.models import loading

if TYPE_CHECKING:
    from fastbert.embeddings.settings import EmbedSettings

PREFIX = "bert_model.ckpt"
MODEL_CLASSES = (
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForMultipleChoice",
    "BertForQuestionAnswering",
)
_WITH_CLASSIFIER = ("BertForSequenceClassification", "BertForTokenClassification", "BertForMultipleChoice")
_FILES = {
    "hf": ("config.json", "*.safetensors", MODULES, "[1-9]_*/config.json"),
    "tensorflow": ("bert_config.json", f"{PREFIX}.*"),
}


@dataclass(frozen=True)
class Options:
    """How to convert."""

    to: Target = "hf"
    dtype: torch.dtype | None = None
    """Of the weights; None: as they are."""
    pickles: bool = False
    """Read `pytorch_model.bin`, without executing the pickle in it."""
    revision: str = MAIN
    """Of a model in the Hub's cache."""
    model_class: str | None = None
    """One of `MODEL_CLASSES`; None: the one whose head the weights are."""
    tokenizer: Path | None = None
    """Folder or vocab.txt to take the tokenizer from; None: from beside the weights."""
    max_shard_size: int | str | None = None
    """Of a file of weights, in bytes or as "2GB"."""
    overwrite: bool = False
    """Replace what an earlier conversion wrote."""


@dataclass(frozen=True)
class Moved:
    """A tensor that was copied: its names, and what became of it on the way ("renamed", "transposed", "converted")."""

    name: str
    source: str
    shape: tuple[int, ...]
    dtype: str
    changes: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """What a conversion did, or would not do."""

    source: str
    out: str
    to: Target
    model_class: str
    tensors: list[Moved]
    missing: list[str]
    """Weights of the model that the source lacks; they were not made up."""
    wrong_shape: dict[str, str]
    """Weights that have another shape than the configuration says."""
    left_out: dict[str, str]
    """Tensors of the source that were not copied, and why."""
    files: list[str]
    """What lies in `out` now; nothing if the encoder is not whole."""

    @property
    def whole(self) -> bool:
        """Whether the encoder has all its weights, in their shapes."""
        return not self.wrong_shape and not any(map(is_encoders, self.missing))

    def to_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return {"kind": "conversion", "whole": self.whole, **asdict(self)}


def convert(source: str | Path, out: Path, options: Options = Options()) -> Report:
    """Write what `source` holds to the folder `out`; a folder that is not whole is never left there.

    Where weights of the encoder are missing or of the wrong shape nothing is written, and the report says which.
    Raises `UserError` and `CheckpointError` as `from_pretrained` does.
    """
    root = place = find_source(source, options.revision)
    pipeline = None
    if root.is_dir() and is_there(root / MODULES):
        pipeline = _read_pipeline(root)
        place = pipeline.encoder
    _refuse_present(root, out, options)
    for folder in {config_place(root), config_place(place)}:
        verify_files(folder, MODEL, EMBEDDER, *([] if options.tokenizer else [TOKENIZER]))
    config = BertConfig.from_pretrained(config_place(place))
    weights = find_weights(place, options.pickles, verify=False)  # checked above
    loading.check_size(config, weights)
    kind = options.model_class or choose_class(weights.tensors, named_classes(config_place(place)))
    plan, report = _plan(weights, config, kind, out, options)
    if pipeline is not None and (options.to != "hf" or pipeline.settings is None):
        why = pipeline.refused or "a TensorFlow checkpoint has no place for sentence-transformers' settings"
        report.left_out[MODULES] = why
    if not report.whole:
        return report
    with atomic_folder(out, superseded=("model*.safetensors*", *PIPELINE_FILES)) as folder:
        _write(folder, plan, _with_labels(config, plan), kind, options)
        carry_tokenizer(options.tokenizer, weights.folder, folder, config.vocab_size, options.to)
        if pipeline is not None and options.to == "hf":
            pipeline.save(folder, config.hidden_size)
        accept_folder(folder)
        report.files.extend(sorted(path.name for path in folder.iterdir()))
    return report


@dataclass(frozen=True)
class _Pipeline:
    """What makes a folder a sentence-transformers model: where its encoder is, and how vectors become embeddings."""

    root: Path
    encoder: Path
    settings: EmbedSettings | None
    refused: str = ""
    """Why there are no settings: a module that we do not know."""

    def save(self, folder: Path, width: int) -> None:
        """Write it, with what else its two small files say, so that the same weights give the same embeddings."""
        if self.settings is None:
            return
        self.settings.save(folder, width)
        for place, name in ((self.root, PROMPTS), (self.encoder, ENCODER_CONFIG)):
            if is_there(place / name):
                write_json_atomic(folder / name, read_json_file(place / name), ensure_ascii=False)


def _read_pipeline(root: Path) -> _Pipeline:
    # Here, since it loads models, which load through this package.
    from fastbert.checkpoints.pipeline_files import listed_modules
    from fastbert.embeddings.folder import read_settings

    kind, encoder = listed_modules(root)[0]
    if kind != "Transformer":
        encoder = root
    try:
        return _Pipeline(root, encoder, read_settings(root)[1])
    except CheckpointError:
        raise
    except UserError as error:
        return _Pipeline(root, encoder, None, str(error))


def choose_class(tensors: Collection[str], architectures: list[str]) -> str:
    """The class that has a place for the heads among tensors of these names; of several, the one that config.json
    names."""

    def has(head: str) -> bool:
        return any(name.startswith(head) for name in tensors)

    if has("cls.predictions."):
        return "BertForPreTraining" if has("cls.seq_relationship.") else "BertForMaskedLM"
    if has("cls.seq_relationship."):
        return "BertForNextSentencePrediction"
    if has("qa_outputs."):
        return "BertForQuestionAnswering"
    if has("classifier."):
        return next((name for name in architectures if name in _WITH_CLASSIFIER), _WITH_CLASSIFIER[0])
    return "BertModel"


def named_classes(folder: Path) -> list[str]:
    """The classes that config.json names."""
    file = next(folder / name for name in CONFIGS if (folder / name).exists())
    named = read_json_file(file).get("architectures")
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []


def _plan(
    weights: Weights, config: BertConfig, kind: str, out: Path, options: Options
) -> tuple[dict[str, FileTensor], Report]:
    """Which tensor goes where, under which name; and the report of it."""
    from fastbert import models

    if kind not in MODEL_CLASSES:
        raise UserError(f"--model-class {kind} is not one of {', '.join(MODEL_CLASSES)}")
    model = loading.outline(getattr(models, kind), config)
    own = loading.own_shapes(model)
    matched = match(weights.tensors, own, model.base_model_prefix, weights.place)
    loading.check_tied(model, weights, matched)
    plan: dict[str, FileTensor] = {}
    moved, wrong = [], {}
    for name in own:
        if name not in matched:
            continue
        stored = weights.tensors[matched[name]]
        if stored.shape != own[name] and not (_is_open(name) and stored.shape[1:] == own[name][1:]):
            wrong[name] = f"{stored.shape}, but the configuration says {own[name]}"
            continue
        plan[name] = stored
        moved.append(_moved(name, matched[name], stored, weights, options))
    taken = {matched[name] for name in plan} | {matched[name] for name in wrong}
    left_out = {
        weights.origins.get(name, name): _reason(name, kind, model.tied_keys)
        for name in weights.tensors
        if name not in taken
    }
    missing = sorted(own.keys() - matched.keys())
    report = Report(str(weights.place), str(out), options.to, kind, moved, missing, wrong, left_out, [])
    return plan, report


def _is_open(name: str) -> bool:
    """Whether a weight's first size is a number of labels, which TensorFlow's configurations do not say."""
    return name.startswith("classifier.")


def _moved(name: str, key: str, stored: FileTensor, weights: Weights, options: Options) -> Moved:
    source = weights.origins.get(key, key)
    target = _target_name(name, options.to)
    turned = [is_transposed(one) and len(stored.shape) == 2 for one in (source, target)]
    dtype = _dtype(stored, options.dtype)
    changes = {"renamed": target != source, "transposed": turned[0] != turned[1], "converted": dtype != stored.dtype}
    shape = stored.shape[::-1] if turned[1] else stored.shape
    return Moved(target, source, shape, str(dtype), tuple(what for what, happened in changes.items() if happened))


def _target_name(name: str, to: Target) -> str:
    """The name that a weight of one of our models has in the output."""
    if to == "hf":
        return name
    full = f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name
    theirs = to_tensorflow(full)
    assert theirs is not None, f"{name} has no name in TensorFlow's checkpoints"
    return theirs


def _dtype(stored: FileTensor, wanted: torch.dtype | None) -> torch.dtype:
    return wanted if wanted is not None and stored.dtype.is_floating_point else stored.dtype


def _reason(name: str, kind: str, tied: tuple[str, ...]) -> str:
    """Why a tensor is not copied."""
    if is_training_state(name):
        return "the optimizer's"
    if name.endswith(key_mapping.IGNORED):
        return "a buffer, made anew"
    if name in tied:
        return "tied to another weight"
    return f"no part of {kind}"


def _with_labels(config: BertConfig, plan: dict[str, FileTensor]) -> BertConfig:
    """The configuration with as many labels as a classifier among the weights has."""
    from dataclasses import replace

    stored = plan.get("classifier.bias")
    labels = config.num_labels if stored is None or len(stored.shape) != 1 else stored.shape[0]
    return config if labels in (1, config.num_labels) else replace(config, num_labels=labels)


def _write(folder: Path, plan: dict[str, FileTensor], config: BertConfig, kind: str, options: Options) -> None:
    """Weights and configuration."""
    tensors = {name: torch.empty(stored.shape, dtype=_dtype(stored, options.dtype)) for name, stored in plan.items()}
    fill((stored, tensors[name]) for name, stored in plan.items())
    content = config.to_dict(architecture=kind)
    if options.to == "hf":
        size = options.max_shard_size
        write_safetensors(folder, tensors, None if size is None else in_bytes(size))
        write_json_atomic(folder / "config.json", content)
        return
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        theirs = _target_name(name, options.to)
        renamed[theirs] = tensor.T.contiguous() if is_transposed(theirs) else tensor
    write_bundle(folder / PREFIX, renamed)
    write_json_atomic(folder / "bert_config.json", content)


def _refuse_present(place: Path, out: Path, options: Options) -> None:
    """Refuse an `out` that is no folder, that is the source, or that holds weights which would be lost or preferred."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file; name a folder")
    folder = place if place.is_dir() else place.parent
    if out.resolve() == folder.resolve() or folder.resolve() in out.resolve().parents:
        raise UserError(f"--out {out}: is the source, or in it; name another folder")
    for to, patterns in _FILES.items():
        present = sorted(str(path.relative_to(out)) for pattern in patterns for path in out.glob(pattern))
        if present and to != options.to:
            raise UserError(f"--out {out}: holds {present[0]}, other weights than these; name another folder")
        if present and not options.overwrite:
            raise UserError(f"--out {out}: already holds {present[0]}; replace it with --overwrite")

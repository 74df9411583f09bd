"""Convert any checkpoint to a Hugging Face folder or a TensorFlow checkpoint, with a report on every tensor.

Tensors are copied from file to file under new names; no model is computed or initialised. Missing weights are reported,
not invented, and tensors that do not belong to the model are listed.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.checkpoints.file_tensors import FileTensor, fill
from fastbert.checkpoints.formats.safetensors import in_bytes, write_safetensors
from fastbert.checkpoints.formats.tensorflow import write_bundle
from fastbert.checkpoints.hub import MAIN
from fastbert.checkpoints.manifest import EMBEDDER, MODEL, TOKENIZER, verify_files
from fastbert.checkpoints.pipeline_files import CONFIG, ENCODER_CONFIG, MODULES, PIPELINE_FILES, PROMPTS, read_modules
from fastbert.checkpoints.source import config_folder, find_source
from fastbert.checkpoints.tokenizer_files import FILES as TOKENIZER_FILES
from fastbert.checkpoints.tokenizer_files import Target, accept_folder, copy_tokenizer, holds_tokenizer
from fastbert.checkpoints.weights import Weights
from fastbert.config import BertConfig, read_config_file
from fastbert.embeddings.folder import read_settings
from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.untrusted_input import read_json_file, read_json_object
from fastbert.models import loading, registry
from fastbert.models.base import PreTrainedModel
from fastbert.models.bert.architecture import BERT
from fastbert.models.bert.tensorflow import is_training_state, is_transposed, to_tensorflow
from fastbert.models.encoder import EmbeddingSettings
from fastbert.models.key_map import BUFFERS, is_encoder_weight
from fastbert.reranking.settings import CrossEncoderSettings, check_labels
from fastbert.reranking.settings import read_settings as read_cross_encoder_settings
from fastbert.retrieval.settings import SparseSettings, read_sparse_settings, read_token_settings

PREFIX = "bert_model.ckpt"
# The bias of a classifier, one number per label.
_LABEL_BIASES = ("classifier.bias", "classifier.out_proj.bias")
_BESIDE = ("config.json", MODULES, "[1-9]_*/config.json")
_FILES = {
    "hf": ("*.safetensors", *_BESIDE),
    "tensorflow": ("bert_config.json", f"{PREFIX}.*"),
    "onnx": ("model.onnx*", *_BESIDE),
}


@dataclass(frozen=True)
class Options:
    """Options of a conversion."""

    to: Target = "hf"
    dtype: torch.dtype | None = None
    """Dtype of the weights; None: unchanged."""
    pickles: bool = False
    """Read `pytorch_model.bin`, without executing the pickle in it."""
    revision: str = MAIN
    """Branch, tag or commit of a model in the Hub's cache."""
    model_class: str | None = None
    """A class of the architecture's models; None: chosen by the heads among the weights."""
    tokenizer: Path | None = None
    """Folder or vocab.txt of the tokenizer; None: the one beside the weights."""
    max_shard_size: int | str | None = None
    """Maximum size of a weight file, in bytes or as "2GB"."""
    overwrite: bool = False
    """Replace the files of an earlier conversion."""


@dataclass(frozen=True)
class CopiedTensor:
    """A tensor that was copied: its names, and its changes ("renamed", "transposed", "converted")."""

    name: str
    source: str
    shape: tuple[int, ...]
    dtype: str
    changes: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The result of a conversion."""

    source: str
    out: str
    to: Target
    model_class: str
    tensors: list[CopiedTensor]
    missing: list[str]
    """Weights of the model that the source lacks."""
    wrong_shape: dict[str, str]
    """Weights whose shape contradicts the configuration."""
    left_out: dict[str, str]
    """Tensors of the source that were not copied, with the reasons."""
    files: list[str]
    """The files in `out`; none if the encoder is incomplete."""

    @property
    def whole(self) -> bool:
        """Return whether the encoder has all its weights, in the right shapes."""
        return not self.wrong_shape and not any(map(is_encoder_weight, self.missing))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {"kind": "conversion", "whole": self.whole, **asdict(self)}


def convert(source: str | Path, out: Path, options: Options = Options()) -> Report:
    """Convert `source` to the folder `out`, whose files appear all at once.

    If weights of the encoder are missing or have the wrong shape, nothing is written, and the report lists them. Raises
    `UserError` and `CheckpointError` as `from_pretrained` does.
    """
    root = encoder = find_source(source, options.revision)
    pipeline = None
    if root.is_dir() and os.path.lexists(root / MODULES):
        pipeline = read_pipeline(root)
        encoder = pipeline.encoder
    refuse_present(root, out, options.to, overwrite=options.overwrite)
    for folder in {config_folder(root), config_folder(encoder)}:
        verify_files(folder, MODEL, EMBEDDER, *([] if options.tokenizer else [TOKENIZER]))
    config = registry.read_config(config_folder(encoder))
    if options.to == "tensorflow" and config.model_type != BERT.name:
        raise UserError(f"--to tensorflow: only BERT has TensorFlow checkpoints, not model_type={config.model_type!r}")
    record = registry.architecture_of(config)
    weights = record.from_file(loading.find_weights(encoder, options.pickles, verify=False))  # checked above
    loading.check_size(config, weights)
    kind = options.model_class or choose_class(config, weights.tensors, listed_classes(config_folder(encoder)))
    plan, config, report = _plan(weights, config, kind, out, options)
    if pipeline is not None and (refusal := pipeline.refused(kind, options.to)):
        report.left_out[MODULES] = refusal
        pipeline = None
    if not report.whole:
        return report
    # Of a tokenizer that is replaced nothing stays, since its files may be those of a different kind.
    replaced = TOKENIZER_FILES if options.tokenizer or holds_tokenizer(weights.folder) else ()
    with atomic_folder(out, superseded=("model*.safetensors*", *PIPELINE_FILES, *replaced)) as folder:
        _write(folder, plan, config, kind, options)
        copy_tokenizer(options.tokenizer, weights.folder, folder, config.vocab_size, options.to)
        if pipeline is not None:
            pipeline.save(folder, config)
        accept_folder(folder)
        report.files.extend(sorted(path.name for path in folder.iterdir()))
    return report


@dataclass(frozen=True)
class Pipeline:
    """A sentence-transformers model: the folder of its encoder, and its settings."""

    root: Path
    encoder: Path
    settings: EmbeddingSettings | None
    refusal: str = ""
    """Why there are no settings: an unsupported module, for example."""

    def refused(self, kind: str, to: Target) -> str:
        """Return why the settings cannot be written beside a model of a class in a format; "" if they can be."""
        if self.refusal or to != "hf":
            return self.refusal or "a TensorFlow checkpoint cannot hold sentence-transformers' settings"
        for settings, head in ((SparseSettings, "ForMaskedLM"), (CrossEncoderSettings, "ForSequenceClassification")):
            if isinstance(self.settings, settings) and not kind.endswith(head):
                return f"the settings are those of a ...{head}, not of a {kind}"
        return ""

    def save(self, folder: Path, config: BertConfig) -> None:
        """Write the settings; of an embedder also what else is in the two small files beside them, so that the
        embeddings stay the same."""
        assert self.settings is not None
        is_sparse = isinstance(self.settings, SparseSettings)
        self.settings.save(folder, config.vocab_size if is_sparse else config.hidden_size)
        if not isinstance(self.settings, EmbedSettings):
            return
        for source, name in ((self.root, PROMPTS), (self.encoder, ENCODER_CONFIG)):
            if os.path.lexists(source / name):
                write_json_atomic(folder / name, read_json_file(source / name), ensure_ascii=False)


def read_pipeline(root: Path) -> Pipeline:
    """Return the sentence-transformers model in a folder. Raises `CheckpointError` for damaged files."""
    kind, encoder = read_modules(root)[0]
    if kind not in ("Transformer", "MLMTransformer"):
        encoder = root
    try:
        return Pipeline(root, encoder, _read_settings(root))
    except CheckpointError:
        raise
    except UserError as error:
        return Pipeline(root, encoder, None, str(error))


def _read_settings(root: Path) -> EmbeddingSettings:
    """Return the settings of an embedder, a cross-encoder, or a model of sparse or token vectors. Raises `UserError`
    for modules that are not supported."""
    kinds = [kind for kind, _ in read_modules(root)]
    values = read_json_object(root / PROMPTS) if os.path.lexists(root / PROMPTS) else {}
    if "SpladePooling" in kinds:
        return read_sparse_settings(root)
    if "MultiVectorMask" in kinds or values.get("model_type") in ("MultiVectorEncoder", "ColBERT"):
        return read_token_settings(root)
    if kinds != ["Transformer"]:
        return read_settings(root)[1]
    settings = read_cross_encoder_settings(root)
    settings.activation_class()
    check_labels(read_json_object(root / CONFIG), root)
    return settings


def choose_class(config: BertConfig, tensors: Collection[str], listed: Collection[str]) -> str:
    """Return the class of the config's models whose head has most weights among tensors of these names; `listed`, from
    config.json, decides between classes with the same number. Without weights of a head it is the encoder."""

    def rank(entry: tuple[int, tuple[str, type[PreTrainedModel]]]) -> tuple[int, bool, int]:
        index, (name, kind) = entry
        head = [file_name for file_name in _head_names(kind, config) if file_name in tensors]
        return len(head), name in listed, -index

    record = registry.architecture_of(config)
    entries = list(enumerate(registry.model_classes(record).items()))
    best = max(entries[1:], key=rank)
    # A head that is tied as a whole has no weights of its own.
    headed = rank(best)[0] or (
        record.tied_head and any(name.startswith(f"{record.base_model_prefix}.") for name in tensors)
    )
    return best[1][0] if headed else entries[0][1][0]


def _head_names(kind: type[PreTrainedModel], config: BertConfig) -> list[str]:
    """Return the names in files of a model's weights outside of the encoder."""
    model = loading.outline(kind, replace(config, num_hidden_layers=1))
    prefix = f"{kind.base_model_prefix}."
    return [kind.key_map.file_name(name) for name in loading.model_shapes(model) if not name.startswith(prefix)]


def listed_classes(folder: Path) -> list[str]:
    """Return the architectures in config.json."""
    listed = read_config_file(folder)[1].get("architectures")
    return [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []


def _plan(
    weights: Weights, config: BertConfig, kind: str, out: Path, options: Options
) -> tuple[dict[str, FileTensor], BertConfig, Report]:
    """Return the tensors to copy by their names in the output, the configuration with the number of labels of the
    classifier among them, and the report."""
    kinds = registry.model_classes(registry.architecture_of(config))
    if kind not in kinds:
        raise UserError(f"--model-class {kind} is not one of {', '.join(kinds)}")
    model = loading.outline(kinds[kind], config)
    shapes = loading.model_shapes(model)
    matched = model.match(weights)
    loading.check_tied(model, weights, matched)
    plan: dict[str, FileTensor] = {}
    copied, wrong = [], {}
    for name in shapes:
        if name not in matched:
            continue
        stored = weights.tensors[matched[name]]
        if stored.shape != shapes[name] and not (_has_free_rows(name) and stored.shape[1:] == shapes[name][1:]):
            wrong[name] = f"{stored.shape}, but the configuration says {shapes[name]}"
            continue
        target = _target_name(model, name, options.to)
        plan[target] = stored
        if name in _LABEL_BIASES and stored.shape[0] not in (1, config.num_labels):
            config = replace(config, num_labels=stored.shape[0])
        copied.append(_copied(target, matched[name], stored, weights, options))
    used = {matched[name] for name in shapes if name in matched}
    tied = {model.key_map.file_name(name) for name in model.tied_keys}
    left_out = {
        weights.origins.get(name, name): _reason(name, kind, tied) for name in weights.tensors if name not in used
    }
    missing = sorted(shapes.keys() - matched.keys())
    report = Report(str(weights.path), str(out), options.to, kind, copied, missing, wrong, left_out, [])
    return plan, config, report


def _has_free_rows(name: str) -> bool:
    """Return whether a weight's first size is the number of labels, which TensorFlow's configurations lack."""
    return name in ("classifier.weight", *_LABEL_BIASES) or name == "classifier.out_proj.weight"


def _copied(target: str, key: str, stored: FileTensor, weights: Weights, options: Options) -> CopiedTensor:
    source = weights.origins.get(key, key)
    transposed = [is_transposed(key) and len(stored.shape) == 2 for key in (source, target)]
    dtype = _dtype(stored, options.dtype)
    changes = {
        "renamed": target != source,
        "transposed": transposed[0] != transposed[1],
        "converted": dtype != stored.dtype,
    }
    shape = stored.shape[::-1] if transposed[1] else stored.shape
    return CopiedTensor(target, source, shape, str(dtype), tuple(name for name, changed in changes.items() if changed))


def _target_name(model: PreTrainedModel, name: str, to: Target) -> str:
    """Return the name of a model's weight in the output."""
    if to == "hf":
        return model.key_map.file_name(name)
    full = f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name
    tensorflow_name = to_tensorflow(full)
    assert tensorflow_name is not None, f"{name} has no name in TensorFlow's checkpoints"
    return tensorflow_name


def _dtype(stored: FileTensor, dtype: torch.dtype | None) -> torch.dtype:
    return dtype if dtype is not None and stored.dtype.is_floating_point else stored.dtype


def _reason(name: str, kind: str, tied: Collection[str]) -> str:
    """Return why a tensor is not copied."""
    if is_training_state(name):
        return "optimizer state"
    if name.endswith(BUFFERS):
        return "a buffer, which is recomputed"
    if name in tied:
        return "tied to another weight"
    return f"not part of {kind}"


def _write(folder: Path, plan: dict[str, FileTensor], config: BertConfig, kind: str, options: Options) -> None:
    """Write weights and configuration."""
    tensors = {name: torch.empty(stored.shape, dtype=_dtype(stored, options.dtype)) for name, stored in plan.items()}
    fill((stored, tensors[name]) for name, stored in plan.items())
    content = config.to_dict(architecture=kind)
    if options.to == "hf":
        size, record = options.max_shard_size, registry.architecture_of(config)
        write_safetensors(folder, record.to_file(tensors), None if size is None else in_bytes(size))
        write_json_atomic(folder / "config.json", content)
        return
    bundle = {name: tensor.T.contiguous() if is_transposed(name) else tensor for name, tensor in tensors.items()}
    write_bundle(folder / PREFIX, bundle)
    write_json_atomic(folder / "bert_config.json", content)


def refuse_present(source: Path, out: Path, to: Target | Literal["onnx"], *, overwrite: bool) -> None:
    """Raise `UserError` for an `out` that is a file or the source, or holds weights that would be lost or preferred."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file; name a folder")
    folder = source if source.is_dir() else source.parent
    if out.resolve() == folder.resolve() or folder.resolve() in out.resolve().parents:
        raise UserError(f"--out {out}: is the source, or in it; name another folder")
    for other in sorted(_FILES, key=to.__eq__):
        # Formats share the files beside the weights.
        patterns = [pattern for pattern in _FILES[other] if other == to or pattern not in _FILES[to]]
        present = sorted(str(path.relative_to(out)) for pattern in patterns for path in out.glob(pattern))
        if present and other != to:
            raise UserError(f"--out {out}: holds {present[0]}, weights in a different format; name another folder")
        if present and not overwrite:
            raise UserError(f"--out {out}: already holds {present[0]}; replace it with --overwrite")

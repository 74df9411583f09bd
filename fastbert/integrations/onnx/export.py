"""Write a model as an ONNX file beside its configuration and tokenizer, after a comparison in ONNX Runtime."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.checkpoints.convert import Pipeline, read_pipeline, refuse_present
from fastbert.checkpoints.hub import MAIN
from fastbert.checkpoints.manifest import EMBEDDER, MODEL, TOKENIZER, verify_files
from fastbert.checkpoints.pipeline_files import MODULES, PIPELINE_FILES
from fastbert.checkpoints.source import config_folder, find_source
from fastbert.checkpoints.tokenizer_files import FILES as TOKENIZER_FILES
from fastbert.checkpoints.tokenizer_files import accept_folder, copy_tokenizer
from fastbert.embeddings.folder import read_settings
from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import CheckpointError, UserError
from fastbert.integrations.onnx.check import Comparison, check, compare
from fastbert.integrations.onnx.graph import FILE, OPSET, Graph
from fastbert.integrations.onnx.heads import build_graph, spec_of
from fastbert.integrations.onnx.packages import check_packages
from fastbert.io.atomic_write import write_json_atomic
from fastbert.models import registry
from fastbert.models.base import PreTrainedModel
from fastbert.models.encoder import EncoderModel

_EXACT = "exact"


@dataclass(frozen=True)
class Options:
    """Options of an export."""

    dtype: Literal["fp32", "int8"] = "fp32"
    """int8: weights of matmuls and of the token table are int8, activations are quantised at run time."""
    pooled: bool = False
    """Add the output `sentence_embedding`, by the settings of a sentence-transformers folder, else the mean."""
    pickles: bool = False
    """Read `pytorch_model.bin`, without executing the pickle in it."""
    revision: str = MAIN
    """Branch, tag or commit of a model in the Hub's cache."""
    model_class: str | None = None
    """A class of the architecture's models; None: the one that uses most of the weights."""
    tokenizer: Path | None = None
    """Folder or vocab.txt of the tokenizer; None: the one beside the weights."""
    overwrite: bool = False
    """Replace the files of an earlier export."""


@dataclass(frozen=True)
class Export:
    """The result of an export."""

    source: str
    out: str
    model_class: str
    dtype: str
    opset: int
    inputs: list[str]
    outputs: list[str]
    comparisons: list[Comparison]
    """The differences from fastbert, of each output."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Files of the source that were not written, with the reasons."""
    files: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the export as JSON values."""
        comparisons = [{**asdict(comparison), "tolerance": comparison.tolerance} for comparison in self.comparisons]
        return {"kind": "onnx", **asdict(self), "comparisons": comparisons}


def export_onnx(source: str | Path, out: Path, options: Options = Options()) -> Export:
    """Write the model of a folder to `out` as `model.onnx`, with config.json, the tokenizer's files and the settings of
    a sentence-transformers folder; all files appear at once.

    The graph has `input_ids`, `attention_mask` and, of models with segments, `token_type_ids`, int64 (batch, length) of
    any size. Its outputs are `last_hidden_state` or those of the head, fp32, as fastbert computes them but for padding,
    whose values are meaningless. Weights beyond 2 GB lie in `model.onnx_data`.

    Raises `UserError` for models without a form in ONNX and absent packages, and `CheckpointError`, with nothing
    written, if the outputs differ from fastbert's by more than the tolerance.
    """
    check_packages()
    root = encoder = find_source(source, options.revision)
    pipeline = None
    if root.is_dir() and os.path.lexists(root / MODULES):
        pipeline = read_pipeline(root)
        encoder = pipeline.encoder
    refuse_present(root, out, "onnx", overwrite=options.overwrite)
    for folder in {config_folder(root), config_folder(encoder)}:
        verify_files(folder, MODEL, EMBEDDER, *([] if options.tokenizer else [TOKENIZER]))
    settings = _settings(root, options)
    model = _load(encoder, options)
    if settings is not None:
        settings.check_width(model.config.hidden_size, str(root))
    int8, left_out = options.dtype == "int8", {}
    kind = type(model).__name__
    if pipeline is not None and (refusal := pipeline.refused(kind, "hf")):
        left_out[MODULES] = refusal
        pipeline = None
    graph = build_graph(model, settings, for_quantizer=int8)
    with atomic_folder(out, superseded=("model.onnx*", *PIPELINE_FILES, *TOKENIZER_FILES)) as folder:
        graph.save(folder)
        if int8:
            _quantize(folder, graph)
        comparisons = compare(model, folder, settings, int8=int8)
        check(comparisons, str(root))
        _write_beside(folder, model, encoder, options, pipeline)
        files = sorted(path.name for path in folder.iterdir())
    inputs, outputs = ([node.name for node in ends] for ends in (graph.inputs, graph.outputs))
    return Export(str(root), str(out), kind, options.dtype, OPSET, inputs, outputs, comparisons, left_out, files)


def _settings(root: Path, options: Options) -> EmbedSettings | None:
    """Return the settings of the output `sentence_embedding`, None without it."""
    if not options.pooled:
        return None
    if options.model_class is not None:
        raise UserError("--pooled is for the encoder alone: leave out --model-class")
    return read_settings(root)[1] if root.is_dir() else EmbedSettings()


def _load(source: Path, options: Options) -> Any:
    """Load a model in fp32. Raises `UserError` if it has no form in ONNX, or weights that the folder lacks."""
    given: dict[str, Any] = {"dtype": torch.float32, "pickles": options.pickles, "verify": False}
    config = registry.read_config(config_folder(source))
    if config.model_type in registry.SEQUENCE_MODELS:
        raise UserError(f"{source}: model_type={config.model_type!r} has a decoder; ONNX files are written of encoders")
    record = registry.architecture_of(config)
    kinds = registry.model_classes(record)
    if options.model_class is not None and options.model_class not in kinds:
        raise UserError(f"--model-class {options.model_class} is not one of {', '.join(kinds)}")
    try:
        record.spec(config)
        model: PreTrainedModel
        if options.pooled:
            model = record.model_class(EncoderModel).from_pretrained(source, **given)
        elif options.model_class is not None:
            model = kinds[options.model_class].from_pretrained(source, **given)
        else:
            model = registry.load(source, **given)
        spec_of(model)
    except CheckpointError:
        raise
    except UserError as error:
        raise UserError(f"{source}: cannot be written as ONNX: {error}") from None
    # No output reads the pooler of an encoder without a head.
    unread = "pooler." if isinstance(model, EncoderModel) else "-"
    missing = [name for name in model.new_weights if not name.startswith(unread)]
    if missing:
        raise CheckpointError(
            f"{source}: lacks weights of {type(model).__name__}: {', '.join(missing[:4])}; name a class of which it has"
            " all with --model-class"
        )
    return model


def _quantize(folder: Path, graph: Graph) -> None:
    """Replace the file in a folder by one with int8 weights.

    Each output of a matmul has a scale of its own. Weights use 7 of the 8 bits, since CPUs without VNNI add products in
    16 bits, which saturate.
    """
    quantization: Any = import_module("onnxruntime.quantization")
    exact = folder / _EXACT
    exact.mkdir()
    for path in folder.glob("model.onnx*"):
        path.rename(exact / path.name)
    quantization.quantize_dynamic(
        exact / FILE,
        folder / FILE,
        op_types_to_quantize=["MatMul", "Gather"],
        nodes_to_quantize=graph.quantizable,
        per_channel=True,
        reduce_range=True,
        weight_type=quantization.QuantType.QInt8,
        use_external_data_format=graph.is_large,
    )
    for path in exact.iterdir():
        path.unlink()
    exact.rmdir()


def _write_beside(
    folder: Path, model: PreTrainedModel, source: Path, options: Options, pipeline: Pipeline | None
) -> None:
    """Write what other tools read beside the file: configuration, tokenizer, settings, and the manifest of them all."""
    config = model.config
    write_json_atomic(folder / "config.json", config.to_dict(architecture=type(model).__name__))
    copy_tokenizer(options.tokenizer, config_folder(source), folder, config.vocab_size, "hf")
    if pipeline is not None:
        pipeline.save(folder, config)
    accept_folder(folder)

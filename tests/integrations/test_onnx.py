"""ONNX files: every architecture and head gives in ONNX Runtime what fastbert gives; what cannot be written is refused
in one line, with nothing written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx", reason="needs onnx")
pytest.importorskip("onnxruntime", reason="needs onnxruntime")

import onnx
import onnxruntime
import torch
from encoder_families import CASES
from sweeps import sweep

import fastbert
from fastbert import BertConfig, BertForSequenceClassification, BertModel, WordPieceTokenizer, cli
from fastbert.checkpoints.manifest import verify_files
from fastbert.embeddings.settings import Dense, EmbedSettings
from fastbert.errors import UserError
from fastbert.integrations.onnx import export, graph, packages
from fastbert.integrations.onnx.check import check, compare
from fastbert.integrations.onnx.export import Options, export_onnx
from fastbert.integrations.onnx.heads import build_graph
from fastbert.models import registry
from fastbert.models.base import PreTrainedModel

SHAPE: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "max_position_embeddings": 40,
}  # fmt: skip
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh.,"]
TEXTS = ["", "a, b. c", "d " * 40, "x", "a b c d e f g h"]
RECORDS = {record.class_prefix: record for record in registry.ARCHITECTURES.values() if record.name != "elmo"}


def configs() -> dict[str, BertConfig]:
    """A config of every architecture, and of the variants that the records of the newer ones describe."""
    made = {
        name: registry.config_from_dict({"model_type": RECORDS[prefix].name, **values})
        for name, (prefix, values) in CASES.items()
    }
    others = {record.name: record.config for record in RECORDS.values() if record.config is not None}
    covered = {config.model_type for config in made.values()}
    made |= {name: kind(**SHAPE) for name, kind in others.items() if kind is not None and name not in covered}
    made["bert-decoder"] = BertConfig(**SHAPE, is_decoder=True)
    made["deberta-repeated"] = replace(made["deberta-v3"], z_steps=3)  # type: ignore[call-arg]
    made["eurobert-late"] = replace(made["eurobert"], classifier_pooling="late")  # type: ignore[call-arg]
    return made


def randomised(model: PreTrainedModel, seed: int) -> Any:
    """Give all parameters values that matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def names_of(folder: Path) -> tuple[list[Any], list[Any]]:
    """The names and axes of a file's inputs and outputs."""
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    return ([(node.name, node.shape) for node in ends] for ends in (session.get_inputs(), session.get_outputs()))


CONFIGS = configs()


# The heads to compare beside BERT's, which are all compared; of other architectures it is the encoder.
HEADS = {
    "bert-decoder": ("BertLMHeadModel",),
    "electra": ("ElectraForPreTraining", "ElectraForMultipleChoice"),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertForQuestionAnswering", "ModernBertForMultipleChoice"),
    "distilbert": ("DistilBertForSequenceClassification",),
    "roberta": ("RobertaForSequenceClassification",),
    "deberta-v3": ("DebertaV2ForSequenceClassification", "DebertaV2ForMaskedLM"),
    "eurobert": ("EuroBertForSequenceClassification", "EuroBertForMaskedLM"),
    "eurobert-late": ("EuroBertForSequenceClassification",),
    "albert": ("AlbertForPreTraining",),
    "gpt2": ("GPT2LMHeadModel", "GPT2ForSequenceClassification"),
}


@sweep("name", list(CONFIGS))
def test_every_architecture_and_head(name: str, tmp_path: Path, seed: int) -> None:
    kinds = registry.model_classes(registry.architecture_of(CONFIGS[name]))
    names = HEADS.get(
        name, [kind for kind in kinds if name == "bert" and kind != "BertLMHeadModel"] or [next(iter(kinds))]
    )
    for kind in map(kinds.__getitem__, names):
        model = randomised(kind(replace(CONFIGS[name], num_labels=3)), seed)
        build_graph(model).save(tmp_path)
        check(compare(model, tmp_path, None, int8=False), f"{name} {kind.__name__}")


def test_a_file_that_differs_is_not_written(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    randomised(BertModel(BertConfig(**SHAPE)), seed).save_pretrained(tmp_path / "model")

    def wrong(model: Any, *arguments: Any, **options: Any) -> graph.Graph:
        made = build_graph(model, *arguments, **options)
        made.weights = {name: tensor.clone() for name, tensor in made.weights.items()}
        made.weights["encoder.layer.0.output.dense.weight.T"] *= 0.99
        return made

    monkeypatch.setattr(export, "build_graph", wrong)
    with pytest.raises(UserError, match=r"last_hidden_state: at most .* \(tolerance .*wrote nothing"):
        export_onnx(tmp_path / "model", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@sweep("pooling, normalize, dense", [("mean", True, ()), ("cls", False, ("GELU",)), ("max", True, ("Tanh",))])
def test_pooled_embeddings(pooling: str, normalize: bool, dense: tuple[str, ...], tmp_path: Path, seed: int) -> None:
    """The output `sentence_embedding`, of what the tokenizer in the folder gives, is what `model.embed` gives."""
    torch.manual_seed(seed)
    layers = tuple(Dense(torch.randn(24, 32), torch.randn(24), name) for name in dense)
    source, out = tmp_path / pooling, tmp_path / f"{pooling}-onnx"
    model = randomised(BertModel(BertConfig(**SHAPE | {"vocab_size": len(VOCABULARY)})), seed)
    model.embed_settings = EmbedSettings(pooling=pooling, normalize=normalize, dense=layers)
    model.save_pretrained(source)
    WordPieceTokenizer(VOCABULARY, model_max_length=40).save_pretrained(source)
    assert cli.main(["convert", str(source), "--to", "onnx", "--pooled", "--out", str(out)]) == 0
    verify_files(out, "model", "tokenizer", "embedder", "onnx")
    inputs, outputs = names_of(out)
    axes = ["batch_size", "sequence_length"]
    assert inputs == [(name, axes) for name in ("input_ids", "attention_mask", "token_type_ids")]
    assert outputs == [("last_hidden_state", [*axes, 32]), ("sentence_embedding", [axes[0], 24 if dense else 32])]
    encoded = fastbert.load_tokenizer(out)(TEXTS, padding=True, truncation=True, max_length=32, return_tensors="np")
    session = onnxruntime.InferenceSession(out / "model.onnx")
    actual = session.run(["sentence_embedding"], {name: encoded[name] for name, _ in inputs})[0]
    model, tokenizer, _ = fastbert.load_embedder(source)
    expected = model.embed(TEXTS, tokenizer, max_length=32)
    torch.testing.assert_close(torch.as_tensor(actual), expected, atol=2e-5, rtol=1e-5)


def test_int8(tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    model = BertForSequenceClassification(BertConfig(**SHAPE | {"vocab_size": 3000, "hidden_size": 64}))
    randomised(model, seed).save_pretrained(tmp_path / "model")
    call = ["convert", str(tmp_path / "model"), "--to", "onnx", "--report", str(tmp_path / "report.json"), "--out"]
    assert cli.main([*call, str(tmp_path / "fp32")]) == 0
    assert "logits: at most" in capsys.readouterr().out
    assert cli.main([*call, str(tmp_path / "int8"), "--dtype", "int8"]) == 0
    assert "logits: root mean square error of " in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["comparisons"][0]["relative_difference"] < 0.1
    assert report["files"] == sorted(path.name for path in (tmp_path / "int8").iterdir())
    sizes = [(tmp_path / name / "model.onnx").stat().st_size for name in ("fp32", "int8")]
    assert sizes[1] < 0.4 * sizes[0]
    weights = onnx.load(tmp_path / "int8" / "model.onnx").graph.initializer
    assert not [
        tensor.name
        for tensor in weights
        if tensor.data_type == onnx.TensorProto.FLOAT and max(tensor.dims, default=0) > 256
    ]
    nodes = {node.op_type for node in onnx.load(tmp_path / "int8" / "model.onnx").graph.node}
    assert "MatMulInteger" in nodes


def test_large_weights_lie_beside_the_graph(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MOST_INLINE_BYTES", 1 << 10)
    model = randomised(registry.head_class(BertConfig(**SHAPE), "ForMaskedLM")(BertConfig(**SHAPE)), seed)
    model.save_pretrained(tmp_path / "model")
    for dtype, data in (("fp32", "model.onnx_data"), ("int8", "model.onnx.data")):
        out = tmp_path / dtype
        written = export_onnx(tmp_path / "model", out, Options(dtype=dtype))  # type: ignore[arg-type]
        assert set(written.files) == {"config.json", "fastbert_manifest.json", "model.onnx", data}
        verify_files(out, "onnx")
        (out / data).write_bytes((out / data).read_bytes()[:-1] + b"!")
        with pytest.raises(UserError, match=r"model\.onnx.data has different content"):
            verify_files(out, "onnx")
    # The decoder is the token table.
    assert (tmp_path / "fp32" / "model.onnx_data").stat().st_size < 4 * model.num_parameters() + (1 << 17)


def test_what_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, source = BertConfig(**SHAPE), tmp_path / "model"
    BertModel(config).save_pretrained(source)

    def refused(match: str, source: Path = source, **options: Any) -> None:
        with pytest.raises(UserError, match=match) as error:
            export_onnx(source, tmp_path / "out", Options(**options))
        assert "\n" not in str(error.value)
        assert not (tmp_path / "out").exists()

    refused("lacks weights of BertForMaskedLM: cls.predictions", model_class="BertForMaskedLM")
    refused("--model-class Nope is not one of BertModel, ", model_class="Nope")
    elmo = tmp_path / "elmo"
    elmo.mkdir()
    (elmo / "config.json").write_text(json.dumps({"model_type": "elmo"}))
    refused("elmo: cannot be written as ONNX: model_type='elmo' has LSTM layers", elmo)
    BertForSequenceClassification(replace(config, bilstm_size=8)).save_pretrained(tmp_path / "bilstm")
    refused(r"cannot be written as ONNX: BertForSequenceClassification has a BiLSTM", tmp_path / "bilstm")
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    refused("--to onnx needs onnx and onnxruntime: `pip install 'fastbert-engine\\[onnx\\]'`")
    monkeypatch.undo()
    for first, then, weights in (("onnx", "hf", "model.onnx"), ("hf", "onnx", "model.safetensors")):
        call = ["convert", str(source), "--out", str(tmp_path / first), "--overwrite", "--to"]
        assert cli.main([*call, first]) == 0
        assert cli.main([*call, first]) == 0
        capsys.readouterr()
        assert cli.main([*call, then]) == 2
        assert f"holds {weights}, weights in a different format" in capsys.readouterr().err

"""Models of other architectures than BERT against transformers, on the same weights: outputs, gradients, files."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import fastbert
from fastbert import models
from fastbert.checkpoints.convert import Options, convert
from fastbert.errors import CheckpointError, UserError
from fastbert.models import registry

transformers = pytest.importorskip("transformers")

ROBERTA = {
    "vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 40, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "num_labels": 3,
}  # fmt: skip
DISTILBERT = {
    "vocab_size": 300, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 40,
    "num_labels": 3,
}  # fmt: skip
ELECTRA = {
    "vocab_size": 300, "embedding_size": 24, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 40, "num_labels": 3,
}  # fmt: skip
CONFIGS = {
    "Roberta": ROBERTA, "XLMRoberta": ROBERTA, "Camembert": ROBERTA, "DistilBert": DISTILBERT, "Electra": ELECTRA,
    "RobertaPreLayerNorm": ROBERTA,
}  # fmt: skip
KINDS = (
    "Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering",
    "ForMultipleChoice",
)  # fmt: skip
PAD = {"RobertaPreLayerNorm": 1, "Roberta": 1, "XLMRoberta": 1, "Camembert": 1, "DistilBert": 0, "Electra": 0}
every_architecture = pytest.mark.parametrize("prefix", CONFIGS)


def make_reference(prefix: str, kind: str, folder: Path, seed: int) -> Any:
    """Save a model of transformers with weights that all matter, and return it in eval mode."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{prefix}Config")(**CONFIGS[prefix])
    if kind == "ForQuestionAnswering":
        config.num_labels = 2
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{prefix}{kind}")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return model.eval()


def padded(prefix: str, kind: str, seed: int) -> dict[str, torch.Tensor]:
    """Padding on both sides, which is the padding token, and a hole of other tokens."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 300, (4, 20), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, 10:] = 0
    mask[2, 1:] = 0
    ids[mask == 0] = PAD[prefix]
    if kind != "ForMultipleChoice":
        return {"input_ids": ids, "attention_mask": mask}
    return {"input_ids": ids.view(2, 2, 20), "attention_mask": mask.view(2, 2, 20)}


def labels(kind: str, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if kind == "ForQuestionAnswering":
        return {"start_positions": torch.tensor([1, 2, 0, 3]), "end_positions": torch.tensor([4, 2, 0, 19])}
    if kind == "ForMultipleChoice":
        return {"labels": torch.tensor([1, 0])}
    if kind == "ForSequenceClassification":
        return {"labels": torch.tensor([2, 0, 1, 1])}
    classes = 2 if kind == "ForPreTraining" else 3
    targets = torch.arange(inputs["input_ids"].numel()).view_as(inputs["input_ids"]) % classes
    if kind == "ForPreTraining":  # transformers leaves out what the mask says, and knows no -100
        return {"labels": targets}
    return {"labels": targets.masked_fill(inputs["attention_mask"] == 0, -100)}


def assert_same(actual: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor | None) -> None:
    if mask is not None and actual.shape[:2] == mask.shape:
        assert not actual[mask == 0].any(), "padding is zeros"
        actual, reference = actual[mask == 1], reference[mask == 1]
    torch.testing.assert_close(actual, reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("prefix", "kind"),
    [*((prefix, kind) for prefix in CONFIGS for kind in KINDS), ("Electra", "ForPreTraining")],
)
def test_models_equal_transformers(prefix: str, kind: str, tmp_path: Path, seed: int, caplog: Any) -> None:
    reference = make_reference(prefix, kind, tmp_path / "a", seed)
    model_class = getattr(fastbert, f"{prefix}{kind}")
    with caplog.at_level(logging.WARNING, logger="fastbert"):
        model = model_class.from_pretrained(tmp_path / "a")
        loaded = fastbert.load(tmp_path / "a")
    assert not caplog.records
    assert type(model) is type(loaded) is model_class
    inputs = padded(prefix, kind, seed)
    mask = None if kind == "ForMultipleChoice" else inputs["attention_mask"]
    with torch.no_grad():
        outputs, expected = model(**inputs, output_hidden_states=True), reference(**inputs, output_hidden_states=True)
    assert list(outputs.keys()) == list(expected.keys())
    for name, value in outputs.items():
        if name != "hidden_states":
            assert_same(value, expected[name], mask)
    for actual, other in zip(outputs.hidden_states, expected.hidden_states, strict=True):
        assert_same(actual, other, inputs["attention_mask"].view(-1, 20))
    if kind == "ForQuestionAnswering":
        inputs = {"input_ids": inputs["input_ids"].clamp(min=5)}  # transformers scores padding as an answer too
    if kind != "Model":
        _check_gradients(model.double(), reference.double(), {**inputs, **labels(kind, inputs)})

    # Files and state dictionaries go both ways.
    model = model_class.from_pretrained(tmp_path / "a")
    model.save_pretrained(tmp_path / "b")
    again, info = type(reference).from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    original = type(reference).from_pretrained(tmp_path / "a")
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, original.state_dict()[name]), name
    fresh = model_class(model.config)
    fresh.load_state_dict(original.state_dict())
    fresh.tie_weights()
    for name, tensor in fresh.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    assert torch.equal(fresh(**inputs)[0], pickle.loads(pickle.dumps(fresh))(**inputs)[0]) or fresh.training


def _check_gradients(model: Any, reference: Any, inputs: dict[str, torch.Tensor]) -> None:
    """Compare losses and gradients of all parameters, in evaluation, without dropout."""
    actual, expected = model(**inputs).loss, reference(**inputs).loss
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-5, atol=1e-6)
    actual.backward()
    expected.backward()
    names = model.key_map.file_name
    gradients = dict(reference.named_parameters(remove_duplicate=False))
    for name, parameter in model.named_parameters():
        other = gradients[names(name)].grad
        if other is None:
            assert parameter.grad is None or not parameter.grad.any(), name
            continue
        torch.testing.assert_close(parameter.grad, other, rtol=1e-5, atol=1e-7, msg=lambda text, name=name: name + text)


@every_architecture
def test_packed_texts_embeddings_and_positions_equal_padded_ones(prefix: str, tmp_path: Path, seed: int) -> None:
    reference = make_reference(prefix, "Model", tmp_path, seed)
    model = getattr(fastbert, f"{prefix}Model").from_pretrained(tmp_path)
    inputs = padded(prefix, "Model", seed)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    lengths = mask.sum(1)
    batch = fastbert.PackedBatch(
        input_ids=ids[mask == 1],
        cu_seqlens=torch.cat((torch.zeros(1), lengths.cumsum(0))).int(),
        max_seqlen=int(lengths.max()),
    )
    positions = torch.arange(20).expand(4, 20) + (PAD[prefix] + 1 if PAD[prefix] else 0)
    with torch.no_grad():
        expected = reference(**inputs).last_hidden_state[mask == 1]
        torch.testing.assert_close(model(batch).last_hidden_state, expected, rtol=1e-4, atol=1e-5)
        actual = model(**inputs, position_ids=positions).last_hidden_state[mask == 1]
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        embeds = reference.get_input_embeddings()(ids)
        expected = reference(inputs_embeds=embeds, attention_mask=mask).last_hidden_state[mask == 1]
        actual = model(inputs_embeds=embeds, attention_mask=mask).last_hidden_state[mask == 1]
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        # Padding in front: RoBERTa counts tokens, DistilBERT columns.
        flipped = {name: tensor.flip(1) for name, tensor in inputs.items()}
        expected = reference(**flipped).last_hidden_state[flipped["attention_mask"] == 1]
        actual = model(**flipped).last_hidden_state[flipped["attention_mask"] == 1]
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    offset = 40 - model.config.max_sequence_length
    with pytest.raises(UserError, match="position_ids holds 40, outside the model's table of 40 rows"):
        model(torch.full((1, 41 - offset), 7))


@pytest.mark.parametrize("prefix", ["Roberta", "DistilBert"])
def test_exported_models_equal_packed_ones(prefix: str, tmp_path: Path, seed: int) -> None:
    make_reference(prefix, "ForSequenceClassification", tmp_path, seed)
    model = fastbert.load(tmp_path)
    inputs = padded(prefix, "ForSequenceClassification", seed)
    with torch.no_grad():
        exported = torch.export.export(model, (), inputs)
        torch.testing.assert_close(exported.module()(**inputs).logits, model(**inputs).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("prefix", ["Roberta", "DistilBert"])
def test_training_drops_and_learns(prefix: str, seed: int) -> None:
    kinds = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
    config = registry.find_class(f"{prefix}Model").config_type.from_dict(CONFIGS[prefix])  # type: ignore[union-attr]
    for kind in kinds:
        torch.manual_seed(seed)
        model = getattr(models, f"{prefix}{kind}")(config).train()
        inputs = padded(prefix, kind, seed)
        inputs |= labels(kind, inputs)
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        losses = []
        for _ in range(10):
            losses.append(model(**inputs).loss)
            optimizer.zero_grad()
            losses[-1].backward()
            optimizer.step()
        assert losses[-1] < 0.9 * losses[0], kind
        first, second = (model(**inputs).loss for _ in range(2))
        assert first != second, f"{kind} drops nothing"


def test_dropout_is_that_of_the_architecture() -> None:
    distilbert = registry.architecture("distilbert").config
    assert distilbert is not None
    config = distilbert.from_dict({"dim": 64, "n_heads": 4, "seq_classif_dropout": 0.3, "dropout": 0.05})
    assert (config.hidden_size, config.dim, config.sequence_classifier_dropout) == (64, 64, 0.3)  # type: ignore[attr-defined]
    assert (config.token_classifier_dropout, config.span_dropout, config.attention_output_dropout_prob) == (
        0.05,
        0.1,
        0,
    )
    saved = config.to_dict()
    reference = transformers.DistilBertConfig(**saved)
    assert (reference.dim, reference.seq_classif_dropout, reference.dropout) == (64, 0.3, 0.05)
    assert distilbert.from_dict(saved) == config
    assert not {"hidden_size", "type_vocab_size", "layer_norm_eps", "classifier_dropout"} & saved.keys()
    assert distilbert.from_dict({**saved, "hidden_dropout_prob": 0.2}).hidden_dropout_prob == 0.2
    with pytest.raises(UserError, match="sinusoidal_pos_embds=true"):
        distilbert.from_dict({"sinusoidal_pos_embds": True})
    with pytest.raises(UserError, match=r"qa_dropout=2 must be a number"):
        distilbert.from_dict({"qa_dropout": 2})
    with pytest.raises(AttributeError, match="no attribute 'widgets'"):
        _ = config.widgets


@every_architecture
def test_folders_are_converted(prefix: str, tmp_path: Path, seed: int) -> None:
    for kind in ("ForMaskedLM", "ForSequenceClassification", "ForMultipleChoice"):
        source, out = tmp_path / kind, tmp_path / f"{kind}-converted"
        make_reference(prefix, kind, source, seed)
        (source / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]) + "\n")
        report = convert(source, out, Options(dtype=torch.bfloat16))
        assert report.model_class == f"{prefix}{kind}"
        assert report.whole
        assert all("renamed" not in tensor.changes for tensor in report.tensors)
        model, original = fastbert.load(out), fastbert.load(source)
        for name, tensor in original.state_dict().items():
            assert torch.equal(tensor.bfloat16(), model.state_dict()[name]), name
    with pytest.raises(UserError, match="--to tensorflow: only BERT has TensorFlow checkpoints"):
        convert(source, tmp_path / "t", Options(to="tensorflow"))


def folder_with_vocabulary(prefix: str, kind: str, folder: Path, seed: int) -> Path:
    make_reference(prefix, kind, folder, seed)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(97, 123)), "the", "cat", "sat"]
    words += [f"word{number}" for number in range(300 - len(words))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder


def test_commands_take_every_architecture(tmp_path: Path, seed: int, capsys: Any) -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    from fastbert import cli

    texts = tmp_path / "texts.txt"
    texts.write_text("the cat sat\na cat\n")
    folder = folder_with_vocabulary("DistilBert", "ForMaskedLM", tmp_path / "mlm", seed)
    assert cli.main(["embed", "--model", str(folder), "--text", str(texts), "--out", str(tmp_path / "v.npy")]) == 0
    assert cli.main(["fill-mask", "--model", str(folder), "the [MASK] sat"]) == 0
    assert "%" in capsys.readouterr().out
    from fastbert.embeddings.folder import load_embedder

    model, tokenizer, _ = load_embedder(folder)
    ids = tokenizer(["the cat sat", "a cat"], padding=True, return_tensors="pt")
    reference = transformers.DistilBertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        states = reference(ids["input_ids"], ids["attention_mask"]).last_hidden_state
    mask = ids["attention_mask"][..., None]
    expected = (states * mask).sum(1) / mask.sum(1)
    torch.testing.assert_close(model.embed(["the cat sat", "a cat"], tokenizer), expected, rtol=1e-4, atol=1e-5)


def test_a_task_is_learned_and_predicted(tmp_path: Path, seed: int) -> None:
    from fastbert.finetuning.config import FinetuneConfig
    from fastbert.finetuning.run import finetune
    from fastbert.tasks.finetuned_model import load_trained

    folder = folder_with_vocabulary("DistilBert", "Model", tmp_path / "base", seed)
    train = tmp_path / "train.tsv"
    train.write_text("text\tlabel\n" + "the cat sat\tgood\na b c\tbad\n" * 32)
    result = finetune(
        FinetuneConfig(
            task="classification",
            model=str(folder),
            train=train,
            eval=(train,),
            out=tmp_path / "run",
            lr=(5e-3,),
            epochs=(4,),
            batch_size=(16,),
            max_length=16,
            device="cpu",
            dtype="fp32",
        )
    )
    assert result.scores["train.tsv"]["accuracy"]["mean"] == 100
    trained = load_trained(str(result.model), device="cpu")
    assert type(trained.model) is models.DistilBertForSequenceClassification
    other = transformers.AutoModelForSequenceClassification.from_pretrained(result.model).eval()
    ids = torch.tensor([[2, 31, 32, 33, 3]])
    with torch.no_grad():
        torch.testing.assert_close(trained.model(ids).logits, other(ids).logits, rtol=1e-4, atol=1e-5)
    assert other.config.id2label == {0: "bad", 1: "good"}


def test_errors_name_the_architecture(tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "roberta"
    make_reference("Roberta", "Model", folder, seed)
    with pytest.raises(UserError, match=r"model_type='roberta' is not supported here, only 'bert'; read the"):
        fastbert.BertModel.from_pretrained(folder)
    with pytest.raises(UserError, match="model_type='roberta' has no ForPreTraining; it has ForMaskedLM, "):
        registry.load_with_head(folder, "ForPreTraining")
    values = json.loads((folder / "config.json").read_text())
    for kind, message in (
        ("gpt7", "model_type='gpt7' is not one of bert, roberta, xlm-roberta, camembert, electra, distilbert, gpt2"),
        (["bert"], r"model_type=\['bert'\] is not one of"),
    ):
        (folder / "config.json").write_text(json.dumps(values | {"model_type": kind}))
        with pytest.raises(UserError, match=message):
            fastbert.load(folder)
    (folder / "config.json").write_text(json.dumps(values | {"num_hidden_layers": 3}))
    with pytest.raises(CheckpointError, match=r"holds 2 encoder layers, but config\.json says num_hidden_layers=3"):
        fastbert.load(folder)
    (folder / "config.json").write_text(json.dumps(values | {"vocab_size": 299}))
    with pytest.raises(CheckpointError, match=r"embeddings.word_embeddings.weight has shape \(300, 32\)"):
        fastbert.load(folder)
    with pytest.raises(AttributeError, match="no attribute 'RobertaForNothing'"):
        _ = fastbert.RobertaForNothing

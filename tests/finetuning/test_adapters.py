"""Adapters of peft on our models beside the same on transformers': forward, a step of training, files, merging."""

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("peft", reason="needs peft")
pytest.importorskip("transformers")

import peft
import transformers
from toys import inputs, masks, toy

from fastbert import BertForMaskedLM, BertForSequenceClassification, BertModel
from fastbert.errors import UserError
from fastbert.finetuning.adapters import add_ia3, add_lora, load_adapter, merge, save_adapter, size_of

LABELS = torch.tensor([0, 1, 2, 0])
HEAD = ["classifier"]
CONFIGS: dict[str, dict[str, Any]] = {
    "lora": {"kind": "LoraConfig", "r": 4, "target_modules": ["query", "value"]},
    "lora-everywhere": {"kind": "LoraConfig", "r": 4, "target_modules": ["query", "key", "value", "dense"]},
    "lora-embeddings": {"kind": "LoraConfig", "r": 4, "target_modules": ["word_embeddings", "position_embeddings"]},
    "lora-and-norms": {"kind": "LoraConfig", "r": 4, "target_modules": ["query"], "modules_to_save": ["LayerNorm"]},
    "dora": {"kind": "LoraConfig", "r": 4, "target_modules": ["query", "dense"], "use_dora": True},
    "ia3": {
        "kind": "IA3Config",
        "target_modules": ["key", "value", "output.dense"],
        "feedforward_modules": ["output.dense"],
    },
    "norms": {"kind": "LNTuningConfig", "target_modules": ["LayerNorm"]},
}


def with_adapters(model: Any, kind: str, seed: int, **numbers: Any) -> Any:
    """Adapters with random weights: as they begin, LoRA adds nothing."""
    numbers = {**numbers, "modules_to_save": [*numbers.get("modules_to_save", []), *HEAD]}
    adapted = peft.get_peft_model(model, getattr(peft, kind)(**numbers))
    generator = torch.Generator().manual_seed(seed)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    return adapted


@pytest.fixture
def pair(tmp_path: Path, seed: int) -> tuple[Any, BertForSequenceClassification]:
    """A model of transformers, and ours with its weights."""
    theirs = toy("BertForSequenceClassification", seed, num_labels=3)
    theirs.save_pretrained(tmp_path / "base")
    return theirs, BertForSequenceClassification.from_pretrained(tmp_path / "base", mapped=False)


def step(model: Any, kwargs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, float, dict[str, torch.Tensor]]:
    """Logits, loss and trained parameters after a step."""
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
    output = model(**kwargs, labels=LABELS)
    output.loss.backward()
    optimizer.step()
    trained = {name: one.detach() for name, one in model.named_parameters() if one.requires_grad}
    return output.logits.detach(), output.loss.item(), trained


@pytest.mark.filterwarnings("ignore:Unsupported layer type")  # peft, of LayerNorms
@pytest.mark.parametrize("name", CONFIGS)
def test_forward_and_a_step_are_those_of_transformers(name: str, pair: tuple[Any, Any], seed: int) -> None:
    theirs, ours = (with_adapters(model, seed=seed, **CONFIGS[name]) for model in pair)
    arguments = inputs(seed, masks()["right"], segments=True)
    plain = pair[1].eval().get_submodule("classifier")
    assert type(plain).__name__ == "ModulesToSaveWrapper"
    expected, actual = step(theirs, arguments), step(ours, arguments)
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-4, atol=1e-5)
    assert actual[1] == pytest.approx(expected[1], rel=1e-5, abs=1e-6)
    assert actual[2].keys() == expected[2].keys()
    for key, value in expected[2].items():
        torch.testing.assert_close(
            actual[2][key], value, rtol=1e-4, atol=2e-5, msg=lambda text, key=key: f"{key}: {text}"
        )


def word_embeddings(model: Any) -> Any:
    return model.bert.embeddings.word_embeddings


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(word_embeddings, id="table"),
        pytest.param(lambda model: model.bert.embeddings.LayerNorm, id="norm-of-embeddings"),
        pytest.param(lambda model: model.bert.encoder.layer[0].attention.output.LayerNorm, id="norm-of-attention"),
        pytest.param(lambda model: model.bert.encoder.layer[1].output.LayerNorm, id="norm-of-layer"),
        pytest.param(lambda model: model.cls.predictions.transform.LayerNorm, id="norm-of-head"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_hooks_on_tables_and_norms_are_called_and_change_nothing(
    part: Callable[[Any], Any], training: bool, tmp_path: Path, seed: int
) -> None:
    toy("BertForMaskedLM", seed, dropout=0.1).save_pretrained(tmp_path / "base")
    model = BertForMaskedLM.from_pretrained(tmp_path / "base").train(training)
    kwargs = inputs(seed, masks()["right"])

    def logits() -> torch.Tensor:
        torch.manual_seed(seed)
        return model(**kwargs).logits.detach()

    expected, seen = logits(), []
    handle = part(model).register_forward_hook(lambda module, kwargs, output: seen.append(output.shape))
    torch.testing.assert_close(logits(), expected, rtol=1e-4, atol=1e-4)
    assert len(seen) == 1
    handle.remove()
    part(model).register_forward_hook(lambda module, kwargs, output: output * 2)
    assert (logits() - expected).abs().max() > 1e-3


def test_our_functions_train_a_hundredth_and_the_head(pair: tuple[Any, Any], seed: int) -> None:
    model = pair[1]
    whole = sum(parameter.numel() for parameter in model.parameters())
    adapted = add_lora(model, rank=2, alpha=4)
    size = size_of(model)
    head = 3 * 64 + 3
    assert size.model == whole
    assert size.trained == head + 3 * 2 * 2 * (64 + 64)
    assert size.share == size.trained / whole
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all(".lora_" in name or ".modules_to_save." in name for name in names)
    # The model itself has the adapters: it is trained as before.
    kwargs = inputs(seed, masks()["right"])
    losses = []
    optimizer = torch.optim.Adam([one for one in model.parameters() if one.requires_grad], lr=1e-2)
    for _ in range(80):
        loss = model(**kwargs, labels=LABELS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert min(losses) < 0.9 * losses[0]
    assert adapted(**kwargs).logits.equal(model(**kwargs).logits)


@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_files_get_the_mode_of_any_new_file(mask: int, pair: Any, tmp_path: Path) -> None:
    _, model = pair
    before = os.umask(mask)
    try:
        save_adapter(add_lora(model, rank=2, alpha=4), tmp_path / "new" / "adapter")
    finally:
        os.umask(before)
    files = list((tmp_path / "new" / "adapter").iterdir())
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~mask}
    assert {path.stat().st_mode & 0o777 for path in (files[0].parent, tmp_path / "new")} == {0o777 & ~mask}


@pytest.mark.parametrize("add", [add_lora, add_ia3], ids=["lora", "ia3"])
def test_files_load_everywhere_and_merging_changes_nothing(
    add: Callable[..., Any], pair: tuple[Any, Any], tmp_path: Path, seed: int
) -> None:
    theirs, ours = pair
    fresh = copy.deepcopy(ours)
    adapted = add(ours)
    for parameter in ours.parameters():
        if parameter.requires_grad:
            parameter.data += 0.2 * torch.randn(parameter.shape)
    kwargs = inputs(seed, masks()["holes"])
    expected = ours.eval()(**kwargs).logits.detach()
    assert save_adapter(adapted, tmp_path / "adapter", base="org/base") == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "config.json",
        "fastbert_manifest.json",
    ]
    adapter_config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert adapter_config["base_model_name_or_path"] == "org/base"
    again = load_adapter(fresh, tmp_path / "adapter")
    torch.testing.assert_close(fresh(**kwargs).logits, expected, rtol=0, atol=1e-6)
    assert not any(parameter.requires_grad for parameter in fresh.parameters())
    there = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter")
    torch.testing.assert_close(there(**kwargs).logits, expected, rtol=1e-4, atol=1e-5)
    merged = merge(again, tmp_path / "merged")
    assert merged is fresh
    assert all(parameter.requires_grad for parameter in merged.parameters())
    plain = BertForSequenceClassification.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(plain(**kwargs).logits, expected, rtol=1e-4, atol=1e-5)
    assert plain.new_weights == ()
    hf = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged").eval()
    torch.testing.assert_close(hf(**kwargs).logits, expected, rtol=1e-4, atol=1e-5)


def test_the_products_of_merged_weights_are_made_anew(pair: tuple[Any, Any], seed: int) -> None:
    """Layouts that kernels keep of weights follow when adapters come and go."""
    model, kwargs = pair[1], inputs(seed, masks()["right"])
    with torch.no_grad():
        before = model(**kwargs).logits
        adapted = add_lora(model)
        torch.testing.assert_close(model(**kwargs).logits, before, rtol=1e-4, atol=1e-5)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter += 0.3
        changed = model(**kwargs).logits
        assert (changed - before).abs().max() > 1e-3
        torch.testing.assert_close(merge(adapted)(**kwargs).logits, changed, rtol=1e-4, atol=1e-5)


def test_heads_and_poolers_that_are_new_are_trained(tmp_path: Path, seed: int) -> None:
    toy("BertForMaskedLM", seed).save_pretrained(tmp_path / "mlm")
    model = BertForSequenceClassification.from_pretrained(tmp_path / "mlm", num_labels=2)
    add_lora(model)
    trained = {name.split(".modules_to_save")[0] for name, one in model.named_parameters() if one.requires_grad}
    assert {"bert.pooler", "classifier"} <= trained
    encoder = BertModel.from_pretrained(tmp_path / "mlm")
    add_lora(encoder, targets=("query",))
    assert not any("modules_to_save" in name for name, _ in encoder.named_parameters())
    # A head that is tied to the encoder stays as it is.
    tied = BertForMaskedLM.from_pretrained(tmp_path / "mlm")
    add_lora(tied)
    assert tied.cls.predictions.decoder.weight is tied.bert.embeddings.word_embeddings.weight
    assert not any(one.requires_grad for one in tied.cls.parameters())


def adapter_folder(pair: tuple[Any, Any], folder: Path) -> Path:
    save_adapter(add_lora(copy.deepcopy(pair[1])), folder)
    return folder


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing": (shutil.rmtree, "holds no adapter_config.json"),
    "no-weights": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "pickled adapters are not read"),
    "cut": (
        lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"123"),
        "not a complete safetensors file",
    ),
    "config-no-json": (lambda folder: (folder / "adapter_config.json").write_text("{"), "not a JSON file"),
    "config-a-list": (
        lambda folder: (folder / "adapter_config.json").write_text("[]"),
        "peft_type None is not supported",
    ),
    "another-kind": (
        lambda folder: (folder / "adapter_config.json").write_text('{"peft_type": "PREFIX_TUNING"}'),
        "peft_type 'PREFIX_TUNING' is not supported; LORA and IA3 are",
    ),
    "another-rank": (
        lambda folder: (folder / "adapter_config.json").write_text(
            (folder / "adapter_config.json").read_text().replace('"r": 8', '"r": 4')
        ),
        "these adapters do not fit BertForSequenceClassification",
    ),
    "other-targets": (
        lambda folder: (folder / "adapter_config.json").write_text(
            (folder / "adapter_config.json").read_text().replace('"value"', '"key"')
        ),
        "these adapters do not fit BertForSequenceClassification",
    ),
}


@pytest.mark.filterwarnings("ignore:Found missing adapter keys")
@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.usefixtures("unchecked_folders")
def test_bad_adapters_are_one_line(name: str, pair: tuple[Any, Any], tmp_path: Path) -> None:
    damage, words = DAMAGES[name]
    folder = adapter_folder(pair, tmp_path / "adapter")
    damage(folder)
    with pytest.raises(UserError) as caught:
        load_adapter(pair[1], folder)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": 0}, "rank=0 must be a whole number"),
        ({"alpha": 0}, "alpha=0 must be above 0"),
        ({"dropout": 1.0}, "dropout=1.0 at least 0 and below 1"),
        ({"targets": "query"}, "targets='query' must be a list of names"),
        ({"targets": ("q_proj",)}, "has no 'q_proj'; it has classifier, dense, key, position_embeddings, query"),
        ({"targets": ("LayerNorm",)}, "peft does not support these adapters on BertForSequenceClassification"),
    ],
)
def test_wrong_numbers_are_one_line(options: dict[str, Any], words: str, pair: tuple[Any, Any]) -> None:
    with pytest.raises(UserError) as caught:
        add_lora(pair[1], **options)
    assert words in str(caught.value)


def test_adapters_are_not_put_on_twice(pair: tuple[Any, Any], tmp_path: Path) -> None:
    add_lora(pair[1])
    with pytest.raises(UserError, match="has adapters already; merge them first"):
        add_lora(pair[1])
    with pytest.raises(UserError, match="has no adapters; give what add_lora"):
        save_adapter(pair[1], tmp_path / "adapter")

"""Folders of sentence-transformers: what is read, what is refused by name, and the same vectors as theirs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from embedding import random_texts, saved, small_model, small_tokenizer
from safetensors.torch import save_file

from fastbert.embeddings.folder import OLD_POOLINGS, load_embedder
from fastbert.embeddings.settings import Dense, EmbedSettings
from fastbert.errors import CheckpointError, UserError

pytestmark = pytest.mark.usefixtures("unchecked_folders")

TYPE = "sentence_transformers.models."


def make(folder: Path, seed: int, modules: list[str], configs: dict[str, Any], encoder: str = "") -> Path:
    """A folder with these modules and JSON files."""
    saved(folder / encoder, seed)
    entries = []
    for index, kind in enumerate(modules):
        path = encoder if kind == "Transformer" else f"{index}_{kind}"
        (folder / path).mkdir(exist_ok=True)
        entries.append({"idx": index, "name": str(index), "path": path, "type": f"{TYPE}{kind}"})
    (folder / "modules.json").write_text(json.dumps(entries))
    for name, content in configs.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def dense(folder: Path, seed: int, activation: str = "Tanh") -> dict[str, torch.Tensor]:
    """Writes the weights and config of a Dense module."""
    generator = torch.Generator().manual_seed(seed)
    folder.mkdir(exist_ok=True)
    tensors = {
        "linear.weight": torch.randn(7, 32, generator=generator),
        "linear.bias": torch.randn(7, generator=generator),
    }
    save_file(tensors, folder / "model.safetensors")
    config = {"in_features": 32, "out_features": 7, "activation_function": f"torch.nn.modules.activation.{activation}"}
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


BASIC = ["Transformer", "Pooling"]


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
@pytest.mark.parametrize("old", [True, False])
def test_pooling_of_old_and_new_releases(tmp_path: Path, seed: int, pooling: str, old: bool) -> None:
    config = {key: mode == pooling for key, mode in OLD_POOLINGS.items()} if old else {"pooling_mode": pooling}
    folder = make(tmp_path / "m", seed, BASIC, {"1_Pooling/config.json": config})
    model, tokenizer, settings = load_embedder(folder)
    assert (settings.pooling, settings.normalize) == (pooling, False)
    texts = random_texts(seed, 10)
    result = model.embed(texts, tokenizer)
    assert torch.equal(result, model.embed(texts, tokenizer, pooling=pooling))
    assert not torch.equal(result, model.embed(texts, tokenizer, pooling="mean" if pooling == "cls" else "cls"))


def test_a_plain_folder_has_the_mean(tmp_path: Path, seed: int) -> None:
    model, tokenizer, settings = load_embedder(saved(tmp_path / "m", seed))
    assert (settings.pooling, settings.normalize, settings.max_length) == ("mean", False, None)
    assert torch.equal(model.embed(["a b"], tokenizer), model.embed(["a b"], tokenizer, pooling="mean"))


def test_everything_that_a_folder_says(tmp_path: Path, seed: int) -> None:
    modules = ["Transformer", "Pooling", "Dropout", "Dense", "Normalize"]
    configs = {
        "1_Pooling/config.json": {"pooling_mode": ["max"]},
        "0_Transformer/sentence_bert_config.json": {"max_seq_length": 9, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"q": "q u ", "d": ""}, "default_prompt_name": "q"},
    }
    folder = make(tmp_path / "m", seed, modules, configs, encoder="0_Transformer")
    tensors = dense(folder / "3_Dense", seed)
    model, tokenizer, settings = load_embedder(folder)
    assert (settings.pooling, settings.normalize, settings.max_length) == ("max", True, 9)
    actual = model.embed(["a b", "a b c d e f g h i j"], tokenizer)
    assert actual.shape == (2, 7)
    plain, _, _ = load_embedder(folder / "0_Transformer")
    pooled = plain.embed(["q u a b", "q u a b c d e"], tokenizer, pooling="max")
    expected = torch.tanh(pooled @ tensors["linear.weight"].T + tensors["linear.bias"])
    torch.testing.assert_close(actual, torch.nn.functional.normalize(expected), rtol=1e-4, atol=1e-5)
    assert torch.equal(model.embed(["q u a b"], tokenizer, prompt="d")[0], actual[0])
    assert model.embed([], tokenizer).shape == (0, 7)
    with pytest.raises(UserError, match="prompt='x' is unknown: the model has 'q', 'd'"):
        model.embed(["a"], tokenizer, prompt="x")


@pytest.mark.parametrize("activation", ["Identity", "GELU", "ReLU", "Sigmoid", "Tanh"])
def test_a_dense_layer_gives_the_same_bits_in_every_batch(tmp_path: Path, seed: int, activation: str) -> None:
    folder = make(tmp_path / "m", seed, [*BASIC, "Dense"], {"1_Pooling/config.json": {}})
    tensors = dense(folder / "2_Dense", seed, activation)
    model, tokenizer, _ = load_embedder(folder)
    texts = random_texts(seed, 33)
    whole = model.embed(texts, tokenizer)
    assert all(torch.equal(model.embed([text], tokenizer)[0], row) for text, row in zip(texts[:9], whole))
    plain = load_embedder(saved(tmp_path / "plain", seed))[0].embed(texts, tokenizer)
    expected = getattr(torch.nn, activation)()(plain @ tensors["linear.weight"].T + tensors["linear.bias"])
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-5)


def test_lower_case_that_the_tokenizer_leaves_to_the_folder(tmp_path: Path, seed: int) -> None:
    configs = {"1_Pooling/config.json": {}, "sentence_bert_config.json": {"do_lower_case": True}}
    folder = make(tmp_path / "m", seed, BASIC, configs)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "do_lower_case": False, "strip_accents": None}))
    _, tokenizer, _ = load_embedder(folder)
    assert tokenizer.tokenize("A É b") == ["a", "[UNK]", "b"]


POOLED = {"1_Pooling/config.json": {"pooling_mode": "mean"}}


@pytest.mark.parametrize(
    ("modules", "configs", "words"),
    [
        pytest.param([*BASIC, "CNN"], POOLED, "the module CNN", id="cnn"),
        pytest.param(["Router"], {}, "the module Router", id="router"),
        pytest.param(["Transformer", "WeightedLayerPooling"], {}, "WeightedLayerPooling", id="layers"),
        pytest.param([*BASIC, "Transformer"], POOLED, "two modules in", id="two-encoders"),
        pytest.param([*BASIC, "Normalize", "Dense"], POOLED, "the module Dense", id="dense-behind-normalize"),
        pytest.param(["Transformer"], {}, "names no Pooling", id="no-pooling"),
        pytest.param(BASIC, {"1_Pooling/config.json": {"pooling_mode": "lasttoken"}}, "'lasttoken'", id="last-token"),
        pytest.param(BASIC, {"1_Pooling/config.json": {"pooling_mode": ["cls", "mean"]}}, "'cls', 'mean'", id="two"),
        pytest.param(BASIC, {"1_Pooling/config.json": {"pooling_mode": 3}}, "pooling 3", id="number"),
        pytest.param(BASIC, {"1_Pooling/config.json": {"include_prompt": False}}, "include_prompt", id="prompt"),
        pytest.param(BASIC, {"1_Pooling/config.json": [1]}, "must hold a JSON object", id="list"),
        pytest.param(BASIC, {}, "1_Pooling/config.json: no such file", id="missing"),
        pytest.param(
            BASIC, {**POOLED, "sentence_bert_config.json": {"max_seq_length": "x"}}, "max_seq_length='x'", id="length"
        ),
        pytest.param(
            BASIC, {**POOLED, "config_sentence_transformers.json": {"prompts": [1]}}, "prompts must be", id="prompts"
        ),
        pytest.param([*BASIC, "Dense"], {**POOLED, "2_Dense/config.json": {}}, "holds no model.safetensors", id="bin"),
        pytest.param(
            [*BASIC, "Dense"],
            {**POOLED, "2_Dense/config.json": {"activation_function": "os.system"}},
            "activation .os.system. is unsupported",
            id="code",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, seed: int, modules: list[str], configs: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        load_embedder(make(tmp_path / "m", seed, modules, configs))


@pytest.mark.parametrize("content", [b"[", b"{}", b"[]", b'[{"type": "a"}]', b'[{"type": "a", "path": "../up"}]'])
def test_a_damaged_list_of_modules_is_an_error(tmp_path: Path, seed: int, content: bytes) -> None:
    folder = saved(tmp_path / "m", seed)
    (folder / "modules.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        load_embedder(folder)


@pytest.mark.parametrize("damage", ["shape", "bytes"])
def test_a_damaged_dense_layer_is_an_error(tmp_path: Path, seed: int, damage: str) -> None:
    folder = make(tmp_path / "m", seed, [*BASIC, "Dense"], POOLED)
    dense(folder / "2_Dense", seed)
    if damage == "shape":
        save_file({"linear.weight": torch.zeros(7, 31)}, folder / "2_Dense/model.safetensors")
    else:
        (folder / "2_Dense/model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(CheckpointError, match="2_Dense"):
        load_embedder(folder)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        load_embedder(tmp_path / "none")


@pytest.mark.parametrize("parts", [["Pooling"], ["Pooling", "Dense", "Normalize"]])
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, seed: int, parts: list[str]) -> None:
    """The reference writes the folder and reads it."""
    library = pytest.importorskip("sentence_transformers")
    models = pytest.importorskip("sentence_transformers.models")
    saved(tmp_path / "m", seed)
    encoder = models.Transformer(str(tmp_path / "m"), max_seq_length=20)
    made = {
        "Pooling": lambda: models.Pooling(32, pooling_mode="max" if "Dense" in parts else "cls"),
        "Dense": lambda: models.Dense(32, 5),
        "Normalize": models.Normalize,
    }
    reference = library.SentenceTransformer(modules=[encoder, *(made[part]() for part in parts)], device="cpu")
    reference.save(str(tmp_path / "theirs"))
    model, tokenizer, _ = load_embedder(tmp_path / "theirs")
    texts = ["", *random_texts(seed, 20)]
    expected = torch.from_numpy(reference.encode(texts, show_progress_bar=False))
    torch.testing.assert_close(model.embed(texts, tokenizer), expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_what_is_saved_gives_the_same_vectors_in_both_libraries(tmp_path: Path, seed: int, pooling: str) -> None:
    library = pytest.importorskip("sentence_transformers")
    model, tokenizer = small_model(seed), small_tokenizer()
    tensors = dense(tmp_path / "dense", seed)
    layers = (Dense(tensors["linear.weight"], None, "Identity"), Dense(torch.randn(5, 7), torch.randn(5), "Tanh"))
    model.embed_settings = EmbedSettings(
        pooling=pooling, normalize=True, max_length=20, prompts={"a": "b c "}, default_prompt="a", dense=layers
    )
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    texts = ["", *random_texts(seed, 20)]
    expected = model.embed(texts, tokenizer)
    again, own_tokenizer, settings = load_embedder(tmp_path / "saved")
    assert again.embed(texts, own_tokenizer).equal(expected)
    assert (settings.default_prompt, dict(settings.prompts), settings.max_length) == ("a", {"a": "b c "}, 20)
    reference = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    actual = torch.from_numpy(reference.encode(texts, show_progress_bar=False))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-6)
    assert not list(tmp_path.rglob("*.partial"))


def test_a_model_without_settings_is_saved_as_a_plain_folder(tmp_path: Path, seed: int) -> None:
    small_model(seed).save_pretrained(tmp_path / "saved")
    names = ["config.json", "fastbert_manifest.json", "model.safetensors"]
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == names


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        pytest.param("2_Dense/config.json", {"use_residual": True}, "use_residual", id="residual"),
        pytest.param("2_Dense/config.json", {"module_output_name": "other"}, "module_output_name 'other'", id="output"),
        pytest.param(
            "2_Dense/config.json", {"activation_function": "own.ReLU"}, "'own.ReLU' is unsupp", id="activation"
        ),
        pytest.param("2_Dense/config.json", {"in_features": 24}, "holds 'linear.weight' of", id="shape"),
        pytest.param(
            "3_Normalize/config.json", {"module_input_name": "token_embeddings"}, "a Normalize with", id="norm"
        ),
        pytest.param(
            "config_sentence_transformers.json", {"default_prompt_name": []}, "prompts must be texts", id="list"
        ),
        pytest.param("config_sentence_transformers.json", {"prompts": {"a": "b" * 20_000}}, "20,000 char", id="long"),
    ],
)
def test_what_would_give_other_vectors_is_refused(
    tmp_path: Path, seed: int, name: str, content: dict[str, Any], words: str
) -> None:
    folder = embedder(tmp_path, seed)
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **content}))
    with pytest.raises(UserError, match=words):
        load_embedder(folder)


def embedder(tmp_path: Path, seed: int) -> Path:
    """A saved model with all that settings may say."""
    model = small_model(seed)
    layer = Dense(torch.randn(7, 32), torch.randn(7), "Tanh")
    model.embed_settings = EmbedSettings(pooling="cls", normalize=True, prompts={"a": "b "}, dense=(layer,))
    model.save_pretrained(tmp_path / "m")
    small_tokenizer().save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def test_what_is_there_and_damaged_is_not_passed_over(tmp_path: Path, seed: int) -> None:
    """A link that leads nowhere, or a folder, in the place of modules.json is no plain model."""
    folder = embedder(tmp_path, seed)
    path = folder / "modules.json"
    listed = path.read_text()
    path.unlink()
    path.symlink_to(tmp_path / "gone")
    with pytest.raises(CheckpointError, match=r"modules\.json: no such file"):
        load_embedder(folder)
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match=r"modules\.json: is a folder"):
        load_embedder(folder)
    path.rmdir()
    for entries, words in ((json.loads(listed) * 40, "lists 160 modules"), (json.loads(listed) * 2, "two modules in")):
        path.write_text(json.dumps(entries))
        with pytest.raises(CheckpointError, match=words):
            load_embedder(folder)


def test_only_what_is_wanted_of_a_dense_layer_is_read(tmp_path: Path, seed: int) -> None:
    """Another tensor beside its own is refused before it takes memory."""
    folder = embedder(tmp_path, seed)
    weights = {"linear.weight": torch.zeros(7, 32), "linear.bias": torch.zeros(7)}
    save_file({**weights, "junk": torch.zeros(9)}, folder / "2_Dense/model.safetensors")
    with pytest.raises(CheckpointError, match="holds 'junk' of"):
        load_embedder(folder)
    save_file({name: tensor.int() for name, tensor in weights.items()}, folder / "2_Dense/model.safetensors")
    with pytest.raises(CheckpointError, match=r"torch\.int32"):
        load_embedder(folder)


def test_files_beside_a_plain_model_say_nothing(tmp_path: Path, seed: int) -> None:
    """As in sentence-transformers: without modules.json there are no settings."""
    folder = saved(tmp_path / "m", seed)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 6}')
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"a": "b"}, "default_prompt_name": "a"}')
    settings = load_embedder(folder)[2]
    assert (settings.max_length, settings.default_prompt, dict(settings.prompts)) == (None, None, {})


@pytest.mark.parametrize(
    "wrong",
    [{"max_length": 2}, {"max_length": "x"}, {"prompts": ["q"]}, {"prompts": {"q": 3}}, {"default_prompt": "q"}],
)
def test_settings_are_checked_when_they_are_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong)).removeprefix("default_")):
        EmbedSettings(**wrong)


@pytest.mark.parametrize(
    ("weight", "bias", "activation", "words"),
    [
        (torch.zeros(2, 3, dtype=torch.float64), None, "Tanh", "weight of fp32"),
        (torch.zeros(0, 3), None, "Tanh", "weight of fp32"),
        (torch.zeros(2, 3), torch.zeros(3), "Tanh", "bias of fp32"),
        (torch.zeros(2, 3), None, "SiLU", "'SiLU'; known are"),
    ],
)
def test_dense_layers_are_checked_when_they_are_made(weight: Any, bias: Any, activation: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Dense(weight, bias, activation)


def test_settings_that_do_not_fit_or_cannot_be_written_leave_a_folder_alone(tmp_path: Path, seed: int) -> None:
    model = small_model(seed)
    model.embed_settings = EmbedSettings(dense=(Dense(torch.zeros(5, 24), None, "Tanh"),))
    for use in (lambda: model.save_pretrained(tmp_path / "m"), lambda: model.embed(["a"], small_tokenizer())):
        with pytest.raises(UserError, match="Dense 0 takes 24 numbers, but gets 32"):
            use()
    model.embed_settings = EmbedSettings()
    (tmp_path / "m").mkdir()
    (tmp_path / "m/1_Pooling").symlink_to(tmp_path)
    with pytest.raises(UserError, match="1_Pooling: is a link"):
        model.save_pretrained(tmp_path / "m")
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["1_Pooling"]

"""Finished model folders: a change of a file that is loaded is an error that names it, unless it is accepted. Damage at
random is in tests/torture/test_corruption.py."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import fastbert
from fastbert import BertConfig, BertModel, WordPieceTokenizer
from fastbert.checkpoints import manifest
from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.checkpoints.convert import Options, convert
from fastbert.checkpoints.delta.files import restore_delta, write_delta
from fastbert.checkpoints.manifest import NAME, Entry, describe, read_manifest
from fastbert.checkpoints.tokenizer_files import accept_folder
from fastbert.cli import main
from fastbert.embeddings.folder import load_embedder
from fastbert.embeddings.settings import Dense, EmbedSettings
from fastbert.errors import CheckpointError, UserError
from fastbert.io.checksums import crc32c, range_crc32c
from fastbert.io.untrusted_input import UntrustedFile
from fastbert.models import BertForSequenceClassification
from fastbert.models.loading import find_weights
from fastbert.tasks.finetuned_model import load_task, save_task
from fastbert.tasks.registry import make_task
from fastbert.tasks.settings import TaskSettings

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"token{i}" for i in range(35))]
SHAPE = BertConfig(
    vocab_size=40,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=16,
)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers folder with every kind of module, and a task beside them."""
    folder = tmp_path_factory.mktemp("finished") / "model"
    model = BertModel(SHAPE)
    model.init_weights(seed=1)
    dense = Dense(torch.eye(8)[:4].contiguous(), torch.zeros(4), "Tanh")
    model.embed_settings = EmbedSettings(dense=(dense,), normalize=True, prompts={"query": "q: "})
    model.save_pretrained(folder)
    WordPieceTokenizer(TOKENS).save_pretrained(folder)
    save_task(make_task("classification", TaskSettings(max_length=16), ["a", "b"]), folder)
    return folder


@pytest.fixture
def folder(embedder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(embedder, tmp_path / "model"))


def load(folder: Path) -> list[object]:
    """All that is in a folder, in a form that can be compared."""
    model, tokenizer, settings = load_embedder(folder)
    task = load_task(folder)
    dense = [(one.weight.tolist(), one.bias.tolist() if one.bias is not None else None) for one in settings.dense]
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    return [weights, model.config, tokenizer.fingerprint, settings.pooling, settings.prompts, dense, task.settings]


def swap_lines(data: bytes) -> bytes:
    lines = data.split(b"\n")
    lines[10], lines[11] = lines[11], lines[10]
    return b"\n".join(lines)


def cased(data: bytes) -> bytes:
    return data.replace(b'"do_lower_case": true', b'"do_lower_case": false')


CHANGES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "swapped-lines": ("vocab.txt", swap_lines, r"vocab.txt has different content \(CRC-32C \w{8}, not \w{8}\)"),
    "short-vocabulary": (
        "vocab.txt",
        lambda data: b"\n".join(data.split(b"\n")[:20]),
        r"has 140 bytes, not 301",
    ),
    "casing": ("tokenizer_config.json", cased, r"tokenizer_config.json has [\d,]+ bytes, not"),
    "hand-edited": ("config.json", lambda data: data.replace(b"0.1", b"0.3", 1), r"config.json has different content"),
    "truncated": ("model.safetensors", lambda data: data[:-4], r"model.safetensors has [\d,]+ bytes, not"),
    "pooling": (
        "1_Pooling/config.json",
        lambda data: data.replace(b": false", b":false", 1),
        r"has 142 b",
    ),
    "added": ("added_tokens.json", lambda data: b'{"new": 40}', r"added_tokens.json was added"),
    "other-manifest": (NAME, lambda data: data.replace(b'"size": ', b'"size": 1', 1), rf"{NAME}: damaged: .*checksum"),
    "no-json": (NAME, lambda data: data[:-9], rf"{NAME}: not a JSON file"),
    "no-object": (NAME, lambda data: b"[]", rf"{NAME}: damaged"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_file_is_named_and_can_be_accepted(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, change, message = CHANGES[name]
    path = folder / file
    path.write_bytes(change(path.read_bytes() if path.exists() else b""))
    with pytest.raises(CheckpointError, match=message) as error:
        load(folder)
    assert f"`fastbert convert {folder} --manifest`" in str(error.value)
    assert "\n" not in str(error.value)
    with monkeypatch.context() as patched:
        patched.setenv("FASTBERT_VERIFY", "0")
        if name != "truncated":
            load(folder)
    if file == "config.json":
        with pytest.raises(CheckpointError, match=message):
            BertModel.from_pretrained(folder)
        assert 0.3 in vars(BertModel.from_pretrained(folder, verify=False).config).values()
    if file == "vocab.txt":
        with pytest.raises(CheckpointError, match=message):
            WordPieceTokenizer.from_pretrained(path)
        assert WordPieceTokenizer.from_pretrained(path, verify=False)
    assert main(["convert", str(folder), "--manifest"]) == 0
    assert f"{folder / NAME}: lists 1_Pooling/config.json" in capsys.readouterr().out
    if name != "truncated":
        load(folder)


def test_missing_files_and_several_at_once_are_named(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer_config.json is missing"):
        WordPieceTokenizer.from_pretrained(folder)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"config.json has 2 bytes.*, model.safetensors has 0 bytes"):
        BertModel.from_pretrained(folder)
    with pytest.raises(CheckpointError, match=r"config.json has 2 bytes"):
        convert(folder, folder.parent / "out", Options())
    (folder / NAME).unlink()
    with pytest.raises(UserError, match=r"model.safetensors: not a complete safetensors file"):
        find_weights(folder)


def test_versions_and_the_variable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.loads((folder / NAME).read_text())
    assert body["format"] == "fastbert-manifest"
    body["version"] = 2
    del body["sha256"]
    (folder / NAME).write_text(json.dumps({**body, "sha256": manifest.json_sha256(body)}))
    with pytest.raises(
        CheckpointError, match=r"version 2, but 1 is supported; use a newer fastbert, .*FASTBERT_VERIFY=0"
    ):
        load(folder)
    monkeypatch.setenv("FASTBERT_VERIFY", "0")
    load(folder)
    monkeypatch.setenv("FASTBERT_VERIFY", "no")
    with pytest.raises(UserError, match=r"FASTBERT_VERIFY=no must be 1 .* or 0"):
        load(folder)


def test_large_files_are_read_in_stretches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    data = random.Random(seed).randbytes(600_003)  # in more than one read
    (tmp_path / "file").write_bytes(data)
    whole = describe(tmp_path / "file")
    monkeypatch.setattr(manifest, "_RANGE_BYTES", 4096)
    assert describe(tmp_path / "file") == whole
    assert whole == Entry(600_003, f"{crc32c(data):08x}")


def test_reads_that_fail_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    with UntrustedFile(tmp_path / "file") as file:
        assert range_crc32c(file, 1, 2) == crc32c(b"at")
        assert range_crc32c(file, 4, 0) == 0
        with pytest.raises(CheckpointError, match="file: was truncated while it was read"):
            range_crc32c(file, 3, 2)
        os.dup2(os.open(tmp_path, os.O_RDONLY), file.fileno())
        with pytest.raises(CheckpointError, match=r"file: cannot be read from byte 0 on \(Is a directory\)"):
            range_crc32c(file, 0, 1)


def test_a_difference_comes_before_an_error_that_it_causes(folder: Path) -> None:
    """Files are verified while they are loaded."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 7}))
    with pytest.raises(CheckpointError, match=r"not as it was written .*config\.json has"):
        fastbert.load(folder)


def test_a_stored_setting_that_a_task_does_not_have_is_named(folder: Path) -> None:
    file = folder / "fastbert_task.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps({**values, "settings": {**values["settings"], "beams": 7}}))
    manifest.update_manifest(folder, [file.name])
    with pytest.raises(CheckpointError, match=r"fastbert_task\.json: damaged \(unknown settings: beams\)"):
        load_task(folder)


def test_every_writer_leaves_a_manifest_that_holds(folder: Path, tmp_path: Path) -> None:
    """Saving again, converting, deltas and merging into a folder; nothing that stays is forgotten."""
    model = BertModel.from_pretrained(folder)
    model.save_pretrained(folder, max_shard_size=1000)  # shards replace the one file
    listed = read_manifest(folder)
    assert listed is not None
    assert "model.safetensors" not in listed.files
    assert "model.safetensors.index.json" in listed.files
    load_task(folder)
    convert(folder, tmp_path / "converted", Options())
    with torch.no_grad():
        model.pooler.dense.bias.add_(1)
    model.save_pretrained(tmp_path / "tuned")
    write_delta(tmp_path / "tuned", tmp_path / "converted", tmp_path / "file.delta")
    assert NAME in restore_delta(tmp_path / "file.delta", tmp_path / "converted", tmp_path / "restored")
    with atomic_folder(tmp_path / "converted") as new:
        WordPieceTokenizer([*TOKENS[:-1], "other"]).save_pretrained(new)
    for name, files in {"converted": 11, "tuned": 2, "restored": 2}.items():
        made = read_manifest(tmp_path / name)
        assert made is not None, name
        assert len(made.files) == files, (name, sorted(made.files))
        assert made.files == {path: describe(tmp_path / name / path) for path in made.files}, name
        BertModel.from_pretrained(tmp_path / name)
    merged = read_manifest(tmp_path / "converted")
    assert merged is not None
    assert merged.tokenizer == WordPieceTokenizer.from_pretrained(tmp_path / "converted").fingerprint


def test_another_tokenizer_than_the_models_is_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    WordPieceTokenizer([*TOKENS[:-1], "other"]).save_pretrained(other)
    with pytest.raises(UserError, match=r"--tokenizer .*other: this tokenizer is not the one that the model in"):
        convert(folder, tmp_path / "out", Options(tokenizer=other))
    assert not (tmp_path / "out").exists()
    WordPieceTokenizer(TOKENS).save_pretrained(other)
    convert(folder, tmp_path / "out", Options(tokenizer=other))


def test_other_libraries_are_untroubled_and_their_changes_are_told(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModel.from_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(folder)
    model.config.hidden_dropout_prob = 0.3
    model.save_pretrained(folder)
    with pytest.raises(CheckpointError, match=r"config.json has .* bytes, not .*; restore the files, or, if they were"):
        BertModel.from_pretrained(folder)
    accept_folder(folder)
    assert BertModel.from_pretrained(folder).config.hidden_dropout_prob == 0.3


def test_folders_without_a_manifest_load_as_before(folder: Path, tmp_path: Path) -> None:
    (folder / NAME).unlink()
    (folder / "vocab.txt").write_bytes(swap_lines((folder / "vocab.txt").read_bytes()))
    load(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: holds no file of a model"):
        accept_folder(tmp_path / "empty")
    assert main(["convert", str(tmp_path / "none"), "--manifest"]) == 2
    assert main(["convert", str(folder), "--manifest", "--out", str(tmp_path / "out")]) == 2


def test_a_head_is_checked_like_an_encoder(tmp_path: Path) -> None:
    BertForSequenceClassification(SHAPE).save_pretrained(tmp_path)
    BertModel.from_pretrained(tmp_path)
    data = bytearray((tmp_path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model.safetensors has different content"):
        BertModel.from_pretrained(tmp_path)


def test_links_are_followed_and_their_content_is_checked(folder: Path, tmp_path: Path) -> None:
    """As in the Hub's cache, whose snapshots consist of links to blobs."""
    snapshot, blobs = tmp_path / "snapshots" / "commit", tmp_path / "blobs"
    blobs.mkdir()
    for index, path in enumerate(sorted(path for path in folder.rglob("*") if path.is_file())):
        link = snapshot / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        path.rename(blobs / str(index))
        link.symlink_to(blobs / str(index))
    load(snapshot)
    blob = (snapshot / "vocab.txt").resolve()
    blob.write_bytes(swap_lines(blob.read_bytes()))
    with pytest.raises(CheckpointError, match=r"vocab.txt has different content"):
        load(snapshot)
    (snapshot / "vocab.txt").unlink()
    (snapshot / "vocab.txt").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match=r"vocab.txt is missing"):
        load(snapshot)


def test_a_damaged_manifest_is_replaced_by_what_is_written(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / NAME).write_text("{")
    WordPieceTokenizer(TOKENS).save_pretrained(folder)
    assert "the new manifest lists only the files written now" in caplog.text
    made = read_manifest(folder)
    assert made is not None
    assert sorted(made.files) == ["special_tokens_map.json", "tokenizer_config.json", "vocab.txt"]
    load(folder)

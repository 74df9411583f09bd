"""Commands given pipes, devices, damaged tokenizers, or tokenizers of other models: one line, and no waiting."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("tyro", reason="the command line needs tyro")

from fastbert import BertConfig, BertForMaskedLM, BertForSequenceClassification, WordPieceTokenizer, cli
from fastbert.data.shards import TokenShards
from fastbert.errors import UserError
from fastbert.io.untrusted_input import open_regular, read_regular
from fastbert.models import BertModel
from fastbert.tokenizers.fit import check_tokenizer
from fastbert.tokenizers.json_files import MAX_TOKENS

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", ".", *(f"w{i}" for i in range(291))]
SHAPE: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
}
LONG_ID = "9" * 5_000


@pytest.fixture(autouse=True)
def hangs_are_failures() -> Iterator[None]:
    """A command that waits for the other end of a pipe, or reads a device for ever, is interrupted."""

    def late(number: int, frame: Any) -> None:
        raise AssertionError("still running after 60 seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with their tokenizer, texts and tables, each good; and pipes and links to devices under many names."""
    root = tmp_path_factory.mktemp("material")
    torch.manual_seed(0)
    tokenizer = WordPieceTokenizer(TOKENS)
    for name, kind in (("mlm", BertForMaskedLM), ("classifier", BertForSequenceClassification)):
        kind(BertConfig(**SHAPE)).save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    tokenizer.save_pretrained(root / "tokenizer")
    (root / "text.txt").write_text("the cat sat .\n\nthe cat .\n" * 20)
    (root / "table.tsv").write_text("text\tlabel\nthe cat\tno\ncat sat\tyes\n" * 4)
    (root / "good.json").write_text(json.dumps({**BertConfig(**SHAPE).to_dict(), "vocab_size": 200}))
    (root / "folder").mkdir()
    for name in ("pipe.txt", "pipe.tsv", "pipe.json", "pipe", "folder/pipe.txt"):
        os.mkfifo(root / name)
    for name in ("zero.txt", "zero.tsv", "zero.json"):
        (root / name).symlink_to("/dev/zero")
    for target in ("pipe", "zero"):  # tokenizers of which a file is none
        for file in ("vocab.txt", "tokenizer.json"):
            broken = root / f"{target}-{file.split('.')[0]}"
            broken.mkdir()
            (broken / file).symlink_to(root / "pipe" if target == "pipe" else "/dev/zero")
    return root


# {}/... stands for the folder of the material; OUT for a folder that must not exist afterwards.
PREPARE = "prepare --corpus {}/text.txt --out OUT"
TRAIN = "--out OUT --steps 1 --max-length 16 --device cpu"
FINETUNE = "finetune --task classification --model {}/classifier --out OUT --device cpu --max-length 16 --train"
SPECIAL_FILES = [
    "vocab --corpus {}/NAME.txt --out OUT",
    "vocab --corpus {}/NAME.txt --tokenizer {}/tokenizer",
    "vocab --corpus {}/text.txt --tokenizer {}/NAME.txt",
    "vocab --corpus {}/text.txt --tokenizer {}/NAME.json",
    "prepare --corpus {}/NAME.txt --tokenizer {}/tokenizer --out OUT",
    "prepare --corpus {}/text.txt {}/NAME.txt --tokenizer {}/tokenizer --out OUT",
    f"{PREPARE} --tokenizer {{}}/NAME.txt",
    f"pretrain --corpus {{}}/NAME.txt --tokenizer {{}}/tokenizer --model tiny {TRAIN}",
    f"pretrain --corpus {{}}/text.txt --tokenizer {{}}/NAME.txt --model tiny {TRAIN}",
    f"pretrain --corpus {{}}/text.txt --tokenizer {{}}/tokenizer --model {{}}/NAME.json {TRAIN}",
    f"{FINETUNE} {{}}/NAME.tsv",
    f"{FINETUNE} {{}}/table.tsv --eval {{}}/NAME.tsv",
    "predict --task classification --model {}/classifier --device cpu --text {}/NAME.txt --out OUT.tsv",
    "evaluate --task classification --model {}/classifier --device cpu --gold {}/NAME.tsv",
    "embed --model {}/mlm --device cpu --text {}/NAME.txt --out OUT.npy",
    "features --model {}/mlm --device cpu --text {}/NAME.txt --out OUT.jsonl",
    "verify {}/mlm --text {}/NAME.txt",
    "bench tokenizer --text {}/NAME.txt --vocab {}/tokenizer/vocab.txt",
    "bench tokenizer --text {}/text.txt --vocab {}/NAME.txt",
    "convert {}/mlm --out OUT --tokenizer {}/NAME.txt",
]
OTHERS = [
    ("vocab --corpus {}/folder --out OUT", "a named pipe, not a regular file"),
    ("vocab --corpus {}/pi*.txt --out OUT", "a named pipe, not a regular file"),
    (f"{PREPARE} --tokenizer {{}}/pipe-vocab", "holds neither vocab.txt nor tokenizer.json"),
    (f"{PREPARE} --tokenizer {{}}/zero-vocab", "holds neither vocab.txt nor tokenizer.json"),
    (f"{PREPARE} --tokenizer {{}}/pipe-tokenizer", "holds neither vocab.txt nor tokenizer.json"),
    (f"pretrain --data {{}}/pipe --model tiny {TRAIN}", "is not a folder"),
]


def refused(command: str, material: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], **names: object) -> str:
    """Run a command that must fail; returns its one line."""
    for name, value in names.items():
        command = command.replace(name, str(value))
    words = command.replace("{}", str(material)).replace("OUT", str(tmp_path / "out")).split()
    code = cli.main([*words, "--quiet"])
    printed = capsys.readouterr()
    assert code != 0, words
    assert printed.out == "", words
    errors = [line for line in printed.err.splitlines() if line.startswith("fastbert: error: ")]
    assert len(errors) == 1, (words, printed.err)
    assert "Traceback" not in printed.err
    assert len(errors[0]) < 2_000
    assert not list(tmp_path.glob("out*")), words
    return errors[0]


@pytest.mark.parametrize("name", ["pipe", "zero"])
def test_only_regular_files_are_read(
    name: str, material: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = "a named pipe" if name == "pipe" else "a device"
    lines = {command: refused(command, material, tmp_path, capsys, NAME=name) for command in SPECIAL_FILES}
    assert not {command: line for command, line in lines.items() if kind not in line}
    assert all(f"/{name}." in line for line in lines.values())


@pytest.mark.parametrize(("command", "message"), OTHERS)
def test_special_files_in_folders(
    command: str, message: str, material: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(message, refused(command, material, tmp_path, capsys))


def test_shards_that_are_no_files(material: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = tmp_path / "shards"
    words = f"{PREPARE} --tokenizer {{}}/tokenizer".replace("{}", str(material)).replace("OUT", str(shards)).split()
    assert cli.main([*words, "--quiet"]) == 0
    streamed = ("continuations.bin", "checksums.bin")  # read only where shards are behind a URL
    files = [file for file in sorted(shards.glob("*.bin")) if not file.name.endswith(streamed)]
    for file in [shards / "index.json", shards / "vocab.txt", *files]:
        before = file.rename(tmp_path / "aside")
        for make in (os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
            make(file)
            with pytest.raises(UserError, match=r"not a regular file|not a folder of token shards"):
                TokenShards.open(shards)
            file.unlink()
        before.rename(file)
    assert TokenShards.open(shards).num_tokens > 0


def write(folder: Path, file: str, content: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(content)
    return folder


VOCABULARY = "".join(f"{token}\n" for token in TOKENS)
MODEL = '{"type": "WordPiece", "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": ID}}'
JSON = f'{{"model": {MODEL}, "normalizer": {{"type": "BertNormalizer"}}, "added_tokens": [ADDED]}}'
DAMAGED = [
    ("tokenizer.json", JSON.replace("ID", LONG_ID).replace("ADDED", ""), "tokenizer.json: not JSON"),
    ("tokenizer.json", JSON.replace("ID", LONG_ID[:4000]).replace("ADDED", ""), "has id 999"),
    ("tokenizer.json", JSON.replace("ID", "true").replace("ADDED", ""), "has id True, which is not a whole number"),
    ("tokenizer.json", JSON.replace("ID", "4.0").replace("ADDED", ""), "has id 4.0, which is not a whole number"),
    (
        "tokenizer.json",
        JSON.replace("ID", "4").replace("ADDED", f'{{"id": {LONG_ID[:4000]}, "content": "x"}}'),
        "added token 'x' has id 999.*no such token",
    ),
    ("tokenizer.json", '{"model": ' + "[" * 100_000, "tokenizer.json: not JSON"),
    ("tokenizer.json", JSON.replace("ID", "4").replace("ADDED", "[" * 300 + "]" * 300), "added_tokens must be a list"),
    ("added_tokens.json", f'{{"x": {LONG_ID}}}', "added_tokens.json: not JSON"),
    ("added_tokens.json", f'{{"x": {LONG_ID[:4000]}}}', "added token 'x' has id 999"),
    ("added_tokens.json", '{"x": false}', "'x' has the id False"),
    ("tokenizer_config.json", f'{{"added_tokens_decoder": {{"{LONG_ID}": {{"content": "x"}}}}}}', "must map ids"),
    ("tokenizer_config.json", '{"added_tokens_decoder": {"²": {"content": "x"}}}', "must map ids to tokens, not '²'"),
    ("tokenizer_config.json", f'{{"model_max_length": {LONG_ID}}}', "tokenizer_config.json: not JSON"),
    ("tokenizer_config.json", '{"do_lower_case": ' + "[" * 900 + "]" * 900 + "}", "do_lower_case=|not JSON"),
    ("tokenizer_config.json", '{"extra_special_tokens": [' + "[" * 900 + "]" * 900 + "]}", "has no content|not JSON"),
    ("special_tokens_map.json", '{"mask_token": {"content": ' + LONG_ID + "}}", "special_tokens_map.json: not JSON"),
    ("special_tokens_map.json", json.dumps({"extra_special_tokens": ["x" * 5_000_000]}), "have 5,000,026 characters"),
    ("vocab.txt", "a\n" * (MAX_TOKENS + 1), f"{MAX_TOKENS + 1:,} tokens, and a tokenizer has at most 1,048,576"),
    ("vocab.txt", "a" * (65 << 20), "has 68,157,440 bytes, and at most"),
]


def test_damaged_tokenizers(material: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index, (file, content, message) in enumerate(DAMAGED):
        folder = write(tmp_path / str(index), "vocab.txt", VOCABULARY)
        if file == "tokenizer.json":
            (folder / "vocab.txt").unlink()
        write(folder, file, content)
        line = refused(f"{PREPARE} --tokenizer FOLDER", material, tmp_path, capsys, FOLDER=folder)
        assert re.search(message, line), (message, line)


def test_many_added_tokens_take_linear_time(tmp_path: Path) -> None:
    names = [f"<token {index}>" for index in range(30_000)]
    folder = write(tmp_path / "many", "vocab.txt", VOCABULARY)
    write(folder, "tokenizer_config.json", json.dumps({"extra_special_tokens": names}))
    tokenizer = WordPieceTokenizer.from_pretrained(folder)
    assert len(tokenizer) == len(TOKENS) + len(names)
    assert tokenizer("the <token 29999>").input_ids[2] == len(tokenizer) - 1
    for _ in range(200):
        assert tokenizer.decode([5, len(TOKENS)], skip_special_tokens=True) == "the"
    other = WordPieceTokenizer(TOKENS)
    assert other.add_special_tokens({"additional_special_tokens": names}) == len(names)
    assert other.add_special_tokens({"additional_special_tokens": names[:-1]}) == 0
    assert other.added_tokens_encoder == tokenizer.added_tokens_encoder


OF_ANOTHER = [
    ("mlm", "fill-mask [MASK] --model MODEL"),
    ("mlm", "embed --model MODEL --device cpu --text {}/text.txt --out OUT.npy"),
    ("mlm", "features --model MODEL --device cpu --text {}/text.txt --out OUT.jsonl"),
    ("classifier", "predict --task classification --model MODEL --device cpu --text {}/text.txt --out OUT.tsv"),
    ("classifier", "evaluate --task classification --model MODEL --device cpu --gold {}/table.tsv"),
    ("mlm", FINETUNE.replace("{}/classifier", "MODEL") + " {}/table.tsv"),
]


@pytest.mark.parametrize("size", [200, 299, 301, 600])
def test_tokenizers_of_other_models(
    size: int, material: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = [*TOKENS, *(f"more{index}" for index in range(300))][:size]
    for name, command in OF_ANOTHER:
        model = tmp_path / name
        model.mkdir(exist_ok=True)
        for file in ("config.json", "model.safetensors"):
            if not (model / file).exists():
                (model / file).symlink_to(material / name / file)
        WordPieceTokenizer(tokens).save_pretrained(model)
        line = refused(command, material, tmp_path, capsys, MODEL=model)
        assert f"has a vocabulary of 300, but the tokenizer has {size} entries; use the tokenizer" in line


def test_pretraining_a_model_for_another_vocabulary(
    material: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"pretrain --corpus {{}}/text.txt --tokenizer {{}}/tokenizer --model {{}}/good.json {TRAIN}"
    assert "vocab_size=200, but the vocabulary has 300 entries" in refused(command, material, tmp_path, capsys)


@pytest.mark.parametrize(
    ("entries", "rows", "fits"),
    [
        pytest.param(30_522, 30_522, True, id="equal"),
        pytest.param(30_522, 30_528, True, id="padded-to-8"),
        pytest.param(30_522, 30_592, True, id="padded-to-128"),
        pytest.param(30_522, 30_720, True, id="padded-to-1024"),
        pytest.param(128_001, 128_100, True, id="spare-rows"),
        pytest.param(30_522, 30_848, False, id="more-than-1-percent"),
        pytest.param(1_000, 1_023, False, id="no-multiple"),
        pytest.param(30_522, 30_521, False, id="one-less"),
        pytest.param(30_522, 28_996, False, id="cased"),
        pytest.param(200, 256, True, id="small-padded"),
        pytest.param(200, 300, False, id="200-lines-300-rows"),
        pytest.param(200, 264, False, id="small-over"),
    ],
)
def test_sizes_that_fit(entries: int, rows: int, fits: bool) -> None:
    if fits:
        check_tokenizer(range(entries), rows)
        return
    with pytest.raises(UserError, match=f"a vocabulary of {rows:,}, but the tokenizer has {entries:,} entries"):
        check_tokenizer(range(entries), rows)


def test_added_tokens_count_as_those_of_a_resized_model() -> None:
    model, tokenizer = BertModel(BertConfig(**SHAPE)).eval(), WordPieceTokenizer(TOKENS, model_max_length=32)
    tokenizer.add_tokens(["<new>"])
    with pytest.raises(UserError, match=r"a vocabulary of 300, .* 301 entries; .*resize_token_embeddings"):
        model.embed(["the cat <new>"], tokenizer)
    model.resize_token_embeddings(len(tokenizer))
    assert model.embed(["the cat <new>"], tokenizer).isfinite().all()


def test_a_file_exchanged_after_the_check_does_not_block(
    tmp_path: Path, material: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regular = os.stat(material / "text.txt")
    monkeypatch.setattr(os, "stat", lambda path: regular)
    with pytest.raises(UserError, match="pipe: is a named pipe, not a regular file"):
        open_regular(material / "pipe")
    monkeypatch.undo()
    with pytest.raises(UserError, match="has 500 bytes, and at most 499 are read"):
        read_regular(write(tmp_path, "x", "a" * 500) / "x", 499)
    assert read_regular(tmp_path / "x", 500) == b"a" * 500
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "absent")
    with pytest.raises(UserError, match="is a folder, not a regular file"):
        open_regular(tmp_path)

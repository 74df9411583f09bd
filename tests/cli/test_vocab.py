"""`fastbert vocab`: building, measuring and extending from the command line, and what it refuses."""

import json
import os
import random
import signal
from pathlib import Path

import pytest

pytest.importorskip("tyro", reason="the command line needs tyro")
pytest.importorskip("tokenizers", reason="vocabularies are learned by tokenizers")

from fastbert import cli
from fastbert.tokenizers import WordPieceTokenizer

FILES = ["fastbert_manifest.json", "special_tokens_map.json", "tokenizer_config.json", "vocab.txt", "vocab_report.json"]


def write_corpus(file: Path, seed: int, documents: int = 60, letters: str = "bdfgkl") -> Path:
    rng = random.Random(seed)
    words = ["".join(rng.choice(letters) + rng.choice("aeiou") for _ in range(rng.randint(1, 4))) for _ in range(150)]
    with file.open("w") as out:
        for _ in range(documents):
            for _ in range(8):
                out.write(" ".join(words[int(150 * rng.random() ** 2)] for _ in range(9)) + ".\n")
            out.write("\n")
    return file


@pytest.fixture(scope="module")
def general(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "general.txt", 1)


@pytest.fixture(scope="module")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "domain.txt", 2)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, general: Path) -> Path:
    folder = tmp_path_factory.mktemp("tokenizers") / "base"
    assert cli.main(["vocab", "--corpus", str(general), "--out", str(folder), "--vocab-size", "200", "--quiet"]) == 0
    return folder


def vocab(*words: object) -> int:
    return cli.main(["vocab", *map(str, words)])


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_vocabulary_and_its_report(general: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vocab("--corpus", general, "--out", tmp_path / "a", "--vocab-size", 200) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert f"{tmp_path}/a/vocab.txt: 200 entries" in printed.out
    assert "on 3 documents held out: 240 words" in printed.out
    assert "tokens per word" in printed.out
    assert names(tmp_path / "a") == FILES
    report = json.loads((tmp_path / "a" / "vocab_report.json").read_text())
    assert report["held_out"] == "documents"
    assert report["learned_from"] == {"documents": 57, "words": 57 * 8 * 10}
    assert report["coverage"]["words"] == 3 * 8 * 10
    assert report["coverage"]["unknown_words"] == 0
    assert f"{report['coverage']['tokens_per_word']:.3f}" in printed.out
    assert vocab("--corpus", general, "--out", tmp_path / "b", "--vocab-size", 200) == 0
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize(("kind", "size"), [("bpe", 400), ("unigram", 200)])
def test_other_kinds(
    kind: str, size: int, general: Path, domain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Built twice with equal bytes, measured, and extended with the model of the family."""
    from fastbert import load, load_tokenizer
    from fastbert.models.registry import ARCHITECTURES, model_classes

    base, again = tmp_path / "a", tmp_path / "b"
    for folder in (base, again):
        assert vocab("--corpus", general, "--kind", kind, "--vocab-size", size, "--out", folder) == 0
    printed = capsys.readouterr().out
    tokenizer = load_tokenizer(base)
    assert f"{base}/tokenizer.json: {len(tokenizer)} entries" in printed
    assert "tokens per word" in printed
    assert ("<unk>   " in printed) == (kind == "unigram")
    expected = sorted(
        {*FILES, "tokenizer.json", *(("vocab.json", "merges.txt") if kind == "bpe" else ())} - {"vocab.txt"}
    )
    assert names(base) == names(again) == expected
    for name in expected:
        assert (base / name).read_bytes() == (again / name).read_bytes()
    assert vocab("--corpus", domain, "--tokenizer", base, "--report", tmp_path / "r.json") == 0
    measured = json.loads((tmp_path / "r.json").read_text())["coverage"]
    assert measured["tokens"] == len(tokenizer.encode_ragged(domain.read_text().split("\n"))[0])
    assert vocab("--corpus", general, "--kind", kind, "--out", base) == 2
    assert "already holds a tokenizer.json" in capsys.readouterr().err
    # The model of the family.
    architecture = ARCHITECTURES["roberta" if kind == "bpe" else "xlm-roberta"]
    assert architecture.config is not None
    config = architecture.config.preset(
        "tiny", vocab_size=len(tokenizer), hidden_size=16, num_attention_heads=2, intermediate_size=32, pad_token_id=1
    )
    model = tmp_path / "model"
    kinds = model_classes(architecture)
    kinds[f"{architecture.class_prefix}ForMaskedLM"](config).save_pretrained(model)
    tokenizer.save_pretrained(model)
    assert vocab("--extend", "--model", model, "--corpus", domain, "--out", tmp_path / "c", "--add", 5) == 0
    extended, old, new = load_tokenizer(tmp_path / "c"), load(model), load(tmp_path / "c")
    assert len(extended) == new.config.vocab_size == len(tokenizer) + 5
    report = json.loads((tmp_path / "c" / "vocab_report.json").read_text())
    assert report["after"]["tokens_per_word"] < report["before"]["tokens_per_word"]
    table, larger = (loaded.get_input_embeddings().weight for loaded in (old, new))
    assert larger[: len(tokenizer)].equal(table)
    for entry in report["extension"]["added"]:
        pieces = tokenizer.convert_tokens_to_ids(entry["pieces"])
        assert larger[entry["id"]].allclose(table[pieces].mean(0), atol=1e-6)


def test_nothing_held_out(general: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.json"
    assert (
        vocab(
            "--corpus",
            general,
            "--out",
            tmp_path / "a",
            "--vocab-size",
            200,
            "--validation-fraction",
            0,
            "--report",
            file,
        )
        == 0
    )
    assert "on the text itself, since nothing was held out: 4,800 words" in capsys.readouterr().out
    assert json.loads(file.read_text())["coverage"]["words"] == 60 * 8 * 10
    assert names(tmp_path / "a") == FILES[:-1]


def test_only_measured(tokenizer: Path, domain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file: file.read_bytes() for file in tokenizer.iterdir()}
    for source in (tokenizer, tokenizer / "vocab.txt"):
        assert vocab("--corpus", domain, "--tokenizer", source, "--report", tmp_path / "new" / "r.json") == 0
        assert "on 60 documents: 4,800 words" in capsys.readouterr().out
        report = json.loads((tmp_path / "new" / "r.json").read_text())["coverage"]
        lines = domain.read_text().split("\n")
        assert report["tokens"] == len(WordPieceTokenizer.from_pretrained(tokenizer).encode_ragged(lines)[0])
    assert {file: file.read_bytes() for file in tokenizer.iterdir()} == before


def test_a_corpus_of_one_word(tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.txt").write_text("word\n")
    assert vocab("--corpus", tmp_path / "one.txt", "--out", tmp_path / "a") == 0
    assert "nothing was held out: 1 word, 4 tokens" in capsys.readouterr().out
    assert vocab("--corpus", tmp_path / "one.txt", "--extend", "--tokenizer", tokenizer, "--out", tmp_path / "b") == 0
    printed = capsys.readouterr().out
    assert "nothing to extend: no file was written" in printed
    assert not (tmp_path / "b").exists()


def test_an_extension_is_shown_then_written(
    tokenizer: Path, domain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ("--extend", "--tokenizer", tokenizer, "--corpus", domain, "--add", 12)
    assert vocab(*call, "--report", tmp_path / "r.json") == 0
    shown = capsys.readouterr().out
    assert "to add: 12 words (--add; auto would add " in shown
    assert "next: the same command with --out FOLDER" in shown
    assert names(tmp_path) == ["r.json"]
    assert vocab(*call, "--out", tmp_path / "a") == 0
    assert "212 entries; 0 words in place of [unusedN], 12 at the end" in capsys.readouterr().out
    assert names(tmp_path / "a") == FILES
    assert (tmp_path / "a" / "vocab_report.json").read_bytes() == (tmp_path / "r.json").read_bytes()
    report = json.loads((tmp_path / "r.json").read_text())
    extended = WordPieceTokenizer.from_pretrained(tmp_path / "a")
    assert [entry["id"] for entry in report["extension"]["added"]] == list(range(200, 212))
    for entry in report["extension"]["added"]:
        assert extended.tokenize(entry["word"]) == [entry["word"]]
        assert WordPieceTokenizer.from_pretrained(tokenizer).tokenize(entry["word"]) == entry["pieces"]
        assert entry["saved"] == entry["count"] * (len(entry["pieces"]) - 1)
    assert report["after"]["tokens_per_word"] < report["before"]["tokens_per_word"]


def test_auto_and_more_than_there_are(
    tokenizer: Path, domain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vocab("--extend", "--tokenizer", tokenizer, "--corpus", domain, "--report", tmp_path / "r.json") == 0
    assert "(auto: the next 100 would save less than 0.1 % of the tokens)" in capsys.readouterr().out
    extension = json.loads((tmp_path / "r.json").read_text())["extension"]
    assert len(extension["added"]) == extension["auto"]["words"] > 0
    assert vocab("--extend", "--tokenizer", tokenizer, "--corpus", domain, "--add", 5000) == 0
    printed = capsys.readouterr().out
    assert "all candidates, fewer than --add 5,000; a lower --min-frequency or more text gives more" in printed


def test_the_model_follows(tokenizer: Path, domain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    from fastbert import BertConfig, BertForPreTraining

    config = BertConfig.preset("tiny", vocab_size=200, hidden_size=16, num_attention_heads=2, intermediate_size=32)
    model = tmp_path / "model"
    BertForPreTraining(config).save_pretrained(model)
    WordPieceTokenizer.from_pretrained(tokenizer).save_pretrained(model)
    assert vocab("--extend", "--model", model, "--corpus", domain, "--out", tmp_path / "a", "--add", 7) == 0
    assert "BertForPreTraining with 207 rows" in capsys.readouterr().out
    assert names(tmp_path / "a") == sorted(["config.json", "model.safetensors", *FILES])
    old, new = (BertForPreTraining.from_pretrained(folder) for folder in (model, tmp_path / "a"))
    extended = WordPieceTokenizer.from_pretrained(tmp_path / "a")
    table = old.bert.embeddings.word_embeddings.weight
    for index in range(200, 207):
        word = extended.convert_ids_to_tokens(index)
        pieces = WordPieceTokenizer.from_pretrained(tokenizer).encode(word, add_special_tokens=False)
        torch.testing.assert_close(new.bert.embeddings.word_embeddings.weight[index], table[pieces].mean(0))
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "a")
    assert theirs.config.vocab_size == 207
    # A vocabulary without its model would leave the folder useless.
    assert vocab("--extend", "--tokenizer", model, "--corpus", domain, "--out", model, "--overwrite") == 2
    assert "holds a model, which would not fit a different vocabulary" in capsys.readouterr().err
    # In place, with the model, it is what was asked for.
    assert vocab("--extend", "--model", model, "--corpus", domain, "--out", model, "--add", 7, "--overwrite") == 0
    assert names(model) == names(tmp_path / "a")
    assert (model / "vocab.txt").read_bytes() == (tmp_path / "a" / "vocab.txt").read_bytes()


def test_an_older_tokenizer_json_goes(tokenizer: Path, domain: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "mine.txt").write_text("stays")
    call = ("--extend", "--tokenizer", tokenizer, "--corpus", domain, "--out", tmp_path)
    assert vocab(*call) == 2  # it may be another tokenizer
    assert vocab(*call, "--overwrite") == 0
    assert names(tmp_path) == sorted(["mine.txt", *FILES])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param("--out OUT", "--corpus is missing", id="corpus"),
        pytest.param("--corpus TEXT", "--out is missing", id="out"),
        pytest.param(
            "--corpus TEXT --out BASE", "BASE: already holds a vocab.txt; replace it with --overwrite", id="there"
        ),
        pytest.param("--corpus TEXT --out FILE", "FILE: is a file", id="a-file"),
        pytest.param("--corpus TEXT --out OUT --vocab-size 6", "--vocab-size 6 has no room", id="size"),
        pytest.param(
            "--corpus TEXT --out OUT --validation-fraction 1",
            "--validation-fraction 1.0 must be from 0 to below 1",
            id="fraction",
        ),
        pytest.param(
            "--corpus TEXT --out OUT --min-frequency 0", "--min-frequency 0 must be at least 1", id="frequency"
        ),
        pytest.param("--corpus EMPTY --out OUT", "the corpus is empty: no text in EMPTY", id="empty"),
        pytest.param("--corpus MARKS --out OUT", "the corpus holds no words", id="no-words"),
        pytest.param("--corpus MARKS --tokenizer BASE", "the text has no words", id="no-words-to-measure"),
        pytest.param("--corpus MARKS --tokenizer BASE --extend", "the text has no words", id="no-words-to-extend"),
        pytest.param(
            "--corpus TEXT --tokenizer BASE --out OUT", "--tokenizer is measured, not built", id="measure-out"
        ),
        pytest.param("--corpus TEXT --tokenizer BASE --cased", "--cased is for a new vocabulary", id="cased"),
        pytest.param("--corpus TEXT --tokenizer NONE", "NONE: no such file", id="no-tokenizer"),
        pytest.param("--corpus TEXT --out OUT --add 3", "--add requires --extend", id="add"),
        pytest.param("--corpus TEXT --out OUT --keep-unused", "--keep-unused requires --extend", id="keep-unused"),
        pytest.param("--corpus TEXT --out OUT --model M", "--model requires --extend", id="model"),
        pytest.param("--corpus TEXT --extend", "--tokenizer is missing", id="extend-nothing"),
        pytest.param("--corpus TEXT --extend --tokenizer BASE --add 0", "--add 0 must be at least 1", id="add-none"),
        pytest.param("--corpus TEXT --extend --tokenizer BASE --add x", "--add 'x'", id="add-word"),
        pytest.param(
            "--corpus TEXT --extend --tokenizer BASE --out BASE", "already holds a vocab.txt", id="extend-there"
        ),
        pytest.param(
            "--corpus TEXT --extend --tokenizer BASE --model MODEL", "--out is missing", id="model-without-out"
        ),
        pytest.param(
            "--corpus TEXT --extend --tokenizer BASE --model MODEL --out OUT",
            "--model MODEL has a vocabulary of 30,522, but the tokenizer has 200 entries",
            id="another-vocabulary",
        ),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(
    words: str, message: str, tokenizer: Path, general: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "marks.txt").write_text("\u200b\u200b\n\u200b\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "bert"}')
    empty, marks = tmp_path / "empty.txt", tmp_path / "marks.txt"
    paths = {"TEXT": general, "BASE": tokenizer, "FILE": empty, "EMPTY": empty, "MARKS": marks}
    paths |= {"OUT": tmp_path / "out", "NONE": tmp_path / "no", "MODEL": tmp_path / "model"}
    before = names(tmp_path)
    assert vocab(*(paths.get(word, word) for word in words.split())) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    for name, path in paths.items():
        message = message.replace(name, str(path))
    assert message in printed.err
    assert names(tmp_path) == before


def test_an_interrupt_while_learning_leaves_nothing(
    general: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fastbert.io.progress import Bars

    def waiting(bars: Bars, name: str):
        return lambda seconds, done=False: os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Bars, "waiting", waiting)
    assert vocab("--corpus", general, "--out", tmp_path / "a") == 130
    assert capsys.readouterr().err == "fastbert: interrupted\n"
    assert names(tmp_path) == []


@pytest.mark.parametrize("there", [False, True])
def test_an_interrupt_while_writing_leaves_what_was_there(
    there: bool, general: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(tokenizer: WordPieceTokenizer, folder: Path) -> None:
        (folder / "vocab.txt").write_text("half")
        raise KeyboardInterrupt

    if there:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "vocab.txt").write_text("old")
    monkeypatch.setattr(WordPieceTokenizer, "save_pretrained", save)
    assert vocab("--corpus", general, "--out", tmp_path / "a", "--vocab-size", 200, "--overwrite") == 130
    if there:
        assert names(tmp_path / "a") == ["vocab.txt"]
        assert (tmp_path / "a" / "vocab.txt").read_text() == "old"
    else:
        assert names(tmp_path) == []

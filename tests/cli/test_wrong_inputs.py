"""Wrong inputs to `finetune`, `predict` and `evaluate`: one line that names value, place and cure, and nothing written.

A row of `TABLE` is a command, the files it needs, and the words of its error. `{name}` in a command is the file of that
name, `{texts}`, `{pairs}`, `{scores}` and `{tags}` are models that were trained on such examples.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from toy_tasks import toy_folder

pytest.importorskip("tyro", reason="the command line needs tyro")

from fastbert import BertConfig, WordPieceTokenizer
from fastbert.cli import main
from fastbert.tasks.finetuned_model import save_task
from fastbert.tasks.registry import make_task
from fastbert.tasks.settings import TaskSettings
from fastbert.tasks.texts import ClassificationSettings, TextSettings

SQUAD = json.dumps(
    {"data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "q", "question": "?", "answers": []}]}]}]}
)
SCORES = "text\tlabel\n" + "".join(f"the day\t{i / 8}\n" for i in range(200))
PAIR_TABLE = "sentence1\tsentence2\tlabel\nthe day\ta road\tbad\n"
TRAIN = "finetune --model {texts} --out out --task"
TABLE: dict[str, tuple[str, dict[str, str | bytes], tuple[str, ...]]] = {
    "single-texts-to-a-pair-model": (
        "predict --model {pairs} --text {t.tsv} --out out.jsonl",
        {"t.tsv": "text\tlabel\nthe day\tbad\n"},
        ("t.tsv, line 2: is a single text, and the model was trained on pairs", "--pair-column"),
    ),
    "pairs-to-a-single-text-model": (
        "predict --model {texts} --text {t.tsv} --out out.jsonl",
        {"t.tsv": PAIR_TABLE},
        ("t.tsv, line 2: is a pair of texts, and the model was trained on single texts", "--text-column"),
    ),
    "pairs-evaluated-by-a-single-text-model": (
        "evaluate --model {texts} --gold {t.tsv} --json out.json",
        {"t.tsv": PAIR_TABLE},
        ("t.tsv, line 2: is a pair of texts", "--text-column"),
    ),
    "texts-and-labels-to-a-single-text-model-as-lines": (
        "predict --model {texts} --text {t.txt} --out out.jsonl",
        {"t.txt": "the day was\tbad\na road\tgood\n"},
        ("t.txt, line 1: is a pair of texts", "name a file of single texts"),
    ),
    "single-scored-texts-to-a-pair-model": (
        "evaluate --model {scores} --gold {t.tsv} --json out.json",
        {"t.tsv": "text\tscore\nthe day\t1\na road\t2\n"},
        ("t.tsv, line 2: is a single text, and the model was trained on pairs", "--pair-column"),
    ),
    "a-table-of-texts-to-tagging": (
        f"{TRAIN} tagging --train {{t.tsv}}",
        {"t.tsv": "text\tlabel\nthe day was\tbad\na road\tgood\n"},
        ("t.tsv, line 1: 'text' and 'label' are the names of a table", "--task classification"),
    ),
    "a-table-without-a-header-to-tagging": (
        "evaluate --model {tags} --gold {t.tsv} --json out.json",
        {"t.tsv": "the day was\tbad\na road they found\tgood\n"},
        ("t.tsv, line 1: 'the day was' is a text of several words", "--task classification"),
    ),
    "a-csv-to-tagging": (
        f"{TRAIN} tagging --train {{t.csv}}",
        {"t.csv": "text,label\nthe day was,bad\n"},
        ("t.csv: tagging does not read .csv", "give one word per line"),
    ),
    "words-without-tags": (
        f"{TRAIN} tagging --train {{t.conll}}",
        {"t.conll": "the\nday\n\na\n"},
        ("t.conll, line 1: has one column, so words and no tags", "add a column of tags"),
    ),
    "bad-lines-of-words": (
        f"{TRAIN} tagging --train {{t.conll}}",
        {"t.conll": "the\tO\n\tO\nday\na\tO\nroad\tO\tO\nwas\t\n"},
        (
            "t.conll, line 2: column 1 is empty; line 3: has 1 columns, not 2 as line 1 has; line 5: has 3 columns",
            "4 bad lines in all",
            "--skip-bad",
        ),
    ),
    "words-with-tags-to-classification": (
        f"{TRAIN} classification --train {{t.conll}}",
        {"t.conll": "the\tO\nday\tB-X\n"},
        ("t.conll: .conll files hold words with tags", "--task tagging"),
    ),
    "scores-to-classification": (
        f"{TRAIN} classification --train {{t.tsv}}",
        {"t.tsv": SCORES},
        ("t.tsv, line 2: the label '0.0' is one of 200 different numbers", "--task regression"),
    ),
    "a-column-of-scores-to-classification": (
        f"{TRAIN} classification --train {{t.tsv}}",
        {"t.tsv": "score\ttext\n1.5\tthe day\n"},
        ("t.tsv, line 1: no column of classes", "'score' is one of numbers", "--task regression"),
    ),
    "classes-to-regression": (
        f"{TRAIN} regression --train {{t.tsv}}",
        {"t.tsv": "text\tlabel\nthe day\tbad\na road\tgood\n"},
        ("t.tsv, line 2: 'label' must be a finite number, and 'bad' is not", "--task classification"),
    ),
    "squad-to-classification": (
        f"{TRAIN} classification --train {{t.json}}",
        {"t.json": SQUAD},
        ("t.json, line 1: is SQuAD's JSON", "--task span"),
    ),
    "squad-to-choice": (
        f"{TRAIN} choice --train {{t.json}}",
        {"t.json": SQUAD},
        ("t.json, line 1: is SQuAD's JSON", "--task span"),
    ),
    "a-table-to-span": (
        f"{TRAIN} span --train {{t.json}}",
        {"t.json": '[{"text": "a", "label": "b"}]'},
        ("t.json, line 1: is not SQuAD's JSON", "name such a file"),
    ),
    "a-binary-file": (
        f"{TRAIN} classification --train {{t.tsv}}",
        {"t.tsv": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\xff"},
        ("t.tsv, line 1: is a binary file", "name the file with the examples"),
    ),
    "a-compressed-file-of-another-name": (
        f"{TRAIN} tagging --train {{t.conll}}",
        {"t.conll": b"\x1f\x8b\x08\x00rest"},
        ("t.conll, line 1: is gzip-compressed", "add .gz to its name"),
    ),
    "utf-16": (
        f"{TRAIN} classification --train {{t.csv}}",
        {"t.csv": "text,label\na,b\n".encode("utf-16")},
        ("t.csv, line 1: is UTF-16", "save it as UTF-8"),
    ),
    "an-empty-file": (
        f"{TRAIN} classification --train {{t.tsv}}",
        {"t.tsv": ""},
        ("t.tsv, line 1: the file is empty", "name one with"),
    ),
    "an-empty-file-of-words": (
        f"{TRAIN} tagging --train {{t.conll}}",
        {"t.conll": "\n\n"},
        ("t.conll, line 1: the file has no words", "name one"),
    ),
    "a-header-alone": (
        f"{TRAIN} classification --train {{t.csv}}",
        {"t.csv": "text,label\n"},
        ("t.csv, line 1: has a header and no rows", "add examples"),
    ),
    "a-test-set-to-train-on": (
        f"{TRAIN} classification --train {{t.tsv}}",
        {"t.tsv": "index\tsentence\n0\tthe day\n"},
        ("t.tsv, line 1: no column of classes", "columns: index, sentence", "--label-column"),
    ),
    "labels-that-training-never-saw": (
        "evaluate --model {texts} --gold {t.tsv} --json out.json",
        {"t.tsv": "text\tlabel\nthe day\tbad\na road\tgod\n"},
        ("t.tsv, line 3: the label 'god' is not one of the training set's: bad, good", "did you mean 'good'?"),
    ),
    "tags-that-training-never-saw": (
        "evaluate --model {tags} --gold {t.conll} --json out.json",
        {"t.conll": "the\tO\nday\tB-PLACE\n"},
        ("t.conll, line 1: the tag 'B-PLACE' of word 2, 'day', is none of the 2", "correct it"),
    ),
    "bad-rows": (
        f"{TRAIN} classification --train {{t.tsv}}",
        {"t.tsv": "text\tlabel\nthe day\tbad\na road\n\tgood\nthey\t\n"},
        (
            "t.tsv, line 3: has 1 cells, not 2 as line 1 has; line 4: 'text' is empty; line 5: 'label' is empty",
            "3 bad rows in all",
            "--skip-bad",
        ),
    ),
    "choices-to-classification": (
        f"{TRAIN} classification --train {{t.csv}}",
        {"t.csv": "sent1,ending0,ending1,label\na,b,c,0\n"},
        ("t.csv, line 1: is a file for --task choice by its names (columns: sent1, ending0", "use that task, or"),
    ),
    "texts-as-json-lines-to-tagging": (
        f"{TRAIN} tagging --train {{t.jsonl}}",
        {"t.jsonl": '{"text": "the day was", "label": "bad"}\n'},
        ("t.jsonl, line 1: holds texts, not lists of words (columns: text, label)", "--task classification"),
    ),
    "a-folder-that-holds-nothing": (
        f"{TRAIN} classification --train {{t}}",
        {"t/readme.txt": "hello"},
        ("t: is a folder without state.json", "name a file"),
    ),
    "a-column-that-is-not-there": (
        f"{TRAIN} classification --train {{t.csv}} --label-column mood",
        {"t.csv": "text,label\na,b\n"},
        ("t.csv, line 1: no column 'mood' (columns: text, label)", "--label-column"),
    ),
}
MODELS = {
    "texts": ("classification", ClassificationSettings(max_length=32, paired=False), ("bad", "good")),
    "pairs": ("classification", ClassificationSettings(max_length=32, paired=True), ("bad", "good")),
    "scores": ("regression", TextSettings(max_length=32, paired=True), None),
    "tags": ("tagging", TaskSettings(max_length=32), ("B-GOOD", "O")),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of models as fine-tuning leaves them, with random weights."""
    encoder = toy_folder(tmp_path_factory.mktemp("encoder"), num_hidden_layers=1)
    folders = {}
    for name, (kind, settings, labels) in MODELS.items():
        folder = folders[name] = tmp_path_factory.mktemp(name)
        task = make_task(kind, settings, labels)
        config = task.head_config(BertConfig.from_pretrained(encoder))
        model = task.head(config)(config)
        model.init_weights(seed=0)
        model.save_pretrained(folder)
        WordPieceTokenizer.from_pretrained(encoder).save_pretrained(folder)
        save_task(task, folder)
    return folders


@pytest.mark.parametrize("name", TABLE)
def test_a_wrong_input_is_one_line(
    name: str,
    models: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command, files, words = TABLE[name]
    for file, content in files.items():
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    folders = {f"{{{model}}}": str(folder) for model, folder in models.items()}
    line = [folders.get(word, word.strip("{}")) for word in command.split()]
    assert main([*line, "--quiet"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("fastbert: error: ")
    assert printed.err.count("\n") == 1, printed.err
    assert [word for word in words if word not in printed.err] == [], printed.err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.usefixtures("unchecked_folders")
def test_a_model_that_does_not_say_takes_either(models: dict[str, Path], tmp_path: Path) -> None:
    """Folders from before this was stored, and those of other libraries."""
    task = make_task("classification", replace(MODELS["texts"][1], paired=None), ("bad", "good"))
    folder = tmp_path / "model"
    task.load_head(models["texts"]).save_pretrained(folder)
    WordPieceTokenizer.from_pretrained(models["texts"]).save_pretrained(folder)
    save_task(task, folder)
    stored = json.loads((folder / "fastbert_task.json").read_text())
    del stored["settings"]["paired"]
    assert "skip_bad" not in stored["settings"]
    (folder / "fastbert_task.json").write_text(json.dumps(stored))
    (tmp_path / "pairs.tsv").write_text(PAIR_TABLE)
    (tmp_path / "texts.tsv").write_text("text\tlabel\nthe day\tbad\n")
    for name in ("pairs", "texts"):
        out = tmp_path / f"{name}.jsonl"
        flags = ("--model", str(folder), "--text", str(tmp_path / f"{name}.tsv"), "--out", str(out))
        assert main(["predict", *flags, "--quiet"]) == 0
        assert len(out.read_text().splitlines()) == 1


def test_skip_bad_of_every_command(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.tsv").write_text("text\tlabel\nthe day\tbad\na road\nthe river\tgood\n")
    Path("p.txt").write_text("bad\ngood\n")
    Path("w.conll").write_text("the\tO\nday\n\nkind\tB-GOOD\n")
    texts, tags = str(models["texts"]), str(models["tags"])
    for line in (
        f"predict --model {texts} --text t.tsv --out out.jsonl",
        f"evaluate --model {texts} --gold t.tsv",
        "evaluate --task classification --gold t.tsv --predictions p.txt",
        f"evaluate --model {tags} --gold w.conll",
        f"finetune --task classification --model {texts} --train t.tsv --out run --epochs 1 --max-length 32",
    ):
        assert main([*line.split(), "--quiet"]) == 2, line
        assert not Path("run").exists()
        caplog.clear()
        assert main([*line.split(), "--quiet", "--skip-bad"]) == 0, line
        assert "skipped 1 bad" in caplog.text, line
    ids = [json.loads(row)["id"] for row in Path("out.jsonl").read_text().splitlines()]
    assert ids == ["0", "2"], "rows are numbered as in the file"
    settings = json.loads(Path("run/model/fastbert_task.json").read_text())["settings"]
    assert settings["paired"] is False
    assert "skip_bad" not in settings

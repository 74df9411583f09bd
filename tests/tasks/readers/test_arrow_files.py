"""Parquet, Arrow, and folders of `datasets` in both of their layouts, with the names of classes."""

import json
from pathlib import Path
from typing import Any

import pytest

from fastbert import errors
from fastbert.errors import UserError
from fastbert.tasks.readers.choices import read_choices
from fastbert.tasks.readers.conll import read_conll
from fastbert.tasks.readers.squad import read_squad
from fastbert.tasks.readers.texts import read_texts
from fastbert.tasks.settings import Columns

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra [data]")
parquet_files = pytest.importorskip("pyarrow.parquet")

NAMES = ["World", "Sports"]
CLASS = {"names": NAMES, "_type": "ClassLabel"}
FEATURES = {"text": {"dtype": "string", "_type": "Value"}, "label": CLASS}
NEWS = {"text": ["A b", "C\nd"], "label": [1, 0]}


def parquet(path: Path, columns: dict[str, list[Any]], features: object = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table(columns)
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet_files.write_table(table, path)
    return path


def saved(folder: Path, columns: dict[str, list[Any]], features: object, files: int = 1) -> Path:
    """A folder as `save_to_disk` leaves it."""
    folder.mkdir(parents=True)
    table = pyarrow.table(columns)
    names = [f"data-{i:05}-of-{files:05}.arrow" for i in range(files)]
    for i, name in enumerate(names):
        with pyarrow.ipc.new_stream(folder / name, table.schema) as writer:
            writer.write_table(table.slice(i, 1) if files > 1 else table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def read(path: Path | str, *, labelled: bool = True, regression: bool = False) -> list[tuple[Any, ...]]:
    dataset = read_texts(str(path), Columns(), labelled=labelled, regression=regression)
    return [(example.text, example.pair, example.label, example.location) for example in dataset]


NAMED = [("A b", None, "Sports", "row 1"), ("C\nd", None, "World", "row 2")]


def test_classes_of_a_parquet_file(tmp_path: Path) -> None:
    assert read(parquet(tmp_path / "t.parquet", NEWS, FEATURES)) == NAMED
    plain = parquet(tmp_path / "p.parquet", NEWS)
    assert [label for _, _, label, _ in read(plain)] == ["1", "0"]
    assert [label for _, _, label, _ in read(plain, labelled=False)] == [None, None]
    scores = parquet(tmp_path / "s.parquet", {"sentence1": ["a"], "sentence2": ["b"], "label": [2.5], "idx": [7]})
    assert read(scores, regression=True) == [("a", "b", 2.5, "row 1")]


def test_a_saved_data_set_and_its_splits(tmp_path: Path) -> None:
    assert read(saved(tmp_path / "one", NEWS, FEATURES, files=2)) == NAMED
    both = tmp_path / "both"
    for split in ("train", "test"):
        saved(both / split, NEWS, FEATURES)
    (both / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert read(f"{both}#train") == read(both / "test") == NAMED
    with pytest.raises(
        UserError, match=r"both: holds the splits train, test; name one of them, for example .*both#train$"
    ):
        read(both)
    with pytest.raises(UserError, match=r"both: has no split 'dev'; it holds train, test"):
        read(f"{both}#dev")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("data/train-00000-of-00001.parquet", "train"),
        ("data/train-00000-of-00001-0123456789abcdef.parquet", "train"),
        ("train.parquet", "train"),
        ("cola/train-00000-of-00001.parquet", "cola/train"),
        ("plain_text/train/0000.parquet", "plain_text/train"),
    ],
)
def test_a_folder_of_the_hub(tmp_path: Path, name: str, split: str) -> None:
    parquet(tmp_path / name, NEWS)
    card = "---\ndataset_info:\n  features:\n  - name: text\n    dtype: string\n  - name: label\n    dtype:\n"
    card += (
        "      class_label:\n        names:\n          '0': World\n          '1': Sports\n  splits:\n  - name: train\n"
    )
    (tmp_path / "README.md").write_text(f"{card}    num_bytes: 1\n---\n# News\n")
    assert read(tmp_path) == NAMED
    assert read(f"{tmp_path}#{split}") == NAMED


def test_labels_that_are_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pairs = {"premise": ["a", "b", "c"], "hypothesis": ["d", "e", "f"], "label": [0, -1, 2]}
    classes = {"label": {"names": ["entailment", "neutral", "contradiction"], "_type": "ClassLabel"}}
    result = read(parquet(tmp_path / "t.parquet", pairs, classes))
    assert [label for _, _, label, _ in result] == ["entailment", "contradiction"]
    assert "row 2: 1 of 3 pairs, this one first, have no gold label" in caplog.text
    path = parquet(tmp_path / "test.parquet", {"text": ["a", "b"], "label": [-1, -1]}, FEATURES)
    with pytest.raises(UserError, match=r"row 1 ff.: 'label' is empty in all rows; this is a test set"):
        read(path)
    assert len(read(path, labelled=False)) == 2
    with pytest.raises(UserError, match=r"t.parquet, row 2: 'label' is 2, and has 2 names; correct it"):
        read(parquet(tmp_path / "t.parquet", {"text": ["a", "b"], "label": [0, 2]}, FEATURES))


@pytest.mark.parametrize("kind", ["Sequence", "List", None])
def test_tags_choices_and_questions(tmp_path: Path, kind: str | None) -> None:
    tags = {"names": ["O", "B-PER"], "_type": "ClassLabel"}
    feature = [tags] if kind is None else {"feature": tags, "_type": kind}
    columns = {"id": ["0"], "tokens": [["Ada", "ran"]], "pos_tags": [[3, 4]], "ner_tags": [[1, 0]]}
    path = parquet(tmp_path / "t.parquet", columns, {"ner_tags": feature})
    dataset = read_conll(str(path), Columns(), labelled=True)
    assert [(one.words, one.tags, one.location) for one in dataset] == [(("Ada", "ran"), ("B-PER", "O"), "row 1")]

    swag = {"sent1": ["a"], "sent2": ["b"], "ending0": ["c"], "ending1": ["d"], "label": [1]}
    path = parquet(tmp_path / "s.parquet", swag, {"label": {"names": ["0", "1"], "_type": "ClassLabel"}})
    assert [(one.prompt, one.label) for one in read_choices(str(path), Columns(), labelled=True)] == [("a", 1)]

    answers = {"text": ["c"], "answer_start": [0]}
    path = parquet(tmp_path / "q.parquet", {"id": ["q"], "question": ["b?"], "context": ["c d"], "answers": [answers]})
    result = read_squad(str(path), labelled=True, report=lambda message: None)
    assert result[0].answers is not None
    assert result[0].answers[0].text == "c"


def test_what_is_damaged_or_missing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = parquet(tmp_path / "t.parquet", NEWS, FEATURES)
    (tmp_path / "cut.parquet").write_bytes(whole.read_bytes()[:-40])
    (tmp_path / "other.arrow").write_bytes(b"text\tlabel\n" * 9)
    (tmp_path / "empty").mkdir()
    parquet(tmp_path / "none.parquet", {"text": [], "label": []})
    lost = saved(tmp_path / "lost", NEWS, FEATURES)
    (lost / "data-00000-of-00001.arrow").unlink()
    outside = saved(tmp_path / "outside", NEWS, FEATURES)
    (outside / "state.json").write_text('{"_data_files": [{"filename": "../t.parquet"}]}')
    indexed = saved(tmp_path / "indexed", NEWS, FEATURES)
    (indexed / "state.json").write_text('{"_data_files": [], "_indices_data_files": [{"filename": "i.arrow"}]}')
    parquet(tmp_path / "ragged" / "train-00000-of-00002.parquet", NEWS)
    parquet(tmp_path / "ragged" / "train-00001-of-00002.parquet", {"text": ["a"]})
    for name, words in (
        ("cut.parquet", r"cut.parquet: not an intact .parquet file \(.*\); copy or download it again"),
        ("other.arrow", r"other.arrow: not an intact .arrow file"),
        ("gone.parquet", r"gone.parquet: no such file"),
        ("empty", r"empty: is a folder without state.json, .*; name a file, or a folder written by `datasets`"),
        ("none.parquet", r"none.parquet, row 1: the file has no rows; name one with examples"),
        ("lost", r"data-00000-of-00001.arrow: no such file, so the data set is incomplete"),
        ("outside", r"state.json: holds no list of files under '_data_files'"),
        ("indexed", r"indexed: selects rows by an index; call flatten_indices\(\) and save it again"),
        ("ragged", r"train-00001-of-00002.parquet: has the columns text, not text, label as"),
    ):
        with pytest.raises(UserError, match=words) as error:
            read(tmp_path / name)
        assert "\n" not in str(error.value)

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(errors, "import_module", missing)
    with pytest.raises(UserError, match=r"needs the package pyarrow: `pip install 'fastbert-engine\[data\]'`"):
        read(whole)


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    parquet_files.write_table(pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, names=["text", "text"]), path)
    with pytest.raises(UserError, match=r"t\.parquet: has several columns of one name \(text, text\)"):
        read(path)

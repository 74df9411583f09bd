"""Sets of labels: how files spell them, what is trained, predicted and scored, and that transformers agrees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from finetune_runs import config
from toy_tasks import feelings, toy_folder

from fastbert import BertForSequenceClassification, WordPieceTokenizer
from fastbert.distillation.losses import soft_binary_loss
from fastbert.errors import UserError
from fastbert.finetuning.run import finetune
from fastbert.tasks.examples import Dataset, TextExample
from fastbert.tasks.finetuned_model import load_trained
from fastbert.tasks.metrics.multilabel import multilabel_scores
from fastbert.tasks.multilabel.label_sets import read_prediction, write_cell
from fastbert.tasks.multilabel.task import MultiLabel, MultiLabelSettings
from fastbert.tasks.predicting import predict
from fastbert.tasks.settings import Columns


def labels_in(path: Path, content: str, **settings: Any) -> list[Any]:
    path.write_text(content, encoding="utf-8")
    return [example.label for example in MultiLabel(MultiLabelSettings(**settings)).read(str(path))]


@pytest.mark.parametrize(
    ("name", "content", "labels"),
    [
        pytest.param("a.tsv", "text\tlabels\nx\ta|b, c\ny\tb, c\nz\t\n", [("a", "b, c"), ("b, c",), ()], id="bars"),
        pytest.param("a.tsv", "text\tlabels\nx\ta;b,c\n", [("a", "b,c")], id="semicolons"),
        pytest.param("a.csv", 'text,labels\nx,"2, 14,2"\ny,3\n', [("2", "14"), ("3",)], id="commas, repeated"),
        pytest.param("a.csv", 'text,labels\nx,"[""a"", ""b|c""]"\ny,[]\n', [("a", "b|c"), ()], id="JSON in cells"),
        pytest.param(
            "a.jsonl",
            '{"text": "x", "labels": ["a", "b,c"]}\n{"text": "y", "labels": []}\n{"text": "z", "labels": 7}\n',
            [("a", "b,c"), (), ("7",)],
            id="lists",
        ),
    ],
)
def test_spellings_of_sets(tmp_path: Path, name: str, content: str, labels: list[Any]) -> None:
    assert labels_in(tmp_path / name, content) == labels


def test_lists_in_parquet(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["x", "y"], "labels": [["a", "b"], []]}), tmp_path / "a.parquet")
    examples = MultiLabel().read(str(tmp_path / "a.parquet"))
    assert [example.label for example in examples] == [("a", "b"), ()]


def test_a_separator_by_its_flag(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = "text\tlabels\nx\ta / b|c\n"
    assert labels_in(tmp_path / "a.tsv", content, label_separator="/") == [("a", "b|c")]
    assert not [message for message in caplog.messages if "separated" in message]
    assert labels_in(tmp_path / "a.tsv", content) == [("a / b", "c")]
    assert f"{tmp_path / 'a.tsv'}: labels are separated by '|'; --label-separator names another" in caplog.messages


def test_the_separator_of_training_holds_for_all_files(tmp_path: Path) -> None:
    task = MultiLabel()
    (tmp_path / "train.tsv").write_text("text\tlabels\nx\ta, b|c\n")
    (tmp_path / "dev.tsv").write_text("text\tlabels\nx\ta, b\n")
    task.learn_labels(task.read(str(tmp_path / "train.tsv")))
    assert task.labels == ("a, b", "c")
    assert task.read(str(tmp_path / "dev.tsv"))[0].label == ("a, b",)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            "text,labels\nx,\"['a', 'b']\"\n",
            "line 2: 'labels' begins like a list and is not JSON; write it as",
        ),
        ("a.jsonl", '{"text": "x", "labels": ["a"]}\n{"text": "y"}\n', "line 2: 'labels' is missing; write []"),
        ("a.jsonl", '{"text": "x", "labels": ["a", ""]}\n', "line 1: 'labels' is empty"),
        ("a.jsonl", '{"text": "x", "labels": [0.5]}\n', "must be a string or an integer, not float"),
    ],
)
def test_labels_that_cannot_be_read(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        labels_in(tmp_path / name, content)
    assert message in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def dataset(*sets: tuple[str, ...]) -> Dataset[TextExample]:
    return Dataset(
        "dev.tsv",
        tuple(TextExample(id=str(i), location=f"line {i + 2}", text="x", label=one) for i, one in enumerate(sets)),
    )


def test_labels_that_training_lacks() -> None:
    task = MultiLabel(labels=("bad", "good"))
    with pytest.raises(UserError) as caught:
        task.check_labels(dataset(("good",), ("good", "Good"), ("ugly", "worse")))
    assert str(caught.value) == (
        "dev.tsv, line 3: the label 'Good' is not one of the training set's: bad, good; did you mean 'good'?"
        " (2 such examples in all)"
    )
    with pytest.raises(UserError, match=r"dev\.tsv: none of the 2 examples has a label, so nothing can be learned"):
        MultiLabel().learn_labels(dataset((), ()))


def test_one_label_each_is_classification(caplog: pytest.LogCaptureFixture) -> None:
    MultiLabel().learn_labels(dataset(("a|b",), ("c",)))
    assert "dev.tsv: each example has one label: --task classification is for these" in caplog.messages[0]


@pytest.mark.parametrize("settings", [{"threshold": 0.0}, {"threshold": 1.0}, {"label_separator": ""}])
def test_settings_out_of_range(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"--threshold|--label-separator"):
        MultiLabelSettings(**settings)


def test_targets_and_gold_predictions() -> None:
    task, data = MultiLabel(labels=("a", "b", "c")), dataset(("c", "a"), ())
    assert task.targets(data).tolist() == [[1, 0, 1], [0, 0, 0]]
    assert task.gold_scores(data) == dict.fromkeys(MultiLabel.metrics, 100.0)


def test_decoding_at_a_threshold() -> None:
    logits = [np.array([2.0, 0.0, -900.0], dtype=np.float32)]
    rows: Any = None
    for threshold, labels in ((0.5, ["a", "b"]), (0.6, ["a"]), (0.9, [])):
        task = MultiLabel(MultiLabelSettings(threshold=threshold), labels=("a", "b", "c"))
        (prediction,) = task.decode(dataset(()), rows, logits)
        assert prediction["labels"] == labels
        assert prediction["probabilities"] == {"a": pytest.approx(0.880797, abs=1e-6), "b": 0.5, "c": 0.0}


def test_metrics(caplog: pytest.LogCaptureFixture) -> None:
    gold = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]], dtype=bool)
    predicted = np.array([[1, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0]], dtype=bool)
    ranked = np.array([[0.9, 0.2, 0.3, 0], [0.9, 0, 0.8, 0], [0.1, 0, 0, 0], [0, 0.7, 0, 0]])
    scores = multilabel_scores(gold, predicted, ranked, list("abcd"), where="dev.tsv")
    # 3 right of 4 predicted and of 4 gold; F1 of a is 1, of b 2/3, of c 0, and d occurs nowhere.
    expected = {"micro_f1": 75, "micro_precision": 75, "micro_recall": 75, "macro_f1": 100 * (5 / 3) / 3}
    lrap = 100 * ((1 + 2 / 3) / 2 + 1 + 1 + 1) / 4
    assert scores == pytest.approx({**expected, "subset_accuracy": 50, "lrap": lrap})
    assert caplog.messages == ["dev.tsv: 2 of 4 classes have no example: c, d"]
    empty = np.zeros((2, 2), dtype=bool)
    assert multilabel_scores(empty, empty, None, list("ab")) == {"subset_accuracy": 100}
    assert "no example has a label: F1, precision and recall are not defined" in caplog.messages[-1]
    with pytest.raises(ValueError, match="one each"):
        multilabel_scores(gold, predicted[:3], None, list("abcd"))


@pytest.mark.parametrize(
    "labels", [[], ["a"], ["a", "b"], ["a|b", "c"], ["[x]"], ['say "so", then', "b"], ["a\tb", "c\nd"]]
)
def test_cells_of_predictions_are_read_again(labels: list[str]) -> None:
    text = write_cell(labels)
    assert "\t" not in text
    assert "\n" not in text
    assert list(read_prediction(text, "line 1", "the labels")) == labels


def test_the_soft_loss_is_that_of_each_sigmoid() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(5, 3, requires_grad=True), torch.randn(5, 3)
    p, q = torch.sigmoid(teacher.double() / 2), torch.sigmoid(student.detach().double() / 2)
    expected = 4 * (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean()
    loss = soft_binary_loss(student, teacher, 2.0)
    torch.testing.assert_close(loss.detach().double(), expected, atol=1e-6, rtol=1e-5)
    loss.backward()
    torch.testing.assert_close(student.grad, (2 * (q - p) / 15).float(), atol=1e-6, rtol=1e-5)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    toy_folder(folder / "model")
    feelings(folder / "train.tsv", 224, seed=1)
    feelings(folder / "dev.tsv", 48, seed=2)
    return folder


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    """The folder of a run."""
    result = finetune(config(place, place / "run", task="multilabel", epochs=(6.0,)))
    assert result.metric == "micro_f1"
    assert result.scores["dev.tsv"]["micro_f1"]["mean"] > 90
    assert set(result.scores["dev.tsv"]) == set(MultiLabel.metrics)
    return result.folder


def test_transformers_loads_the_model_with_the_same_logits(run: Path, place: Path) -> None:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(run / "model")
    assert (model.config.problem_type, model.config.id2label) == (
        "multi_label_classification",
        {0: "bad", 1: "good"},
    )
    texts = [line.split("\t")[1] for line in (place / "dev.tsv").read_text().splitlines()[1:9]]
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "model")
    with torch.no_grad():
        theirs = model(**tokenizer(texts, return_tensors="pt", padding=True)).logits
    ours = BertForSequenceClassification.from_pretrained(run / "model").eval()
    with torch.no_grad():
        logits = ours(WordPieceTokenizer.from_pretrained(run / "model").pack(texts)).logits
    torch.testing.assert_close(logits, theirs, atol=1e-5, rtol=1e-5)
    trained = load_trained(str(run / "model"), device="cpu", dtype="fp32")
    assert trained.task.settings.label_separator == "|"
    data = Dataset("x", tuple(TextExample(id=str(i), location="", text=text) for i, text in enumerate(texts)))
    for prediction, row in zip(predict(trained.task, trained.model, trained.tokenizer, data), theirs.sigmoid()):
        assert list(prediction["probabilities"].values()) == pytest.approx(row.tolist(), abs=1e-4)


def test_the_loss_is_that_of_torch(place: Path) -> None:
    task = MultiLabel(MultiLabelSettings(max_length=32))
    data = task.read(str(place / "dev.tsv"))
    task.learn_labels(data)
    model = BertForSequenceClassification.from_pretrained(place / "model", num_labels=2).eval()
    rows = task.encode(data, WordPieceTokenizer.from_pretrained(place / "model"), labelled=True)
    batch = rows.batch(np.arange(8))
    with torch.no_grad():
        logits = model(batch.inputs).logits
        model.config = task.head_config(model.config)
        loss = task.loss(model, batch, task.items(batch))
    expected = torch.nn.BCEWithLogitsLoss()(logits, torch.from_numpy(task.targets(data)[:8]))
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("problem", ["multi_label_classification", None])
def test_models_of_other_libraries(place: Path, tmp_path: Path, problem: str | None) -> None:
    theirs = transformers.BertForSequenceClassification(
        transformers.BertConfig.from_pretrained(
            place / "model",
            problem_type=problem,
            id2label={0: "joy", 1: "fear", 2: "awe"},
            label2id={"joy": 0, "fear": 1, "awe": 2},
        )
    )
    theirs.save_pretrained(tmp_path)
    WordPieceTokenizer.from_pretrained(place / "model").save_pretrained(tmp_path)
    trained = load_trained(str(tmp_path), task="multilabel", device="cpu", threshold=0.01)
    data = trained.task.read(str(place / "dev.tsv"), labelled=False)
    predictions = predict(trained.task, trained.model, trained.tokenizer, data)
    assert predictions[0]["labels"] == ["joy", "fear", "awe"]
    if problem is not None:
        with pytest.raises(UserError, match=r"was trained for sets of labels .* use --task multilabel"):
            load_trained(str(tmp_path), task="classification", device="cpu")
    values = json.loads((tmp_path / "config.json").read_text()) | {"problem_type": "single_label_classification"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"problem_type='single_label_classification'.*use --task classification"):
        load_trained(str(tmp_path), task="multilabel", device="cpu")


def test_pairs_and_columns(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text('first,second,topics\nthe day,a river,"a,b"\na road,the house,\n')
    task = MultiLabel(MultiLabelSettings(columns=Columns(text="first", pair="second", label="topics"), max_length=32))
    data = task.read(str(path))
    assert [(example.pair, example.label) for example in data] == [("a river", ("a", "b")), ("the house", ())]
    task.learn_labels(data)
    assert task.settings.paired is True
    rows = task.encode(data, WordPieceTokenizer.from_pretrained(place / "model"), labelled=True)
    assert rows.unit_targets["labels"].tolist() == [[1, 1], [0, 0]]

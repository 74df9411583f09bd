"""GLUE's submissions: names, labels and numbers as the server reads them, and what it would refuse."""

import zipfile
from pathlib import Path

import pytest

from fastbert.errors import UserError
from fastbert.tasks.glue_submission import ROWS, write_submission


def labels(*values: object) -> list[dict[str, object]]:
    return [{"id": str(i), "label": value} for i, value in enumerate(values)]


def test_the_server_s_format(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    predictions = {
        "cola": labels("1", "0"),
        "MNLI-mm": labels("neutral", "entailment"),
        "QNLI": labels("not_entailment"),
        "STS-B": [{"id": str(i), "score": score} for i, score in enumerate((2.34567, -0.2, 5.1))],
    }
    archive = write_submission(tmp_path / "out", predictions)
    assert (tmp_path / "out" / "CoLA.tsv").read_text() == "index\tprediction\n0\t1\n1\t0\n"
    assert (tmp_path / "out" / "MNLI-mm.tsv").read_text() == "index\tprediction\n0\tneutral\n1\tentailment\n"
    assert (tmp_path / "out" / "STS-B.tsv").read_text() == "index\tprediction\n0\t2.346\n1\t0.000\n2\t5.000\n"
    with zipfile.ZipFile(archive) as files:
        assert sorted(files.namelist()) == ["CoLA.tsv", "MNLI-mm.tsv", "QNLI.tsv", "STS-B.tsv"]
        assert files.read("QNLI.tsv") == b"index\tprediction\n0\tnot_entailment\n"
    assert "CoLA.tsv: has 2 rows, the official test set 1063" in caplog.messages
    assert any("without SST-2, MRPC, QQP, MNLI-m, RTE, WNLI, AX" in message for message in caplog.messages)
    before = archive.read_bytes()
    write_submission(tmp_path / "out", predictions)
    assert archive.read_bytes() == before


def test_whole_test_sets_are_no_reason_to_warn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_submission(tmp_path, {"WNLI": labels(*["0"] * ROWS["WNLI"]), "RTE": labels(*["entailment"] * ROWS["RTE"])})
    assert not [message for message in caplog.messages if "rows" in message]


@pytest.mark.parametrize(
    ("task", "predictions", "words"),
    [
        (
            "RTE",
            labels("entailment", "1"),
            r"RTE.tsv, line 3: '1' is not a label of RTE on the server, which accepts ent",
        ),
        ("SST-2", labels("positive"), r"SST-2.tsv, line 2: 'positive' is not a label of SST-2"),
        (
            "STS-B",
            [{"id": "0", "score": float("nan")}],
            r"STS-B.tsv, line 2: the predicted score must be a finite",
        ),
        ("SNLI", labels("neutral"), "'SNLI' is not a task of GLUE"),
    ],
)
def test_what_the_server_does_not_know(
    tmp_path: Path, task: str, predictions: list[dict[str, object]], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        write_submission(tmp_path / "out", {task: predictions})
    assert not (tmp_path / "out").exists()

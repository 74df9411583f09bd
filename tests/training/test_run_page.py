"""The page of `fastbert plot --html`: all numbers of all runs, in one file that needs nothing else."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fastbert.cli import main
from fastbert.errors import UserError
from fastbert.training.run_page.page import MOST_POINTS, write_page

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028 \"'&amp; `$x$`"


class Elements(HTMLParser):
    """The elements of a page, with their attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open = f"{tag}#{dict(attrs).get('id')}"

    def handle_data(self, data: str) -> None:
        self.texts[self.open] = self.texts.get(self.open, "") + data


def read(path: Path) -> tuple[Elements, dict[str, Any]]:
    page = Elements()
    page.feed(path.read_text(encoding="utf-8"))
    return page, json.loads(page.texts["script#data"])


def write(folder: Path, lines: list[dict[str, Any]], config: dict[str, Any], **files: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def pretraining(folder: Path, steps: int = 3, **flags: Any) -> Path:
    common = {"nsp_loss": None, "nsp_accuracy": None, "mlm_accuracy": 0.1, "learning_rate": 1e-4}
    common["tokens_per_second"] = 5.0
    lines = [
        {**common, "step": step, "split": split, "loss": 3.0 - step / 1e6, "mlm_loss": 2.0, "tokens": 10 * step,
         "seconds": step / 2, "mfu": 0.25}
        for step in range(1, steps + 1) for split in ("train", "validation")
    ]  # fmt: skip
    model = {"hidden_size": 32, "layers": [1, 2]}
    finished = {"unigram_cross_entropy": 2.5, "most_frequent_share": 0.05}
    return write(folder, lines, {"run": {"lr": 1e-4, "seed": 0, **flags}, "model": model, "finished": finished})


def finetuning(folder: Path) -> Path:
    lines = []
    for seed in (0, 1):
        trial = {"lr": 1e-5, "batch_size": 8, "epochs": 1.0, "seed": seed}
        lines += [{**trial, "step": 1, "split": "train", "loss": 0.7, "tokens": 9, "seconds": 1.0, "epoch": 0.5}]
        scores = {"dev.tsv": {"accuracy": 80.0 + seed, "f1": None}}
        lines += [
            {**trial, "step": 2, "split": "validation", "tokens": 9, "seconds": 1.0, "epoch": 1, "scores": scores}
        ]
    baselines = {"dev.tsv": {"majority": {"accuracy": 50.0}, "odd": 3}}
    return write(folder, lines, {"finetune": {"task": "classification"}}, results={
        "metric": "accuracy", "constant_loss": 0.69, "baselines": baselines})  # fmt: skip


def test_all_numbers_of_runs_of_any_kind_are_on_the_page(tmp_path: Path) -> None:
    runs = [
        pretraining(tmp_path / "a" / "run"),
        pretraining(tmp_path / "b" / "run", 2, lr=3e-4),
        finetuning(tmp_path / "f"),
    ]
    _, data = read(write_page(runs, tmp_path / "page.html", x_axis="tokens"))
    assert [run["name"] for run in data["runs"]] == ["a/run", "b/run", f"{tmp_path.name}/f"]
    assert data["x"] == "tokens"
    assert data["axes"] == ["step", "tokens", "seconds", "epoch"]
    assert data["metrics"] == [
        "mlm_loss",
        "loss",
        "mlm_accuracy",
        "dev.tsv/accuracy",
        "learning_rate",
        "mfu",
        "tokens_per_second",
    ]
    train, validation = data["runs"][0]["curves"]
    assert (train["split"], validation["split"]) == ("train", "validation")
    assert train["x"] == {"step": [1, 2, 3], "tokens": [10, 20, 30], "seconds": [0.5, 1.0, 1.5]}
    assert train["y"]["mfu"] == [0.25] * 3
    assert "learning_rate" not in validation["y"]
    assert data["runs"][0]["baselines"] == {"mlm_loss": 2.5, "mlm_accuracy": 0.05}
    fine = data["runs"][2]
    assert [curve["label"] for curve in fine["curves"]] == ["seed 0", "seed 0", "seed 1", "seed 1"]
    assert fine["curves"][3]["y"] == {"dev.tsv/accuracy": [81.0]}
    assert fine["baselines"] == {"loss": 0.69, "dev.tsv/accuracy": 50.0}
    settings = dict(data["settings"])
    assert settings["lr"] == [1e-4, 3e-4, None]
    assert settings["model.layers"] == ["1 2", "1 2", None]
    last = dict(data["last"])
    assert last["train/mlm_loss"] == [2.0, 2.0, None]
    assert last["validation/dev.tsv/accuracy"] == [None, None, 81.0]


def test_the_page_needs_nothing_else_and_runs_no_script_but_its_own(tmp_path: Path) -> None:
    path = write_page([pretraining(tmp_path / "run")], tmp_path / "page.html")
    page, _ = read(path)
    text = path.read_text()
    assert not re.search(r"https?:|src=|href=|@import|url\(", text)
    scripts = [attributes for tag, attributes in page.elements if tag == "script"]
    assert [attributes.get("type") for attributes in scripts] == ["application/json", None]
    policy = next(a["content"] for tag, a in page.elements if tag == "meta" and a.get("http-equiv"))
    own = text.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in str(policy)
    assert "default-src 'none'" in str(policy)
    assert ".innerHTML" not in own
    assert "insertAdjacentHTML" not in own
    assert not re.search(r"\$[a-z]", text), "nothing is left of the template"


def test_names_of_anyone_stay_text(tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE.replace("/", "\\")
    lines = [{"step": 1, "split": "train", "loss": 1.0, HOSTILE: 2.0}]
    lines += [{"step": 1, "split": "validation", "scores": {HOSTILE: {HOSTILE: 3.0, "inf": float("inf")}}}]  # type: ignore[dict-item]
    write(folder, lines, {"run": {HOSTILE: HOSTILE, "nan": float("nan"), "half": "\ud800"}})
    page, data = read(write_page([folder], tmp_path / "page.html"))
    assert [tag for tag, _ in page.elements if tag in ("script", "img")] == ["script", "script"]
    assert page.texts["title#None"].strip() == f"{folder.name}: training curves"
    assert f"{HOSTILE}/{HOSTILE}" in data["metrics"]
    assert dict(data["settings"])[HOSTILE] == [HOSTILE]
    assert dict(data["settings"])["nan"] == [None]


def test_long_curves_keep_their_shape_and_their_spikes(tmp_path: Path) -> None:
    lines = [{"step": step, "split": "train", "loss": 9.0 if step == 31_234 else 5.0} for step in range(1, 60_001)]
    _, data = read(write_page([write(tmp_path / "run", lines, {})], tmp_path / "page.html"))
    [curve] = data["runs"][0]["curves"]
    steps = curve["x"]["step"]
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (1, 60_000)
    assert len(steps) <= 2 * MOST_POINTS
    assert max(curve["y"]["loss"]) == 9.0
    assert steps[curve["y"]["loss"].index(9.0)] == 31_234


def test_what_is_no_run_is_one_line(tmp_path: Path) -> None:
    run = pretraining(tmp_path / "run")
    for text, message in (
        ("", "no metrics to show"),
        ("[1]\n{}\n", "line 1"),
        ('{"a": 1}\n{}\n', "line 1"),
        ("{\n{}\n", "line 1"),
    ):
        (run / "metrics.jsonl").write_text(text)
        with pytest.raises(UserError, match=message) as caught:
            write_page([run], tmp_path / "page.html")
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="no runs"):
        write_page([], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
    pretraining(tmp_path / "run")
    (run / "config.json").write_text("{")
    write_page([run / "metrics.jsonl"], tmp_path / "page.html")


def test_the_command_writes_pages_and_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    runs = [str(pretraining(tmp_path / name)) for name in ("a", "b")]
    assert main(["plot", *runs, "--html", str(tmp_path / "page.html"), "--x", "seconds"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    assert main(["plot", *runs, "--html", str(tmp_path / "both.html"), "--out", str(tmp_path / "both.png")]) == 0
    assert (tmp_path / "both.png").stat().st_size > 1000
    assert main(["plot", "--runs", *runs, "--out", str(tmp_path / "old.svg")]) == 0

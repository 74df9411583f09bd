"""Where a model is found: its folder, the folder of its run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from toy_tasks import sentiment, toy_folder

from fastbert import cli
from fastbert.checkpoints.source import find_source
from fastbert.errors import UserError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as runs leave it: flags in config.json, the model in model/."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    toy_folder(folder / "model")
    (folder / "config.json").write_text('{"run": {}}')
    (folder / "metrics.jsonl").write_text("{}\n")
    (folder / "checkpoints").mkdir()
    return folder


def test_a_run_stands_for_its_model(run: Path) -> None:
    assert find_source(run) == find_source(str(run)) == run / "model"
    assert find_source(run / "model") == run / "model"


def test_a_folder_with_weights_is_the_model(tmp_path: Path) -> None:
    toy_folder(tmp_path)
    toy_folder(tmp_path / "model")
    assert find_source(tmp_path) == tmp_path


def test_a_run_without_a_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match="is a run that has not written its model yet; continue it with --resume"):
        find_source(tmp_path)


def test_commands_take_the_folder_of_a_run(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("the day was good\na road\n")
    compute = ["--device", "cpu", "--dtype", "fp32", "--quiet"]
    for name, model in (("run", run), ("model", run / "model")):
        for command in ("embed", "features"):
            flags = ["--model", str(model), "--text", "text.txt", "--out", f"{command}-{name}.npy"]
            assert cli.main([command, *flags, *compute]) == 0
        assert cli.main(["convert", str(model), "--out", f"copy-{name}", "--quiet"]) == 0
    for command in ("embed", "features"):
        assert np.array_equal(np.load(f"{command}-run.npy"), np.load(f"{command}-model.npy"))
    weights = [Path(f"copy-{name}", "model.safetensors").read_bytes() for name in ("run", "model")]
    assert weights[0] == weights[1]


def test_fine_tuning_takes_the_folder_of_a_run_and_counts_steps(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    monkeypatch.chdir(tmp_path)
    train = str(sentiment(tmp_path / "train.tsv", 16))
    task = ["--task", "classification", "--train", train, "--batch-size", "8", "--max-length", "16", "--device", "cpu"]
    teacher: list[str] = []
    for out, length, steps in (("long", [], 7), ("short", ["--epochs", "1"], 2)):
        flags = [*task, *length, *teacher, "--steps", "7", "--out", out, "--quiet"]
        assert cli.main(["finetune", "--model", str(run), *flags]) == 0
        last = json.loads(Path(out, "metrics.jsonl").read_text().splitlines()[-1])
        assert last["step"] == steps
        teacher = ["--teacher", "long"]
    assert cli.main(["evaluate", "--model", "long", "--gold", train, "--quiet"]) == 0
    assert cli.main(["predict", "--model", "long", "--text", train, "--out", "out.jsonl", "--quiet"]) == 0
    assert len(Path("out.jsonl").read_text().splitlines()) == 16

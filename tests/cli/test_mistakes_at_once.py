"""Missing flags, files and folders and wrong suffixes are reported in one line, before torch is imported.

All commands run in one process, in which torch cannot be imported.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("tyro", reason="the command line needs tyro")

from fastbert.cli import COMMANDS
from fastbert.errors import UserError

PATIENCE = float(os.environ.get("FASTBERT_TEST_PATIENCE", "1"))
HUB = "nope: no such folder, and no model of that name in the Hub's cache"
# Command line -> the beginning of the error. The folder holds text.txt, table.tsv, model/, run/ and metrics/.
MISTAKES = {
    "demo --corpus nope": "no such file or folder: nope",
    "demo --minutes 0": "--minutes 0 must be a finite number above 0",
    "demo --steps 0": "--steps 0 must be at least 1",
    "vocab --corpus nope --out out": "no such file or folder: nope",
    "vocab --corpus text.txt": "--out is missing: the folder to write the vocabulary to",
    "vocab --corpus text.txt --tokenizer nope": "--tokenizer nope: no such file or folder",
    "vocab --corpus text.txt --extend --model nope": HUB.replace(", and no model of that name in the Hub's cache", ""),
    "vocab --corpus table.tsv --out out": "table.tsv has an unknown extension",
    "prepare --corpus nope --tokenizer model --out out": "no such file or folder: nope",
    "prepare --corpus text.txt --out out": "--tokenizer is missing: a folder or vocab.txt",
    "prepare --corpus text.txt --tokenizer nope --out out": "--tokenizer nope: no such file or folder",
    "pretrain --model tiny": "--corpus is missing: text files, folders or globs; or give --data",
    "pretrain --corpus nope": "no such file or folder: nope",
    "pretrain --corpus table.tsv": "table.tsv has an unknown extension",
    "pretrain --data nope": "--data nope: no such folder",
    "pretrain --data text.txt": "--data text.txt: is not a folder; name one",
    "pretrain --corpus text.txt --model nope.json": "--model nope.json: no such file",
    "pretrain --corpus text.txt --tokenizer nope": "--tokenizer nope: no such file or folder",
    "pretrain --corpus text.txt --teacher nope": HUB,
    "plot --runs nope": "--runs nope: no such file or folder",
    "plot --runs model": "--runs model/metrics.jsonl: no such file",
    "plot --runs run --out plot.docx": "--out plot.docx: must end in .png, .pdf, .svg",
    "finetune --model model": "--task is missing: classification, multilabel, regression, ",
    "finetune --task classification --train table.tsv": "--model is missing: the folder of a pre-trained model",
    "finetune --task classification --model model": "--train is missing: a file with training examples",
    "finetune --task classification --model nope --train nope.tsv": "--train nope.tsv: no such file",
    "finetune --task classification --model nope --train table.tsv": HUB,
    "finetune --task classification --model ./nope --train table.tsv": "nope: no such folder; name one with",
    "finetune --task classification --model model --train table.tsv --eval a.tsv": "--eval a.tsv: no such file",
    "finetune --task classification --model model --train table.docx": "table.docx: must be a .tsv, .csv, ",
    "finetune --task tagging --model model --train table.tsv --teacher ./nope": "nope: no such folder; name one with",
    "finetune --task tagging --model model --train nope.conll": "--train nope.conll: no such file",
    "finetune --task span --model model --train nope#train": "--train nope#train: no such file",
    "finetune --task classification --model model --train nope.json#train": "--train nope.json: no such file",
    "finetune --task classification --model model --train clinc.json#train --class-weights nope.json": (
        "--class-weights nope.json: no such file"
    ),
    "finetune --task classification --model model --train table.tsv --class-weights balance": (
        "--class-weights balance: must be balanced, or a .json file"
    ),
    "finetune --model unfinished --task span --train table.tsv": "unfinished: is a run that has not written its model",
    "predict --model model": "--text is missing: a file with the examples",
    "predict --text table.tsv": "--model is missing: the folder of a fine-tuned model",
    "predict --model nope --text table.tsv": HUB,
    "predict --model model --text nope.tsv": "--text nope.tsv: no such file",
    "predict --model model --text table.tsv --out nope/out.jsonl": "--out nope/out.jsonl: no such folder nope",
    "predict --model model --text table.tsv --out table.tsv": "--out table.tsv: exists; replace it with --overwrite",
    "predict --model model --text table.tsv --out out.docx": "out.docx: predictions of tagging are in .jsonl, ",
    "predict --model model --text table.tsv --glue RTE": "--out is missing: with --glue the folder",
    "fill-mask --model model": "TEXT is missing: a sentence with a [MASK] in it",
    "fill-mask [MASK]": "--model is missing: the folder of a trained model",
    "fill-mask [MASK] --model nope": "nope: no such folder; name one with",
    "evaluate --task tagging": "--gold is missing: the file with the correct answers",
    "evaluate --gold table.tsv --task span": "--predictions is missing: the file to score; or give a --model",
    "evaluate --gold table.tsv": "--task is missing: give a --model, or one of classification, ",
    "evaluate --gold nope --predictions table.tsv --task tagging": "--gold nope: no such file",
    "evaluate --gold table.tsv --predictions nope --task tagging": "--predictions nope: no such file",
    "evaluate --gold table.tsv --model nope": HUB,
    "evaluate --glue nope": "--glue nope: no such folder",
    "embed --model model --text text.txt": "--out is missing: the file to write, .npy, ",
    "embed --model nope --text text.txt --out out.npy": HUB,
    "embed --model model --text nope.txt --out out.npy": "nope.txt: no such file",
    "embed --model model --text table.docx --out out.npy": "table.docx: must be a .txt, ",
    "embed --model model --text text.txt --out out.docx": "out.docx: must end in .npy, .parquet, .jsonl",
    "features --model nope --text text.txt --out out.npy": HUB,
    "features --model model --text nope.txt --out out.npy": "nope.txt: no such file",
    "features --model model --text text.txt --out out.docx": "out.docx: must end in .npy, .npz, ",
    "features --model model --text text.txt --out out.npy --layers 1,x": "--layers 1,x: give a name, or numbers",
    "features --model model --table7 --out out": "--train is missing: sentences with tags",
    "features --model model --table7 --out out --train nope --eval nope": "--train nope: no such file",
    "verify --text text.txt": "MODEL is missing: the folder of a Hugging Face model",
    "verify nope --text text.txt": HUB,
    "verify model": "--text is missing: a file with one text per line",
    "verify model --text nope.txt": "--text nope.txt: no such file",
    "verify model --text text.txt --json nope/out.json": "--json nope/out.json: no such folder nope",
    "convert model": "--out is missing: the folder to write",
    "convert --out out": "SOURCE is missing: the folder of the model to convert",
    "convert nope --out out": HUB,
    "convert model --out out --base nope": HUB,
    "convert model --out out --tokenizer nope": "--tokenizer nope: no such file or folder",
    "convert model --out out --report nope/report.json": "--report nope/report.json: no such folder nope",
    "convert text.txt --manifest": "SOURCE text.txt: is not a folder; name one",
}
GUARD = """
import contextlib, io, json, sys


class NoTorch:
    def find_spec(self, name, path=None, target=None):
        assert name.partition(".")[0] not in ("torch", "transformers", "matplotlib"), f"{name} is imported"


sys.meta_path.insert(0, NoTorch())
from fastbert.cli import main

said = {}
for line in json.load(sys.stdin):
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        try:
            code = main(line.split())
        except Exception as wrong:
            code = repr(wrong)
    said[line] = (code, error.getvalue())
print(json.dumps(said))
"""


class Said(NamedTuple):
    """The exit code of a command, and what it printed to standard error."""

    code: int | str
    error: str


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Said]:
    folder = tmp_path_factory.mktemp("mistakes")
    for name in ("text.txt", "table.tsv", "table.docx"):
        (folder / name).write_text("text\tlabel\na day\tgood\n")
    (folder / "clinc.json").write_text('{"train": [["a day", "good"]]}')
    for name in ("model", "run", "run/model", "unfinished/checkpoints"):
        (folder / name).mkdir(parents=True)
    for name in ("run", "unfinished"):
        (folder / name / "metrics.jsonl").write_text("{}\n")
    (folder / "model" / "config.json").write_text("{}")
    (folder / "model" / "fastbert_task.json").write_text(json.dumps({"task": "tagging"}))
    done = subprocess.run(
        [sys.executable, "-P", "-c", GUARD], cwd=folder, input=json.dumps([*MISTAKES]), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return {line: Said(*answer) for line, answer in json.loads(done.stdout.splitlines()[-1]).items()}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_before_torch_is_imported(line: str, said: dict[str, Said]) -> None:
    code, error = said[line]
    assert code == 2, (code, error)
    assert error.startswith(f"fastbert: error: {MISTAKES[line]}")
    assert error.count("\n") == 1


def test_every_command_with_flags_of_paths_is_here() -> None:
    assert {line.split()[0] for line in MISTAKES} == COMMANDS.keys() - {"bench", "doctor"}


def test_inputs_that_a_resumed_run_no_longer_needs_may_be_gone(tmp_path: Path) -> None:
    from fastbert.cli import finetune, pretrain

    gone, out = tmp_path / "gone.tsv", tmp_path / "run"
    configs = [
        (pretrain, pretrain.Config(corpus=(gone,), out=out, resume=True)),
        (finetune, finetune.Config(task="span", model=str(gone), train=gone, out=out, resume=True)),
    ]
    for module, config in configs:
        with pytest.raises(UserError, match="no such file"):
            module.check(config)
    out.mkdir()
    (out / "config.json").write_text("{}")
    for module, config in configs:
        module.check(config)


@pytest.mark.parametrize("train", ["nope.tsv", "table.docx"])
def test_the_answer_comes_at_once(train: str, tmp_path: Path) -> None:
    (tmp_path / "table.docx").write_text("")
    script = Path(sys.executable).with_name("fastbert")
    if not script.exists():
        pytest.skip("the console script is not installed beside this Python")
    command = [script, "finetune", "--task", "classification", "--model", "nope", "--train", train]
    times = []
    for _ in range(5):
        before = children_seconds()
        assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 2
        times.append(children_seconds() - before)
        if times[-1] < 0.5 * PATIENCE:
            return
    pytest.fail(f"took {min(times):.2f} s")


def children_seconds() -> float:
    """Processor time of the child processes so far: on an idle machine the time one waits, on a busy one still that."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

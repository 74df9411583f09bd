"""`fastbert.pretrain` and `fastbert.finetune`: the commands with their options as keyword arguments."""

import inspect
import io
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fastbert
from fastbert.cli.keyword_options import config_of
from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig
from fastbert.training.config import PretrainConfig
from fastbert.training.pretrain import PretrainResult
from fastbert.training.pretrain import pretrain as train
from fastbert.training.reporter import Reporter

WORDS = [f"{first}{second}" for first in "bcdfg" for second in "aeiou"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Documents of words that follow each other in the order of a list."""
    lines = []
    for document in range(20):
        for first in (document, document + 3, document + 5):
            lines.append(" ".join(WORDS[(first + word) % 25] for word in range(8)))
        lines.append("")
    (tmp_path / "text.txt").write_text("\n".join(lines))
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    return tmp_path


def test_pre_training_is_that_of_the_command(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {
        "tokenizer": str(text / "vocab.txt"), "model": "tiny", "max_length": 16, "batch_size": 4, "eval_samples": 4,
        "device": "cpu", "text_format": "lines",
    }  # fmt: skip
    result = fastbert.pretrain(corpus=str(text / "text.txt"), steps=2, out=str(text / "run"), **options)
    assert isinstance(result, PretrainResult)
    paths = {"corpus": (text / "text.txt",), "tokenizer": text / "vocab.txt", "out": text / "same"}
    same = train(PretrainConfig(**{**options, **paths, "steps": 2}))
    one, other = (load_file(each.model / "model.safetensors") for each in (result, same))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    # Resumed with more steps: once with the progress of a terminal, once quiet, once with hooks of the caller's own.
    seen: list[int] = []
    for steps, quiet, reporter in (
        (3, False, None),
        (4, True, None),
        (5, False, Reporter(on_step=lambda record, done: seen.append(record["step"]))),
    ):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        fastbert.pretrain(out=text / "run", resume=True, steps=np.int64(steps), quiet=quiet, reporter=reporter)
        assert ("training" in terminal.getvalue()) == (steps == 3), terminal.getvalue()
    assert seen == [5]


def test_fine_tuning_is_that_of_the_command(text: Path) -> None:
    tokenizer = fastbert.WordPieceTokenizer.from_pretrained(text / "vocab.txt")
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    fastbert.BertModel(fastbert.BertConfig(vocab_size=len(tokenizer), **shape)).save_pretrained(text / "model")
    tokenizer.save_pretrained(text / "model")
    (text / "train.tsv").write_text("text\tlabel\n" + "".join(f"ba {word}\t{word[0]}\n" for word in WORDS))
    result = fastbert.finetune(
        task="classification", model=text / "model", train=str(text / "train.tsv"), eval=[str(text / "train.tsv")],
        steps=3, batch_size=5, lr=1e-3, out=str(text / "task"), device="cpu",
    )  # fmt: skip
    assert (result.best.lr, result.best.batch_size) == (1e-3, 5)
    assert (text / "task" / "model" / "model.safetensors").is_file()
    config = FinetuneConfig(out=text / "task", resume=True)
    assert fastbert.finetune(config).best == result.best


def test_wrong_options_are_refused(text: Path) -> None:
    out = text / "run"
    for options, message in (
        ({"modle": "mini"}, r"pretrain\(\) has no option 'modle'; did you mean 'model'\?"),
        ({"config": {"model": "mini"}}, r"pretrain\(\) takes a PretrainConfig or options by keyword, not dict"),
        ({"config": PretrainConfig(), "steps": 3}, r"pretrain\(\) takes a PretrainConfig or .*, not both: steps"),
    ):
        with pytest.raises(TypeError, match=message):
            fastbert.pretrain(**options)
    for options, message in (
        ({"steps": "100"}, "--steps '100': must be a whole number"),
        ({"steps": 1.5}, "--steps 1.5: must be a whole number"),
        ({"steps": True}, "--steps True: must be a whole number"),
        ({"cased": "yes"}, "--cased 'yes': must be True or False"),
        ({"lr": "fast"}, "--lr 'fast': must be a number"),
        ({"lr": float("nan")}, "--lr nan must be above 0 and finite"),
        ({"objective": "mlm+xyz"}, "--objective 'mlm.xyz': must be mlm.nsp or mlm or"),
        ({"tokenizer": 7}, "--tokenizer 7: must be a path"),
        ({"tokenizer": ""}, "--tokenizer '': must be a path"),
        ({"corpus": [text, 3]}, "--corpus 3: must be a path"),
        ({"model": None}, "--model None: must be a string"),
        ({}, "--corpus is missing: text files, folders or globs; or give --data"),
        ({"corpus": "nope"}, "--corpus: no such file or folder: nope"),
        ({"corpus": text / "text.txt", "init": "nope"}, "--init nope: is neither structured nor normal, and no model:"),
    ):
        with pytest.raises(UserError, match=message):
            fastbert.pretrain(out=out, **options)
    with pytest.raises(UserError, match="--task is missing: classification"):
        fastbert.finetune(model="x", out=out)
    with pytest.raises(UserError, match="--lr 'x': must be a number"):
        fastbert.finetune(lr=[1e-3, "x"], out=out)
    assert not out.exists()


def test_every_option_of_the_commands_can_be_given() -> None:
    for kind, function in ((PretrainConfig, fastbert.pretrain), (FinetuneConfig, fastbert.finetune)):
        parameters = inspect.signature(function).parameters
        options = {item.name: getattr(kind(), item.name) for item in fields(kind)}
        assert parameters.keys() == {"config", "reporter", "quiet", *options}
        assert config_of(kind, options, "f") == kind()


def test_they_load_without_tyro_and_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['tyro'] = sys.modules['torch'] = None\n"
        "import inspect, fastbert\n"
        "print(inspect.signature(fastbert.pretrain).parameters['max_length'].default, 'finetune' in fastbert.__all__)"
    )
    printed = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert printed.stdout.split() == ["128", "True"]

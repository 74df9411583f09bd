"""`finetune --architecture transformer` and `translate`: a new model that turns strings around, and mistakes."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("tyro", reason="the command line needs tyro")
pytest.importorskip("sacrebleu", reason="scores of texts need sacreBLEU")
pytest.importorskip("rouge_score", reason="scores of texts need rouge-score")

import fastbert
from fastbert import WordPieceTokenizer
from fastbert.cli import main
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.run import finetune
from fastbert.tasks.finetuned_model import load_trained
from fastbert.tasks.seq2seq.translation import TranslationSettings, translate
from fastbert.training.stopping import Stopped

LETTERS, LENGTH = "abcdefgh", 6
SHAPE = {
    "model_type": "transformer",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.0,
}


def write_strings(path: Path, count: int, seed: int) -> Path:
    random = Random(seed)
    rows = [random.choices(LETTERS, k=LENGTH) for _ in range(count)]
    path.write_text("source\ttarget\n" + "".join(f"{' '.join(row)}\t{' '.join(row[::-1])}\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with strings, a config.json, and `run`, a model that has learned to turn the strings around."""
    place = tmp_path_factory.mktemp("translate")
    write_strings(place / "train.tsv", 2000, 0)
    write_strings(place / "dev.tsv", 200, 1)
    (place / "shape.json").write_text(json.dumps(SHAPE))
    arguments = (
        f"finetune --task seq2seq --architecture transformer --model {place}/shape.json --train {place}/train.tsv"
        f" --eval {place}/dev.tsv --out {place}/run --steps 200 --batch-size 32 --lr 5e-3 --schedule linear"
        " --eval-every 200 --max-length 10 --max-target-length 10 --device cpu --dtype fp32 --quiet"
    )
    assert main(arguments.split()) == 0
    return place


def config(folder: Path, out: Path, **flags: Any) -> FinetuneConfig:
    chosen: dict[str, Any] = {
        "task": "seq2seq",
        "architecture": "transformer",
        "model": str(folder / "shape.json"),
        "train": folder / "dev.tsv",
        "out": out,
        "steps": 6,
        "batch_size": (8,),
        "max_length": 10,
        "max_target_length": 10,
        "device": "cpu",
        "dtype": "fp32",
        "dropout": 0.1,
        "log_every": 1,
    }
    return FinetuneConfig(**{**chosen, **flags})


def refused(capsys: pytest.CaptureFixture[str], arguments: str) -> str:
    capsys.readouterr()
    assert main(arguments.split()) == 2
    *_, line = capsys.readouterr().err.strip().splitlines()
    return line.removeprefix("fastbert: error: ")


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_new_model_turns_strings_around(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = json.loads((folder / "run/results.json").read_text())["results"]["dev.tsv"]
    assert scores["exact_match"]["mean"] >= 99
    assert scores["chrf"]["mean"] >= 99
    model = fastbert.load(folder / "run")
    assert model.config.vocab_size == 5 + len(LETTERS)
    strings = ["a b c d e f", "", "h g f e d c", "   ", "b b a c h a"]
    (folder / "in.en").write_text("\n".join(strings) + "\n")
    expected = [" ".join(reversed(string.split())) for string in strings]
    for flags in ("", "--beams 1", "--batch-tokens 9 --max-new-tokens 7", "--dtype fp32 --length-penalty 0"):
        out = folder / f"out{len(flags)}.de"
        assert main(f"translate --model {folder}/run --text {folder}/in.en --out {out} {flags}".split()) == 0
        assert out.read_text().split("\n") == [*expected, ""]
    capsys.readouterr()
    assert main(f"translate --model {folder}/run --text {folder}/in.en --max-new-tokens 3 --quiet".split()) == 0
    printed = capsys.readouterr().out.split("\n")
    assert printed == [" ".join(text.split()[:3]) for text in [*expected, ""]]


def test_standard_input_and_predict(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in ("translate", "predict"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a b c d e f\nh h g g a b\n")))
        capsys.readouterr()
        assert main(f"{command} --model {folder}/run --text - --quiet".split()) == 0
        lines = capsys.readouterr().out.splitlines()
        texts = lines if command == "translate" else [json.loads(line)["text"] for line in lines]
        assert texts == ["f e d c b a", "b a g g h h"]
    assert [one["text"] for one in fastbert.predict(folder / "run", ["a b c d e f"])] == ["f e d c b a"]
    trained = load_trained(str(folder / "run"))
    assert translate(trained, ["a b c d e f", " "], TranslationSettings(beams=2)) == ["f e d c b a", ""]
    assert translate(trained, []) == []


def test_long_lines_are_reported(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained = load_trained(str(folder / "run"))
    translate(trained, ["a", "", "a b c d e f g h a", "a " * 20], TranslationSettings(beams=1))
    assert caplog.messages == [
        "line 3 has more than 10 tokens and is truncated, and so are 1 more; --max-length raises the limit"
    ]


def test_an_interrupted_run_continues_to_the_same_bits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finetune(config(folder, tmp_path / "whole"))
    from fastbert.finetuning.fit import Fit

    step = Fit._step

    def interrupted(self: Fit, *arguments: Any) -> Any:
        if self.progress.step == 3:
            self.stop.number = 2
        return step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Fit, "_step", interrupted)
        with pytest.raises(Stopped):
            finetune(config(folder, tmp_path / "run"))
    finetune(config(folder, tmp_path / "run", resume=True))
    weights = [(tmp_path / run / "model/model.safetensors").read_bytes() for run in ("whole", "run")]
    assert weights[0] == weights[1]
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    rates = [json.loads(line)["learning_rate"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    peak = max(rates)
    assert peak == pytest.approx((64 * 4000) ** -0.5, rel=0.05)
    assert rates[1:] == pytest.approx([peak * (1 / step) ** 0.5 for step in range(1, 6)])


def test_seeds_sizes_and_tokenizers_of_new_models(folder: Path, tmp_path: Path) -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, "x"]
    WordPieceTokenizer(tokens).save_pretrained(tmp_path / "tokenizer")
    shared = {"steps": 1, "tokenizer": tmp_path / "tokenizer", "decoder_layers": 2, "label_smoothing": 0.0}
    finetune(config(folder, tmp_path / "one", **shared))
    finetune(config(folder, tmp_path / "two", **shared, seed=1))
    model, other = (fastbert.load(tmp_path / run) for run in ("one", "two"))
    assert (model.config.vocab_size, model.config.layers_of_decoder) == (len(tokens), 2)
    assert model.config.hidden_dropout_prob == 0.1
    assert losses(tmp_path / "one") != losses(tmp_path / "two")
    assert model.config == other.config
    finetune(config(folder, tmp_path / "tiny", model="tiny", steps=1, vocab_size=9, cased=True))
    assert fastbert.load(tmp_path / "tiny").config.hidden_size == 128
    (tmp_path / "sized.json").write_text(json.dumps({**SHAPE, "vocab_size": 12}))
    wrong = config(folder, tmp_path / "wrong", **{**shared, "model": str(tmp_path / "sized.json")})
    with pytest.raises(fastbert.errors.UserError, match="has a vocabulary of 12, but the tokenizer has 14"):
        finetune(wrong)
    (tmp_path / "sized.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(fastbert.errors.UserError, match=r"model_type='bert' is not supported here"):
        finetune(replace(wrong, out=tmp_path / "wrong2"))
    assert not (tmp_path / "wrong/model").exists()


def test_mistakes_of_translate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = f"translate --model {folder}/run --text {folder}/in.txt"
    (folder / "in.txt").write_text("a b\n")
    (folder / "blank.txt").write_text("\n \n")
    (folder / "out.txt").write_text("kept")
    (folder / "binary.txt").write_bytes(b"\x00" * 99)
    (folder / "bytes.txt").write_bytes(b"a b\n\xff\n")
    text = f"translate --model {folder}/run --text"
    for arguments, message in (
        (f"{text} {folder}/missing.txt", "--text .*missing.txt: no such file"),
        (f"{text} {folder}/blank.txt", "--text .*blank.txt: holds no text; name a file that does"),
        (f"{text} {folder}/binary.txt", "--text .*binary.txt, line 1: is a binary file"),
        (f"{text} {folder}/bytes.txt", "--text .*bytes.txt, line 2, byte 1: not UTF-8"),
        (f"{call} --out {folder}/out.txt", "--out .*out.txt: exists; replace it with --overwrite"),
        (f"{call} --out {folder}", "--out .*: is a folder; name a file"),
        (f"{call} --beams 0", "--beams 0 must be a positive integer"),
        (f"{call} --beams 7", "--beams 7 must be at most half of the vocabulary's 13 tokens"),
        (f"{call} --max-new-tokens 9999", "--max-new-tokens 9999 is more than the model's 1024 positions"),
        (f"{call} --max-length 2", "--max-length 2 must be at least 3"),
        (f"{call} --max-length 1025", "--max-length 1025 is more than the 1024 positions of .*run"),
        (f"{call} --batch-tokens 0", "--batch-tokens 0 must be at least 1"),
        (f"{call} --length-penalty nan", "--length-penalty nan must be a number from -10 to 10"),
        (f"translate --model {folder} --text {folder}/in.txt", "--model .*: .*no such file|holds no"),
    ):
        line = refused(capsys, arguments)
        assert re.search(message, line), line
    assert (folder / "out.txt").read_text() == "kept"


def test_mistakes_of_new_models(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    call = f"finetune --task seq2seq --train {folder}/dev.tsv --out {tmp_path}/run"
    new = f"{call} --architecture transformer"
    for arguments, message in (
        (
            f"{new} --model medium",
            "--model medium: with --architecture transformer it is a size, tiny, small, base or big",
        ),
        (f"{new} --model {folder}/run", "it is a size"),
        (f"{new} --model {folder}/missing.json", "--model .*missing.json: no such file"),
        (f"{new} --model tiny --tokenizer {folder}/nothing", "--tokenizer .*nothing: no such file"),
        (f"{new} --model tiny --frozen", "--architecture and --frozen exclude each other"),
        (f"{new} --model tiny --lora 4", "--architecture and --lora exclude each other"),
        (f"{new} --model tiny --decoder prefix", "--architecture and --decoder exclude each other"),
        (
            f"{new} --model tiny --max-length 2000 --device cpu",
            "--max-length 2000 is more than the 1024 positions of tiny",
        ),
        (f"{new} --model tiny --label-smoothing 1", r"--label-smoothing 1\.0 must be from 0 to below 1"),
        (f"{new} --model tiny --vocab-size 5", "--vocab-size 5 has no room"),
        (f"{call} --model {folder}/run --vocab-size 50", "--vocab-size 50 changes nothing without --architecture"),
        (f"{call} --model {folder}/run --decoder decoder", "--decoder decoder: the Transformer has its own decoder"),
        (
            f"finetune --task regression --architecture transformer --model tiny --train {folder}/dev.tsv --out x",
            "--architecture transformer is for --task seq2seq, not --task regression",
        ),
    ):
        line = refused(capsys, arguments)
        assert re.search(message, line), line
    assert not (tmp_path / "run/model").exists()

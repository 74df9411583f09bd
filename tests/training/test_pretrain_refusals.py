"""What pre-training refuses, in one line: folders, teachers, models, corpora and gradients."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fastbert.checkpoints import atomic_folder
from fastbert.config import BertConfig
from fastbert.errors import CheckpointError, CorpusError, UserError
from fastbert.models import BertForPreTraining
from fastbert.training import checkpoint
from fastbert.training.config import PretrainConfig
from fastbert.training.pretrain import pretrain
from fastbert.training.reporter import Reporter
from fastbert.training.run_files import write_record
from fastbert.training.skipped_steps import TrainingError


def test_a_folder_has_one_run_at_a_time(config: PretrainConfig) -> None:
    refused: list[str] = []

    def again(metrics: object, progress: float) -> None:
        for flag in ("resume", "overwrite"):
            with pytest.raises(UserError, match="another process is writing there; wait for it to end") as error:
                pretrain(replace(config, **{flag: True}))
            refused.append(str(error.value))

    pretrain(replace(config, steps=1), Reporter(on_step=again))
    assert len(refused) == 2
    assert str(config.out) in refused[0]


def test_a_teacher_with_a_nan_is_named(config: PretrainConfig, tmp_path: Path) -> None:
    pretrain(replace(config, steps=1))
    teacher = BertForPreTraining.from_pretrained(config.out / "model")
    with torch.no_grad():
        teacher.bert.encoder.layer[1].output.dense.bias[3] = torch.nan
    teacher.save_pretrained(config.out / "model")
    flags = {"teacher": str(config.out / "model"), "tokenizer": None, "out": tmp_path / "student"}
    with pytest.raises(UserError, match=r"--teacher .*: bert\.encoder\.layer\.1\.output\.dense\.bias holds NaN"):
        pretrain(replace(config, **flags))


def test_a_folder_with_a_run_is_refused_unless_told(config: PretrainConfig) -> None:
    pretrain(replace(config, steps=1))
    with pytest.raises(
        UserError, match="already holds a run; continue it with --resume or replace it with --overwrite"
    ):
        pretrain(config)
    (config.out / "notes.txt").write_text("mine")
    pretrain(replace(config, steps=2, overwrite=True))
    assert (config.out / "notes.txt").read_text() == "mine"
    assert [path.name for path in checkpoint.find(config.out / "checkpoints")] == ["step-00000002"]


def test_a_start_that_failed_does_not_block_the_corrected_command(config: PretrainConfig, tmp_path: Path) -> None:
    text = tmp_path / "one.txt"
    text.write_text("A single sentence.\n")
    with pytest.raises(UserError):
        pretrain(replace(config, corpus=(text,)))
    assert (config.out / "config.json").exists()
    assert pretrain(replace(config, steps=1)).model.is_dir()


def test_a_run_of_another_command_is_named(config: PretrainConfig) -> None:
    config.out.mkdir()
    write_record(config.out, {"finetune": {}})
    for resume in (True, False):
        with pytest.raises(UserError, match="holds a run" if not resume else "holds a run of `fastbert finetune`"):
            pretrain(replace(config, resume=resume))


def test_a_loss_that_is_no_number_stops_the_run(config: PretrainConfig) -> None:
    with pytest.raises(
        TrainingError,
        match=r"step \d+: the gradient is not a finite number \(loss \S+; [\w.]+, of shape \(.*\), is (nan|-?inf) at \["
        r".*\]\); start again in another --out",
    ):
        pretrain(replace(config, lr=1e30, warmup=0.0, steps=40))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_length": 65}, "--max-length 65 is more than the model's max_position_embeddings=64"),
        ({"corpus": ()}, "nothing to train on: give --corpus"),
        ({"corpus": (Path("/nowhere"),)}, "/nowhere"),
        ({"device": "cuda"}, "--device cuda: this torch is a CPU build"),
        ({"dtype": "fp16"}, "--dtype fp16 needs a GPU"),
    ],
)
def test_impossible_runs_are_refused_before_anything_is_trained(
    config: PretrainConfig, change: dict, message: str
) -> None:
    if change.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(UserError, match=message):
        pretrain(replace(config, **change))
    assert not (config.out / "metrics.jsonl").exists()


def test_a_missing_corpus_is_refused_before_the_device_is_printed(config: PretrainConfig) -> None:
    printed: list[str] = []
    with pytest.raises(UserError, match="/nowhere"):
        pretrain(replace(config, corpus=(Path("/nowhere"),)), Reporter(on_message=printed.append))
    assert not printed


def test_a_vocabulary_of_another_size_than_the_model_is_named(config: PretrainConfig) -> None:
    model = json.loads(Path(config.model).read_text())
    Path(config.model).write_text(json.dumps({**model, "vocab_size": 1000}))
    with pytest.raises(UserError, match=r"vocab_size=1000, but the vocabulary has \d+ entries"):
        pretrain(config)


def test_one_document_is_not_enough_for_pairs(config: PretrainConfig, tmp_path: Path) -> None:
    single = tmp_path / "single.txt"
    single.write_text("\n".join(config.corpus[0].read_text().split("\n\n")[:1]))
    with pytest.raises(CorpusError, match="--objective mlm"):
        pretrain(replace(config, corpus=(single,)))
    pretrain(replace(config, corpus=(single,), objective="mlm", steps=1, overwrite=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corpus": (Path("/nowhere"),)}, "/nowhere"),
        ({"max_length": 65}, "--max-length 65 is more than"),
        ({"model": "/nowhere.json"}, "/nowhere.json: no such file"),
        ({"tokenizer": Path("/nowhere")}, "/nowhere"),
        ({"corpus": (), "data": Path("/nowhere")}, "/nowhere"),
        ({"corpus": (), "data": Path("data")}, "--data .*data: belongs to the run that --overwrite removes"),
        ({"tokenizer": Path()}, "--tokenizer .*run: belongs to the run"),
    ],
)
def test_overwrite_with_wrong_input_leaves_the_old_run_whole(
    config: PretrainConfig, change: dict, message: str
) -> None:
    pretrain(replace(config, steps=1))
    inside = {key: config.out / path for key, path in change.items() if key in ("data", "tokenizer")}  # unless absolute
    before = sorted(config.out.rglob("*"))
    with pytest.raises(UserError, match=message):
        pretrain(replace(config, overwrite=True, **{**change, **inside}))
    assert sorted(config.out.rglob("*")) == before


def test_overwrite_spares_folders_that_hold_no_run(config: PretrainConfig) -> None:
    (config.out / "model").mkdir(parents=True)
    (config.out / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match="holds no fastbert run, so --overwrite does not empty it"):
        pretrain(replace(config, overwrite=True))
    assert (config.out / "model").is_dir()


def test_a_model_that_does_not_fit_on_the_disk_is_one_line(
    config: PretrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = BertForPreTraining(BertConfig.from_pretrained(config.model))
    folder = tmp_path / "full"
    model.save_pretrained(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(atomic_folder, "sync_tree", full)
    with pytest.raises(CheckpointError, match=r"full: could not be written \(.*No space left on device"):
        model.save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_objectives_that_a_model_cannot_have_are_refused(config: PretrainConfig, tmp_path: Path) -> None:
    model = json.loads(Path(config.model).read_text())
    (tmp_path / "causal.json").write_text(json.dumps({**model, "is_decoder": True}))
    for changes, message in (
        (
            {"objective": "mlm+nsp", "model": str(tmp_path / "causal.json")},
            "reads left to right cannot have it; use --objective ltr",
        ),
        ({"architecture": "roberta"}, "--architecture roberta, but .* has model_type='bert'"),
        ({"architecture": "gpt7", "model": "tiny"}, "--architecture gpt7: choose one of bert, roberta"),
        (
            {"architecture": "distilbert", "model": "tiny", "objective": "mlm+nsp"},
            "--objective mlm.nsp: a model of distilbert that sees the whole text .*; use --objective mlm or ",
        ),
        (
            {"architecture": "bert", "model": "tiny", "objective": "rtd"},
            "--objective rtd: a model of bert .* --objective mlm.nsp or .* or --architecture electra",
        ),
    ):
        with pytest.raises(UserError, match=message):
            pretrain(replace(config, **changes))
        assert not config.out.joinpath("config.json").exists(), message

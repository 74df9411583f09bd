"""Pre-training runs that stop, are killed or damaged: they resume to the bit, or say why not."""

import json
import random
import re
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pretrain_runs import stop_at, timeless, weights

from fastbert.errors import CheckpointError, UserError
from fastbert.training import checkpoint, checkpoint_writing
from fastbert.training.config import PretrainConfig
from fastbert.training.pretrain import pretrain
from fastbert.training.reporter import Reporter
from fastbert.training.stopping import Stopped


def test_a_line_that_a_kill_has_cut_short_is_dropped(config: PretrainConfig) -> None:
    """Of the metrics of a run that was interrupted, and is continued without its flags."""
    whole = replace(config, log_every=5, out=config.out.with_name("whole"))
    pretrain(whole)
    run = replace(whole, out=config.out)
    with pytest.raises(Stopped) as stopped:
        pretrain(run, stop_at(7))
    assert stopped.value.signal == signal.SIGINT
    assert stopped.value.saved.name == "step-00000007"
    with (run.out / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "spl')
    for _ in range(2):
        pretrain(PretrainConfig(out=run.out, resume=True))
        assert timeless(run.out) == timeless(whole.out)
    assert all(torch.equal(tensor, weights(run.out)[name]) for name, tensor in weights(whole.out).items())


def test_flags_of_a_resumed_run(config: PretrainConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Equal ones are no contradiction; of another run no flag is taken; what is lost or damaged costs nobody a run."""
    whole = replace(config, out=config.out.with_name("whole"))
    pretrain(whole)
    with pytest.raises(Stopped):
        pretrain(replace(config, resume=True), stop_at(7))  # there is none: it begins
    corpus = tmp_path / "other.txt"
    corpus.write_text("another corpus\n")
    (tmp_path / "vocabulary.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nword\n")
    for change, message in (
        ({"corpus": (corpus,)}, f"--corpus {corpus} differs from the run being resumed, which has"),
        ({"tokenizer": tmp_path / "vocabulary.txt"}, "--tokenizer .*: has a different vocabulary than the run"),
        ({"seed": 3}, "--seed 3 differs from the run being resumed, which has 0"),
    ):
        with pytest.raises(UserError, match=message):
            pretrain(replace(config, resume=True, **change))
    folder = config.out / "tokenizer"
    vocabulary = (config.out / "vocab.txt").read_text()
    assert (folder / "vocab.txt").read_text() == vocabulary
    *tokens, one, other, _ = vocabulary.split("\n")
    swapped = "\n".join([*tokens, other, one, ""])
    (config.out / "vocab.txt").write_text(swapped)
    with pytest.raises(
        UserError, match=r"vocab\.txt: a different vocabulary than .*tokenizer/vocab\.txt; put the run's"
    ):
        pretrain(replace(config, resume=True))
    (config.out / "vocab.txt").unlink()  # copied again
    (folder / "vocab.txt").write_text(swapped)
    (folder / "fastbert_manifest.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer: holds a different vocabulary than the run began with"):
        pretrain(replace(config, resume=True))
    shutil.rmtree(folder)  # made again, and compared
    (config.out / "config.json").unlink()  # taken from the checkpoint
    (config.out / "data" / "unigrams.bin").write_bytes(b"")  # tokenized again
    messages: list[str] = []
    corpus = config.corpus[0]
    elsewhere = corpus.rename(corpus.with_suffix(".moved"))
    with pytest.raises(
        UserError, match=r"unigrams\.bin.*, but the corpus is not there \(no such file or folder: .*put it"
    ):
        pretrain(PretrainConfig(out=config.out, resume=True), Reporter(on_message=messages.append))
    assert (config.out / "data" / "unigrams.bin").exists()
    elsewhere.rename(corpus)
    log = config.out / "metrics.jsonl"
    log.write_text(log.read_text() + "nonsense\n" + "[" * 100_000 + "\n[]\n")
    pretrain(PretrainConfig(out=config.out, resume=True), Reporter(on_message=messages.append))
    assert any("config.json is missing: the configuration is taken from" in message for message in messages)
    assert any("tokenizing the corpus again" in message for message in messages)
    assert caplog.text.count("is not a metrics record; it is dropped") == 3
    assert timeless(config.out) == timeless(whole.out)
    for name, tensor in weights(whole.out).items():
        assert torch.equal(tensor, weights(config.out)[name]), name


def test_a_vocabulary_and_shards_that_are_complete_are_kept(
    config: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends between its stages repeats only the one that it was in."""
    from fastbert.training import assembly, preparation

    made: list[str] = []

    def counted(name: str, fails: bool) -> None:
        module = preparation if hasattr(preparation, name) else assembly
        original = getattr(module, name)

        def stage(*values: object, **named: object) -> object:
            made.append(name)
            if fails:
                raise KeyboardInterrupt
            return original(*values, **named)

        monkeypatch.setattr(module, name, stage)

    flags = replace(config, tokenizer=None, vocab_size=60, resume=True, steps=1)
    shape = json.loads(Path(config.model).read_text())
    Path(config.model).write_text(json.dumps({**shape, "vocab_size": 60}))
    for failing, expected in (
        ("train_tokenizer", ["train_tokenizer"]),
        ("prepare", ["train_tokenizer", "prepare"]),
        ("split_unigrams", ["prepare", "split_unigrams"]),
        ("", ["split_unigrams"]),
        ("", []),
    ):
        made.clear()
        for name in ("train_tokenizer", "prepare", "split_unigrams"):
            counted(name, name == failing)
        if failing:
            with pytest.raises(KeyboardInterrupt):
                pretrain(flags)
        else:
            pretrain(flags)
        assert made == expected
        monkeypatch.undo()


def test_resume_refuses_what_would_be_another_run(config: PretrainConfig) -> None:
    with pytest.raises(UserError, match="holds no run to resume, and nothing to train on is given: give --corpus"):
        pretrain(PretrainConfig(out=config.out, resume=True))
    assert not config.out.exists()
    pretrain(replace(config, steps=1))
    with pytest.raises(UserError, match=r"--lr 0\.5 differs from the run being resumed, which has 0\.003"):
        pretrain(replace(config, resume=True, lr=0.5))
    longer = pretrain(replace(config, resume=True, steps=3))
    assert longer.validation.step == 3


def test_resume_refuses_another_vocabulary(config: PretrainConfig) -> None:
    pretrain(replace(config, steps=1))
    for folder in (config.out, config.out / "tokenizer"):
        vocabulary = (folder / "vocab.txt").read_text().split("\n")
        vocabulary[8], vocabulary[9] = vocabulary[9], vocabulary[8]
        (folder / "vocab.txt").write_text("\n".join(vocabulary))
    (config.out / "tokenizer" / "fastbert_manifest.json").unlink()
    with pytest.raises(UserError, match="a different vocabulary than the run began with"):
        pretrain(replace(config, resume=True, steps=3))


def test_resume_refuses_other_data(config: PretrainConfig, tmp_path: Path) -> None:
    pretrain(replace(config, steps=1))
    shutil.rmtree(config.out / "data")
    corpus = config.corpus[0].read_text()
    config.corpus[0].write_text(corpus[:-900])
    try:
        with pytest.raises(UserError, match="other token shards"):
            pretrain(PretrainConfig(out=config.out, resume=True, steps=3))
    finally:
        config.corpus[0].write_text(corpus)
    assert pretrain(PretrainConfig(out=config.out, resume=True, steps=3)).validation.step == 3


def test_a_full_disk_is_reported_once_and_then_ends_the_run(
    config: PretrainConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pretrain(replace(config, steps=4))
    write_hashed = checkpoint_writing.write_hashed

    def full(path, parts, *values):
        if path.name == checkpoint.OPTIMIZER:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        return write_hashed(path, parts, *values)

    monkeypatch.setattr(checkpoint_writing, "write_hashed", full)
    failed = "the checkpoint could not be written ([Errno 28] No space left on device); those before it are whole."
    with pytest.raises(CheckpointError, match=f"step-00000012: {re.escape(failed)} Free some disk space and continue"):
        pretrain(replace(config, resume=True, steps=16, eval_every=None))
    assert f"step-00000008: {failed}" in caplog.text
    assert "The run goes on, and ends if the next checkpoint cannot be written either" in caplog.text
    found = checkpoint.find(config.out / "checkpoints")
    assert [path.name for path in found] == ["step-00000004"]
    checkpoint.load(found[0])
    assert not list((config.out / "checkpoints").glob(".*"))
    monkeypatch.undo()
    assert pretrain(replace(config, resume=True, steps=16)).validation.step == 16


def test_clocks_that_jump_and_saves_behind_the_steps_change_nothing(
    config: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = replace(config, out=config.out.with_name("whole"))
    pretrain(whole)
    draw, now = random.Random(1), time.time
    monkeypatch.setattr(time, "time", lambda: now() + draw.uniform(-1e9, 1e9))
    jumping = replace(config, async_save="on", keep_checkpoints=1, keep_every=3)
    with pytest.raises(Stopped) as stopped:
        pretrain(jumping, stop_at(8, signal.SIGTERM))
    root = config.out / "checkpoints"
    assert checkpoint.latest(root) == stopped.value.saved == root / "step-00000008"
    pretrain(replace(jumping, resume=True))
    assert [folder.name for folder in checkpoint.find(root)] == [f"step-{step:08d}" for step in (3, 6, 9, 12)]
    assert timeless(config.out) == timeless(whole.out)
    for name, tensor in weights(whole.out).items():
        assert torch.equal(weights(config.out)[name], tensor), name


def test_a_save_that_fails_behind_the_steps_ends_the_run_at_the_next_one(
    config: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hashed, steps, failing = checkpoint_writing.write_hashed, [], threading.Event()

    def broken(path, parts, *values):
        if "step-00000004" not in str(path):
            return write_hashed(path, parts, *values)
        failing.set()
        raise OSError(5, "Input/output error")

    def step(record, finished):
        steps.append(record["step"])
        if record["step"] == 5:
            assert failing.wait(60)
            time.sleep(0.5)

    monkeypatch.setattr(checkpoint_writing, "write_hashed", broken)
    with pytest.raises(CheckpointError, match=r"step-00000004: the checkpoint could not be written .*Input/output er"):
        pretrain(replace(config, async_save="on"), Reporter(on_step=step))
    assert steps in ([1, 2, 3, 4], [1, 2, 3, 4, 5])
    monkeypatch.undo()
    assert pretrain(replace(config, resume=True)).validation.step == 12


def test_a_damaged_checkpoint_is_seen_and_passed_over(config: PretrainConfig, seed: int) -> None:
    pretrain(config)
    draw = random.Random(seed)
    root = config.out / "checkpoints"
    newest = checkpoint.find(root)[-1]
    for name in (checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.STATE):
        original = (newest / name).read_bytes()
        place = draw.randrange(len(original))
        damaged = bytearray(original)
        damaged[place] ^= 1 << draw.randrange(8)
        (newest / name).write_bytes(damaged)
        with pytest.raises(CheckpointError, match="damaged"):
            checkpoint.load(newest)
        last = checkpoint.load_last(root)
        assert last is not None
        assert last.folder.name == "step-00000008", f"seed {seed}"
        (newest / name).write_bytes(original)
    shutil.rmtree(newest)
    for folder in checkpoint.find(root):
        (folder / checkpoint.MANIFEST).unlink()
    with pytest.raises(CheckpointError, match="no checkpoint is whole"):
        checkpoint.load_last(root)


def test_a_resumed_run_keeps_its_model_and_its_new_length(config: PretrainConfig) -> None:
    pretrain(replace(config, steps=1))
    Path(config.model).write_text("{}")
    with pytest.raises(Stopped):
        pretrain(replace(config, resume=True, steps=4), stop_at(2))
    assert pretrain(PretrainConfig(out=config.out, resume=True)).validation.step == 4


def test_a_damaged_checkpoint_is_written_anew(config: PretrainConfig) -> None:
    pretrain(replace(config, steps=8))
    root = config.out / "checkpoints"
    (root / "step-00000008" / checkpoint.MODEL).write_bytes(b"")
    (root / ".step-00000007.partial").mkdir()  # of a run that was killed
    pretrain(replace(config, steps=12, resume=True))
    assert checkpoint.load(root / "step-00000008").state["step"] == 8
    assert not list(root.glob(".*"))


def test_a_run_of_an_older_format_is_refused(config: PretrainConfig) -> None:
    config.out.mkdir()
    (config.out / "config.json").write_text('{"format_version": 2, "run": {}}')
    with pytest.raises(UserError, match=r"config\.json: has format 2, from before the first release; start again with"):
        pretrain(replace(config, resume=True))
    pretrain(replace(config, steps=1, overwrite=True))


@pytest.mark.parametrize("content", ["{", "[]", '{"format_version": 1, "run": [], "model": {}}', '{"run": {}}'])
def test_a_damaged_configuration_is_named(config: PretrainConfig, content: str) -> None:
    config.out.mkdir()
    (config.out / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config\.json: not a run's configuration"):
        pretrain(replace(config, resume=True))

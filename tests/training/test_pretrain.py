"""Whole runs on a toy model: files, falling loss, resume to the bit, and every refusal."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fastbert.config import BertConfig
from fastbert.errors import CheckpointError, CorpusError, UserError
from fastbert.models import BertForPreTraining
from fastbert.training import checkpoint
from fastbert.training.config import PretrainConfig
from fastbert.training.loop import TrainingError
from fastbert.training.metrics import read_metrics
from fastbert.training.pretrain import pretrain
from fastbert.training.reporter import Reporter
from fastbert.training.stopping import Stopped

KEYS = {
    "step", "split", "loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy", "tokens", "tokens_per_second",
    "learning_rate", "seconds",
}  # fmt: skip


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty documents whose words follow each other by a rule, so that there is something to learn."""
    draw = random.Random(5)
    words = ["".join(draw.choices("abcdefghij", k=4)) for _ in range(30)]
    lines = []
    for _ in range(40):
        position = draw.randrange(30)
        for _ in range(8):
            sentence = []
            for _ in range(9):
                sentence.append(words[position])
                position = (position + 1) % 30 if draw.random() < 0.9 else draw.randrange(30)
            lines.append(" ".join(sentence) + ".")
        lines.append("")
    path = tmp_path_factory.mktemp("corpus") / "toy.txt"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def config(corpus: Path, tmp_path: Path) -> PretrainConfig:
    """A run of twelve steps on a model of 2 layers and width 32."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    vocabulary += sorted({word.strip(".") for word in corpus.read_text().split()})
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    model = {
        "vocab_size": len(vocabulary), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "max_position_embeddings": 64,
    }  # fmt: skip
    (tmp_path / "model.json").write_text(json.dumps(model))
    return PretrainConfig(
        corpus=(corpus,),
        tokenizer=tmp_path / "vocab.txt",
        model=str(tmp_path / "model.json"),
        out=tmp_path / "run",
        text_format="lines",
        steps=12,
        batch_size=8,
        micro_batch=4,
        max_length=32,
        lr=3e-3,
        dtype="fp32",
        device="cpu",
        log_every=2,
        eval_every=6,
        eval_samples=16,
        checkpoint_every=4,
        keep_checkpoints=10,
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def stop_at(step: int, *numbers: int) -> Reporter:
    """A reporter that sends this process signals in the given step, SIGINT if none is named."""

    def on_step(metrics, progress) -> None:
        if metrics["step"] == step:
            for number in numbers or (signal.SIGINT,):
                os.kill(os.getpid(), number)

    return Reporter(on_step=on_step)


def timeless(folder: Path) -> str:
    """metrics.jsonl without what a clock measured."""
    return re.sub(r', "(seconds|tokens_per_second)": [^,}]+', "", (folder / "metrics.jsonl").read_text())


def test_a_run_leaves_what_the_design_says(config: PretrainConfig) -> None:
    result = pretrain(replace(config, steps=150, lr=1e-2, eval_every=50))
    run = config.out
    for name in ("config.json", "tokenizer/tokenizer_config.json", "vocab.txt", "metrics.jsonl", "loss.png"):
        assert (run / name).is_file(), name
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")
    for name in ("config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"):
        assert (run / "model" / name).is_file(), name
    saved = {path.name for path in (run / "checkpoints" / "step-00000150").iterdir()}
    assert saved == {"manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"}
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(record.keys() == KEYS for record in records)
    train = [record for record in records if record["split"] == "train"]
    assert [record["step"] for record in train][:4] == [1, 2, 4, 6]
    assert train[-1]["mlm_loss"] < train[0]["mlm_loss"] - 0.2
    assert result.validation.mlm_loss < records[0]["mlm_loss"]
    assert [record["step"] for record in records if record["split"] == "validation"] == [50, 100, 150]
    assert 2.5 < result.unigram_cross_entropy < 4.0
    assert not list(run.rglob("*partial*"))


def test_the_trained_model_loads_in_transformers(config: PretrainConfig) -> None:
    transformers = pytest.importorskip("transformers")
    pretrain(replace(config, steps=2))
    theirs = transformers.AutoModelForPreTraining.from_pretrained(config.out / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(config.out / "model")
    text = (config.out / "vocab.txt").read_text().split()[10:16]
    inputs = tokenizer(" ".join(text), return_tensors="pt")
    ours = BertForPreTraining.from_pretrained(config.out / "model")
    with torch.no_grad():
        mine, other = ours(**inputs), theirs(**inputs)
    torch.testing.assert_close(mine.prediction_logits, other.prediction_logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine.seq_relationship_logits, other.seq_relationship_logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("numbers", [[signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]], ids=["SIGINT", "SIGTERM"])
def test_an_interrupted_run_ends_like_an_uninterrupted_one_bit_for_bit(
    config: PretrainConfig, numbers: list[int]
) -> None:
    whole = replace(config, log_every=5, out=config.out.with_name("whole"))
    pretrain(whole)
    for step in (1, 6, 7, 12):  # 6 and 12 are validated
        run = replace(whole, out=config.out.with_name(f"run-{step}"))
        with pytest.raises(Stopped) as stopped:
            pretrain(run, stop_at(step, *numbers))
        assert stopped.value.signal == numbers[0]
        assert stopped.value.saved.name == f"step-{step:08d}"
        with (run.out / "metrics.jsonl").open("a") as file:
            file.write('{"step": 13, "spl')  # as a kill in the middle of a line leaves it
        pretrain(replace(run, resume=True))
        expected, actual = weights(whole.out), weights(run.out)
        assert expected.keys() == actual.keys()
        for name, tensor in expected.items():
            assert torch.equal(tensor, actual[name]), name
        assert timeless(run.out) == timeless(whole.out)
        pretrain(PretrainConfig(out=run.out, resume=True))
        assert timeless(run.out) == timeless(whole.out)


def test_a_stop_during_a_validation_changes_nothing(config: PretrainConfig) -> None:
    whole = replace(config, out=config.out.with_name("whole"))
    pretrain(whole)
    reporter = Reporter(on_validation=lambda metrics: os.kill(os.getpid(), signal.SIGTERM))
    for _ in range(2):
        with pytest.raises(Stopped):
            pretrain(replace(config, resume=True), reporter)
    pretrain(replace(config, resume=True))
    assert timeless(config.out) == timeless(whole.out)


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
    log = config.out / "metrics.jsonl"
    log.write_text(log.read_text() + "nonsense\n" + "[" * 100_000 + "\n[]\n")
    messages: list[str] = []
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
    from fastbert.training import pretrain as module

    made: list[str] = []

    def counted(name: str, fails: bool) -> None:
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
        ("train_vocabulary", ["train_vocabulary"]),
        ("prepare", ["train_vocabulary", "prepare"]),
        ("unigram_cross_entropy", ["prepare", "unigram_cross_entropy"]),
        ("", ["unigram_cross_entropy"]),
        ("", []),
    ):
        made.clear()
        for name in ("train_vocabulary", "prepare", "unigram_cross_entropy"):
            counted(name, name == failing)
        if failing:
            with pytest.raises(KeyboardInterrupt):
                pretrain(flags)
        else:
            pretrain(flags)
        assert made == expected
        monkeypatch.undo()


def test_a_teacher_with_a_nan_is_named(config: PretrainConfig, tmp_path: Path) -> None:
    pretrain(replace(config, steps=1))
    teacher = BertForPreTraining.from_pretrained(config.out / "model")
    with torch.no_grad():
        teacher.bert.encoder.layer[1].output.dense.bias[3] = torch.nan
    teacher.save_pretrained(config.out / "model")
    flags = {"teacher": str(config.out / "model"), "tokenizer": None, "out": tmp_path / "student"}
    with pytest.raises(UserError, match=r"--teacher .*: bert\.encoder\.layer\.1\.output\.dense\.bias holds NaN"):
        pretrain(replace(config, **flags))


def test_kill_9_and_resume(config: PretrainConfig, tmp_path: Path) -> None:
    """A killed process leaves whole checkpoints only, and the run continues to the same weights."""
    pytest.importorskip("tyro", reason="the command line needs tyro")
    whole = replace(config, steps=40, out=tmp_path / "whole")
    pretrain(whole)
    flags = [
        "--corpus", str(config.corpus[0]), "--tokenizer", str(config.tokenizer), "--model", config.model,
        "--out", str(config.out), "--text-format", "lines", "--steps", "40", "--batch-size", "8", "--micro-batch", "4",
        "--max-length", "32", "--lr", "3e-3", "--dtype", "fp32", "--device", "cpu", "--log-every", "2",
        "--eval-every", "6", "--eval-samples", "16", "--checkpoint-every", "4", "--keep-checkpoints", "10", "--quiet",
    ]  # fmt: skip
    threads = torch.get_num_threads()  # sums of as many parts have the same bits
    script = f"import sys, torch; torch.set_num_threads({threads}); from fastbert.cli import main; sys.exit(main())"
    process = subprocess.Popen([sys.executable, "-P", "-c", script, "pretrain", *flags], cwd=tmp_path)
    deadline = time.monotonic() + 120
    while not (config.out / "checkpoints" / "step-00000008").exists() and process.poll() is None:
        assert time.monotonic() < deadline, "no checkpoint within two minutes"
        time.sleep(0.01)
    process.kill()
    assert process.wait() in (-signal.SIGKILL, 0)
    for folder in checkpoint.find(config.out / "checkpoints"):
        checkpoint.load(folder)
    pretrain(PretrainConfig(out=config.out, resume=True))
    for name, tensor in weights(whole.out).items():
        assert torch.equal(tensor, weights(config.out)[name]), name
    steps = [record.step for record in read_metrics(config.out / "metrics.jsonl") if record.split == "train"]
    assert steps == sorted(set(steps)), "a resumed run must not repeat lines"


def test_micro_batches_change_nothing_but_rounding(config: PretrainConfig) -> None:
    pretrain(replace(config, steps=3, micro_batch=8))
    other = replace(config, steps=3, micro_batch=3, out=config.out.with_name("other"))
    pretrain(other)
    for name, tensor in weights(config.out).items():
        torch.testing.assert_close(tensor, weights(other.out)[name], rtol=1e-3, atol=2e-5)


def test_checkpointed_activations_and_bf16_train(config: PretrainConfig) -> None:
    checkpointed = replace(config, checkpoint_activations=True, dtype="bf16", deterministic=True)
    result = pretrain(checkpointed)
    assert result.validation.mlm_loss < 3.6
    other = replace(checkpointed, checkpoint_mode="selective", out=config.out.with_name("other"))
    assert pretrain(other).validation.mlm_loss == result.validation.mlm_loss


@pytest.mark.parametrize("objective", ["mlm", "mlm+sop"])
def test_other_objectives(config: PretrainConfig, objective: str) -> None:
    result = pretrain(replace(config, objective=objective))
    assert (result.validation.nsp_loss is None) == (objective == "mlm")


def test_hours_end_a_run(config: PretrainConfig) -> None:
    result = pretrain(replace(config, steps=None, hours=1.5 / 3600))
    last = read_metrics(config.out / "metrics.jsonl")[-1]
    assert 1.5 <= last.seconds < 10
    assert result.validation.step == last.step


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
        ({"device": "cuda"}, "torch finds no CUDA device"),
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


def test_a_full_disk_leaves_the_last_checkpoint_whole(config: PretrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    pretrain(replace(config, steps=4))
    save_tensors = checkpoint.save_tensors

    def full(tensors, path, metadata=None) -> None:
        if Path(path).name == checkpoint.OPTIMIZER:
            Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        save_tensors(tensors, path, metadata)

    monkeypatch.setattr(checkpoint, "save_tensors", full)
    with pytest.raises(CheckpointError, match=r"step-00000008: the checkpoint could not be written .*No space left"):
        pretrain(replace(config, resume=True, steps=12))
    result = checkpoint.find(config.out / "checkpoints")
    assert [path.name for path in result] == ["step-00000004"]
    checkpoint.load(result[0])
    assert not list((config.out / "checkpoints").glob(".*"))
    monkeypatch.undo()
    assert pretrain(replace(config, resume=True, steps=12)).validation.step == 12


def test_a_damaged_checkpoint_is_seen_and_passed_over(config: PretrainConfig, seed: int) -> None:
    pretrain(config)
    draw = random.Random(seed)
    root = config.out / "checkpoints"
    newest = checkpoint.find(root)[-1]
    for name in (checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.STATE):
        original = (newest / name).read_bytes()
        offset = draw.randrange(len(original))
        damaged = bytearray(original)
        damaged[offset] ^= 1 << draw.randrange(8)
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


def test_only_the_newest_checkpoints_are_kept(config: PretrainConfig) -> None:
    pretrain(replace(config, keep_checkpoints=2))
    names = [path.name for path in checkpoint.find(config.out / "checkpoints")]
    assert names == ["step-00000008", "step-00000012"]


def test_prepared_shards_give_the_same_model_as_their_corpus(config: PretrainConfig, tmp_path: Path) -> None:
    from fastbert.data.corpus import Corpus
    from fastbert.data.prepare import prepare
    from fastbert.tokenizers import WordPieceTokenizer

    pretrain(replace(config, steps=2))
    tokenizer = WordPieceTokenizer.from_pretrained(config.tokenizer)
    prepare(Corpus.find(config.corpus, text_format="lines"), tokenizer, tmp_path / "shards")
    other = replace(config, corpus=(), tokenizer=None, data=tmp_path / "shards", steps=2, out=tmp_path / "from-shards")
    pretrain(other)
    for name, tensor in weights(config.out).items():
        assert torch.equal(tensor, weights(other.out)[name]), name


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


def test_a_model_that_does_not_fit_on_the_disk_is_one_line(config: PretrainConfig, tmp_path: Path) -> None:
    model = BertForPreTraining(BertConfig.from_pretrained(config.model))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "model.safetensors.partial").mkdir()  # what cannot be written, for whoever runs this
    with pytest.raises(CheckpointError, match=r"model\.safetensors: could not be written"):
        model.save_pretrained(tmp_path / "full")

"""Pre-training with a teacher: what a student learns faster, what it is checked for, and how it is resumed."""

from __future__ import annotations

import json
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fastbert.distillation.pretraining import PretrainingDistillationLoss
from fastbert.errors import UserError
from fastbert.models import BertForPreTraining
from fastbert.training.batches import micro_batch_loss
from fastbert.training.config import PretrainConfig
from fastbert.training.pretrain import pretrain
from fastbert.training.reporter import Reporter
from fastbert.training.stopping import Stopped

WORDS = [f"{a}{b}" for a in "abcdef" for b in "uvwxyz"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus in which words follow each other by a rule, and a teacher that has learnt it."""
    folder = tmp_path_factory.mktemp("teaching")
    draw, lines = random.Random(5), []
    for _ in range(40):
        at = draw.randrange(len(WORDS))
        for _ in range(8):
            lines.append(" ".join(WORDS[(at + i) % len(WORDS)] for i in range(9)) + ".")
            at = (at + 9) % len(WORDS)
        lines.append("")
    (folder / "corpus.txt").write_text("\n".join(lines))
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]) + "\n")
    shape = {"vocab_size": 6 + len(WORDS), "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2}
    (folder / "model.json").write_text(json.dumps({**shape, "intermediate_size": 64, "max_position_embeddings": 64}))
    (folder / "narrow.json").write_text(
        json.dumps({**shape, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 64})
    )
    pretrain(config(folder, folder / "teacher", steps=60, tokenizer=folder / "vocab.txt"))
    return folder


def config(toy: Path, out: Path, **flags: Any) -> PretrainConfig:
    chosen = {
        "corpus": (toy / "corpus.txt",),
        "model": str(toy / "model.json"),
        "out": out,
        "text_format": "lines",
        "steps": 8,
        "batch_size": 16,
        "max_length": 32,
        "lr": 1e-2,
        "dtype": "fp32",
        "device": "cpu",
        "eval_samples": 32,
        "checkpoint_every": 4,
    }
    return PretrainConfig(**{**chosen, **flags})


def test_a_student_begins_where_its_teacher_is(toy: Path, tmp_path: Path) -> None:
    teacher = str(toy / "teacher" / "model")
    flags = {"teacher": teacher, "student_layers": 2, "lr": 1e-3}
    student = pretrain(config(toy, tmp_path / "student", **flags)).validation
    alone = pretrain(config(toy, tmp_path / "alone", tokenizer=toy / "vocab.txt")).validation
    assert student.mlm_loss < alone.mlm_loss
    model = BertForPreTraining.from_pretrained(tmp_path / "student" / "model")
    assert model.config.num_hidden_layers == 2
    assert not model.new_weights


@pytest.mark.parametrize("distill", ["distilbert", "tinybert"])
@pytest.mark.parametrize("narrow", [False, True])
def test_models_of_other_sizes_learn_too(toy: Path, tmp_path: Path, distill: str, narrow: bool) -> None:
    flags: dict[str, Any] = {
        "teacher": str(toy / "teacher" / "model"),
        "distill": distill,
        "steps": 30,
        "init": "normal",
    }
    if narrow:
        flags["model"] = str(toy / "narrow.json")
    run = config(toy, tmp_path / "run", **flags)
    first = pretrain(replace(run, steps=1)).validation
    last = pretrain(replace(run, overwrite=True)).validation
    assert last.mlm_loss < first.mlm_loss - 0.1
    model = BertForPreTraining.from_pretrained(tmp_path / "run" / "model")
    assert not model.new_weights
    assert not any("distillation" in name for name in model.state_dict())


def test_the_texts_part_is_the_plain_loss(toy: Path) -> None:
    student = BertForPreTraining.from_pretrained(toy / "teacher" / "model")
    teacher = BertForPreTraining.from_pretrained(toy / "teacher" / "model").eval()
    from fastbert.data.pretraining import PretrainingData
    from fastbert.data.shards import TokenShards

    shards = TokenShards.open(toy / "teacher" / "data")
    batch = PretrainingData(shards, objective="mlm+nsp", max_length=32, seed=0).batch(0, [0, 1, 2])
    plain = micro_batch_loss(student(batch), 0.1, 0.3)
    silent, _ = PretrainingDistillationLoss(student, teacher, PretrainConfig(soft_weight=0.0))(student, batch, 0.1, 0.3)
    torch.testing.assert_close(silent, plain, atol=1e-5, rtol=1e-5)
    # A student that equals its teacher has no loss.
    flags = PretrainConfig(soft_weight=1.0, distill="tinybert")
    only, _ = PretrainingDistillationLoss(student, teacher, flags)(student, batch, 1, 1)
    assert abs(only.item()) < 1e-4


def test_an_interrupted_student_continues_bit_for_bit(toy: Path, tmp_path: Path) -> None:
    flags = {"teacher": str(toy / "teacher" / "model"), "student_layers": 2, "distill": "tinybert"}
    pretrain(config(toy, tmp_path / "whole", **flags))

    def stop(metrics: Any, progress: float) -> None:
        if metrics["step"] == 5:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped):
        pretrain(config(toy, tmp_path / "parts", **flags), Reporter(on_step=stop))
    pretrain(PretrainConfig(out=tmp_path / "parts", resume=True))
    files = [tmp_path / name / "model" / "model.safetensors" for name in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_teachers_that_do_not_fit(toy: Path, tmp_path: Path) -> None:
    teacher = str(toy / "teacher" / "model")
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS[::-1]]))
    with pytest.raises(UserError, match="has a different vocabulary than the run"):
        pretrain(config(toy, tmp_path / "run", teacher=teacher, tokenizer=tmp_path / "vocab.txt"))
    with pytest.raises(UserError, match=r"layers=9 must be from 1 to the teacher's 4"):
        pretrain(config(toy, tmp_path / "other", teacher=teacher, student_layers=9))
    with pytest.raises(UserError, match="--student-layers takes layers of a --teacher"):
        config(toy, tmp_path, student_layers=2)

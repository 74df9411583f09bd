"""The training benchmark's workloads: what a step of each is, from lengths, texts and checkpoints."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_workloads import TOY, text_file, toy_workload

from fastbert.benchmarks import bench_training
from fastbert.benchmarks.peers.training import split
from fastbert.benchmarks.training import workloads
from fastbert.benchmarks.training.workloads import Sources
from fastbert.errors import UserError

pytestmark = pytest.mark.usefixtures("threads")


@pytest.mark.parametrize("classifies", [pytest.param(False, id="pretraining"), pytest.param(True, id="classes")])
def test_operations_are_those_that_torch_counts(classifies: bool, tmp_path: Path) -> None:
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    workload = toy_workload(classifies, (8, 8))
    workload = replace(workload, config=replace(TOY, num_labels=2))
    bench_training.save_model(tmp_path / "model", workload)
    kind = transformers.BertForSequenceClassification if classifies else transformers.BertForPreTraining
    model = kind.from_pretrained(tmp_path / "model", attn_implementation="eager")
    inputs: dict[str, Any] = {"input_ids": torch.ones(2, 8, dtype=torch.int64)}
    labels = torch.ones(2, dtype=torch.int64)
    inputs |= {"labels": labels} if classifies else {"labels": inputs["input_ids"], "next_sentence_label": labels}
    with FlopCounterMode(display=False) as counted:
        model(**inputs).loss.backward()
    operations = workloads.step_operations(TOY, [8, 8], 0 if classifies else 16)
    # Of a classifier's 16 tokens 14 are not read from the last layer, of which transformers computes them all.
    unread = 14 * 3 * 2 * TOY.hidden_size * (TOY.hidden_size + 2 * TOY.intermediate_size) if classifies else 0
    assert operations + unread == counted.get_total_flops()


def test_lengths_fill_padded_batches_as_much_as_is_said() -> None:
    for shape, share in ((workloads.WIKI_LENGTHS, 0.43), (workloads.SST2_LENGTHS, 0.34)):
        actual = workloads.lognormal_batches(shape, 200, 32, 99)
        lengths = np.array([[len(sequence) for sequence in batch] for batch in actual])
        assert (lengths.mean(1) / lengths.max(1)).mean() == pytest.approx(share, abs=0.03)
        assert shape[2] <= lengths.min() <= lengths.max() <= shape[3]


def test_random_tokens_are_never_padding() -> None:
    for pad in (0, 1, 97):
        [[ids]] = workloads.random_batches(np.array([5000]), 1, 99, pad)
        assert set(ids) == set(range(99)) - {pad}


def test_a_step_of_each_workload_is_said_and_masked() -> None:
    actual = workloads.builders(Sources(quick=True))
    assert list(actual) == ["tiny 4x32", "demo", "wiki-en", "finetune"]
    workload = actual["tiny 4x32"]()
    [batch] = split(workload.arrays)
    assert workload.tokens == 128
    assert "100% full" in workload.note
    masked = batch["masked_positions"]
    assert len(masked) == round(0.15 * 128)
    assert set(batch["input_ids"][masked]) == {workloads.MASK}
    assert workloads.MASK not in batch["labels"]
    assert actual["finetune"]().head == workloads.CLASSIFICATION
    names = list(workloads.builders(Sources()))
    assert names == ["base 32x128", "mini 32x128", "demo", "wiki-en", "finetune"]
    assert list(workloads.builders(Sources(model="small"))) == ["small 32x128", "demo", "wiki-en", "finetune"]


def test_sentences_of_a_text_are_samples(tmp_path: Path, seed: int) -> None:
    path = text_file(tmp_path / "text.txt", seed)
    workload = workloads.builders(Sources(quick=True, text=path))["wiki-en"]()
    assert "sentences of text.txt, a vocabulary learned from it" in workload.note
    batches = split(workload.arrays)
    assert [len(batch["lengths"]) for batch in batches] == [4, 4]
    for batch in batches:
        ids = batch["input_ids"].copy()
        ids[batch["masked_positions"]] = batch["labels"]
        ends = batch["lengths"].cumsum()
        assert len(set(ids[ends - 1])) == len(set(ids[ends - batch["lengths"]])) == 1
        assert len(ids) == ends[-1]
    short = tmp_path / "short.txt"
    short.write_text("One sentence.\n")
    with pytest.raises(UserError, match=r"--text .*short.txt: holds 1 sentences, one per line, but 8 are needed"):
        workloads.builders(Sources(quick=True, text=short))["wiki-en"]()


def test_lengths_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("7\n\n9\n")
    workload = workloads.builders(Sources(quick=True, lengths=path))["finetune"]()
    assert {int(length) for batch in split(workload.arrays) for length in batch["lengths"]} <= {7, 9}
    assert "lengths of lengths.txt" in workload.note


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"7\nx\n", "line 2: 'x' is not a length from 2 to 512", id="word"),
        pytest.param(b"513\n", "line 1: '513' is not a length", id="long"),
        pytest.param(b"1\n", "line 1: '1' is not a length", id="short"),
        pytest.param("\u0663\n".encode(), "is not a length", id="arabic digit"),
        pytest.param(b"\n\n", "holds no length", id="empty"),
        pytest.param(b"\xff\xfe7", "not a text file", id="binary"),
    ],
)
def test_wrong_lengths_name_the_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        workloads.read_lengths(path, 512)


def test_a_checkpoint_is_what_all_start_from(tmp_path: Path) -> None:
    from fastbert import BertForMaskedLM, BertForSequenceClassification

    BertForMaskedLM(TOY).save_pretrained(tmp_path / "checkpoint")
    workload = workloads.builders(Sources(quick=True, checkpoint=tmp_path / "checkpoint"))["finetune"]()
    assert workload.config == TOY
    assert all(batch["input_ids"].max() < TOY.vocab_size for batch in split(workload.arrays))
    saved = bench_training.save_model(tmp_path / "model", replace(workload, checkpoint=tmp_path / "checkpoint"))
    source = BertForMaskedLM.from_pretrained(tmp_path / "checkpoint")
    loaded = BertForSequenceClassification.from_pretrained(saved)
    name = "encoder.layer.1.output.dense.weight"
    assert torch.equal(loaded.bert.state_dict()[name], source.bert.state_dict()[name])
    assert loaded.classifier.weight.shape == (2, 64)

"""Masks, mixtures and batches by tokens in runs: the same steps, whoever computes them and however often they stop."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pretrain_runs import stop_at, weights

from fastbert.data.corpus import Corpus
from fastbert.data.mixing import open_data
from fastbert.data.prepare import prepare
from fastbert.data.shards import TokenShards
from fastbert.errors import UserError
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.training.batches import Phase, PretrainingBatches
from fastbert.training.config import PretrainConfig
from fastbert.training.given_data import given_shards
from fastbert.training.pretrain import pretrain
from fastbert.training.reporter import Reporter
from fastbert.training.schedules import ScheduledValue
from fastbert.training.stopping import Stopped


@pytest.fixture
def folders(config: PretrainConfig, tmp_path: Path) -> tuple[str, str]:
    """Token shards of the corpus and of a quarter of it."""
    tokenizer = load_tokenizer(config.tokenizer)
    documents = list(Corpus.find(config.corpus, text_format="lines").documents())
    return tuple(
        str(prepare(part, tokenizer, tmp_path / name).folder)
        for name, part in (("large", documents), ("small", documents[:10]))
    )  # type: ignore[return-value]


def test_a_run_of_everything_resumes_to_the_same_weights(config: PretrainConfig, folders: tuple[str, str]) -> None:
    config = replace(
        config,
        corpus=(),
        data=folders,
        mix=(1.0, 3.0),
        masking="span",
        static_masks=2,
        mask_schedule="0.4:0.15",
        batch_size=None,
        batch_tokens=300,
        micro_batch=None,
        micro_batch_tokens=150,
        loader_workers=0,
        steps=10,
        eval_every=5,
        checkpoint_every=100,
    )
    messages: list[str] = []
    whole = pretrain(config, Reporter(on_message=messages.append))
    shown = "\n".join(messages)
    assert "large: 25.0% of the samples" in shown
    assert "10 steps" in shown
    assert "of 300 tokens, learning rate" in shown
    lines = [json.loads(line) for line in (config.out / "metrics.jsonl").read_text().splitlines()]
    tokens = [line["tokens"] for line in lines if line["split"] == "train"]
    assert tokens == sorted(tokens)
    assert 10 * (300 - 32) < tokens[-1] <= 10 * 300

    other = replace(config, out=config.out.with_name("stopped"), loader_workers=3)
    with pytest.raises(Stopped):
        pretrain(other, stop_at(4))
    # Later, with another number of threads, from the stored flags alone.
    resumed = pretrain(PretrainConfig(out=other.out, resume=True, loader_workers=2))
    assert resumed.validation.loss == whole.validation.loss
    left, right = weights(whole.folder), weights(resumed.folder)
    assert all(torch.equal(left[name], right[name]) for name in left)
    # The run's data is bound to its order.
    with pytest.raises(UserError, match="holds other token shards than the run began with"):
        pretrain(PretrainConfig(out=other.out, resume=True, data=folders[::-1], steps=12))
    with pytest.raises(UserError, match="--mix has 2 weights for 1 --data"):
        pretrain(PretrainConfig(out=other.out, resume=True, data=folders[:1], steps=12))
    with pytest.raises(UserError, match="--data names 1 corpora, but the run began with 2"):
        given_shards(folders[:1], "a b", config.stream_options, None, Reporter())


def test_steps_are_the_same_for_any_number_of_processes(folders: tuple[str, str]) -> None:
    shards = [TokenShards.open(folder) for folder in folders]
    phases = [
        Phase(end, *(open_data(shards, (1, 1), max_length=length, split=split) for split in ("train", "validation")))
        for end, length in ((0.5, 16), (1.0, 32))
    ]
    batches = PretrainingBatches(
        phases, batch_size=ScheduledValue.parse(4), mask_prob=ScheduledValue.parse("0.4:0.15"), batch_tokens=400
    )
    cursor = batches.start
    for number in range(1, 7):
        spec = batches.spec(number, cursor, (number - 0.5) / 6)
        cursor = spec.after
        data = phases[spec.phase].train
        whole = data.samples(spec.samples, mask_prob=spec.mask_prob)
        assert whole.num_tokens <= 400
        keys = whole.dropout_key.tolist()
        ids = {key: whole[i].input_ids.tolist() for i, key in enumerate(keys)}
        for size in (1, 2, 3, 4):
            parts = [batches.batches(spec, 4, rank, size) for rank in range(size)]
            assert all(batch.num_tokens <= 4 * 16 or len(batch) == 1 for part in parts for batch in part)
            shares = [sum(batch.num_tokens for batch in part) for part in parts]
            assert max(shares) - min(shares) <= data.max_length
            samples = [batch[i] for part in parts for batch in part for i in range(len(batch))]
            assert sorted(int(sample.dropout_key) for sample in samples) == sorted(keys)
            assert all(sample.input_ids.tolist() == ids[int(sample.dropout_key)] for sample in samples)
    # As many steps as an epoch has, to the fraction of the last one.
    lengths, steps, used = phases[0].train.lengths(0), 0, 0
    for length in lengths.tolist():
        steps, used = (steps + 1, length) if used + length > 400 or not used else (steps, used + length)
    assert steps - 1 < batches.steps_per_epoch() <= steps
    assert PretrainingBatches(phases, batch_size=ScheduledValue.parse(4)).steps_per_epoch() == len(lengths) / 4


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"static_masks": 0}, "--static-masks 0 must be from 1 to 1,073,741,824"),
        ({"loader_workers": -1}, "--loader-workers -1 must be from 0 to 256"),
        ({"batch_tokens": 1 << 40}, "--batch-tokens 1099511627776 must be from 1 to"),
        ({"batch_tokens": 100}, "--batch-tokens 100 is less than one sequence of 128 tokens"),
        (
            {"batch_tokens": 400, "length_schedule": "128@0.9,512"},
            "--batch-tokens 400 is less than one sequence of 512",
        ),
        ({"micro_batch_tokens": 100}, "--micro-batch-tokens 100 is less than one sequence of 128 tokens"),
        ({"micro_batch_tokens": 256, "micro_batch": 4}, "--micro-batch and --micro-batch-tokens exclude each other"),
        ({"batch_tokens": 512, "batch_schedule": "4:8"}, "--batch-tokens and --batch-schedule exclude each other"),
        ({"masking": "span", "whole_word": True}, "--whole-word is --masking whole-word, not --masking span"),
        ({"masking": "span", "objective": "ltr", "architecture": "gpt2"}, "--masking is about masked tokens"),
        ({"mix": (1.0,)}, "--mix weighs several --data"),
        ({"corpus": (), "data": ("a", "b"), "mix": (1.0,)}, "--mix has 1 weights for 2 --data; give one for each"),
        ({"corpus": (), "data": ("a", "b"), "mix": (1.0, -1.0)}, "--mix -1 must be above 0 and finite"),
    ],
)
def test_wrong_flags_are_one_line(flags: dict, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        PretrainConfig(**{"corpus": (Path("x"),), **flags})
    assert "\n" not in str(caught.value)


def test_refusals_of_a_start(config: PretrainConfig, folders: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--batch-size and --batch-tokens exclude each other"):
        pretrain(replace(config, batch_tokens=512))
    (tmp_path / "other.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    other = prepare([["a a a a"] * 4] * 8, load_tokenizer(tmp_path / "other.txt"), tmp_path / "other").folder
    with pytest.raises(UserError, match=r"other: was tokenized with a different vocabulary than .*large"):
        pretrain(replace(config, corpus=(), data=(folders[0], str(other))))


def test_one_folder_is_given_as_before(folders: tuple[str, str]) -> None:
    for value in (folders[0], Path(folders[0]), (folders[0],)):
        config = PretrainConfig(data=value)  # type: ignore[arg-type]
        assert config.data == (folders[0],)
    stored = config.to_dict()
    assert PretrainConfig.from_dict(stored) == config
    assert PretrainConfig.from_dict({**stored, "data": folders[0]}) == config  # of a run from before
    assert PretrainConfig.from_dict({**stored, "data": None, "corpus": ["x"]}).data is None


def test_mask_split_is_an_alias() -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    from fastbert.cli.flags import parse

    for words in (
        ["--mask-split", "80/10/10"],
        ["--mask_split=80/10/10"],
        ["--mask-replacement", "80/10/10"],
        ["--mask-replacement", "80", "10", "10"],
        ["--mask-split", "80", "10", "10"],
    ):
        config = parse(PretrainConfig, "pretrain", ["--corpus", "x", *words, "--data-patience", "5"])
        assert config.mask_replacement == (80.0, 10.0, 10.0)
        assert np.allclose(config.replacement_shares, (0.8, 0.1, 0.1))
    for words, message in (
        (["--mask-split", "80/10"], "--mask-replacement 80 10 must be three percentages"),
        (["--mask-split", "80/ten/10"], "--mask-replacement .*: must be numbers"),
        (["--mask-split"], "--mask-replacement: a value is missing"),
    ):
        with pytest.raises(UserError, match=message):
            parse(PretrainConfig, "pretrain", ["--corpus", "x", *words])

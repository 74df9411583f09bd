"""The batches of a run do not depend on the number of processes, nor on that of the threads that prepare them.

Samples, masks, pairs and dropout keys are functions of (seed, epoch, sample, position): whoever computes a sample
computes the same one. `test_kills_of_processes` compares losses.
"""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from torch import Tensor
from torture import restarts
from torture.campaign import Campaign
from torture.scorecard import scored

from fastbert import WordPieceTokenizer
from fastbert.data.corpus import Corpus
from fastbert.data.mixing import MixedData
from fastbert.data.prefetch import Prefetcher
from fastbert.data.prepare import prepare
from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import TokenShards
from fastbert.data.step_samples import share_by_tokens
from fastbert.finetuning import order
from fastbert.packing import PackedBatch
from fastbert.training.batches import Phase, PretrainingBatches
from fastbert.training.schedules import ScheduledValue

WORLDS = (1, 2, 4, 8)
WORKERS = (0, 1, 4, 16)
STEPS = 4


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[TokenShards]:
    """Two sources, prepared by 1, 4 and 16 threads to the same bytes."""
    folder, result = tmp_path_factory.mktemp("elastic"), []
    restarts.write_corpus(folder)
    words = sorted({word.strip(".") for word in (folder / "corpus.txt").read_text().split()})
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *words[:20], *"abcdefghij"])
    documents = (folder / "corpus.txt").read_text().split("\n\n")
    for number, part in enumerate((documents[:25], documents[25:])):
        file = folder / f"part-{number}.txt"
        file.write_text("\n\n".join(part))
        corpus, written = Corpus([file], text_format="lines"), []
        for workers in WORKERS[1:]:
            made = prepare(corpus, tokenizer, folder / f"{number}-{workers}", workers=workers, shard_tokens=1000)
            written.append({path.name: path.read_bytes() for path in made.folder.iterdir()})
        assert written[0] == written[1] == written[2], "shards depend on the number of threads"
        result.append(TokenShards.open(folder / f"{number}-1"))
    return result


@scored(
    row=10,
    unit="configurations",
    short=20,
    full=2000,
    goal="4 steps have the same samples, masks, pairs and dropout keys for 1, 2, 4 and 8 processes with 0, 1, 4 and 16"
    " threads",
)
def test_data_of_any_world(campaign: Campaign, shards: list[TokenShards]) -> None:
    """Objectives, maskings, mixtures, schedules and starts are drawn; each sample is that of one process."""

    def compare(numbers: range) -> dict[str, float]:
        samples = 0
        for number in numbers:
            draw = random.Random(f"elastic data {number}")
            batches, micro_batch = drawn_batches(draw, shards)
            cursor, specs = (draw.randrange(500), draw.randrange(500)), []
            for step in range(1, STEPS + 1):
                specs.append(batches.spec(step, cursor, step / (STEPS + 1)))
                cursor = specs[-1].after
            expected = [rows(batches.batches(spec, micro_batch)) for spec in specs]
            samples += sum(map(len, expected))
            workers = [WORKERS[(number + shift) % 4] for shift in range(4)]
            for world, threads in zip(WORLDS, workers, strict=True):
                found = steps_of(batches, specs, micro_batch, world, threads)
                for step, (one, other) in enumerate(zip(expected, found, strict=True), start=1):
                    message = f"number {number}: step {step} of {world} processes with {threads} threads is another"
                    assert sorted(one) == sorted(other), message
            compare_finetuning(draw, number)
        return {"samples": samples}

    campaign.run(compare)


def drawn_batches(draw: random.Random, shards: list[TokenShards]) -> tuple[PretrainingBatches, int]:
    """Steps of a random recipe in two phases, and the sequences of a micro-batch."""
    objective = draw.choice(("mlm+nsp", "mlm", "mlm+sop", "ltr"))
    recipe: dict[str, Any] = {
        "objective": objective,
        "masking": draw.choice(("token", "whole-word", "span")),
        "mask_prob": draw.choice((0.15, 0.4)),
        "static_masks": draw.choice((None, 2)),
        "short_sequence_prob": draw.choice((0.0, 0.1, 0.5)),
        "seed": draw.randrange(1 << 32),
    }
    mixed, phases = draw.random() < 0.5, []
    for end, length in ((0.5, 16), (1.0, 32)):
        splits = []
        for split in ("train", "validation"):
            sources = [PretrainingData(each, max_length=length, split=split, **recipe) for each in shards]
            splits.append(MixedData(sources, (0.3, 0.7), seed=recipe["seed"]) if mixed else sources[0])
        phases.append(Phase(end, *splits))
    by_tokens = draw.random() < 0.3
    batches = PretrainingBatches(
        phases,
        batch_size=ScheduledValue.parse(draw.choice(("8", "13", "5:12"))),
        mask_prob=ScheduledValue.parse("0.3:0.1") if draw.random() < 0.3 and objective != "ltr" else None,
        batch_tokens=draw.randint(100, 400) if by_tokens else None,
    )
    return batches, draw.randint(1, 5)


def steps_of(
    batches: PretrainingBatches, specs: list[Any], micro_batch: int, world: int, threads: int
) -> list[list[bytes]]:
    """Return the samples of each step, over all processes, each of which prepares its steps ahead."""
    steps: list[list[bytes]] = [[] for _ in specs]
    for rank in range(world):
        load = lambda spec, rank=rank: batches.batches(spec, micro_batch, rank, world)  # noqa: E731
        with Prefetcher(load, workers=threads) as ahead:
            for spec in specs:
                ahead.submit(spec)
            for step in steps:
                step += rows(ahead.result())
    return steps


def rows(micro_batches: list[PackedBatch]) -> list[bytes]:
    """Return all that a batch has of each sequence, as bytes."""
    sequences = [batch[index : index + 1] for batch in micro_batches for index in range(len(batch))]
    return [b"".join(content(sequence)) for sequence in sequences]


def content(sequence: PackedBatch) -> list[bytes]:
    values = [getattr(sequence, each.name) for each in fields(sequence)]
    return [value.numpy().tobytes() for value in values if isinstance(value, Tensor)]


def compare_finetuning(draw: random.Random, number: int) -> None:
    """The shares of a step of fine-tuning hold each of its examples once, with its own key."""
    count, batch_size, seed = draw.randint(1, 60), draw.randint(1, 20), draw.randrange(1 << 32)
    lengths = np.random.default_rng(draw.randrange(1 << 32)).integers(2, 50, count)
    for epoch, units in order.batches(count, batch_size, seed, 0, 6):
        keys = order.dropout_keys(units, seed, epoch)
        expected = dict(zip(units.tolist(), keys.tolist(), strict=True))
        for world in WORLDS:
            shares = [share_by_tokens(lengths[units], rank, world) for rank in range(world)]
            found = [
                (int(unit), int(order.dropout_keys(units[[index]], seed, epoch)[0]))
                for share in shares
                for index, unit in zip(share, units[share], strict=True)
            ]
            assert len(found) == len(expected), f"number {number}: {world} processes share out other examples"
            assert dict(found) == expected, f"number {number}: {world} processes share out other examples"

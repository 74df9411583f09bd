"""Row 20: a run of hours and a hundred thousand calls leave no memory and no handles behind."""

from __future__ import annotations

import json
import logging
import random
import sys
from pathlib import Path

import pytest
from garbage import leave_out_old_objects
from hostile_texts import hostile_texts
from open_files import open_below
from torture.campaign import Campaign
from torture.ledger import Figures
from torture.long_runs import MEGABYTE, Sample, Watch
from torture.scorecard import scored
from toy_tasks import toy_folder

from fastbert import load, load_tokenizer
from fastbert.training.config import PretrainConfig
from fastbert.training.pretrain import pretrain

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# In a process that other tests have used, the system's allocator may grow once.
SHORT_GROWTH = 8.0  # megabytes
PERCENT = 1.0


def assert_flat(figures: Figures, campaign: Campaign) -> None:
    """Fail if memory has grown, by a share of it in a full form, or handles and threads have."""
    assert figures["largest_growth_handles"] <= 0, figures
    assert figures["largest_growth_threads"] <= 0, figures
    if campaign.full:
        assert figures["largest_growth_percent"] < PERCENT, figures
    else:
        assert figures["largest_growth_megabytes"] < SHORT_GROWTH, figures


@scored(row=20, unit="seconds of a run", short=5, full=7_200, chunk=7_200, goal="memory + < 1 %, no handles")
def test_a_long_run_stays_flat(campaign: Campaign, tmp_path: Path) -> None:
    """Pre-training in one process, with validations and with checkpoints that are saved in the background and removed
    again."""
    draw = random.Random(5)
    words = ["".join(draw.choices("abcdefghij", k=4)) for _ in range(300)]
    documents = ["\n".join(" ".join(draw.choices(words, k=9)) + "." for _ in range(12)) for _ in range(400)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(documents) + "\n")
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    (tmp_path / "model.json").write_text(json.dumps({**shape, "vocab_size": 300, "max_position_embeddings": 64}))

    def run(numbers: range) -> Figures:
        config = PretrainConfig(
            corpus=(tmp_path / "corpus.txt",), text_format="lines", model=str(tmp_path / "model.json"), vocab_size=300,
            out=tmp_path / "run", hours=len(numbers) / 3600, batch_size=8, max_length=64, device="cpu",
            eval_samples=16, eval_every=100, checkpoint_every=100, log_every=20, async_save="on", overwrite=True,
        )  # fmt: skip
        leave_out_old_objects()
        with Watch(0.1 + len(numbers) / 1000) as watch:
            pretrain(config)
        assert open_below(tmp_path) == []
        figures = watch.growth()
        assert_flat(figures, campaign)
        lines = (tmp_path / "run" / "steps.jsonl").read_text().splitlines()
        return {**figures, "steps": json.loads(lines[-1])["step"], "samples": len(watch.samples)}

    campaign.run(run)


@scored(row=20, unit="calls", short=600, full=100_000, chunk=25_000, goal="memory + < 1 %, no handles")
def test_many_calls_leave_nothing_behind(campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of any kind tokenized, packed and embedded, one call after the other."""
    folder = toy_folder(tmp_path / "model")
    model, tokenizer = load(folder), load_tokenizer(folder)
    texts = hostile_texts(random.Random(1), 400)
    monkeypatch.setattr(
        logging.getLogger("fastbert"), "disabled", True
    )  # pytest keeps every line about truncated texts

    def call(numbers: range) -> Figures:
        samples = []
        for number in numbers:
            draw = random.Random(f"calls {number}")
            chosen = draw.sample(texts, draw.randint(1, 6))
            tokenizer(chosen, return_offsets_mapping=True, truncation=True, max_length=32)
            model.embed(chosen, tokenizer, pooling="mean", max_length=32)
            if (number - numbers.start) % max(1, len(numbers) // 60) == 0:
                samples.append(Sample.now())
        watch = Watch(0)
        watch.samples = samples
        figures = watch.growth()
        assert_flat(figures, campaign)
        return figures

    campaign.run(call)


def test_what_grows_is_seen() -> None:
    samples = [Sample(100 * MEGABYTE + step * MEGABYTE // 10, 20 + step // 30, 4, float(step)) for step in range(60)]
    watch = Watch(1.0)
    watch.samples = samples
    figures = watch.growth()
    assert figures["largest_growth_percent"] > 2.5
    assert figures["largest_growth_handles"] == 1


def test_a_file_that_is_open_for_a_moment_is_no_growth(tmp_path: Path) -> None:
    watch = Watch(1.0)
    watch.samples = [Sample(100 * MEGABYTE, 20 + (step > 52 or step % 5 == 0), 4, float(step)) for step in range(60)]
    assert watch.growth()["largest_growth_handles"] == 0
    leave_out_old_objects()
    with (tmp_path / "open").open("w"):
        assert open_below(tmp_path) == [str(tmp_path / "open")]
    assert open_below(tmp_path) == []

"""Defaults of pre-training by the sizes of model and corpus, and the verdict on a finished run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastbert.cli import flags
from fastbert.cli.pretrain import complete
from fastbert.config import PRESETS
from fastbert.data.corpus import Corpus
from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig
from fastbert.training import defaults
from fastbert.training.config import PretrainConfig
from fastbert.training.metrics import Metrics
from fastbert.training.verdict import verdict


def test_a_vocabulary_grows_with_its_corpus_up_to_that_of_the_released_models() -> None:
    sizes = [defaults.vocabulary_size(text) for text in (1, 5e6, 1e7, 3e7, 1e11)]
    assert sizes == [2048, 5120, 10240, 29696, 30522]


def test_wide_models_get_the_papers_learning_rate_and_narrow_ones_a_higher_one() -> None:
    rates = {name: defaults.learning_rate(PRESETS[name][1]) for name in PRESETS}
    assert rates == {"tiny": 1e-3, "mini": 9e-4, "small": 2.3e-4, "medium": 2.3e-4, "base": 1e-4, "large": 1e-4}


def test_small_corpora_are_repeated_in_small_batches() -> None:
    assert [defaults.epochs(tokens) for tokens in (10, 1.2e6, 6e6, 1e9)] == [40, 5, 1, 1]
    assert [defaults.batch_size(samples) for samples in (1, 64_000, 300_000, 1e8)] == [32, 32, 128, 256]
    assert [defaults.batch_size_of_steps(steps) for steps in (10, 2_000, 8_000, 1_000_000)] == [32, 32, 128, 256]


def test_only_runs_of_many_epochs_drop() -> None:
    assert [defaults.dropout(epochs, 0.1) for epochs in (0.0, 9.9, 10, 40)] == [0.0, 0.0, 0.1, 0.1]


def test_runs_too_short_for_the_papers_batch_start_from_structured_weights() -> None:
    assert [defaults.starts_structured(size) for size in (32, 128, 256)] == [True, True, False]


@pytest.mark.parametrize("samples", [10_000, 75_000, 1e6, 1e9])
@pytest.mark.parametrize("evaluations", [1, 10, 100])
def test_validation_takes_a_small_share_of_the_time(samples: float, evaluations: int) -> None:
    each = defaults.evaluation_samples(samples, evaluations)
    if each > defaults.LEAST_SAMPLES:
        assert evaluations * each * defaults.FORWARD_COST <= 0.05 * samples
    assert defaults.LEAST_SAMPLES <= each <= defaults.SAMPLES


def test_the_text_of_compressed_files_is_larger_than_they_are(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "a.txt").write_text("word " * 1000)
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.write("word " * 1000)
    corpus = Corpus.find(tmp_path)
    packed = (tmp_path / "b.txt.gz").stat().st_size
    assert (corpus.total_bytes, corpus.text_bytes) == (5000 + packed, 5000 + 4 * packed)


def test_flags_that_are_given_count_on_resume_with_any_value() -> None:
    """Also with their default, from a command line and from Python; those that are left out are the run's own."""
    saved = PretrainConfig(on_spike="rollback", mask_prob=0.3, keep_checkpoints=5, micro_batch=8)
    left_out = PretrainConfig(resume=True).resumed_from(saved)
    assert (left_out.on_spike, left_out.keep_checkpoints, left_out.micro_batch) == ("rollback", 5, 8)
    line = ["--resume", "--on-spike=warn", "--keep-checkpoints", "2", "--micro-batch=4", "--checkpoint-activations"]
    given = complete(flags.parse(PretrainConfig, "pretrain", line, dict), line).resumed_from(saved)
    assert (given.on_spike, given.keep_checkpoints, given.micro_batch) == ("warn", 2, 4)
    assert given.checkpoint_activations
    assert given.mask_prob == 0.3
    with pytest.raises(UserError, match=r"--mask-prob 0\.15 differs from the run being resumed, which has 0\.3"):
        PretrainConfig(resume=True, mask_prob=0.15).marked(["mask_prob"]).resumed_from(saved)
    unset = PretrainConfig(resume=True).marked(["micro_batch", "on_spike"]).resumed_from(saved)
    assert (unset.micro_batch, unset.on_spike) == (8, "warn")  # None leaves it to the run
    tuned = FinetuneConfig(log_every=3)
    assert FinetuneConfig(resume=True).marked(["log_every"]).resumed_from(tuned).log_every == 10
    assert FinetuneConfig(resume=True).resumed_from(tuned).log_every == 3


def test_steps_or_epochs_take_the_place_of_the_other_on_resume() -> None:
    by_epochs = PretrainConfig(epochs=2.0)
    continued = PretrainConfig(steps=10, resume=True).resumed_from(by_epochs)
    assert (continued.steps, continued.epochs) == (10, None)
    back = PretrainConfig(epochs=3.0, resume=True).resumed_from(continued)
    assert (back.steps, back.epochs) == (None, 3.0)
    assert PretrainConfig(resume=True).resumed_from(by_epochs).epochs == 2.0
    both = PretrainConfig(steps=5, epochs=4.0, resume=True).resumed_from(continued)
    assert (both.steps, both.epochs) == (5, 4.0)
    assert PretrainConfig(resume=True).resumed_from(both).epochs == 4.0


@pytest.mark.parametrize(("flags", "steps"), [((7, 1.0), 7), ((99, 1.0), 25), ((None, 0.5), 13), ((60, None), 60)])
def test_a_run_ends_with_its_steps_or_its_epochs_whichever_is_first(
    flags: tuple[int | None, float | None], steps: int
) -> None:
    from fastbert.training.batches import Phase
    from fastbert.training.preparation import budget_of

    data: Any = SimpleNamespace(samples_per_epoch=lambda epoch: 100)
    phases = [Phase(1.0, data, data)]
    assert budget_of(PretrainConfig(steps=flags[0], epochs=flags[1], batch_size=4), phases).steps == steps


def _history(*losses: float, train: float | None = None) -> list[Metrics]:
    return [
        Metrics(
            step=100 * number, split=split, loss=loss, mlm_loss=loss, nsp_loss=None, mlm_accuracy=0.1,
            nsp_accuracy=None, tokens=1, tokens_per_second=1.0, learning_rate=1e-3, seconds=1.0,
        )
        for number, value in enumerate(losses, start=1)
        for split, loss in (("train", value if train is None else train), ("validation", value))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("losses", "train", "lr", "parts"),
    [
        pytest.param((9.0, 8.6), None, 1e-3, ["no better than word frequencies", "--epochs"], id="above"),
        pytest.param((8.0, 6.95), None, 1e-4, ["0.05 nats below", "--lr 0.001", "these 200 steps"], id="low-lr"),
        pytest.param((6.9, 6.5, 6.4, 6.3, 6.2), None, 1e-3, ["0.80 nats below", "still falling"], id="falling"),
        pytest.param((6.9, 6.5, 6.21, 6.2, 6.2), None, 1e-3, ["still falling"], id="falls-little-as-the-lr-ends"),
        pytest.param((6.5, 6.21, 6.2, 6.2, 6.2), None, 1e-3, ["0.80 nats below", "larger --model"], id="converged"),
        pytest.param((6.5, 6.0, 6.1, 6.2), 3.0, 1e-3, ["repeats the training text", "more text"], id="overfitted"),
    ],
)
def test_the_verdict_says_what_to_change(losses: tuple, train: float | None, lr: float, parts: list[str]) -> None:
    said = verdict(_history(*losses, train=train), 7.0, lr=lr, usual_lr=1e-3)
    assert all(part in said for part in parts), said
    assert ("--lr" in said) == (lr < 1e-3)
    assert "--init" not in said


def test_the_verdict_on_a_run_that_diverged() -> None:
    """Lines of metrics.jsonl have null for losses that are not finite."""
    history = [replace(record, mlm_loss=None) if record.step == 200 else record for record in _history(8.0, 6.0, 5.0)]
    assert "still falling" in verdict(history, 7.0, lr=1e-3, usual_lr=1e-3)
    diverged = verdict(history[:4], 7.0, lr=2.0, usual_lr=1e-3)
    assert diverged == "The validation loss is not finite: the training has diverged. Use an --lr below 2."


def test_the_verdict_names_sentence_pairs_at_chance() -> None:
    at_chance, learned = (
        verdict([replace(record, nsp_accuracy=accuracy) for record in _history(6.9, 6.2)], 7.0, lr=1e-3, usual_lr=1e-3)
        for accuracy in (0.51, 0.64)
    )
    assert "Sentence pairs are still at chance (51%)" in at_chance
    assert "Sentence pairs" not in learned
    alone = verdict(_history(6.2), 7.0, lr=1e-3, usual_lr=1e-3)
    assert alone == "The loss is 0.80 nats below word frequencies alone: the model uses context."


def test_the_verdict_names_structured_weights_where_normal_ones_failed() -> None:
    said = verdict(_history(8.0, 6.95), 7.0, lr=1e-4, usual_lr=1e-3, structured=False)
    assert "train longer: --init structured, --lr 0.001, and more --epochs" in said

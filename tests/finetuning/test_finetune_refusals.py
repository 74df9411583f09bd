"""What fine-tuning refuses, in one line: folders, weights, labels, metrics and gradients."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from finetune_runs import config, same, weights, wrong
from safetensors.torch import save_file

from fastbert import WordPieceTokenizer
from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.fit import Fit
from fastbert.finetuning.run import finetune
from fastbert.tasks.examples import Dataset, TextExample
from fastbert.tasks.registry import make_task
from fastbert.tasks.settings import TaskSettings
from fastbert.training import skipped_steps
from fastbert.training.optimizer import AdamW
from fastbert.training.reporter import Reporter
from fastbert.training.stopping import Stopped


def test_a_folder_has_one_run_at_a_time(place: Path, tmp_path: Path) -> None:
    refused: list[str] = []

    def again(record: dict[str, Any], progress: float) -> None:
        for flag in ("resume", "overwrite"):
            refused.append(wrong(place, tmp_path, **{flag: True}))

    finetune(config(place, tmp_path / "run", epochs=(0.1,)), Reporter(on_step=again))
    assert set(refused) == {
        f"{tmp_path / 'run'}: another process is writing there; wait for it to end, or choose another --out"
    }


@pytest.mark.parametrize("flag", ["model", "teacher"])
def test_a_weight_that_is_not_finite_is_named(place: Path, tmp_path: Path, flag: str) -> None:
    first = finetune(config(place, tmp_path / "first", epochs=(0.1,)))
    path = first.model / "model.safetensors"
    tensors = weights(first.model)
    tensors["bert.encoder.layer.1.intermediate.dense.weight"][3, 2] = torch.nan
    save_file(tensors, path, metadata={"format": "pt"})
    for manifest in first.model.glob("*manifest*"):
        manifest.unlink()
    message = wrong(place, tmp_path, **{flag: str(first.model)})
    assert "bert.encoder.layer.1.intermediate.dense.weight holds NaN or infinity" in message
    assert str(first.model) in message


def test_a_label_that_training_never_saw(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_text("label\tsentence\ngood\ta day\nGood\tthe road\nugly\ta river\n")
    message = wrong(place, tmp_path, eval=(path,))
    assert f"{path}, line 3: the label 'Good' is not one of the training set's: bad, good" in message
    assert "did you mean 'good'?" in message
    assert "2 such examples" in message


def test_one_label_is_nothing_to_learn(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("label\tsentence\ngood\ta day\ngood\tthe road\n")
    assert "all 2 examples have the label 'good'" in wrong(place, tmp_path, train=path)


def test_pairs_and_single_texts_mixed(place: Path) -> None:
    one = TextExample(id="0", location="line 2", text="a day", label="x")
    dataset = Dataset("mixed.jsonl", (one, replace(one, location="line 3", pair="a river")))
    task = make_task("classification", TaskSettings())
    with pytest.raises(UserError, match=r"mixed\.jsonl, line 3: is a pair, but the file begins with a single text"):
        task.encode(dataset, WordPieceTokenizer.from_pretrained(place / "model"), labelled=False)


def test_longer_than_the_models_positions(place: Path, tmp_path: Path) -> None:
    assert "--max-length 65 is more than the 64 positions" in wrong(place, tmp_path, max_length=65)


def test_too_few_examples_to_hold_some_out(place: Path, tmp_path: Path) -> None:
    assert "--validation-fraction 0.001: of 192 examples" in wrong(place, tmp_path, eval=(), validation_fraction=0.001)


def test_a_metric_of_another_task(place: Path, tmp_path: Path) -> None:
    assert "--metric pearson: classification has accuracy" in wrong(place, tmp_path, metric="pearson")


def test_a_metric_that_is_not_defined(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_text("label\tsentence\ngood\ta day\ngood\tthe road\n")
    message = wrong(place, tmp_path, metric="matthews", eval=(path,), epochs=(0.1,))
    assert f"--metric matthews: is undefined on {path}" in message


def test_a_gradient_that_is_not_finite(place: Path, tmp_path: Path) -> None:
    message = wrong(place, tmp_path, lr=(1e30,), warmup=0.0)
    assert "the gradient is not a finite number" in message
    assert "use an --lr below 1e+30" in message


def test_a_run_that_failed_does_not_block_the_corrected_command(place: Path, tmp_path: Path) -> None:
    assert "is not a finite number" in wrong(place, tmp_path, lr=(1e30,), warmup=0.0)
    assert (tmp_path / "run" / "config.json").exists()
    assert finetune(config(place, tmp_path / "run", epochs=(0.1,))).model.is_dir()


def test_nothing_to_resume_is_said_first(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run to resume"):
        finetune(FinetuneConfig(out=tmp_path / "none", resume=True))


def test_a_folder_that_holds_a_run(place: Path, tmp_path: Path) -> None:
    finetune(config(place, tmp_path / "run", epochs=(0.1,)))
    assert "already holds a run" in wrong(place, tmp_path)
    notes = tmp_path / "run" / "reports" / "dev.tsv" / "notes.txt"
    notes.write_text("in a folder of the run")
    result = finetune(config(place, tmp_path / "run", epochs=(0.2,), overwrite=True))
    assert result.best.epochs == 0.2
    assert (notes.parent / "errors.tsv").is_file()
    assert not notes.exists()


def test_overwriting_spares_other_folders(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text('{"mine": true}')
    assert "holds no fine-tuning run" in wrong(place, tmp_path, overwrite=True)
    assert (folder / "config.json").read_text() == '{"mine": true}'


def test_a_run_is_not_trained_from_the_model_that_it_removes(place: Path, tmp_path: Path) -> None:
    finetune(config(place, tmp_path / "run", epochs=(0.1,)))
    message = wrong(place, tmp_path, model=str(tmp_path / "run" / "model"), overwrite=True)
    assert "belongs to the run that --overwrite removes" in message


def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the steps of a GPU: launched, and reported after the next."""
    init = Fit.__init__

    def launching(self: Fit, *arguments: Any) -> None:
        init(self, *arguments)
        self.launches = True

    monkeypatch.setattr(Fit, "__init__", launching)


def test_launched_steps_report_the_same_one_step_later(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, reported = [], []
    for kind in ("ordinary", "launched"):
        steps: list[tuple[int, float]] = []
        if kind == "launched":
            launched(monkeypatch)
        finetune(
            config(place, tmp_path / kind, epochs=(1.0,), max_grad_norm=1e6),  # nothing is clipped, in any order
            Reporter(on_step=lambda record, _, steps=steps: steps.append((record["step"], record["loss"]))),
        )
        runs.append(weights(tmp_path / kind / "model"))
        reported.append(steps)
    assert reported[0] == reported[1]
    assert same(*runs)


def test_a_launched_step_without_finite_gradient_changes_nothing_and_is_named(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch)
    before: list[list[torch.Tensor]] = []
    clip = Fit._clip

    def broken(self: Fit, loss: torch.Tensor) -> torch.Tensor:
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        if self.progress.step >= 1:
            parameters[0].grad.fill_(torch.nan)
            before.append([p.detach().clone() for p in parameters])
        if self.progress.step >= 2:
            assert all(map(torch.equal, *before[:2]))
        return clip(self, loss)

    monkeypatch.setattr(Fit, "_clip", broken)
    assert "step 2: the gradient is not a finite number (loss 0." in wrong(place, tmp_path)
    assert len(before) == 2, "it was read after the next step had been launched"


def test_steps_without_finite_gradient_are_skipped_and_counted_in_fp16(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scale of the loss makes them ordinary, a row of them does not."""
    launched(monkeypatch)
    monkeypatch.setattr(AdamW, "flatten_if_faster", lambda *arguments: None)
    init, clip, overflowing = Fit.__init__, Fit._clip, {1, 4, 5, 12}

    def scaled(self: Fit, *arguments: Any) -> None:
        init(self, *arguments)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

    def overflow(self: Fit, loss: torch.Tensor) -> torch.Tensor:
        if self.progress.step + 1 in overflowing:
            next(p for p in self.model.parameters() if p.grad is not None).grad.fill_(torch.inf)
        return clip(self, loss)

    monkeypatch.setattr(Fit, "__init__", scaled)
    monkeypatch.setattr(Fit, "_clip", overflow)
    flags = {"steps": 12, "log_every": 1, "checkpoint_every": 5}
    run = config(place, tmp_path / "run", **flags)

    def stop(record: dict[str, Any], progress: float) -> None:
        if record["step"] == 7:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped):
        finetune(run, Reporter(on_step=stop))
    finetune(replace(run, resume=True))
    records = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    counts = {line["step"]: line.get("skipped_steps", 0) for line in records if line["split"] == "train"}
    assert counts == {2: 1, 3: 1, 6: 3, 7: 3, 8: 3, 9: 3, 10: 3, 11: 3}
    assert all(tensor.isfinite().all() for tensor in weights(run.out / "model").values())

    monkeypatch.setattr(skipped_steps, "MOST_IN_A_ROW", 4)
    overflowing |= {6, 7}
    message = wrong(place, tmp_path / "other", **flags)
    assert "step 7: the gradients of 4 steps in a row were not finite numbers; use an --lr below 0.01" in message


def test_a_lack_of_memory_names_the_micro_batch(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(Fit, "_backward", full)
    message = wrong(place, tmp_path)
    assert message.endswith("(2.00 GiB asked for); use --micro-batch 8 (now 16) or --checkpoint-activations")

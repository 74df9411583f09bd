"""All files and folders of a run have the mode that the user's umask gives to any new one."""

import os
from pathlib import Path

import pytest
from finetune_runs import config

from fastbert.finetuning.run import finetune
from fastbert.training.reporter import Reporter


@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_a_run_has_the_modes_of_its_neighbours(mask: int, place: Path, tmp_path: Path) -> None:
    modes: dict[Path, int] = {}

    def look(*_: object) -> None:
        """Checkpoints and best models are removed at the end of the run."""
        for path in tmp_path.rglob("*"):
            modes[path] = path.stat().st_mode & 0o777 | (0o1000 if path.is_dir() else 0)

    before = os.umask(mask)
    try:
        flags = {"epochs": (1.0,), "checkpoint_every": 4, "eval_every": 4, "store_delta": True}
        finetune(config(place, tmp_path / "run", **flags), Reporter(on_step=look))
    finally:
        os.umask(before)
    look()
    seen = {path.name for path in modes}
    assert {"checkpoints", "state.json", "optimizer.safetensors", "model.safetensors", "model.delta"} <= seen
    assert {path: oct(mode) for path, mode in modes.items() if mode not in (0o1777 & ~mask, 0o666 & ~mask)} == {}

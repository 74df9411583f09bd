"""The target of the speed run: what a pre-trained model reaches, by fastbert's own commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fastbert.benchmarks.speedrun.data import SpeedrunData
from fastbert.errors import UserError

PAIRS = 200  # of each of BLiMP's 67 paradigms, the first ones
METRICS = {"sst2": "accuracy", "stsb": "spearman"}
FINETUNING = {
    "sst2": ("--task=classification", "--epochs=1", "--batch-size=32"),
    "stsb": ("--task=regression", "--epochs=3", "--batch-size=32"),
}
AT_ONCE = 2  # commands, of one thread each


def evaluate(model: Path, data: SpeedrunData, folder: Path, *, seed: int, seeds: int, device: str) -> dict[str, Any]:
    """Return the scores of a pre-trained model; the commands' own results are kept in `folder`.

    Masked LM is scored on the whole held-out text, in samples of 128 tokens with 15 % masked; the task sets are
    fine-tuned on with `seeds` seeds from `seed` on, and scored on their dev sets. Scores that `folder` holds are not
    computed again."""
    folder.mkdir(parents=True, exist_ok=True)
    held_out, blimp = folder / "held-out.json", folder / "blimp" / "results.json"
    commands: list[tuple[str, ...]] = []  # the longest first
    for name, (train, dev) in data.tasks.items():
        finetuning = f"--model={model}", f"--train={train}", f"--eval={dev}", f"--out={folder / name}"
        commands.append(("finetune", *finetuning, *FINETUNING[name], f"--seed={seed}", f"--seeds={seeds}", "--resume"))
    if not blimp.is_file():
        scoring = f"--model={model}", f"--data={data.blimp}", f"--out={blimp.parent}", "--overwrite"
        commands.append(("evaluate", "--task=blimp", *scoring, f"--limit={PAIRS}"))
    if not held_out.is_file():
        commands.append(("evaluate", "--task=mlm", f"--model={model}", f"--data={data.held_out}", f"--json={held_out}"))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda words: _fastbert(*words, f"--device={device}"), commands))
    mlm, pairs = _read(held_out), _read(blimp)
    scores: dict[str, Any] = {
        "mlm_loss": mlm["loss"],
        "mlm_accuracy": mlm["accuracy"],
        "blimp": pairs["overall"],
        "blimp_phenomena": pairs["phenomena"],
    }
    for name, (_, dev) in data.tasks.items():
        score = _read(folder / name / "results.json")["results"][dev.name][METRICS[name]]
        scores[name] = score["mean"]
        scores[f"{name}_seeds"] = score["per_seed"]
    return scores


def _fastbert(*words: str) -> None:
    """Run a command. Raises `UserError` with its last line if it fails."""
    command = [sys.executable, "-P", "-m", "fastbert", *words, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise UserError(f"fastbert {' '.join(words)} ended with code {done.returncode}: {_last(done.stderr)}")


def _last(text: str) -> str:
    lines: Sequence[str] = text.strip().splitlines() or ["no output"]
    return lines[-1]


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values

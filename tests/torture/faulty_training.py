"""Toy runs of pre-training and fine-tuning for failing disks: few calls, two checkpoints, and what they leave."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from torture.disk_faults import Call, FaultyCommands, Op
from torture.faulty_commands import Corpora, Files, empty
from toy_tasks import VOCABULARY, sentiment

from fastbert.training import checkpoint
from fastbert.training.metrics import MEASURED

_STEP = re.compile(r"(/.*)/step-(\d+)")
_LEFT = ("model/config.json", "model/model.safetensors", "model/vocab.txt", "metrics.jsonl", "results.json")
_CLOCKS = re.compile(rb'"(%s)": [^,}\n]+' % "|".join((*MEASURED, "sha256")).encode())
_COMMON = [
    "--batch-size", "4", "--max-length", "16", "--lr", "3e-3", "--dtype", "fp32", "--device", "cpu", "--log-every", "2",
    "--checkpoint-every", "2", "--resume", "--quiet",
]  # fmt: skip


@dataclass
class Run:
    """A training command, the calls of an undisturbed run of it, and the files that it left for its user."""

    commands: FaultyCommands
    arguments: list[str]
    calls: list[Call]
    left: Files

    @property
    def out(self) -> Path:
        return self.commands.watched / "run"

    def restart(self, where: str) -> None:
        """Repeat the command, undisturbed. Raises AssertionError for other files than those of an undisturbed run."""
        result = self.commands.run(self.arguments)
        assert result.code == 0, f"{where}: the restarted run failed: {result.errors}"
        files = left(self.out)
        different = sorted(name for name in files.keys() | self.left.keys() if files.get(name) != self.left.get(name))
        assert not different, f"{where}: the restarted run left other {', '.join(different)}"

    def assert_checkpoint(self, calls: list[Call], where: str) -> None:
        """Assert that the newest checkpoint that was durable after these calls loads, or a newer one."""
        for folder, least in durable_checkpoints(calls).items():
            loaded = checkpoint.load_last(Path(folder))
            step = None if loaded is None else checkpoint.step_of(loaded.folder)
            assert step is not None, f"{where}: no checkpoint loads, but that of step {least} was written"
            assert step >= least, f"{where}: the newest that loads is of step {step}, but that of {least} was written"


def durable_checkpoints(calls: list[Call]) -> dict[str, int]:
    """Return the newest checkpoint of each folder that is durable after these calls, and is not being removed."""
    named, durable = dict[str, int](), dict[str, int]()
    for call in calls:
        if call.op == Op.RENAME and call.first in durable:  # the folder of checkpoints of a trial that is done
            del durable[call.first], named[call.first]
        removed = _STEP.search(call.first) if call.op in (Op.RENAME, Op.UNLINK, Op.RMDIR) else None
        if removed and durable.get(removed[1]) == int(removed[2]):
            del durable[removed[1]], named[removed[1]]
        if call.result < 0:
            continue
        if call.op == Op.RENAME and (added := _STEP.fullmatch(call.second)):
            named[added[1]] = int(added[2])
        elif call.op == Op.FSYNC and call.first in named:
            durable[call.first] = named[call.first]
    return durable


def left(run: Path) -> Files:
    """Return what a run leaves for its user, without what a clock measured."""
    files = [run / name for name in _LEFT if (run / name).exists()]
    files += sorted(
        path for folder in ("predictions", "reports") for path in (run / folder).rglob("*") if path.is_file()
    )
    return {str(path.relative_to(run)): _CLOCKS.sub(b"", path.read_bytes()) for path in files}


def undisturbed(commands: FaultyCommands, kind: str, inputs: Corpora, folder: Path) -> Run:
    """Run a training of a kind, "pretrain" or "finetune", whose saves are in the background if it ends in "async"."""
    name, _, asynchronous = kind.partition("-")
    folder.mkdir(exist_ok=True)
    if name == "pretrain":
        shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
        config = {**shape, "vocab_size": len(VOCABULARY), "max_position_embeddings": 16}
        (folder / "model.json").write_text(json.dumps(config))
        special = [
            "--corpus", str(inputs.corpora[0]), "--text-format", "lines", "--model", str(folder / "model.json"),
            "--tokenizer", str(inputs.models[0]), "--steps", "4", "--eval-every", "4", "--eval-samples", "4",
        ]  # fmt: skip
    else:
        train, dev = sentiment(folder / "train.tsv", 8, seed=1), sentiment(folder / "dev.tsv", 4, seed=2)
        special = [
            "--task", "classification", "--model", str(inputs.models[0]), "--train", str(train), "--eval", str(dev),
            "--seeds", "1", "--epochs", "2", "--eval-every", "4",
        ]  # fmt: skip
    saving = ["--async-save", "on" if asynchronous else "off"]
    arguments = [name, *special, *_COMMON, *saving, "--out", str(commands.watched / "run")]
    empty(commands.watched)
    result = commands.run(arguments)
    assert result.code == 0, result.errors
    run = Run(commands, arguments, result.calls, left(commands.watched / "run"))
    assert len(run.left) >= 3
    seen = [durable_checkpoints(run.calls[:end]) for end in range(len(run.calls))]
    assert any(seen), "no checkpoint was durable at any time"
    return run

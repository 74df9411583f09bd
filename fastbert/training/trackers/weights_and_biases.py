"""A run of Weights & Biases, online or offline as WANDB_MODE says."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping

from fastbert.errors import UserError
from fastbert.training.trackers.tracker import PROJECT, TrackedRun, Tracker


class WeightsAndBiases(Tracker):
    """A run in the project WANDB_PROJECT; a resumed run has the same id, so its curves continue."""

    name = "wandb"

    def __init__(self, run: TrackedRun, identity: str | None) -> None:
        """`identity` is the id of the run to continue. Raises `UserError` without a key, which would be asked for."""
        import wandb

        offline = os.environ.get("WANDB_MODE", "online").lower() != "online"
        settings = wandb.Settings(console="off", silent=True)
        try:
            has_key = offline or wandb.Api().api_key is not None
        except wandb.errors.UsageError:
            has_key = False
        if not has_key:
            raise UserError("no API key: run `wandb login`, or set WANDB_MODE=offline")
        self.continues: bool = identity is not None
        self.identity: str = identity or secrets.token_hex(8)
        run.folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=os.environ.get("WANDB_NAME") or run.name,
            group=os.environ.get("WANDB_RUN_GROUP") or run.group or None,
            dir=str(run.folder),
            id=self.identity,
            resume="allow",
            reinit="create_new",
            config=dict(run.settings),
            settings=settings,
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)

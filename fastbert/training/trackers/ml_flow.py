"""A run of MLflow, on the server of MLFLOW_TRACKING_URI or in a database in the run's folder."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping

from fastbert.training.trackers.tracker import PROJECT, TrackedRun, Tracker

_LONGEST_VALUE = 500  # characters of a parameter that every server takes
_BATCH = 100  # parameters per call


class MLflow(Tracker):
    """A run in the experiment MLFLOW_EXPERIMENT_NAME; a resumed run continues it by its id."""

    name = "mlflow"

    def __init__(self, run: TrackedRun, identity: str | None) -> None:
        """`identity` is that of the run to continue: its id and, behind a space, the server or database."""
        # A server that does not answer would hold the run up for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        for noisy in ("alembic", "mlflow"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            run.folder.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{run.folder.absolute() / 'mlflow.db'}"
        self._client = MlflowClient(tracking_uri=uri)
        before, _, where = (identity or "").partition(" ")
        self.continues: bool = identity is not None and where == uri
        if self.continues:
            self._id = before
            self.identity: str = str(identity)
            self._client.update_run(before, status="RUNNING")
            return
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        known = self._client.get_experiment_by_name(experiment)
        artifacts = None if os.environ.get("MLFLOW_TRACKING_URI") else (run.folder.absolute() / "mlflow").as_uri()
        number = known.experiment_id if known else self._client.create_experiment(experiment, artifacts)
        tags = {"group": run.group} if run.group else {}
        self._id = self._client.create_run(number, run_name=run.name, tags=tags).info.run_id
        self.identity = f"{self._id} {uri}"
        params = [Param(_name(key), str(value)[:_LONGEST_VALUE]) for key, value in run.settings.items()]
        for begin in range(0, len(params), _BATCH):
            self._client.log_batch(self._id, params=params[begin : begin + _BATCH])

    def log(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(_name(name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self, *, finished: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")


def _name(text: str) -> str:
    """Return a name of the characters that MLflow accepts."""
    return re.sub(r"[^\w\-. /]", "_", text, flags=re.ASCII)[:250]

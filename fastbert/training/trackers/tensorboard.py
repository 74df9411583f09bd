"""Event files for TensorBoard: scalars, and the run's settings as its hyper-parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping

from fastbert.training.trackers.tracker import TrackedRun, Tracker


class TensorBoard(Tracker):
    """Event files in `FOLDER/tensorboard/NAME`; each line is flushed, so that a killed run loses none.

    A resumed run writes a new file whose first event makes TensorBoard forget what follows the step at which the run
    continues.
    """

    name = "tensorboard"
    rewrites = True

    def __init__(self, run: TrackedRun, identity: str | None) -> None:
        """`identity` is the folder of the event files of an earlier start, None without one."""
        from torch.utils.tensorboard.writer import SummaryWriter

        where = run.folder / "tensorboard" / (run.group or run.name)
        folder = (where / run.name if run.group else where).absolute()
        self.identity: str = str(folder)
        self.continues: bool = identity == str(folder)
        # Where these are new, files of an earlier run of this name are forgotten whole.
        purge = run.step + 1 if self.continues else 0
        self._writer = SummaryWriter(str(folder), purge_step=purge, max_queue=1000, flush_secs=10)
        if run.settings and not self.continues:
            self._write_settings(run.settings)

    def _write_settings(self, settings: Mapping[str, bool | int | float | str]) -> None:
        from torch.utils.tensorboard.summary import hparams

        for summary in hparams(dict(settings), {"validation/loss": 0.0}):
            self._writer._get_file_writer().add_summary(summary)
        rows = [f"| {_cell(name)} | {_cell(json.dumps(value))} |" for name, value in settings.items()]
        self._writer.add_text("settings", "\n".join(["| setting | value |", "| --- | --- |", *rows]), 0)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, *, finished: bool) -> None:
        self._writer.close()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

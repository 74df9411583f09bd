"""The model that a fitted classifier holds: a folder of its own, which pickles and copies carry as bytes."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from fastbert.errors import CheckpointError, UserError
from fastbert.io.untrusted_input import is_plain_name, shown
from fastbert.tasks.classifier import Classifier
from fastbert.tasks.inference import Device, Dtype

FORMAT = 1


class TrainedModel:
    """A model's folder below the system's folder of temporary files, which is removed with the object."""

    def __init__(self) -> None:
        """Make an empty folder. Raises UserError if there is no room for one."""
        try:
            self.home: Path = Path(tempfile.mkdtemp(prefix="fastbert-"))
        except OSError as error:
            raise UserError(f"TMPDIR: no folder for the model could be made ({error}); name another") from None
        self._loaded: tuple[tuple[Device | None, Dtype], Classifier] | None = None
        weakref.finalize(self, _remove, self.home, os.getpid())

    @property
    def folder(self) -> Path:
        """The folder with the model's files."""
        return self.home / "model"

    def classifier(self, device: Device | None, dtype: Dtype) -> Classifier:
        """Return the model on a device, loaded once. Raises the errors of `Classifier`."""
        if self._loaded is None or self._loaded[0] != (device, dtype):
            self._loaded = (device, dtype), Classifier(self.folder, device=device, dtype=dtype)
        return self._loaded[1]

    def save(self, folder: Path) -> None:
        """Copy the model's files to a folder that is empty or new. Raises UserError for any other."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder}: exists and is not an empty folder; name a new one")
        try:
            shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder}: the model could not be written ({error})") from None

    def __getstate__(self) -> dict[str, Any]:
        files = {path.name: path.read_bytes() for path in sorted(self.folder.iterdir()) if path.is_file()}
        return {"format": FORMAT, "files": files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            raise CheckpointError("the pickled model has an unknown format: fit it again, or update fastbert")
        files = state.get("files")
        if not isinstance(files, dict):
            raise CheckpointError("the pickled model is damaged: it holds no files; fit it again")
        for name, content in files.items():
            if not isinstance(name, str) or not is_plain_name(name) or not isinstance(content, bytes):
                raise CheckpointError(f"the pickled model is damaged: {shown(name)} is not a file of it; fit it again")
        TrainedModel.__init__(self)
        self.folder.mkdir()
        for name, content in files.items():  # which are verified when they are loaded
            (self.folder / name).write_bytes(content)


def _remove(home: Path, process: int) -> None:
    if os.getpid() == process:  # a process that was forked shares the folder
        shutil.rmtree(home, ignore_errors=True)

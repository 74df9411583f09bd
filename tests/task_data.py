"""The task files of the optional data folder, unpacked one at a time."""

import tarfile
from pathlib import Path

import pytest


def task_file(data_dir: Path, archive: str, name: str, folder: Path) -> str:
    """A file of `finetune/ARCHIVE.tar.xz`, unpacked into `folder`; without the archive the test is skipped."""
    path = data_dir / "finetune" / f"{archive}.tar.xz"
    if not path.is_file():
        pytest.skip(f"needs the optional {path}")
    with tarfile.open(path) as files:
        results = [member for member in files.getmembers() if Path(member.name).name == name]
        content = files.extractfile(results[0])
        assert content is not None
        target = folder / name
        target.write_bytes(content.read())
    return str(target)

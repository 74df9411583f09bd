"""Find models of the Hugging Face Hub in its local cache. Nothing is downloaded, so HF_HUB_OFFLINE always holds."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fastbert.errors import CheckpointError, UserError

MAIN = "main"
_ID = re.compile(r"[\w](?:[\w.-]{0,94}[\w])?(?:/[\w](?:[\w.-]{0,94}[\w])?)?", re.ASCII)
_REVISION = re.compile(r"[\w](?:[\w.-]*[\w])?(?:/[\w](?:[\w.-]*[\w])?)*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


def cache_folder() -> Path:
    """Return the folder of the Hub's cache, from the same environment variables as huggingface_hub."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return _expanded(os.environ[name])
    if os.environ.get("HF_HOME"):
        return _expanded(os.environ["HF_HOME"]) / "hub"
    return _expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(path)))


def is_id(text: str) -> bool:
    """Return whether a text is a valid model id of the Hub: `bert-base-uncased`, `org/name`."""
    return _ID.fullmatch(text) is not None and ".." not in text and "--" not in text


def find_snapshot(name: str, revision: str = MAIN) -> Path:
    """Return the folder of a model in the cache; `revision` is a branch, a tag or a commit.

    Raises `UserError` with the download command if the model is missing.
    """
    if not isinstance(revision, str) or not _REVISION.fullmatch(revision) or ".." in revision:
        raise UserError(f"revision={revision!r} is not a branch, a tag or a commit")
    cache = cache_folder()
    model = cache / f"models--{name.replace('/', '--')}"
    commit = revision if _COMMIT.fullmatch(revision) else _commit_of(model, revision)
    snapshot = model / "snapshots" / (commit or "")
    if commit is None or not snapshot.is_dir():
        flag = "" if revision == MAIN else f" --revision {revision}"
        raise UserError(
            f"{name}: no such folder, and no model of that name{f' at {revision}' if flag else ''} in the Hub's cache"
            f" {cache}; nothing is downloaded: fetch it with `hf download {name}{flag}`, or name a folder"
        )
    return snapshot


def _commit_of(model: Path, revision: str) -> str | None:
    """Return the commit of a branch or a tag in the cache."""
    file = model / "refs" / revision
    if not file.is_file() or file.stat().st_size > 100:
        return None
    commit = file.read_text(encoding="ascii", errors="replace").strip()
    if not _COMMIT.fullmatch(commit):
        raise CheckpointError(f"{file}: does not hold a commit; fetch the model again")
    return commit

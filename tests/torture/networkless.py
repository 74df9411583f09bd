"""Import every module, ask every command for help, and load, embed, search, prepare and train, without a network.

python -P -m torture.networkless FOLDER [training]      print what was done, as JSON; a socket is an error

Without `training` runs are left out, which torture.hostile_sandbox makes under the same hook.

An audit hook refuses them in Python. It does not see sockets that torch's gloo and TCPStore open in C++: they join
several processes, which this does not start.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REFUSED = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "urllib.Request", "ftplib.connect")
ADDRESSED = ("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg")


class Network:
    """Records, and refuses, what reaches for a network."""

    def __init__(self) -> None:
        self.doing = "start"
        self.reached: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        inner = event in ADDRESSED and isinstance(arguments[1], tuple)  # a string is a socket of this machine's files
        if event in REFUSED or inner:
            self.reached.append(f"{self.doing}: {event} {arguments!r}"[:300])
            raise PermissionError(f"{event} without a network")


def modules() -> Iterator[str]:
    """Yield all modules but those that begin something when they are imported."""
    import fastbert

    for found in pkgutil.walk_packages(fastbert.__path__, "fastbert."):
        if not found.name.endswith("__main__"):
            yield found.name


def main(root: Path, *, training: bool) -> None:
    network, done, missing = Network(), [], []
    sys.addaudithook(network)
    # As users have it, not as the tests do.
    os.environ.pop("HF_HUB_OFFLINE", None)
    os.environ["HF_HOME"] = str(root / "hub")
    for name in modules():
        network.doing = f"import {name}"
        try:
            importlib.import_module(name)
            done.append(network.doing)
        except ImportError as error:
            if (error.name or "fastbert").startswith("fastbert"):
                raise
            missing.append(name)  # of a package that is not installed
    from fastbert import cli

    for command in ("", *cli.COMMANDS, "doctor"):
        network.doing = f"fastbert {command}" if command == "doctor" else f"fastbert {command} --help"
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            cli.main(network.doing.split()[1:])
        done.append(network.doing)
    for what in work(root, training=training):
        network.doing = what
        done.append(what)
    assert not network.reached, "\n".join(network.reached[:20])
    print(
        json.dumps({"done": len(done), "modules": sum(what.startswith("import ") for what in done), "missing": missing})
    )


def work(root: Path, *, training: bool) -> Iterator[str]:
    """Do what users do with files of their own; yield its name before each."""
    from torture import stored_folders

    from fastbert import WordPieceTokenizer
    from fastbert.embeddings.folder import load_embedder
    from fastbert.errors import UserError
    from fastbert.models import registry
    from fastbert.search.index import Index

    if training:
        yield "pretrain"
        stored_folders.pretraining_run(root / "pretraining", 0)
        yield "finetune"
        stored_folders.finetuning_run(root / "finetuning", 0)
    yield "load, embed and search"
    folder = stored_folders.embedder(root / "embedder", 0)
    registry.load(folder)
    model, tokenizer, _ = load_embedder(folder)
    assert model.embed(["a house"], tokenizer).isfinite().all()
    with Index.build(root / "index", ["a house", "the river"], folder, device="cpu") as index:
        assert index.query("a house")
    yield "prepare"
    stored_folders.shards(root / "shards", 0)
    yield "models in the Hub's cache"
    for load in (registry.load, load_embedder, WordPieceTokenizer.from_pretrained):
        try:
            load("organisation/model-that-is-not-there")
        except UserError:
            continue
        raise AssertionError(f"{load} loaded a model that is not there")


if __name__ == "__main__":
    main(Path(sys.argv[1]), training="training" in sys.argv[2:])

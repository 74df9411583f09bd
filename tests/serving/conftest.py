"""One server for the tests of a worker, with a toy of every kind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs fastapi: pip install 'fastbert-engine[serve]'")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from served_models import toy_folders

    return toy_folders(tmp_path_factory.mktemp("served"), 0)


@pytest.fixture(scope="session")
def server(folders: dict[str, Path]) -> Iterator[tuple[str, Any]]:
    """The address of a server with all toys in fp32, and its context."""
    from served_models import sources

    from fastbert.serving.config import ServeConfig
    from fastbert.serving.server import running

    config = ServeConfig(port=0, dtype="fp32", log="none", max_texts=64, max_body_bytes=200_000)
    with running(sources(folders), config) as served:
        yield served

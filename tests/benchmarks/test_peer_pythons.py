"""Contenders with an environment of their own: what --peer-python refuses, and a process without torch and fastbert."""

import io
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fastbert.benchmarks.bench_embed import Options as EmbedOptions
from fastbert.benchmarks.bench_encoder import Options
from fastbert.benchmarks.cpu import lineup, peak, peer_pythons, report
from fastbert.benchmarks.cpu.embed_contender import EmbedLineup, TextWorkload, text_arrays
from fastbert.benchmarks.cpu.lineup import Result
from fastbert.benchmarks.harness import isolation
from fastbert.errors import UserError

# An engine whose vectors are lengths of texts, and which fails as the first text says.
INFINITY = """
import os
from concurrent.futures import Future
import numpy as np
class EngineArgs:
    def __init__(self, **options):
        self.options = options
class SyncEngineArray:
    @classmethod
    def from_args(cls, arguments):
        assert arguments[0].options["dtype"] == "float32"
        return cls()
    def embed(self, *, model, sentences):
        if sentences[0] == "die":
            os.kill(os.getpid(), 9)
        if sentences[0] == "crash":
            os.kill(os.getpid(), 4)
        if sentences[0] == "grow":
            np.zeros(1 << 50)
        future = Future()
        future.set_result(([np.full(4, len(text), np.float32) for text in sentences], 0))
        return future
"""
LOGS = "import logging\nlogger = logging.getLogger('infinity')\n"
INFINITE = "infinity torch fp32 by 32"


def environment(folder: Path, *packages: str) -> Path:
    """Write a Python that finds numpy and empty packages, and nothing else that is installed here."""
    site = folder / "site"
    site.mkdir(parents=True)
    installed = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (installed / name).exists():
            (site / name).symlink_to(installed / name)
    for package in packages:
        (site / package).mkdir()
        (site / package / "__init__.py").write_text("")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{site}" exec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    return python


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("bare"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("ctranslate2", "'ctranslate2' must be NAME=PATH, such as zentorch=environment/bin/python"),
        ("=python", "'=python' must be NAME=PATH"),
        ("ctranslate=python", r"is called ctranslate \(did you mean ctranslate2\?\); there are transformers"),
        ("fastbert=python", "fastbert is measured in this environment; others are transformers"),
        ("ctranslate2=no/python", r"there is no file .*/no/python; name an environment's bin/python"),
        ("ctranslate2=folder", r"folder is a folder; name the Python in it"),
        ("ctranslate2=text", r"text is not an executable Python \(Permission denied\)"),
        ("ctranslate2=other", r"other is not an executable Python \(I am a shell\); name an environment's bin/python"),
        ("ctranslate2=bare", r"has no module ctranslate2: install the package \(`.*/bare -m pip install ctranslate2"),
        ("llama.cpp=bare", r"has no module gguf, llama_cpp: .* -m pip install gguf llama-cpp-python numpy`"),
    ],
)
def test_a_wrong_value_is_one_line(
    value: str, message: str, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("text")
    (tmp_path / "other").write_text("#!/bin/sh\necho 'I am a shell' >&2\nexit 3\n")
    (tmp_path / "other").chmod(0o755)
    (tmp_path / "bare").symlink_to(bare)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message) as caught:
        Options(model="tiny", peer_python=(value,)).pythons("encoder")
    assert str(caught.value).startswith("--peer-python ")
    assert "\n" not in str(caught.value)


def test_an_old_python_two_of_them_and_a_shared_process_are_refused(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="needs a process of its own for the contender: leave out --no-isolate"):
        Options(model="tiny", peer_python=("zentorch=x",), isolate=False).pythons("encoder")
    good = environment(tmp_path / "good", "ctranslate2")
    twice = (f"ctranslate2={good}", f"ctranslate2 int8={good}")
    with pytest.raises(UserError, match=r"ctranslate2 int8 has a Python already, .*: leave one out"):
        Options(model="tiny", peer_python=twice).pythons("encoder")
    monkeypatch.setattr(peer_pythons, "OLDEST", (3, 99))
    with pytest.raises(UserError, match=r"is Python 3\.\d+; at least 3\.99 is needed"):
        Options(model="tiny", peer_python=(f"ctranslate2={bare}",)).pythons("encoder")


def test_a_name_means_all_contenders_that_begin_with_it(tmp_path: Path) -> None:
    python = environment(tmp_path / "some", "infinity_emb", "torch", "transformers")
    pythons = EmbedOptions(peer_python=(f"infinity={python}",)).pythons("embed")
    assert {name.rsplit(" ", 3)[0] for name in pythons} == {"infinity torch", "infinity onnxruntime"}
    assert pythons["infinity torch bf16 by 32"] == (python, ())
    assert pythons["infinity onnxruntime int8 by 32"] == (python, ("onnxruntime", "optimum"))
    one = EmbedOptions(peer_python=(f"infinity torch bf16={python}",)).pythons("embed")
    assert list(one) == ["infinity torch bf16 by 32"]


@pytest.fixture
def infinity(tmp_path: Path) -> Path:
    """An environment whose infinity-emb is the one above, with a version, and whose torch is empty."""
    python = environment(tmp_path / "infinity", "infinity_emb", "torch", "transformers")
    package = python.parent / "site" / "infinity_emb"
    (package / "__init__.py").write_text(INFINITY)
    (package / "log_handler.py").write_text(LOGS)
    metadata = python.parent / "site" / "infinity_emb-9.8.7.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: infinity-emb\nVersion: 9.8.7\n")
    return python


def measured(infinity: Path, folder: Path, *texts: list[str]) -> list[Result]:
    """Measure the fake contender alone, once per list of texts."""
    pythons = EmbedOptions(peer_python=(f"infinity={infinity}",)).pythons("embed")
    arguments: dict[str, Any] = {"model": folder, "isolate": True, "folder": folder, "say": lambda line: None}
    with EmbedLineup("embed", [INFINITE], 1, pythons=pythons, **arguments) as contenders:
        return [contenders.measure(workload(lines), 1) for lines in texts]


def workload(lines: list[str]) -> TextWorkload:
    """Return texts whose operations and tokens are made up."""
    arrays = text_arrays(lines, lines[:1])
    return TextWorkload(name=lines[0], tokens=9, operations=1e6, arrays=arrays, texts=len(lines))


def test_a_contender_runs_without_torch_and_fastbert(
    infinity: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row has the versions of its environment and the memory of its process; a failure is said with its size."""
    monkeypatch.setitem(lineup.REFERENCES, "embed", (INFINITE,))
    monkeypatch.setattr(peak, "COPY_BYTES", 1 << 20)
    texts = (["a", "bcd"], ["die"], ["grow"], ["crash"], ["a"])
    good, dead, grown, crashed, again = measured(infinity, tmp_path, *texts)
    for result in (good, again):
        [row] = result.rows
        version = platform.python_version()
        assert row.details["versions"] == dict.fromkeys(row.details["versions"], "unknown") | {
            "infinity-emb": "9.8.7",
            "python": version,
        }
        assert "torch" in row.details["versions"]
        own = f"in an environment of its own: python {version}, infinity-emb 9.8.7, sentence-transformers unknown"
        assert any(note.startswith(own) for note in report.notes_of(row))
        assert 0 <= row.details["peak_megabytes"] < 500
        assert row.outputs == "equal"
    [absent] = dead.absent
    assert re.fullmatch(
        r"its process was killed \(signal 9\), as happens without enough memory; it had [\d,]+ MB", absent.reason
    )
    [absent] = grown.absent
    # 2^50 numbers of eight bytes
    assert absent.reason.startswith("not enough memory for 9,007,199,255 MB (")
    [absent] = crashed.absent
    assert absent.reason == "its process ended with signal 4 (Illegal instruction)"
    printed = io.StringIO()
    report.show(good, Console(file=printed))
    assert " MB" in printed.getvalue()


def test_variables_of_this_interpreter_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "here")
    monkeypatch.setenv("OTHER", "1")
    assert isolation.variables({"A": "b"}, foreign=False)["PYTHONPATH"] == "here"
    foreign = isolation.variables({"A": "b"}, foreign=True)
    assert "PYTHONPATH" not in foreign
    assert (foreign["OTHER"], foreign["A"]) == ("1", "b")
    assert os.environ["PYTHONPATH"] == "here"

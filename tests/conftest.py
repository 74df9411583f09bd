"""Set-up of all tests: the installed package, the optional data, a printed seed and poisoned memory.

Helpers in this folder are imported by their file's name: `from accuracy import assert_as_accurate`. Folders mirror the
packages. As they can be imported too, none is called `kernels`, which is a package of Hugging Face: `fastbert_kernels`
holds the tests of `fastbert.kernels`.
"""

import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]

# What a helper asserts is explained as in a test.
HELPERS = [file.stem for file in Path(__file__).parent.glob("*.py") if not file.stem.startswith(("conftest", "test_"))]
pytest.register_assert_rewrite(*HELPERS)

import shortcuts  # noqa: E402

# The installed package is what users get, so it is what is tested: not the tree, which is not compiled, and whose
# `kernels` folder would hide the package of that name that transformers imports.
sys.path[:] = [entry for entry in sys.path if Path(entry or os.getcwd()).resolve() != ROOT]
# The same for the interpreters that tests start from inside the clone.
os.environ["PYTHONSAFEPATH"] = "1"

# Processes of pytest-xdist share the cores, and threads that wait for each other then take much longer than one alone;
# the same for what tests start, which must compute the same bits.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

# Hundreds of interpreters that tests start import torch or transformers: the first keeps the compiled modules.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# torch's cache of traced graphs does not know the operators' formulas: those of an earlier version would run.
os.environ.setdefault("TORCHINDUCTOR_AUTOGRAD_CACHE", "0")

# A shell's job in the background ignores Ctrl-C, and so do its children; tests send it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test talks to the network, and matmuls on a GPU are the same on every run.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# Bounds on the largest of thousands of rounding errors hold for nearly every seed, not for all: a suite that drew fresh
# numbers each time would fail once in a few runs, for no fault of the change that it tests.
DEFAULT_SEED = 0

# A busy machine makes an example slow, not wrong; what fails comes with the line that repeats it.
hypothesis.settings.register_profile("fastbert", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.register_profile("fastbert-random", deadline=None, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that take minutes")
    torture = parser.getgroup("the scorecard of reliability, tests/torture")
    torture.addoption("--full", action="store_true", help="run full forms, from where the ledger ends")
    torture.addoption("--minutes", type=float, default=float("inf"), help="time for the full form of each check")
    torture.addoption("--ledger", help="another ledger of full forms than that of the repository")
    parser.addoption(
        "--seed",
        type=_seed,
        default=DEFAULT_SEED,
        metavar="N|random",
        help="seed of the random tests (default: 0, the same numbers in every run); 'random' draws and prints one",
    )


def _seed(text: str) -> int:
    return int.from_bytes(os.urandom(4)) if text == "random" else int(text)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # in a process of pytest-xdist
        config.option.seed = config.workerinput["seed"]
    hypothesis.settings.load_profile("fastbert" if config.option.seed == DEFAULT_SEED else "fastbert-random")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """All processes of pytest-xdist draw from one seed."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_sessionstart(session: pytest.Session) -> None:
    """Take the tests' shortcuts. Without a GPU, Triton kernels run in Triton's interpreter, which reads the variable
    when they are imported."""
    shortcuts.install()
    if importlib.util.find_spec("torch") is not None:
        import torch

        if not torch.cuda.is_available():
            os.environ.setdefault("TRITON_INTERPRET", "1")
            if importlib.util.find_spec("triton") is not None:
                import interpreter

                interpreter.hasten()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Search for no garbage while thousands of items are made, nor among them and all that they import afterwards; and
    later seven times less often than Python does, which takes 7 % of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(5_000, 10, 10)
        gc.enable()


def pytest_report_header(config: pytest.Config) -> str:
    return f"fastbert: random tests draw from --seed {config.option.seed}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.slow:
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="takes minutes; run with --slow"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    shortcuts.enter(item.path)


@pytest.fixture
def every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renders all figures of a test that looks at them."""
    monkeypatch.setattr(shortcuts, "draw_all", True)


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run's random tests; the head of the report names it."""
    return int(request.config.option.seed)


@pytest.fixture
def threads() -> Iterator[None]:
    """Puts the number of threads back."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def unchecked_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that change files of finished model folders, which their manifests would tell."""
    monkeypatch.setenv("FASTBERT_VERIFY", "0")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real text and checkpoints that the project does not ship; without it the test is skipped."""
    named = os.environ.get("FASTBERT_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the optional data folder, and {folder} is absent; FASTBERT_DATA can name another")
    return folder


@pytest.fixture(scope="session", autouse=True)
def reproducible_torch() -> Iterator[None]:
    """Two threads in all, deterministic algorithms, and NaN in memory that nothing has written.

    The fill works only while deterministic algorithms are on. Operations of other libraries that have no deterministic
    form warn instead of failing: ours are tested for it by name.
    """
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)

"""`pytest benchmarks`: the workloads of fastbert alone, timed by pytest-benchmark, comparable between commits.

    pytest benchmarks --benchmark-json=before.json
    fastbert bench compare before.json after.json

Each `bench_*.py` with a function `cases` is collected. A case is prepared and warmed by the harness of `fastbert
bench`, in this process, with an exact number of threads (`--threads`); `--full` measures the real sizes. Beside it a
matmul of PyTorch is timed, which tells how fast the machine was.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
# The installed package is measured, as by `fastbert bench`, and not the tree, which is not compiled.
sys.path[:] = [entry for entry in sys.path if Path(entry or os.getcwd()).resolve() != ROOT]

MISSING = "needs pytest-benchmark: pip install -c constraints.txt '.[bench]'"
# The rounds of a case: those that fit into so many seconds, within these bounds; of slow ones the harness's few.
ALL_ROUNDS_SECONDS, LEAST_ROUNDS, MOST_ROUNDS = 0.7, 5, 30
MATMUL_SIZE, MATMULS = 768, 3


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fastbert")
    group.addoption("--full", action="store_true", help="real sizes, such as BERT-base (default: small ones)")
    group.addoption("--threads", type=int, help="threads of every workload (default: all cores)")


def pytest_configure(config: pytest.Config) -> None:
    """Set the size of every pool before a library reads it."""
    from fastbert.benchmarks import peers

    os.environ.update(peers.thread_environment(_threads(config)))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Collect the benchmarks that have cases."""
    named = file_path.name.startswith("bench_") and file_path.suffix == ".py"
    # pytest itself collects a file that the command line names.
    if named and not parent.session.isinitpath(file_path) and "\ndef cases(" in file_path.read_text(encoding="utf-8"):
        module: pytest.Module = pytest.Module.from_parent(parent, path=file_path)
        return module
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", metafunc.module.cases(metafunc.config.getoption("full")), ids=str)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Add the machine and the versions as a record has them."""
    from fastbert.benchmarks.harness import pytest_files, records

    machine_info[pytest_files.MACHINE] = {"machine": records.machine(), "versions": records.versions()}


@pytest.fixture(scope="session")
def about() -> dict[str, Any]:
    """Return the commit and the class of the machine, which every test's `extra_info` has."""
    from fastbert.benchmarks.harness import records

    return {"commit": records.commit(), "machine_class": records.machine_class(records.machine())}


@pytest.fixture(scope="module")
def workshop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield what the cases of a module share."""
    from fastbert.benchmarks.harness.suite import Workshop

    made = Workshop(tmp_path_factory.mktemp("workshop"), _threads(request.config))
    with made.closing:
        yield made


@pytest.fixture
def measured(request: pytest.FixtureRequest, workshop: Any, about: dict[str, Any]) -> Any:
    """Return a function that opens a case, warms it, times it, and records its rates."""
    if not request.config.pluginmanager.hasplugin("benchmark"):
        pytest.skip(MISSING)
    benchmark = request.getfixturevalue("benchmark")

    def measure(case: Any) -> None:
        import torch

        from fastbert.benchmarks.harness.measure import SLOW_ROUNDS, clock, timed, warm
        from fastbert.errors import UserError

        threads = case.threads or workshop.threads
        torch.set_num_threads(workshop.threads)
        try:
            call = case.open(workshop)
        except (UserError, NotImplementedError) as error:  # a package or a feature of the processor that is not there
            pytest.skip(str(error))
        torch.set_num_threads(threads)
        rates = [matmul_gflops()]
        if call.fresh is not None:
            seconds = clock(lambda: call.run(*call.fresh())).seconds
        else:
            warm({"": timed(call.run)})
            seconds = clock(call.run).seconds * call.calls
        least = SLOW_ROUNDS if seconds > ALL_ROUNDS_SECONDS else LEAST_ROUNDS
        rounds = min(MOST_ROUNDS, max(least, int(ALL_ROUNDS_SECONDS / max(seconds, 1e-6))))
        setup = None if call.fresh is None else lambda: (call.fresh(), {})
        benchmark.pedantic(call.run, setup=setup, rounds=rounds, iterations=call.calls)
        rates.append(matmul_gflops())
        benchmark.extra_info |= {
            "benchmark": case.benchmark,
            "workload": case.workload,
            "contender": case.contender,
            "dtype": case.dtype,
            "threads": threads,
            **about,
        }
        details = {**case.details, "calls_per_round": call.calls, "matmul_gflops": float(f"{sum(rates) / 2:.4g}")}
        if benchmark.stats is not None:  # else --benchmark-disable
            median = benchmark.stats.stats.median
            benchmark.extra_info["tokens_per_second"] = rate(call.tokens, median)
            benchmark.extra_info["megabytes_per_second"] = rate(call.text_bytes, median * 1e6)
            details["gflops"] = rate(call.operations, median * 1e9)
        benchmark.extra_info["details"] = details

    return measure


def rate(count: float | None, seconds: float) -> float | None:
    """Return how many per second, rounded; None without a count."""
    return float(f"{count / seconds:.5g}") if count else None


def matmul_gflops() -> float:
    """Return the best rate of a few matmuls of PyTorch in fp32."""
    import torch

    x = torch.ones(MATMUL_SIZE, MATMUL_SIZE)
    with torch.inference_mode():
        x @ x
        times = []
        for _ in range(MATMULS):
            began = time.perf_counter()
            x @ x
            times.append(time.perf_counter() - began)
    return 2.0 * MATMUL_SIZE**3 / min(times) / 1e9


def _threads(config: pytest.Config) -> int:
    threads = config.getoption("threads")
    if threads is not None and threads < 1:
        raise pytest.UsageError(f"--threads {threads} must be at least 1")
    return threads or len(os.sched_getaffinity(0))

"""Run the sections in order: within a time limit, failures contained, results written before the next."""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastbert.benchmarks.gpu import goals, processes, report
from fastbert.benchmarks.gpu.charts import draw
from fastbert.benchmarks.gpu.worker import LAST_LINES, Worker, WorkerFailed
from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.measure import FASTBERT

PACKAGE = "fastbert.benchmarks"
CASE_SECONDS = 75.0  # for one case; then a hanging kernel is killed
MOST_RETRIES = 2  # of a case, each without the peer that crashed the process
LAST_SECONDS = 6.0  # of the budget: reserved for the table and for ending processes


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a run."""

    out: Path
    root: Path
    started: float
    """Seconds since the epoch when the command began."""
    budget_seconds: float = 520.0
    seconds_per_measure: float = 0.25
    only: tuple[str, ...]
    dry_run: bool = False
    record: bool = False
    tune: bool = False
    built: dict[str, Any] = field(default_factory=lambda: {"status": "ok"})


class Session:
    """A run: its options, the process that measures, and the results so far."""

    def __init__(self, options: Options) -> None:
        self.options = options
        options.out.mkdir(parents=True, exist_ok=True)
        self.log = options.out / "log.txt"
        self.log.write_bytes(b"")
        self.environment = environment(options)
        self.worker = Worker(self.environment, self.log)
        self.results: dict[str, Any] = {"dry_run": options.dry_run, "sections": {}, "table": []}

    def left(self) -> float:
        """Return the seconds until the budget is spent."""
        return self.options.started + self.options.budget_seconds - LAST_SECONDS - time.time()

    def save(self) -> None:
        """Write the results; the file has its old content or the new one."""
        path = self.options.out / "results.json"
        partial = path.with_name("results.json.tmp")
        partial.write_text(json.dumps(self.results, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)

    def ask(self, function: str, timeout: float, **arguments: Any) -> Any:
        """Run `module:function` of the benchmarks in the measuring process and return its result."""
        timeout = max(1.0, timeout)
        return self.worker.call(f"{PACKAGE}.{function}", timeout=timeout, dry=self.options.dry_run, **arguments)


def environment(options: Options) -> dict[str, str]:
    """Return the environment of all processes of a run: caches of compiled kernels, and in a dry run Triton's
    interpreter."""
    owner = os.getuid() if hasattr(os, "getuid") else 0
    cache = Path(tempfile.gettempdir()) / f"fastbert-gpu-{owner}"
    cache.mkdir(mode=0o700, exist_ok=True)
    variables = {
        "TRITON_CACHE_DIR": os.environ.get("TRITON_CACHE_DIR", str(cache / "triton")),
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(cache / "inductor")),
        # The same everywhere: it may be part of the key of torch's cache.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONSAFEPATH": "1",
    }
    if options.tune:
        variables["FASTBERT_TUNING"] = str(options.out / "tuning.json")
    if options.dry_run:
        # Few threads: tiny shapes gain nothing from more.
        variables |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return variables


# Sections: each gets the session and its seconds, and returns its part of the results.


def examine(session: Session, seconds: float) -> dict[str, Any]:
    return {"nvidia_smi": processes.smi(), **session.ask("gpu.device:describe", seconds)}


def built(session: Session, seconds: float) -> dict[str, Any]:
    del seconds
    return session.options.built


def compile_kernels(session: Session, seconds: float) -> dict[str, Any]:
    began = time.monotonic()
    variants = session.ask("gpu.precompile:variants", seconds)
    left = seconds - (time.monotonic() - began)
    results = processes.compile_all(variants, session.environment, left)
    failed = [variant["name"] for variant in results if "error" in variant]
    return {"status": "partial" if failed else "ok", "variants": results, "failed": failed}


def tune(session: Session, seconds: float) -> dict[str, Any]:
    if importlib.util.find_spec("fastbert.kernels.tuning.tune") is None:
        return {"status": "failed", "reason": "fastbert.kernels.tuning.tune is absent"}
    return dict(session.ask("gpu.precompile:tune", seconds))


def tests(session: Session, seconds: float) -> dict[str, Any]:
    options = session.options
    return processes.run_tests(options.root, options.out, session.environment, seconds, options.dry_run)


def measured(function: str) -> Callable[[Session, float], dict[str, Any]]:
    """Return a section of a single function."""

    def section(session: Session, seconds: float) -> dict[str, Any]:
        return dict(session.ask(function, seconds, seconds=session.options.seconds_per_measure))

    return section


def cases(title: str, names: str, run_case: str) -> Callable[[Session, float], dict[str, Any]]:
    """Return a section of many cases: one that fails is recorded, and the others continue; cases beyond the time limit
    are listed."""

    def section(session: Session, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        result: dict[str, Any] = {"status": "ok", "rows": [], "unmeasured": [], "failures": [], "out_of_time": []}
        for name in session.ask(names, seconds):
            if deadline - time.monotonic() < 1.0:
                result["out_of_time"].append(name)
                continue
            outcome = attempt(session, run_case, name, deadline, result["failures"])
            if outcome is None:
                continue
            result["rows"] += outcome["rows"]
            result["unmeasured"] += outcome["unmeasured"]
            session.results["sections"][title] = {**result, "status": "running"}
            session.save()
        if result["out_of_time"] or result["failures"]:
            result["status"] = "partial"
        return result

    return section


def attempt(
    session: Session, run_case: str, name: str, deadline: float, failures: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """Run one case. If a peer crashed the process, the case is retried without it; return None if it fails."""
    without: list[str] = []
    while True:
        arguments = {"name": name, "seconds": session.options.seconds_per_measure}
        try:
            left = min(deadline - time.monotonic(), CASE_SECONDS)
            return dict(session.ask(run_case, left, **arguments, **({"without": without} if without else {})))
        except WorkerFailed as error:
            peer = error.attempted
            failures.append({"case": name, "reason": str(error), "attempted": peer, "lines": error.lines})
            again = peer is not None and peer != FASTBERT and peer not in without and len(without) < MOST_RETRIES
            if not again or deadline - time.monotonic() < 1.0:
                return None
            without.append(str(peer))


def charts(session: Session, seconds: float) -> dict[str, Any]:
    del seconds
    if importlib.util.find_spec("matplotlib") is None:
        return {"status": "skipped", "reason": "matplotlib is not installed"}
    names = draw(session.results["sections"], session.options.out, session.options.dry_run)
    return {"status": "ok", "files": names}


@dataclass(frozen=True)
class Section:
    """A name, its share of the remaining time, and the function that runs it."""

    name: str
    share: float
    run: Callable[[Session, float], dict[str, Any]]


SECTIONS = (
    Section("environment", 8, examine),
    Section("build", 5, built),  # done before: the share only prevents that it is skipped
    Section("compile", 75, compile_kernels),
    Section("tune", 150, tune),
    Section("tests", 70, tests),
    Section("ceilings", 8, measured("gpu.softmax:ceilings")),
    Section("attention", 120, cases("attention", "gpu.attention:case_names", "gpu.attention:run_case")),
    Section("softmax", 12, cases("softmax", "gpu.softmax:case_names", "gpu.softmax:run_case")),
    Section("fused", 65, cases("fused", "gpu.fused:case_names", "gpu.fused:run_case")),
    Section("loss", 20, cases("loss", "gpu.loss:case_names", "gpu.loss:run_case")),
    Section("layer", 45, cases("layer", "gpu.layer:case_names", "gpu.layer:run_case")),
    Section("encoder", 25, cases("encoder", "gpu.models:encoder_names", "gpu.models:run_encoder")),
    Section("pretraining", 60, cases("pretraining", "gpu.models:pretraining_names", "gpu.models:run_pretraining")),
    Section("charts", 8, charts),
)


def guarded(session: Session, section: Section, seconds: float) -> dict[str, Any]:
    """Return a section's result, or the reason why there is none."""
    began = time.monotonic()
    try:
        result = {"status": "ok", **section.run(session, seconds)}
    except WorkerFailed as error:
        result = {"status": "failed", "reason": str(error), "lines": error.lines}
    except Exception as error:  # noqa: BLE001 - recorded, and the next section goes on
        lines = traceback.format_exc().splitlines()[-LAST_LINES:]
        result = {"status": "failed", "reason": f"{type(error).__name__}: {error}", "lines": lines}
    # The build reports its own duration: it ran before.
    result = {"seconds": round(time.monotonic() - began, 1), "allowed_seconds": round(seconds, 1), **result}
    if session.options.dry_run:
        result["dry_run"] = True
        for row in result.get("rows", ()):
            row["dry_run"] = True
    return result


def run(options: Options, sections: tuple[Section, ...] = SECTIONS) -> int:
    """Run the selected sections and print the table; return 0 if none failed."""
    session = Session(options)
    selected = [section for section in sections if section.name in options.only]
    try:
        for index, section in enumerate(selected):
            left = session.left()
            # Each may use its share of the remaining time; unused time goes to the later ones.
            allowed = left * section.share / sum(later.share for later in selected[index:])
            if allowed < 1.0:
                result: dict[str, Any] = {"status": "skipped", "reason": "out of time"}
            else:
                result = guarded(session, section, allowed)
            session.results["sections"][section.name] = result
            session.save()
            print(f"[{time.time() - options.started:5.0f} s] {section.name}: {_brief(result)}", flush=True)
    finally:
        session.worker.close()
    table = goals.verdicts(session.results["sections"], options.dry_run)
    ratios = goals.ratios(session.results["sections"])
    session.results |= {"ratios": ratios, "table": table, "seconds": round(time.time() - options.started, 1)}
    session.save()
    if options.record:
        print(f"recorded: {record(session)}")
    print(report.text(session.results["sections"], ratios, table))
    return int(any(result["status"] == "failed" for result in session.results["sections"].values()))


def _brief(result: dict[str, Any]) -> str:
    words = [result["status"], f"{result.get('seconds', 0):g} s"]
    words += [f"{len(result[name])} {name}" for name in ("rows", "failures", "out_of_time") if result.get(name)]
    words += [str(result["counts"])] if result.get("counts") else []
    words += [f"not compiled: {', '.join(result['failed'])}"] if result.get("failed") else []
    words += [result["reason"]] if result.get("reason") else []
    return ", ".join(words)


def record(session: Session) -> Path:
    """Write the results as a record in the repository, named after the GPU's architecture, and return its path.

    Rows name their section; what else the sections returned, and the table of goals, are the record's settings.
    """
    results = {name: dict(section) for name, section in session.results["sections"].items()}
    environment = results.pop("environment", {})
    rows = [{"section": name, **row} for name, section in results.items() for row in section.pop("rows", ())]
    gpu = environment.get("gpu", {})
    architecture = f"sm_{gpu['compute_capability'].replace('.', '')}" if "compute_capability" in gpu else None
    written = {
        "schema": records.SCHEMA_VERSION,
        "benchmark": "gpu",
        "machine": {**environment.get("machine", {}), **gpu, "architecture": architecture},
        "versions": environment.get("versions", {}),
        "commit": environment.get("commit"),
        "settings": {
            "sections": results,
            **{name: value for name, value in session.results.items() if name != "sections"},
        },
        "rows": rows,
    }
    folder = session.options.root / "benchmarks" / "results" / "gpu"
    path = folder / f"{records.machine_class(written['machine'])}.json"
    records.write(path, written)
    return path

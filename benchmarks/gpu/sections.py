"""Run the sections of a command in order: within a time limit, failures contained, every row written at once."""

from __future__ import annotations

import importlib.util
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastbert.benchmarks.gpu import goals, processes, profiling, report, sanitizing, testing, tuning
from fastbert.benchmarks.gpu.charts import draw
from fastbert.benchmarks.gpu.session import Options, Session
from fastbert.benchmarks.gpu.worker import LAST_LINES, WorkerFailed
from fastbert.benchmarks.harness.measure import FASTBERT
from fastbert.errors import UserError

CASE_SECONDS = 75.0  # for one case; then a hanging kernel is killed
# A case begins if its section has as much left, and then continues into the time of the later ones: cut off, it would
# have cost its time for nothing.
START_SECONDS = 8.0
MOST_RETRIES = 2  # of a case, each without the peer that crashed the process
# For the sections that start cold: on a new machine importing torch alone may take a minute.
COLD_SECONDS, CEILING_SECONDS = 90.0, 30.0
# torch.compile of a model's layers takes half of it; what is not compiled here is compiled where it is measured.
COMPILE_SECONDS = 45.0

Run = Callable[[Session, float], dict[str, Any]]


@dataclass(frozen=True)
class Section:
    """A name, its share of the remaining time, the function that runs it, and the seconds that it has in any case."""

    name: str
    share: float
    run: Run
    floor: float = 0.0


# Sections: each gets the session and its seconds, and returns its part of the results.


def built(session: Session, seconds: float) -> dict[str, Any]:
    del seconds
    return dict(session.results["sections"].get("build", {"status": "ok"}))


def examine(session: Session, seconds: float) -> dict[str, Any]:
    driver = {"nvidia_smi": processes.smi()}
    session.show("environment", driver)  # known before torch is imported
    result = {**driver, **session.ask("gpu.device:describe", seconds)}
    if session.results.get("commit"):
        result["commit"] = session.results["commit"]
    return result


def compile_kernels(stage: str) -> Run:
    """Return the section that compiles what the next sections run."""

    def section(session: Session, seconds: float) -> dict[str, Any]:
        began, seconds = time.monotonic(), min(seconds, session.left())
        if seconds < 1.0:
            return {"status": "skipped", "reason": "out of time"}
        variants = session.ask("gpu.precompile:variants", seconds, stage=stage)
        left = seconds - (time.monotonic() - began)
        results = processes.compile_all(variants, session.environment, left)
        failed = [variant["name"] for variant in results if "error" in variant]
        return {"status": "partial" if failed else "ok", "variants": results, "failed": failed}

    return section


def measured(function: str) -> Run:
    """Return a section of a single function."""

    def section(session: Session, seconds: float) -> dict[str, Any]:
        return dict(session.ask(function, seconds, seconds=session.options.seconds_per_measure))

    return section


def asked(function: str) -> Run:
    """Return a section of a single function that times nothing."""

    def section(session: Session, seconds: float) -> dict[str, Any]:
        return dict(session.ask(function, seconds))

    return section


def cases(title: str, names: str, run_case: str) -> Run:
    """Return a section of many cases: one that fails is recorded, and the others continue; cases beyond the time limit
    are listed."""

    def section(session: Session, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        result: dict[str, Any] = {"status": "ok", "rows": [], "unmeasured": [], "failures": [], "out_of_time": []}
        for name in session.ask(names, seconds):
            if deadline - time.monotonic() < (1.0 if session.options.dry_run else START_SECONDS):
                result["out_of_time"].append(name)
                continue
            attempt(session, title, run_case, name, result)
            session.show(title, result)
        if result["out_of_time"] or result["failures"]:
            result["status"] = "partial"
        return result

    return section


def attempt(session: Session, title: str, run_case: str, name: str, result: dict[str, Any]) -> None:
    """Run one case and add its rows, each saved as soon as it exists. If a peer crashed the process, the case is
    retried without it; a case that fails keeps the rows that it had."""
    without: list[str] = []
    before = list(result["rows"])

    def partial(rows: list[dict[str, Any]]) -> None:
        result["rows"] += _marked(rows, session.options.dry_run)
        session.show(title, result)

    while True:
        arguments = {"name": name, "seconds": session.options.seconds_per_measure}
        try:
            left = min(session.left(), CASE_SECONDS)
            outcome = session.ask(run_case, left, partial, **arguments, **({"without": without} if without else {}))
        except WorkerFailed as error:
            peer = error.attempted
            result["failures"].append({"case": name, "reason": str(error), "attempted": peer, "lines": error.lines})
            again = peer is not None and peer != FASTBERT and peer not in without and len(without) < MOST_RETRIES
            if not again or session.left() < 1.0:
                return
            without.append(str(peer))
            result["rows"] = list(before)
            continue
        result["rows"] = before + _marked(outcome["rows"], session.options.dry_run)
        result["unmeasured"] += outcome["unmeasured"]
        return


def _marked(rows: Sequence[dict[str, Any]], dry_run: bool) -> list[dict[str, Any]]:
    return [{**row, "dry_run": True} if dry_run else row for row in rows]


def charts(session: Session, seconds: float) -> dict[str, Any]:
    del seconds
    if importlib.util.find_spec("matplotlib") is None:
        return {"status": "skipped", "reason": "matplotlib is not installed"}
    names = draw(session.results["sections"], session.options.out, session.options.dry_run)
    return {"status": "ok", "files": names}


def _cases(title: str, share: float, module: str, run_case: str = "run_case", names: str = "case_names") -> Section:
    return Section(title, share, cases(title, f"gpu.{module}:{names}", f"gpu.{module}:{run_case}"))


FIRST = (
    Section("build", 1, built, floor=1.0),  # done before
    Section("environment", 10, examine, floor=COLD_SECONDS),
)
# The headline first: what it needs is compiled before, the rest when its turn comes.
COMMANDS: dict[str, tuple[Section, ...]] = {
    "measure": (
        *FIRST,
        Section("ceilings", 8, measured("gpu.softmax:ceilings"), floor=CEILING_SECONDS),
        Section("compile", 60, compile_kernels("steps"), floor=COMPILE_SECONDS),
        _cases("pretraining", 180, "steps", "run_pretraining", "pretraining_names"),
        _cases("encoder", 40, "models", "run_encoder", "encoder_names"),
        Section("compile-kernels", 60, compile_kernels("kernels"), floor=COMPILE_SECONDS),
        _cases("layer", 60, "layer"),
        _cases("attention", 80, "attention", names="headline_names"),
        _cases("linear", 15, "linear"),
        _cases("loss", 25, "loss"),
        _cases("fused", 50, "fused"),
        Section("compile-rest", 15, compile_kernels("rest")),
        _cases("softmax", 10, "softmax"),
        _cases("positions", 40, "positions"),
        _cases("attention-rest", 40, "attention", names="other_names"),
        Section("resources", 10, asked("gpu.precompile:resources")),
        Section("profile", 40, profiling.profile),
        Section("charts", 8, charts),
    ),
    "tests": (*FIRST, Section("tests", 100, testing.tests)),
    "tune": (*FIRST, Section("tune", 100, tuning.tune)),
    "sanitize": (
        *FIRST,
        *(Section(name, 30, sanitizing.sanitized(name)) for name in sanitizing.VARIABLES),
        Section("resume", 20, sanitizing.resume),
    ),
}


def guarded(session: Session, section: Section, seconds: float) -> dict[str, Any]:
    """Run a section; a failure becomes its result."""
    began = time.monotonic()
    try:
        result = {"status": "ok", **section.run(session, seconds)}
    except WorkerFailed as error:
        # Without a usable GPU no other section has anything to do.
        fatal = error.by_user and section.name == "environment"
        result = {"status": "failed", "reason": str(error), "lines": error.lines, "fatal": fatal}
    except Exception as error:  # noqa: BLE001 - recorded; the other sections go on
        lines = traceback.format_exc().splitlines()[-LAST_LINES:]
        result = {"status": "failed", "reason": f"{type(error).__name__}: {error}", "lines": lines}
    if result["status"] == "failed":
        # What it had shown before it failed.
        earlier = session.results["sections"].get(section.name, {})
        result = {**earlier, **result}
    # The build reports its own duration: it ran before.
    result = {"seconds": round(time.monotonic() - began, 1), "allowed_seconds": round(seconds, 1), **result}
    if session.options.dry_run:
        result["dry_run"] = True
        if "rows" in result:
            result["rows"] = _marked(result["rows"], True)
    return result


def chosen(options: Options, sections: Sequence[Section]) -> list[Section]:
    """Return the selected sections. Raises UserError for a name that the command does not have."""
    names = [section.name for section in sections]
    unknown = sorted(set(options.only) - set(names))
    if unknown:
        raise UserError(f"--only names {', '.join(unknown)}: choose among {', '.join(names)}")
    return [section for section in sections if not options.only or section.name in options.only]


def run(options: Options, results: dict[str, Any] | None = None, sections: Sequence[Section] = ()) -> int:
    """Run the selected sections of a command, and print the goals; return 0 if none failed.

    Without a GPU that can be used, nothing else is tried, and the reason is the only line. Raises UserError for a
    section that does not exist.
    """
    selected = chosen(options, sections or COMMANDS[options.command])
    session = Session(options, results)
    try:
        for index, section in enumerate(selected):
            left = session.left()
            # Each may use its share of the remaining time; unused time goes to the later ones.
            allowed = max(left * section.share / sum(later.share for later in selected[index:]), section.floor)
            if allowed < 1.0:
                result: dict[str, Any] = {"status": "skipped", "reason": "out of time"}
            else:
                result = guarded(session, section, allowed)
            fatal = result.pop("fatal", False)
            session.results["sections"][section.name] = result
            session.save()
            if fatal:
                print(f"error: {result['reason'].removeprefix('UserError: ')}")
                return 1
            print(f"[{time.time() - options.started:5.0f} s] {section.name}: {report.brief(result)}", flush=True)
    finally:
        session.worker.close()
        session.shorten_log()
    if options.command == "measure":
        table = goals.verdicts(session.results["sections"], options.dry_run)
        ratios = goals.ratios(session.results["sections"])
        session.results |= {"ratios": ratios, "table": table}
    session.results["seconds"] = round(time.time() - options.started, 1)
    session.save()
    print(report.text(session.results["sections"], session.results.get("ratios", []), session.results["table"]))
    return int(any(result["status"] == "failed" for result in session.results["sections"].values()))

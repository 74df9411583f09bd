"""Writes the tables of docs/reliability.md from the ledger.

python tests/torture/page.py            # write the page
python tests/torture/page.py --check    # exit code 1 if it is not that of the ledger and the checks
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reliability.md"
BEGIN, END = "<!-- scorecard -->\n", "<!-- end -->"

if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests")]

from torture import ledger  # noqa: E402
from torture.ledger import Entry  # noqa: E402
from torture.scorecard import CHECKS, ON_GPUS, PROMISES, Check  # noqa: E402


def all_checks() -> list[Check]:
    """Import the tests; return their checks in the order of rows and names, without those that tests make of checks."""
    modules = {
        path.stem: importlib.import_module(f"torture.{path.stem}")
        for path in sorted(Path(__file__).parent.glob("test_*.py"))
    }
    checks = [check for check in CHECKS.values() if hasattr(modules.get(check.module), f"test_{check.name}")]
    return sorted(checks, key=lambda check: (check.row, check.name))


def tried(check: Check, entries: list[Entry]) -> int:
    """Return how many units of a check have passed, each number once."""
    numbers: set[int] = set()
    for entry in entries:
        if entry.check == check.name and not entry.failures:
            numbers.update(range(entry.first, entry.end))
    return len(numbers)


def open_failures(check: Check, entries: list[Entry]) -> int:
    """Return how many failures have not passed since."""
    mine = [entry for entry in entries if entry.check == check.name]
    passed = {number for entry in mine if not entry.failures for number in range(entry.first, entry.end)}
    return sum(1 for entry in mine if entry.failures and entry.first not in passed)


def state(row: int, checks: list[Check], entries: list[Entry]) -> str:
    """Return a row's state in a few words."""
    mine = [check for check in checks if check.row == row]
    if not mine:
        return "unmeasured"
    failing = sum(open_failures(check, entries) for check in mine)
    if failing:
        return f"**{failing} failure{'s' * (failing > 1)}**"
    shares = [tried(check, entries) / check.full for check in mine]
    whole = sum(share >= 1 for share in shares)
    if whole == len(mine):
        return "whole"
    # Rounded down: a row of which a little is missing is not at 100 %.
    return f"{whole} of {len(mine)} checks whole, {int(100 * sum(shares) / len(shares))} % of all"


def overview(checks: list[Check], entries: list[Entry]) -> list[str]:
    """Return the table of all rows."""
    lines = ["| | promise | full forms | on a GPU |", "| --- | --- | --- | --- |"]
    for row, promise in PROMISES.items():
        gpu = ON_GPUS.get(row, "")
        anchor = "".join(c for c in f"{row}. {promise}".lower().replace(" ", "-") if c.isalnum() or c == "-")
        lines.append(f"| {row} | [{promise}](#{anchor}) | {state(row, checks, entries)} | {gpu} |")
    return lines


def figures_of(check: Check, entries: list[Entry]) -> str:
    """Return the figures of a check's passed units as a phrase."""
    figures = ledger.merged(e.figures for e in entries if e.check == check.name and not e.failures)
    return ", ".join(f"{name.replace('_', ' ')} {_number(value)}" for name, value in sorted(figures.items()))


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3g}"


def cells(check: Check, entries: list[Entry]) -> tuple[str, str, str]:
    """Return what has passed of a check, the failures that were found, and its last run."""
    known = [entry for entry in entries if entry.check == check.name]
    passed = [entry for entry in known if not entry.failures]
    latest = max(passed, key=lambda entry: (entry.date, entry.end), default=None)
    processors = ", ".join(sorted({entry.processor for entry in known}))
    last = f"{latest.date}, `{latest.commit}`, {processors}" if latest else "not yet"
    done, found = tried(check, entries), sum(1 for entry in known if entry.failures)
    still = open_failures(check, entries)
    failures = f"{found}, {still} open" if still else f"{found}, mended" if found else "0"
    return f"{done:,} of {check.full:,} {check.unit}", failures, last


def table_of_each(checks: list[Check], entries: list[Entry]) -> list[str]:
    """Return the table of checks that hold different things to different promises, and what each does."""
    lines = ["", "| check | must hold | passed | failures found | last run |", "| --- | --- | --- | --- | --- |"]
    for check in checks:
        passed, failures, last = cells(check, entries)
        lines.append(f"| `{check.name}` | {check.goal} | {passed} | {failures} | {last} |")
    for check in checks:
        figures = figures_of(check, entries)
        lines += ["", f"`{check.name}`: {check.summary}" + (f" So far: {figures}." if figures else "")]
    return lines


def table_of_alike(checks: list[Check], entries: list[Entry]) -> list[str]:
    """Return the table of checks that do the same to different things."""
    lines = ["", f"{checks[0].summary} Must hold: {checks[0].goal}.", ""]
    lines += ["| check | passed | so far | failures found | last run |", "| --- | --- | --- | --- | --- |"]
    for check in checks:
        passed, failures, last = cells(check, entries)
        lines.append(f"| `{check.name}` | {passed} | {figures_of(check, entries)} | {failures} | {last} |")
    return lines


def section(row: int, checks: list[Check], entries: list[Entry]) -> list[str]:
    """Return the heading, the tables and the commands of a row."""
    lines = ["", f"## {row}. {PROMISES[row]}"]
    mine = [check for check in checks if check.row == row]
    groups: dict[tuple[str, ...], list[Check]] = {}
    for check in mine:
        groups.setdefault((check.summary, check.goal, check.unit), []).append(check)
    if each := [group[0] for group in groups.values() if len(group) == 1]:
        lines += table_of_each(each, entries)
    for group in groups.values():
        if len(group) > 1:
            lines += table_of_alike(group, entries)
    if row in ON_GPUS:
        lines += ["", f"On GPUs: {ON_GPUS[row]}."]
    if modules := sorted({check.module for check in mine}):
        paths = " ".join(f"tests/torture/{module}.py" for module in modules)
        lines += ["", "```sh", f"pytest {paths} --full", "```"]
    return lines


def page(old: str, checks: list[Check], entries: list[Entry]) -> str:
    """Return the page with new tables between its markers."""
    before, _, rest = old.partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = overview(checks, entries)
    for row in PROMISES:
        lines += section(row, checks, entries)
    return f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    old = PAGE.read_text()
    new = page(old, all_checks(), ledger.read())
    if check:
        if new != old:
            print(f"{PAGE} is outdated: run `python tests/torture/page.py`", file=sys.stderr)
        return int(new != old)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())

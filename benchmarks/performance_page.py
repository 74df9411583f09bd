"""Write docs/performance.md from the records in benchmarks/results, or check that it is theirs.

    python benchmarks/performance_page.py
    python benchmarks/performance_page.py --check

Run it after every change of a record; `fastbert bench record` makes records.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fastbert.benchmarks.harness import records
from fastbert.benchmarks.performance import figures, sections
from fastbert.io.atomic_write import write_atomic

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code: 1 if the page that was checked is not that of the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page would change")
    options = parser.parse_args(arguments)
    if not PAGE.parent.is_dir():
        parser.error(f"{PAGE.parent} is missing: the page belongs to a source tree, and this copy is installed")
    text = sections.render(figures.read(ROOT / records.RESULTS))
    if options.check:
        same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        if not same:
            print(f"{PAGE} differs from the records: run python benchmarks/performance_page.py", file=sys.stderr)
        return 0 if same else 1
    write_atomic(PAGE, text)
    print(f"{PAGE}: {len(text.splitlines()):,} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())

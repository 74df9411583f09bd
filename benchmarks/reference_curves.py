"""Write the band of expected losses that `fastbert pretrain --compare NAME` shows, from finished runs.

    python benchmarks/reference_curves.py --name mini --about "4 layers, 256 wide, ..." --runs runs/a runs/b

The band lies between the lowest and the highest of the runs' validation losses, below word frequencies alone, over the
tokens that all of them have. Runs with different kinds of loss make a curve each. Other names in the file stay.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.untrusted_input import read_json_file
from fastbert.training.reference_curves import FILE, KINDS, band, fields_of, points_of


def main() -> None:
    """Write the curves of the runs on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True, help="name of the curves")
    parser.add_argument("--about", required=True, help="what the runs were, in a few words")
    parser.add_argument("--runs", nargs="+", type=Path, required=True, help="folders of finished runs")
    parser.add_argument("--out", type=Path, default=FILE, help="file to write")
    options = parser.parse_args()
    runs: dict[str, list[Any]] = {}
    for run in options.runs:
        objective, points = points_of(run)
        runs.setdefault(KINDS[objective], []).append(points)
    stored = read_json_file(options.out) if options.out.exists() else {}
    stored[options.name] = {
        kind: fields_of(band(options.name, options.about, of_kind)) for kind, of_kind in sorted(runs.items())
    }
    write_json_atomic(options.out, stored)
    for kind, of_kind in runs.items():
        print(f"{options.name}, {kind}: {len(of_kind)} runs, {of_kind[0][-1][0]:,} tokens")


if __name__ == "__main__":
    main()

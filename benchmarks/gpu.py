"""Measure, test and tune on a machine with a GPU, from a clone of the repository; see `--help` and `--plan`.

    python benchmarks/gpu.py --plan                        # three commands for a GPU machine, ready to paste
    python benchmarks/gpu.py measure --out DIR             # or tests, or tune; builds the project if it must
    python benchmarks/gpu.py measure --out DIR --dry-run   # on a CPU, tiny shapes, meaningless figures
    python benchmarks/gpu.py --import DIR/results.json     # into benchmarks/results/gpu/ and docs/performance-gpu.md

The package of the same name beside this file is `fastbert.benchmarks.gpu`. This file runs its first module by path,
because on a new machine nothing can be imported yet.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).resolve().with_suffix("") / "command.py"), run_name="__main__")

"""Write docs/results.md and its charts from the summaries beside this file: `python docs/results/build.py`."""

from pathlib import Path

from fastbert.experiments.page import write_page

HOME = Path(__file__).resolve().parent

if __name__ == "__main__":
    docs = HOME.parent
    for summary in write_page(HOME, docs / "results.md", docs / "images" / "results"):
        print(f"{summary.title} ({summary.scale}): {len(summary.rows)} rows")

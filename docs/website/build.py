"""Build the site: stage the pages, write the reference, run Sphinx, write llms.txt, check the result."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from website import commands, crawl, llms, staging
from website.api import Reference

HERE = Path(__file__).resolve().parent


@cache
def reference() -> Reference:
    """Return the reference of the Python interface, read once per process."""
    return Reference()


@cache
def generated() -> dict[str, str]:
    """Return the pages of the reference by their path, written once per process."""
    return {**commands.write(), **reference().write()}


def main(arguments: list[str] | None = None) -> int:
    """Build the site; return 1 if it has mistakes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=staging.ROOT / "build" / "site", help="folder to write")
    parser.add_argument("--linkcheck", action="store_true", help="request every external link instead")
    parser.add_argument("--jobs", default="auto", help="processes, or auto")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    source = options.out / "source"
    staged = staging.stage(source, generated())
    staged.write()
    with _few_collections():
        code = _sphinx(source, options.out, "linkcheck" if options.linkcheck else "html", options.jobs)
    if code:
        return code
    if options.linkcheck:
        return 0
    html = options.out / "html"
    for file in html.rglob("*.html"):  # of pages that are gone
        if file.name != "search.html" and file.relative_to(html).with_suffix(".md").as_posix() not in staged.pages:
            file.unlink()
    llms.write(staged, html)
    (html / ".nojekyll").touch()  # for hosts that would leave out _static
    mistakes = crawl.mistakes(html)
    print("\n".join(mistakes), file=sys.stderr)
    seconds = time.perf_counter() - started
    pages = len(list(html.rglob("*.html")))
    print(f"{pages} pages in {seconds:.0f} s, {len(mistakes)} mistakes: {html / 'index.html'}")
    return 1 if mistakes else 0


def _sphinx(source: Path, out: Path, builder: str, jobs: str) -> int:
    from sphinx.cmd.build import build_main

    words = ["-b", builder, "-c", str(HERE), "-d", str(out / "doctrees"), "-j", jobs, "-q"]
    return int(build_main([*words, "--fail-on-warning", str(source), str(out / builder)]))


@contextmanager
def _few_collections() -> Iterator[None]:
    """Search for cycles of garbage rarely: trees of documents are many objects, of which most are needed."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()

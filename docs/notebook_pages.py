"""Run the notebooks of a folder beside this file, and write each as a page of Markdown with its pictures.

    python docs/notebook_pages.py tour            all of docs/tour
    python docs/notebook_pages.py notebooks 03    those of docs/notebooks whose names begin so

No Jupyter is needed: the cells of a notebook run in order in one namespace. What a cell prints, and its open figures,
stand below it on the page.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
FOLDERS = ("tour", "notebooks")
MAX_IMAGE_BYTES = 100_000
# Not "python": blocks of that name run in the tests of the documents, these in the tests of the notebooks.
LANGUAGE = "py"
OUTPUTS = r"(\s|```text\n.*?\n```\n|!\[[^\n]*\]\(\.\./images/\w+/[\w-]+\.png\)\n)*"  # behind a code cell


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook: "markdown" or "code", and its text."""

    kind: str
    source: str


@dataclass
class Output:
    """The text that a cell printed, and its pictures: PNG and caption of each."""

    text: str = ""
    pictures: list[tuple[bytes, str]] = field(default_factory=list)


def notebooks(folder: Path) -> list[Path]:
    """Return the notebooks of a folder in order."""
    return sorted(folder.glob("[0-9]*.ipynb"))


def images(folder: Path) -> Path:
    """Return the folder with the pictures of a folder of notebooks."""
    return DOCS / "images" / folder.name


def read_cells(notebook: Path) -> list[Cell]:
    """Return the cells of a notebook (nbformat 4), whose sources are strings or lists of lines."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [Cell(cell["cell_type"], "".join(cell["source"])) for cell in cells]


def run(cells: list[Cell], name: str, *, pictures: bool = True) -> Iterator[tuple[Cell, Output | None]]:
    """Run code cells in order in one namespace, and yield each cell with its output; None of explanations.

    `name` is the file that tracebacks show. The notebook's folder must be on `sys.path`, and matplotlib's backend one
    that needs no window. Without `pictures`, figures are laid out but not rendered.
    """
    import matplotlib.pyplot as plt

    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells, start=1):
        if cell.kind != "code":
            yield cell, None
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(cell.source, f"{name}, cell {number}", "exec"), names)
        output = Output(printed.getvalue())
        for figure in map(plt.figure, plt.get_fignums()):
            png = io.BytesIO()
            if pictures:
                figure.savefig(png, format="png", metadata={"Software": None})
            else:
                figure.draw_without_rendering()
            output.pictures.append((png.getvalue(), " ".join(figure.get_supxlabel().split())))
            plt.close(figure)
        yield cell, output


def page_of(notebook: Path, results: list[tuple[Cell, Output | None]]) -> tuple[str, dict[str, bytes]]:
    """Return the page of a notebook, and its pictures by file name."""
    parts, pictures = [], {}
    for cell, output in results:
        parts.append(block_of(cell))
        if output is not None and output.text.strip():
            parts.append(f"```text\n{output.text.rstrip()}\n```")
        for png, caption in output.pictures if output is not None else ():
            name = f"{notebook.stem[:2]}-{len(pictures) + 1}.png"
            pictures[name] = png
            parts.append(f"![{caption}](../images/{notebook.parent.name}/{name})")
    parts.append(footer(notebook))
    return "\n\n".join(parts) + "\n", pictures


def block_of(cell: Cell) -> str:
    """Return a cell as it stands on a page."""
    return f"```{LANGUAGE}\n{cell.source.rstrip()}\n```" if cell.kind == "code" else cell.source.rstrip()


def footer(notebook: Path) -> str:
    """Return the last lines of a page: its notebook, and the pages before and after it."""
    every = notebooks(notebook.parent)
    index = every.index(notebook)
    runner = f"[{Path(__file__).name}](../{Path(__file__).name})"
    links = [f"This page shows the notebook [{notebook.name}]({notebook.name}), run by {runner}."]
    if index:
        links.append(f"Before: [{title(every[index - 1])}]({every[index - 1].stem}.md).")
    if index + 1 < len(every):
        links.append(f"Next: [{title(every[index + 1])}]({every[index + 1].stem}.md).")
    return "---\n\n" + " ".join(links)


def title(notebook: Path) -> str:
    """Return the title of a notebook, the first line of its first cell."""
    return read_cells(notebook)[0].source.splitlines()[0].removeprefix("# ")


def drift(notebook: Path, page: str) -> str | None:
    """Return what is wrong with the page of a notebook, None if it has the notebook's cells in order, and nothing but
    outputs between them."""
    position, previous = 0, None
    for number, cell in enumerate([*read_cells(notebook), None], start=1):
        block = footer(notebook) if cell is None else block_of(cell)
        begin = page.find(block, position)
        if begin < 0:
            return f"cell {number} is missing or differs" if cell is not None else "the last lines differ"
        between = page[position:begin]
        outputs = OUTPUTS if previous == "code" else r"\s*"
        if not re.fullmatch(outputs, between, flags=re.DOTALL):
            return f"between cells {number - 1} and {number} stands {between.strip()[:60]!r}"
        position, previous = begin + len(block), cell and cell.kind
    return None if not page[position:].strip() else "text follows the last lines"


def main(arguments: list[str]) -> None:
    """Write the pages of the notebooks of a folder whose names begin with one of the prefixes, all without any."""
    import matplotlib

    if not arguments or arguments[0] not in FOLDERS:
        raise SystemExit(f"name a folder: {' or '.join(FOLDERS)}, then the first characters of notebooks, such as 03")
    folder, prefixes = DOCS / arguments[0], tuple(arguments[1:])
    matplotlib.use("Agg")
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    images(folder).mkdir(parents=True, exist_ok=True)
    for notebook in notebooks(folder):
        if prefixes and not notebook.name.startswith(prefixes):
            continue
        print(notebook.name, file=sys.stderr)
        page, pictures = page_of(notebook, list(run(read_cells(notebook), notebook.name)))
        for old in images(folder).glob(f"{notebook.stem[:2]}-*.png"):
            old.unlink()
        for name, png in pictures.items():
            if len(png) > MAX_IMAGE_BYTES:
                raise SystemExit(f"{name} has {len(png):,} bytes, more than {MAX_IMAGE_BYTES:,}: draw a smaller figure")
            (images(folder) / name).write_bytes(png)
        notebook.with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

"""docs/migration: the figures are those of the records, every page has the same parts, and both sides' code."""

import re
from pathlib import Path
from typing import Any

import pytest
from sweeps import sweep

from fastbert.benchmarks import migration_pages
from fastbert.benchmarks.migration_pages import PAGES, UNMEASURED, Shown, section, summary

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / migration_pages.FOLDER
PARTS = ["What differs", "How to go back", "Measured"]  # of every page, in this order


def row(workload: str, contender: str, ms: float, outputs: str = "close") -> dict[str, Any]:
    times = {"median_ms": ms, "p20": ms, "p80": ms}
    dtype = next(name for name in ("fp32", "bf16", "int8") if name in contender)
    return {"workload": workload, "contender": contender, **times, "outputs": outputs, "dtype": dtype}


ROWS = [
    *(row("a", f"fastbert {dtype}", ms) for dtype, ms in (("fp32", 10.0), ("bf16", 5.0))),
    row("a", "fastbert int8", 2.0, "cosine 0.9 is below 0.98"),
    row("a", "other fp32", 30.0),
    row("a", "other bf16", 20.0),
    row("a", "other int8", 1.0, "cosine 0.9 is below 0.98"),
    row("b", "fastbert fp32", 10.0),
    row("b", "other fp32", 11.04),
    row("b", "accelerated fp32", 12.0),
    {**row("b", "other bf16", 1.0), "median_ms": None},
]
RECORDS = {"toy": {"avx2": {"rows": ROWS}}}
TOY = Shown("toy", (("a", "the first"), ("b", "the second")), ("other fp32", "other bf16", "other int8"))


def test_the_pages_are_those_of_the_records(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The package may be installed, away from the tree with the pages.
    monkeypatch.setattr(migration_pages, "ROOT", ROOT)
    assert migration_pages.main(["--check"]) == 0, capsys.readouterr().err


def test_a_changed_page_is_named_and_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / migration_pages.FOLDER
    folder.mkdir(parents=True)
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    monkeypatch.setattr(migration_pages, "ROOT", tmp_path)
    monkeypatch.setattr(migration_pages, "PAGES", {"toy": (TOY,)})
    monkeypatch.setattr(migration_pages.figures, "read", lambda _: RECORDS)
    (folder / "toy.md").write_text("# Toy\n\n<!-- measured -->\nold\n<!-- end -->\n\nbehind\n")
    (folder / "README.md").write_text("| [Toy](toy.md) | one line | old |\n| [Other](other.md) | | old |\n")
    assert migration_pages.main(["--check"]) == 1
    assert "toy.md differs from the records: run python benchmarks/migration_pages.py" in capsys.readouterr().err
    assert migration_pages.main([]) == 0
    assert migration_pages.main(["--check"]) == 0
    assert "In short: fp32 1.1 to 3.0x; fastest dtypes 1.1 to 4.0x (avx2).\n" in (folder / "toy.md").read_text()
    assert (folder / "toy.md").read_text().endswith("<!-- end -->\n\nbehind\n")
    assert (folder / "README.md").read_text() == (
        "| [Toy](toy.md) | one line | fp32 1.1 to 3.0x; fastest dtypes 1.1 to 4.0x (avx2) |\n"
        "| [Other](other.md) | | old |\n"
    )


def test_lines_have_the_ratios_of_outputs_that_agree() -> None:
    link = "[avx2](../../benchmarks/results/toy/avx2.json)"
    assert section((TOY,), RECORDS) == [
        "| processor | workload | beside | takes | fastbert fp32 | fastbert bf16 |",
        "| --- | --- | --- | --- | --- | --- |",
        f"| {link} | the first | other fp32 | 30 ms | 3.0x | 6.0x |",
        f"| {link} | the first | other bf16 | 20 ms | 2.0x | 4.0x |",
        f"| {link} | the first | other int8 (cosine 0.9 is below 0.98) | 1 ms | 0.1x | 0.2x |",
        f"| {link} | the second | other fp32 | 11 ms | 1.1x |  |",
        "",
    ]
    absent = Shown("none", TOY.workloads, TOY.theirs)
    assert summary((absent,), RECORDS) == UNMEASURED
    assert section((absent,), RECORDS) == ["There is no record of this comparison: not measured.", ""]
    # The first comparison with a record is the summary; ours may be other contenders.
    assert summary((absent, TOY), RECORDS).startswith("fp32 1.1 to 3.0x")
    accelerated = section((Shown("toy", TOY.workloads, TOY.theirs, "accelerated"),), RECORDS)
    assert accelerated[0].endswith("| takes | accelerated fp32 |")
    assert len(accelerated) == 4


@sweep("page", list(PAGES))
def test_a_page_has_its_parts_and_the_code_of_both_sides(page: str) -> None:
    text = (FOLDER / f"{page}.md").read_text()
    assert [part for part in re.findall(r"^## (.*)$", text, re.MULTILINE) if part in PARTS] == PARTS
    assert text.count("<!-- measured -->") == text.count("<!-- end -->") == 1
    tables = re.findall(r'^<table class="side-by-side">$.*?^</table>$', text, re.MULTILINE | re.DOTALL)
    assert tables
    for table in tables:
        left, right = table.split('</td><td valign="top">')
        assert "```" in left
        assert "```" in right
        assert f"]({page}.md)" in (FOLDER / "README.md").read_text()
        # Both stand side by side on a page.
        lines = [line for block in re.findall(r"```\w+\n(.*?)```", table, re.DOTALL) for line in block.splitlines()]
        assert max(map(len, lines)) <= 60

"""The published scorecard is that of the ledger, counts each number once, and hides no failure."""

from __future__ import annotations

from dataclasses import replace

from torture import ledger, page
from torture.ledger import Entry
from torture.scorecard import PROMISES, Check

CHECK = Check("toy", 6, "kills", short=3, full=20, chunk=8, goal="nothing is lost", module="test_toy", summary="Toys.")
RUN = Entry("toy", 0, 12, commit="0123", processor="avx2", date="2026-01-02", figures={"in_saves": 3, "longest_s": 2.5})


def test_the_page_is_that_of_the_ledger() -> None:
    text, checks = page.PAGE.read_text(), page.all_checks()
    assert len(checks) > 50
    assert page.page(text, checks, ledger.read()) == text, "outdated: run `python tests/torture/page.py`"
    for row, promise in PROMISES.items():
        assert f"\n## {row}. {promise}\n" in text


def test_a_part_of_a_full_form() -> None:
    lines = page.section(6, [CHECK], [RUN])
    assert "| `toy` | nothing is lost | 12 of 20 kills | 0 | 2026-01-02, `0123`, avx2 |" in lines
    assert "`toy`: Toys. So far: in saves 3, longest s 2.5." in lines
    assert page.state(6, [CHECK], [RUN]) == "0 of 1 checks whole, 60 % of all"
    assert page.state(7, [CHECK], [RUN]) == "unmeasured"


def test_checks_that_do_the_same_share_a_table() -> None:
    lines = page.section(6, [CHECK, replace(CHECK, name="other")], [RUN])
    assert lines.count("Toys. Must hold: nothing is lost.") == 1
    assert "| `toy` | 12 of 20 kills | in saves 3, longest s 2.5 | 0 | 2026-01-02, `0123`, avx2 |" in lines
    assert "| `other` | 0 of 20 kills |  | 0 | not yet |" in lines


def test_numbers_count_once() -> None:
    again = replace(RUN, first=4, count=16, date="2026-01-03", processor="amx")
    assert page.tried(CHECK, [RUN, again]) == 20
    assert page.state(6, [CHECK], [RUN, again]) == "whole"
    assert "20 of 20 kills | 0 | 2026-01-03, `0123`, amx, avx2 |" in page.section(6, [CHECK], [RUN, again])[5]


def test_a_failure_is_open_until_its_numbers_have_passed() -> None:
    failed = replace(RUN, first=12, count=8, failures=1, note="AssertionError: kill 13", figures={})
    assert page.state(6, [CHECK], [RUN, failed]) == "**1 failure**"
    assert "12 of 20 kills | 1, 1 open |" in page.section(6, [CHECK], [RUN, failed])[5]
    mended = replace(failed, failures=0, note="", date="2026-01-04")
    assert page.state(6, [CHECK], [RUN, failed, mended]) == "whole"
    assert "20 of 20 kills | 1, mended |" in page.section(6, [CHECK], [RUN, failed, mended])[5]


def test_only_the_tables_are_replaced() -> None:
    old = f"before\n{page.BEGIN}OUTDATED{page.END}\nafter\n"
    new = page.page(old, [CHECK], [RUN])
    assert new.startswith(f"before\n{page.BEGIN}")
    assert new.endswith(f"{page.END}\nafter\n")
    assert "OUTDATED" not in new
    assert page.page(new, [CHECK], [RUN]) == new

"""The ledger: parts of a run are one line, failures are tried again, an interrupted part counts for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from torture import ledger
from torture.campaign import Campaign
from torture.ledger import Entry, Figures
from torture.scorecard import Check

CHECK = Check("toy", 6, "kills", short=3, full=20, chunk=8, goal="none", module="test_toy")


def tries(numbers: range) -> Figures:
    return {"tried": len(numbers), "longest_seconds": float(numbers.start)}


def test_the_short_form_leaves_no_entry(tmp_path: Path) -> None:
    path, seen = tmp_path / "ledger.jsonl", []
    Campaign(CHECK, first=30, path=path).run(lambda numbers: seen.append(numbers))
    assert seen == [range(30, 33)]
    assert not path.exists()


def test_a_full_form_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    entry = Entry(CHECK.name, 0, 5, commit="0123", processor="avx2", figures={"tried": 5, "longest_seconds": 7})
    ledger.append(entry, path)
    figures = Campaign(CHECK, full=True, path=path).run(tries)
    assert figures == {"tried": 15, "longest_seconds": 13}
    old, new = ledger.read(path)
    assert old == entry
    assert (new.first, new.count, new.figures) == (5, 15, figures), "the parts of one run are one line"
    assert ledger.merged((old.figures, new.figures)) == {"tried": 20, "longest_seconds": 13}
    assert Campaign(CHECK, full=True, path=path).run(tries) == {}, "the goal is reached"


def test_failures_are_kept_and_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"

    def fails(numbers: range) -> Figures:
        assert 9 not in numbers, "number 9"
        return tries(numbers)

    with pytest.raises(AssertionError, match="number 9"):
        Campaign(CHECK, full=True, path=path).run(fails)
    passed, failed = ledger.read(path)
    assert (passed.count, passed.failures) == (8, 0)
    assert (failed.first, failed.failures) == (8, 1)
    assert "number 9" in failed.note
    Campaign(CHECK, full=True, path=path).run(tries)
    assert [(entry.first, entry.end, entry.failures) for entry in ledger.read(path)] == [(0, 20, 0), (8, 16, 1)]


def test_an_interrupted_part_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"

    def interrupted(numbers: range) -> Figures:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Campaign(CHECK, full=True, path=path).run(interrupted)
    assert not path.exists()


def test_notes_name_no_folder_of_a_machine() -> None:
    error = OSError("call 9 (open /tmp/folder-1/a.b/file.txt), in ../x/y or 1/2: exit code 1\nmore")
    assert ledger.shortened(error) == "OSError: call 9 (open file.txt), in ../x/y or 1/2: exit code 1"


def test_time_is_bounded(tmp_path: Path) -> None:
    assert Campaign(CHECK, full=True, minutes=0, path=tmp_path / "ledger.jsonl").run(tries) == {}

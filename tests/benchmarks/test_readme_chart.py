"""The chart of README.md: its text is that of the records."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "README.md").is_file(), reason="needs the source tree")


def test_the_text_beside_the_chart_is_that_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastbert.benchmarks import readme_chart

    monkeypatch.setattr(readme_chart, "ROOT", ROOT)
    monkeypatch.setattr(readme_chart, "README", ROOT / "README.md")
    monkeypatch.setattr(readme_chart, "PICTURE", ROOT / "docs" / "images" / "speed.png")
    assert readme_chart.main(["--check"]) == 0
    assert readme_chart.PICTURE.read_bytes().startswith(b"\x89PNG")


def test_a_contender_that_a_record_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from fastbert.benchmarks import readme_chart

    monkeypatch.setattr(readme_chart, "ROOT", ROOT)
    panel = replace(readme_chart.PANELS[0], contenders={"fastbert": "fastbert", "paper": "Paper"})
    with pytest.raises(SystemExit, match="has no row of Paper"):
        readme_chart.read_panel(panel)

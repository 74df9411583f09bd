"""Reference curves of pre-training: the shipped bands, those of earlier runs, and what a run says beside them."""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fastbert.cli.training_view import TrainingView
from fastbert.errors import UserError
from fastbert.io.progress import Bars
from fastbert.training.config import PretrainConfig
from fastbert.training.metrics import read_metrics
from fastbert.training.plot import plot_runs
from fastbert.training.pretrain import pretrain
from fastbert.training.reference_curves import (
    FILE,
    ReferenceCurve,
    band,
    check_reference,
    find_reference,
    points_of,
    shipped,
)
from fastbert.training.reporter import Record, Reporter

WRITER = Path(__file__).parents[2] / "benchmarks" / "reference_curves.py"


def test_shipped_bands_fall_and_are_bands() -> None:
    assert "masked" in shipped()["mini"]
    for name, kinds in shipped().items():
        for kind in kinds:
            curve = find_reference(name, {"masked": "mlm+nsp"}.get(kind, kind))
            assert curve.about
            assert len(curve.tokens) == len(curve.low) == len(curve.high) >= 10
            assert all(a < b for a, b in pairwise(curve.tokens))
            assert all(low >= high for low, high in zip(curve.low, curve.high, strict=True))
            assert curve.high[-1] > curve.high[0] + 1.0  # nats that training gains


def test_a_curve_is_interpolated_below_a_runs_own_word_frequencies() -> None:
    curve = ReferenceCurve(name="toy", about="", tokens=(1e6, 3e6), low=(1.0, 2.0), high=(0.5, 1.0))
    assert curve.losses(1e6, 6.0) == (5.0, 5.5)
    assert curve.losses(2e6, 6.0) == (4.5, 5.25)
    assert curve.losses(3e6, 6.0) == (4.0, 5.0)
    assert curve.losses(9e5, 6.0) is None
    assert curve.described(2e6, 4.4, 6.0) == "below 4.500 to 5.250 of toy"
    assert curve.described(2e6, 5.0, 6.0) == "within 4.500 to 5.250 of toy"
    assert curve.described(2e6, 5.3, 6.0) == "above 4.500 to 5.250 of toy"
    assert curve.described(4e6, 5.3, 6.0) == "toy ends at 3.0M tokens"
    assert curve.described(4e5, 5.3, 6.0) == "toy begins at 1.0M tokens"
    line = ReferenceCurve(name="run", about="", tokens=(1e3, 3e3), low=(1.0, 2.0), high=(1.0, 2.0))
    assert line.described(2e3, 4.4, 6.0) == "below 4.500 of run"
    assert line.described(2e3, 4.5, 6.0) == "as run"


def test_a_band_lies_between_its_runs() -> None:
    made = band("toy", "two runs", [[(0, 0.0), (100, 1.0)], [(10, 0.5), (50, 0.5), (90, 1.5)]], points=9)
    assert made.tokens == tuple(range(10, 91, 10))
    assert made.low == (0.5, 0.5, 0.5, 0.5, 0.5, 0.75, 1.0, 1.25, 1.5)
    assert made.high == (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@pytest.mark.usefixtures("one_thread")
def test_a_run_says_where_it_stands_beside_an_earlier_one(
    config: PretrainConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    drawn: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = replace(config, eval_every=3)
    pretrain(first)
    objective, points = points_of(first.out)
    assert (objective, len(points)) == ("mlm+nsp", 4)
    records: list[Record] = []
    messages: list[str] = []
    again = replace(first, out=tmp_path / "again", compare=str(first.out))
    pretrain(again, Reporter(on_validation=records.append, on_message=messages.append))
    assert [record["reference"] for record in records] == ["as run"] * 4
    assert f"comparing with run: the run {first.out}" in messages
    # The file has what it would have without a comparison.
    assert [r.mlm_loss for r in read_metrics(again.out / "metrics.jsonl")] == [
        r.mlm_loss for r in read_metrics(first.out / "metrics.jsonl")
    ]
    with Bars(quiet=False) as bars:
        TrainingView(bars).validation(records[-1])
    assert capsys.readouterr().err.rstrip().endswith("; as run")
    for x_axis in ("step", "tokens", "seconds"):
        plot_runs([again.out], tmp_path / f"{x_axis}.png", x_axis=x_axis)
        assert [each.get_label() for each in drawn[-1].axes[0].collections] == ["expected (run)"]
    plot_runs([first.out], tmp_path / "without.png")
    assert not drawn[-1].axes[0].collections
    plot_runs([first.out], tmp_path / "with.png", compare=str(again.out))
    assert len(drawn[-1].axes[0].collections) == 1
    # A run may be compared later, or with something else when it continues.
    pretrain(replace(first, steps=15, compare="mini", resume=True))
    assert json.loads((first.out / "config.json").read_text())["run"]["compare"] == "mini"
    written = tmp_path / "curves.json"
    command = [str(WRITER), "--name", "toy", "--about", "a toy", "--out", str(written), "--runs"]
    monkeypatch.setattr(sys, "argv", [*command, str(first.out), str(again.out)])
    runpy.run_path(str(WRITER), run_name="__main__")
    assert json.loads(written.read_text())["toy"]["masked"]["about"] == "a toy"
    with pytest.raises(UserError, match=r"was trained with --objective mlm\+nsp, this run with ltr"):
        find_reference(str(again.out), "ltr")


def test_what_is_no_reference_is_refused(config: PretrainConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--compare huge: is neither a shipped curve \(mini\) nor the folder of a run"):
        check_reference("huge")
    with pytest.raises(UserError, match="--compare mini: has no curve for --objective bilm; leave it out"):
        find_reference("mini", "bilm")
    pretrain(replace(config, steps=1))
    with pytest.raises(UserError, match="has fewer than two validations"):
        find_reference(str(config.out), "mlm")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "metrics.jsonl").write_text("")
    (tmp_path / "half" / "config.json").write_text('{"run": {"objective": "mlm"}}')
    with pytest.raises(UserError, match="is not a finished run of pre-training"):
        find_reference(str(tmp_path / "half"), "mlm")
    assert FILE.is_file()

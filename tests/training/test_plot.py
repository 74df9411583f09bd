"""What the plots of runs draw: curves, single evaluations, and the baselines that a run's files hold."""

import json
from pathlib import Path
from typing import Any

import pytest

from fastbert.errors import UserError
from fastbert.io import figures
from fastbert.training import plot

pytest.importorskip("matplotlib", reason="plots need matplotlib")

FILE = "dev.tsv"
BASELINES = {FILE: {"majority": {"accuracy": 0.61, "f1": 0.0}, "chance": {"accuracy": 0.5}, "odd": {"f1": 1}}}


def write(folder: Path, lines: list[dict[str, Any]], **files: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def pretraining(folder: Path, unigram: object = None, pairs: float | None = None) -> Path:
    common = {"loss": 3.0, "mlm_loss": 2.0, "nsp_loss": pairs, "mlm_accuracy": 0.1, "nsp_accuracy": pairs}
    common |= {"tokens": 10, "tokens_per_second": 5.0, "learning_rate": 1e-4, "seconds": 1.0}
    lines = [{"step": step, "split": split, **common} for step, split in ((1, "train"), (1, "validation"))]
    return write(folder, lines, config={"finished": unigram and {"unigram_cross_entropy": unigram}})


def finetuning(folder: Path, scores: list[list[float | None]], **files: dict[str, Any]) -> Path:
    lines: list[dict[str, Any]] = []
    for seed, of_trial in enumerate(scores):
        trial = {"lr": 1e-5, "batch_size": 8, "epochs": 1, "seed": seed, "seconds": 1.0}
        lines += [
            {**trial, "step": step, "tokens": 10 * step, "split": "train", "loss": 1.0 / step} for step in (1, 10, 20)
        ]
        for index, score in enumerate(of_trial):
            value = {} if score is None else {"accuracy": score}
            step = 10 + 10 * index
            line = {**trial, "step": step, "tokens": 10 * step, "split": "validation", "scores": {FILE: value}}
            lines.append(line)
    return write(folder, lines, **files)


def labels(figure: Any) -> list[str]:
    """Return the entries of all legends, and the texts in panels."""
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    entries = [text.get_text() for legend in legends for text in legend.get_texts()]
    return entries + [text.get_text() for axes in figure.axes for text in axes.texts]


def test_word_frequencies_come_from_finished_runs(tmp_path: Path, drawn: list[Any]) -> None:
    one = pretraining(tmp_path / "one", 6.861)
    plot.plot_runs([one], tmp_path / "plot.png")
    assert "word frequencies alone (6.86)" in labels(drawn[-1])
    plot.plot_runs([one / "metrics.jsonl"], tmp_path / "plot.png")
    assert "word frequencies alone (6.86)" in labels(drawn[-1])
    plot.plot_runs([one], tmp_path / "plot.png", unigram=5.0)
    assert "word frequencies alone (5)" in labels(drawn[-1])
    assert not [label for label in labels(drawn[-1]) if "most frequent" in label]
    (one / "config.json").write_text(json.dumps({"finished": {"most_frequent_share": 0.052}}))
    plot.plot_runs([one], tmp_path / "plot.png")
    assert "most frequent word alone (0.052)" in labels(drawn[-1])
    plot.plot_runs([one], tmp_path / "plot.png", most_frequent=0.04)
    assert "most frequent word alone (0.04)" in labels(drawn[-1])


@pytest.mark.parametrize("unigram", [None, "much", float("nan")])
def test_unfinished_and_odd_runs_have_no_baseline(tmp_path: Path, drawn: list[Any], unigram: object) -> None:
    run = pretraining(tmp_path / "run", unigram)
    plot.plot_runs([run], tmp_path / "plot.png")
    (run / "config.json").write_text("{")
    plot.plot_runs([run], tmp_path / "plot.png")
    assert not [label for figure in drawn for label in labels(figure) if "frequencies" in label]


def test_runs_share_a_baseline_or_have_one_each(tmp_path: Path, drawn: list[Any]) -> None:
    runs = [pretraining(tmp_path / name, loss, 0.6) for name, loss in (("a", 6.861), ("b", 6.859), ("c", 5.0))]
    plot.plot_runs(runs[:2], tmp_path / "plot.png")
    first = labels(drawn[-1])
    assert [label for label in first if "frequencies" in label] == ["word frequencies alone (6.86)"]
    assert {"a", "b", plot.TRAINING, plot.PAIRS, "chance on sentence pairs (0.5)"} <= set(first)
    plot.plot_runs(runs, tmp_path / "plot.png")
    shown = [label for label in labels(drawn[-1]) if "frequencies" in label]
    assert shown == ["word frequencies alone, a (6.86)", "word frequencies alone, c (5)"]


def test_a_discriminator_has_curves_of_its_own(tmp_path: Path, drawn: list[Any]) -> None:
    run = pretraining(tmp_path / "run")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    write(run, [line | {"rtd_loss": 0.25, "rtd_accuracy": 0.875} for line in lines])
    plot.plot_runs([run], tmp_path / "plot.png")
    points = [[line.get_ydata()[-1] for line in axes.get_lines()] for axes in drawn[-1].axes]
    assert points == [[2.0, 2.0, 0.25], [0.1, 0.1, 0.875]]
    assert {f"{plot.DETECTION} (0.25)", f"{plot.DETECTION} (0.875)"} <= set(labels(drawn[-1]))
    plot.plot_runs([run, pretraining(tmp_path / "other")], tmp_path / "plot.png")
    assert plot.DETECTION in labels(drawn[-1])
    assert plot.PAIRS not in labels(drawn[-1])


def test_runs_of_one_name_are_told_apart(tmp_path: Path, drawn: list[Any]) -> None:
    runs = [tmp_path / name / "run" for name in ("a", "b")]
    for run in runs:
        run.parent.mkdir()
        pretraining(run)
    plot.plot_runs(runs, tmp_path / "plot.png")
    names = [label for label in labels(drawn[-1]) if label.endswith("run")]
    assert len(set(names)) == 2
    assert max(map(len, names)) <= plot.MAX_NAME + 3


def test_one_evaluation_is_a_marker_or_a_bar_with_its_value(tmp_path: Path, drawn: list[Any]) -> None:
    plot.plot_runs([pretraining(tmp_path / "run")], tmp_path / "plot.png")
    markers = [line.get_marker() for line in drawn[-1].axes[0].get_lines()]
    assert markers == ["o", "o"], "training and validation have a point each"
    plot.plot_trials(finetuning(tmp_path / "fine", [[0.75]]), "accuracy")
    panel = drawn[-1].axes[1]
    assert [bar.get_height() for bar in panel.patches] == [0.75]
    assert labels(drawn[-1]) == ["0.75\nstep 10"]
    plot.plot_trials(finetuning(tmp_path / "fine", [[0.75], [0.5], [None]]), "accuracy")
    assert [bar.get_height() for bar in drawn[-1].axes[1].patches] == [0.75, 0.5]
    assert [tick.get_text() for tick in drawn[-1].axes[1].get_xticklabels()] == ["seed 0", "seed 1", "seed 2"]
    plot.plot_trials(finetuning(tmp_path / "fine", [[None, None]]), "accuracy")
    assert labels(drawn[-1]) == ["undefined so far"]


def test_trials_have_their_baselines(tmp_path: Path, drawn: list[Any]) -> None:
    run = finetuning(tmp_path / "run", [[0.6, 0.7], [0.5, 0.8]], results={"baselines": BASELINES})
    plot.plot_trials(run, "accuracy")
    assert labels(drawn[-1]) == ["seed 0 (0.7)", "seed 1 (0.8)", "majority (0.61)", "chance (0.5)"]
    plot.plot_trials(run, "accuracy", {"ridge": 0.4})
    assert labels(drawn[-1])[2:] == ["ridge (0.4)"]
    plot.plot_trials(run, "f1")
    assert labels(drawn[-1]) == ["seed 0", "seed 1", "majority (0)", "odd (1)", "undefined so far"]
    plot.plot_trials(finetuning(run, [[0.6, 0.7]], results={"baselines": [1]}), "accuracy")
    assert labels(drawn[-1]) == []
    plot.plot_trials(finetuning(run, [[0.6, 0.7]], results={"constant_loss": 0.69}), "accuracy", {"chance": 0.5})
    assert labels(drawn[-1]) == ["loss of a constant output (0.69)", "chance (0.5)"]
    loss, score = drawn[-1].axes
    assert loss.get_xlim() == score.get_xlim()
    assert loss.get_lines()[-1].get_linestyle() != score.get_lines()[-1].get_linestyle()


def test_without_evaluations_there_is_one_panel(tmp_path: Path, drawn: list[Any]) -> None:
    plot.plot_trials(finetuning(tmp_path / "run", [[]]), "accuracy")
    assert len(drawn[-1].axes) == 1


def test_runs_of_fine_tuning_are_compared(tmp_path: Path, drawn: list[Any]) -> None:
    results = [{"metric": "accuracy", "baselines": BASELINES, "constant_loss": loss} for loss in (0.7, 0.7, None)]
    scores = ([[0.6, 0.7], [0.5, 0.8]], [[0.6, 0.9]], [[]])
    runs = [finetuning(tmp_path / n, x, results=r) for n, x, r in zip("abc", scores, results, strict=True)]
    plot.plot_runs(runs, tmp_path / "plot.png", x_axis="tokens")
    loss, score = drawn[-1].axes
    assert labels(drawn[-1]) == ["a", "b", "c", "loss of a constant output (0.7)", "majority (0.61)", "chance (0.5)"]
    curves = [line for line in score.get_lines() if len(line.get_xdata()) == 2 and line.get_marker() != "None"]
    assert [(line.get_color(), list(line.get_ydata())) for line in curves] == [
        (figures.BLUE, [0.6, 0.7]),
        (figures.BLUE, [0.5, 0.8]),
        (figures.ORANGE, [0.6, 0.9]),
    ]
    assert list(curves[0].get_xdata()) == [100, 200]
    assert loss.get_xlim() == score.get_xlim()
    plot.plot_runs([runs[2], runs[0] / "metrics.jsonl"], tmp_path / "plot.png")
    assert score.get_title() == drawn[-1].axes[1].get_title() == f"accuracy on {FILE}"
    plot.plot_runs(runs[2:], tmp_path / "plot.png")
    assert len(drawn[-1].axes) == 1


def test_runs_of_different_kinds_are_not_mixed(tmp_path: Path) -> None:
    runs = [finetuning(tmp_path / name, [[0.6]], results={"metric": name}) for name in ("accuracy", "f1")]
    with pytest.raises(UserError, match=r"accuracy: its metric is accuracy, and that of .*f1 f1; plot"):
        plot.plot_runs(runs, tmp_path / "out.png")
    with pytest.raises(UserError, match=r"accuracy: is a run of fine-tuning, and .*pre is not; plot them separately"):
        plot.plot_runs([pretraining(tmp_path / "pre"), runs[0]], tmp_path / "out.png")
    with pytest.raises(UserError, match=r"--compare mini: is for runs of pre-training, and .*f1 is one of fine-tuning"):
        plot.plot_runs(runs[1:], tmp_path / "out.png", compare="mini")
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(UserError, match="no metrics to plot"):
        plot.plot_runs([tmp_path], tmp_path / "out.png")
    assert not (tmp_path / "out.png").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": "1"},
        {"lr": None},
        {"split": "test"},
        {"loss": []},
        {"scores": {}},
        {"scores": {FILE: 1}},
        {"scores": {FILE: {"accuracy": "high"}}},
    ],
)
def test_a_damaged_line_is_refused(wrong: dict[str, object], tmp_path: Path) -> None:
    run = finetuning(tmp_path / "run", [[0.6]])
    file = run / "metrics.jsonl"
    *lines, last = file.read_text().splitlines()
    file.write_text("\n".join([*lines, json.dumps({**json.loads(last), **wrong}), ""]))
    with pytest.raises(UserError, match=rf"metrics.jsonl: line {len(lines) + 1} is not a metrics record"):
        plot.plot_trials(run, "accuracy")

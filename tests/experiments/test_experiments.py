"""Experiments at the smallest scale, on Python's own text: rows, tables, charts, and what continues or refuses them."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sklearn", reason="scores of fine-tuning need scikit-learn")

from fastbert import cli
from fastbert.errors import UserError
from fastbert.experiments import data as data_module
from fastbert.experiments import registry, workspace
from fastbert.experiments.data import ExperimentData, TaskSet, find_data
from fastbert.experiments.names import EXPERIMENTS
from fastbert.experiments.page import page_text, read_summaries, write_page
from fastbert.experiments.registry import find_experiment, run_experiment
from fastbert.experiments.scales import find_scale
from fastbert.experiments.sets import check_sets, chosen, first_examples
from fastbert.experiments.summary import Row, Score, Summary, comparison_table, markdown_table, paired, text_table
from fastbert.experiments.systems import train_static_vectors

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    out = tmp_path_factory.mktemp("experiment") / "transfer"
    return out, run_experiment("transfer", "smoke", out, seeds=2, machine={"cpu_capability": "avx2"})


def test_an_experiment_leaves_rows_tables_and_a_chart(finished: tuple[Path, Summary]) -> None:
    out, summary = finished
    assert [row.name.split(",")[0] for row in summary.rows] == [
        "from scratch",
        "frozen",
        "fine-tuned",
        "fine-tuned as ULMFiT",
    ]
    for row in summary.rows:
        assert set(row.scores) == {"pairs", "words", "answers"}
        assert all(len(score.values) == 2 and score.seconds > 0 for score in row.scores.values())
    assert Summary.read(out) == summary
    assert markdown_table(summary) in (out / "table.md").read_text()
    assert (out / "chart.png").read_bytes().startswith(b"\x89PNG")
    assert "trivial baseline" in text_table(summary)
    # What the runs no longer need is gone; their scores and curves are kept.
    assert not list(out.rglob("checkpoints"))
    assert (out / "finetune" / "frozen-24-pairs" / "metrics.jsonl").exists()


def test_a_finished_or_interrupted_experiment_continues(
    finished: tuple[Path, Summary], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, summary = finished
    trained: list[Any] = []
    finetune = workspace.finetune

    def counted(config: Any, reporter: Any) -> Any:
        trained.append(config.out.name)
        return finetune(config, reporter)

    monkeypatch.setattr(workspace, "finetune", counted)
    monkeypatch.setattr(workspace, "pretrain", None)
    machine = {"cpu_capability": "avx2"}
    again = run_experiment("transfer", "smoke", out, seeds=2, machine=machine)
    assert again.rows == summary.rows
    assert not trained
    # A run whose result was lost is made again, alone.
    (out / "results" / "finetune-frozen-24-words.json").unlink()
    again = run_experiment("transfer", "smoke", out, seeds=2, machine=machine)
    assert trained == ["frozen-24-words"]
    assert [row.scores["words"].values for row in again.rows] == [row.scores["words"].values for row in summary.rows]


def test_pretraining_of_another_experiment_is_reused(
    finished: tuple[Path, Summary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, _ = finished
    machine = {"cpu_capability": "avx2"}
    monkeypatch.setattr(workspace, "pretrain", None)  # layers pre-trains as transfer does
    out = tmp_path / "layers"
    summary = run_experiment("layers", "smoke", out, seeds=1, machine=machine, reuse=(other,))
    assert len(summary.rows) == 3
    names = ("shards/index.json", "pretrain/mlm-nsp/model/model.safetensors", "results/pretrain-mlm-nsp.json")
    for name in names:
        assert (out / name).read_bytes() == (other / name).read_bytes()
    with pytest.raises(TypeError):  # a recipe that no run had: trained
        run_experiment("distillation", "smoke", tmp_path / "distillation", seeds=1, machine=machine, reuse=(other,))
    for changes, message in (
        ({"steps": 9}, "--reuse .*transfer: holds an experiment with steps=6, not 9; leave it out"),
        ({"machine": {"cpu_capability": "amx"}}, "holds an experiment with processor='avx2', not 'amx'"),
        (
            {"reuse": (tmp_path,)},
            r"holds no experiment \(experiment.json is missing\); name the --out of one",
        ),
    ):
        with pytest.raises(UserError, match=message):
            run_experiment(
                "layers", "smoke", tmp_path / "new", **{"seeds": 1, "machine": machine, "reuse": (other,), **changes}
            )
    assert not (tmp_path / "new" / "experiment.json").exists()
    # Vectors of polysemy and baselines are copied, too.
    (other / "vectors").mkdir()
    (other / "vectors" / "skipgram.txt").write_text("1 2\na 0.5 1.5\n")
    scale, data = find_scale("smoke"), find_data(None, other, train=24, evaluate=12)
    options = workspace.Options(seeds=2, reuse=(other,))
    copy = workspace.Workspace(tmp_path / "copy", "polysemy", scale, data, options, processor="avx2")
    assert train_static_vectors(copy)["a"].tolist() == [0.5, 1.5]
    shutil.rmtree(other / "vectors")
    # A result that is no result is named; an experiment that has trained nothing yet may be another one.
    result = out / "results" / "pretrain-mlm-nsp.json"
    result.write_text('{"name": "mlm-nsp"}')
    with pytest.raises(UserError, match=r"pretrain-mlm-nsp.json: is damaged: it lacks 'loss'; delete it"):
        run_experiment("layers", "smoke", out, seeds=1, machine=machine)
    begun = tmp_path / "begun"
    with pytest.raises(UserError, match="xyzzyqq"):
        run_experiment("polysemy", "smoke", begun, steps=2, words=("xyzzyqq",))
    assert (begun / "experiment.json").exists()
    none = workspace.Workspace(
        begun, "size", find_scale("smoke"), ExperimentData(name="x", corpora=(), tasks={}), workspace.Options()
    )
    with pytest.raises(UserError, match="--data x: holds no set for span; the experiment needs one of SQuAD"):
        chosen(none, ("SQuAD",), ("span",))


def test_a_bad_row_of_a_set_is_named_before_anything_is_trained(tmp_path: Path) -> None:
    sets = find_data(None, tmp_path, train=24, evaluate=12).tasks
    check_sets(sets.values())
    bad = tmp_path / "bad.tsv"
    bad.write_text("label\tsentence\nyes\n")
    with pytest.raises(UserError, match=r"bad.tsv, line 2: ") as error:
        check_sets([replace(sets["pairs"], train=bad)])
    assert "--skip-bad" not in str(error.value)


def test_other_settings_data_and_machines_are_refused(finished: tuple[Path, Summary], tmp_path: Path) -> None:
    out, _ = finished
    machine = {"cpu_capability": "avx2"}
    for changes, message in (
        ({"seeds": 3}, "holds an experiment with seeds=2, now it is 3"),
        ({"steps": 9}, "holds an experiment with steps=6, now it is 9"),
        ({"machine": {"cpu_capability": "amx"}}, "holds an experiment with processor='avx2', now it is 'amx'"),
    ):
        with pytest.raises(UserError, match=message):
            run_experiment("transfer", "smoke", out, **{"seeds": 2, "machine": machine, **changes})
    with pytest.raises(UserError, match="holds an experiment with experiment='transfer'"):
        run_experiment("layers", "smoke", out, seeds=2, machine=machine)
    (out / "python.txt").write_text((out / "python.txt").read_text() + "\nOne more sentence.\n")
    with pytest.raises(UserError, match="holds an experiment with other data"):
        run_experiment("transfer", "smoke", out, seeds=2, machine=machine)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other files; choose an empty or a new folder"):
        run_experiment("transfer", "smoke", tmp_path)
    with pytest.raises(UserError, match="unknown experiment 'none': choose one of ablation"):
        find_experiment("none")
    with pytest.raises(UserError, match="--scale huge: is not one of smoke, mini, small"):
        find_scale("huge")
    with pytest.raises(UserError, match="no such folder"):
        find_data(tmp_path / "nowhere", tmp_path, train=1, evaluate=1)
    with pytest.raises(UserError, match=r"holds no wiki-en/\*"):
        find_data(tmp_path, tmp_path, train=1, evaluate=1)


@pytest.mark.parametrize("name", ["ablation", "layers", pytest.param("distillation", marks=pytest.mark.slow)])
def test_experiments_run(name: str, tmp_path: Path) -> None:
    summary = run_experiment(name, "smoke", tmp_path / name, seeds=1, steps=2)
    assert len(summary.rows) >= 3
    assert all(row.scores for row in summary.rows)
    assert summary.paper
    assert summary.limits


def test_parts_of_a_table_have_no_text_in_common() -> None:
    rows = ["a\tq1\ts1", "b\tq1\ts2", "a\tq2\ts2", "a\tq3\ts3", "b\tq4\ts4", "a\tq5\ts5", "b\tq6\ts1", "a\tq7\ts7"]
    assert sorted(map(sorted, data_module._connected([row.split("\t") for row in rows], 0))) == [
        [0, 1, 2, 6], [3], [4], [5], [7]
    ]  # fmt: skip
    train, held_out = data_module._disjoint_parts(rows, 0, 100, 2)
    assert len(held_out) == 2
    assert sorted(train + held_out) == sorted(rows)
    assert {"q1", "q2", "q6"} <= {row.split("\t")[1] for row in train}


def test_few_sentences_have_every_tag(tmp_path: Path) -> None:
    tags = ["AA", "AA", "AB", "AA", "AC", "BB"]
    file = tmp_path / "train.conll"
    file.write_text("".join(f"w\t{first}\nv\t{second}\n\n" for first, second in tags))
    task = TaskSet(name="tags", task="tagging", metric="accuracy", train=file, eval=file)

    def chosen_tags(count: int) -> list[str]:
        text = first_examples(task, count, tmp_path / str(count)).train.read_text()
        return ["".join(line[-1] for line in part.split("\n")) for part in text.split("\n\n") if part]

    assert chosen_tags(3) == ["AA", "AB", "AC"]
    assert chosen_tags(4) == ["AA", "AA", "AB", "AC"]
    assert chosen_tags(2) == ["AA", "AB"]
    assert chosen_tags(9) == tags


def test_every_name_is_an_experiment() -> None:
    for name in EXPERIMENTS:
        experiment = find_experiment(name)
        assert experiment.title
        assert experiment.paper
        assert experiment.limits


def test_real_sets_are_sampled_the_same_way_every_time(data_dir: Path, tmp_path: Path) -> None:
    data = find_data(data_dir, tmp_path / "a", train=50, evaluate=30)
    assert set(data.tasks) == {"SNLI", "QNLI", "SST-2", "SQuAD", "UNER", "POS"}
    assert data.tasks["SNLI"].stands_for == "MNLI"
    again = find_data(data_dir, tmp_path / "b", train=50, evaluate=30)
    assert replace(data, corpora=()).fingerprint() == replace(again, corpora=()).fingerprint()
    lines = {name: task.train.read_text().count("\n") for name, task in data.tasks.items()}
    assert lines["SNLI"] == lines["QNLI"] == lines["SST-2"] == 51
    train, held_out = (
        {cell for row in path.read_text().split("\n")[1:-1] for cell in row.split("\t")[1:]}
        for path in (data.tasks["QNLI"].train, data.tasks["QNLI"].eval)
    )
    assert not train & held_out  # neither questions nor sentences
    ten = first_examples(data.tasks["SQuAD"], 10, tmp_path)
    assert sum(len(part["qas"]) for part in json.loads(ten.train.read_text())["data"][0]["paragraphs"]) == 10
    assert first_examples(data.tasks["UNER"], 10, tmp_path).train.read_text().count("\n\n") == 10


def score(*values: float, baseline: float | None = None) -> Score:
    return Score(metric="accuracy", values=values, baseline=baseline)


def summary_of(rows: list[Row], **changes: Any) -> Summary:
    fields: dict[str, Any] = {
        "experiment": "ablation", "title": "Ablation", "scale": "mini", "command": "fastbert experiment", "rows": rows,
        "data": {"sets": {"SNLI": {"stands_for": "MNLI"}}}, "settings": {"layers": 4, "finetune_steps": 10,
        "train_examples": 100}, "machine": {"cpu": "a processor"}, "paper": "84.4", "limits": "small", "seeds": 3,
    }  # fmt: skip
    return Summary(**{**fields, **changes})


def test_differences_are_tested_over_the_same_seeds() -> None:
    stats = pytest.importorskip("scipy.stats")
    first, second = score(70.0, 72.0, 71.0), score(68.0, 71.5, 68.5)
    difference, p = paired(second, first)
    assert difference == pytest.approx(-5 / 3)
    assert p == pytest.approx(float(stats.ttest_rel(second.values, first.values).pvalue))
    assert paired(score(1.0), score(2.0)) == (-1.0, None)
    assert paired(score(1.0, 2.0), score(2.0, 3.0)) == (-1.0, None)
    table = comparison_table(
        summary_of([Row(name="BERT", scores={"SNLI": first}), Row(name="LTR", scores={"SNLI": second})])
    )
    assert "| LTR | -1.7 (p = " in table
    assert comparison_table(summary_of([Row(name="BERT", scores={"SNLI": first})])) == ""
    named = [
        Row(name="A, 10", scores={"SNLI": first}, compared_with="A, 10"),
        Row(name="B, 10", scores={"SNLI": second}, compared_with="A, 10"),
        Row(name="A, 20", scores={"SNLI": second}, compared_with="A, 20"),
        Row(name="B, 20", scores={"SNLI": second}, compared_with="A, 20"),
    ]
    table = comparison_table(summary_of(named))
    assert "| B, 10 − A, 10 | -1.7 (p = " in table
    assert "| B, 20 − A, 20 | +0.0 |" in table
    assert "A, 20 − A, 10" not in table


def test_the_page_says_where_its_numbers_come_from(tmp_path: Path) -> None:
    rows = [
        Row(
            name="BERT",
            scores={"SNLI": score(70.0, 72.0, baseline=33.3)},
            numbers={"loss": 2.5, "million tokens": 36.0, "lowest cosine": -0.001},
        )
    ]
    (tmp_path / "results").mkdir()
    summary_of(rows).write(tmp_path)
    (tmp_path / "summary.json").rename(tmp_path / "results" / "ablation-mini-avx2.json")
    write_page(tmp_path / "results", tmp_path / "results.md", tmp_path / "images")
    page = (tmp_path / "results.md").read_text()
    for part in ("| BERT | 71.0 ± 1.4 | 2.50 | 36 | 0.00 |", "| trivial baseline | 33.3 |", "*The paper:* 84.4",
                 "(results/ablation-mini-avx2.json)", "SNLI for MNLI", "(images/ablation-mini-avx2.png)"):  # fmt: skip
        assert part in page
    assert (tmp_path / "images" / "ablation-mini-avx2.png").exists()
    (tmp_path / "results" / "ablation-mini-avx2.json").write_text('{"version": 99, "rows": []}')
    with pytest.raises(UserError, match="newer version"):
        read_summaries(tmp_path / "results")
    (tmp_path / "results" / "ablation-mini-avx2.json").write_text('{"version": 1, "rows": [{}]}')
    with pytest.raises(UserError, match="is not the summary of an experiment"):
        read_summaries(tmp_path / "results")


def test_the_committed_page_is_that_of_the_committed_summaries() -> None:
    summaries = read_summaries(DOCS / "results")
    if not summaries:
        pytest.skip("no summaries are committed")
    assert (DOCS / "results.md").read_text() == page_text(summaries, DOCS, DOCS / "images" / "results")
    for file, summary in summaries.items():
        assert not summary.columns() or (DOCS / "images" / "results" / f"{file.stem}.png").exists()


def test_the_command_prints_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["experiment", "transfer", "--scale", "smoke", "--out", str(tmp_path / "x"), "--steps", "0"]) == 2
    assert cli.main(["experiment", "nothing", "--out", str(tmp_path / "x")]) == 2
    assert cli.main(["experiment"]) == 2
    errors = capsys.readouterr().err
    assert "--steps 0 must be at least 1" in errors
    assert "WHAT 'nothing' is not one of ablation" in errors
    calls: list[Any] = []

    def run(*names: Any, **flags: Any) -> Summary:
        calls.append((names, flags))
        return summary_of([Row(name="BERT", scores={"SNLI": score(70.0, 72.0)})])

    monkeypatch.setattr(registry, "run_experiment", run)
    flags = ["experiment", "transfer", "--out", str(tmp_path / "x"), "--seeds", "1", "--steps", "1", "--quiet"]
    assert cli.main(flags) == 0
    printed = capsys.readouterr().out
    assert "BERT  71.0 ± 1.4" in " ".join(printed.split()).replace("BERT 71.0", "BERT  71.0")
    assert "chart.png" in printed
    ((what, scale, out), given) = calls[0]
    assert (what, scale, out, given["seeds"], given["steps"]) == ("transfer", "smoke", tmp_path / "x", 1, 1)
    assert given["machine"]["cpu_capability"]
    assert given["command"] == "fastbert experiment transfer --scale smoke --seeds 1 --steps 1 --out x"


def test_missing_packages_are_named_before_anything_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "seqeval.metrics", None)
    with pytest.raises(UserError, match=r"experiments need the package seqeval: `pip install seqeval`, or the extra"):
        run_experiment("transfer", "smoke", tmp_path / "x")
    assert not (tmp_path / "x").exists()

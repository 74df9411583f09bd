"""The speed run: entries are commands that parse, runs are scored and kept once, and its page has their table."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from fastbert.benchmarks.harness import records
from fastbert.benchmarks.speedrun import data, evaluate, report, run
from fastbert.benchmarks.speedrun.entries import CPU, ENTRIES
from fastbert.cli import flags
from fastbert.cli.pretrain import complete
from fastbert.errors import UserError
from fastbert.training.config import PretrainConfig

ROOT = Path(__file__).resolve().parents[2]
DATA = data.SpeedrunData(Path("train"), Path("held-out"), Path("blimp.tsv"), {"sst2": (Path("a.tsv"), Path("b.tsv"))})
COST = {"training_seconds": 1200.0, "command_seconds": 1230.0, "steps": 9, "tokens": 99, "tokens_per_second": 0.1}


def test_an_entry_is_a_command_that_parses() -> None:
    for entry in ENTRIES.values():
        words = run.command(entry, DATA, 3, Path("out"))
        assert ("torch.distributed.run" in words) == (entry.processes > 1)
        assert entry.machine != CPU or entry.processes * entry.threads == 2
        words = words[words.index("pretrain") + 1 : -1]  # without --quiet, which every command takes
        config = complete(flags.parse(PretrainConfig, "pretrain", words, dict), words)
        assert (config.seed, config.hours) == (3, entry.minutes / 60)


def test_documents_are_held_out_by_their_hash(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"holds no wiki-en/wiki_en.sent.txt.xz"):
        data.prepared(tmp_path, tmp_path / "work")
    monkeypatch.setattr(data, "SHA256", "0" * 64)
    with pytest.raises(UserError, match=r"has the SHA-256 \w{64}, not 0000"):
        data.prepared(data_dir, tmp_path)
    train, held_out = ((tmp_path / name).read_text(encoding="utf-8") for name in ("train.txt", "held-out.txt"))
    documents, others = train.split("\n\n"), held_out.split("\n\n")
    assert len(others) / (len(documents) + len(others)) == pytest.approx(data.HELD_OUT, abs=1e-3)
    assert not set(documents) & set(others)


def test_a_run_is_scored_and_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def command(*words: str) -> None:
        calls.append(list(words))
        named = dict(word.removeprefix("--").split("=", 1) for word in words if "=" in word)
        if named["task"] == "mlm":
            Path(named["json"]).write_text(json.dumps({"loss": 4.5, "accuracy": 27.0}))
        else:
            folder = Path(named["out"])
            folder.mkdir(parents=True)
            spread = {"mean": 80.0, "std": 0.5, "per_seed": [79.5, 80.5]}
            scores = {"overall": 55.0, "phenomena": {}, "results": {"b.tsv": {"accuracy": spread}}}
            (folder / "results.json").write_text(json.dumps(scores))

    def train(entry: Any, given: Any, seed: int, out: Path) -> dict[str, Any]:
        out.mkdir(parents=True)
        (out / "metrics.jsonl").write_text("{}\n")
        (out / "config.json").write_text(json.dumps({"out": str(out)}))
        return {**COST, "busy_before": 0.0}

    monkeypatch.setattr(evaluate, "_fastbert", command)
    monkeypatch.setattr(run, "train", train)
    options = argparse.Namespace(logs=tmp_path / "logs", work=tmp_path / "work", again=False, finetune_seeds=2)
    summary = run.run(ENTRIES["short-20"], 1, options, DATA)
    assert (summary["mlm_loss"], summary["blimp"], summary["sst2"], summary["seed"]) == (4.5, 55.0, 80.0, 1)
    kind = records.machine_class(records.machine())
    assert (tmp_path / "logs" / kind / "short-20" / "seed-1" / "metrics.jsonl").read_text() == "{}\n"
    kept = tmp_path / "logs" / kind / "short-20" / "seed-1" / "config.json"
    assert json.loads(kept.read_text()) == {"out": "WORK/short-20-1"}
    assert sorted(words[0] for words in calls) == ["evaluate", "evaluate", "finetune"]
    assert run.run(ENTRIES["short-20"], 1, options, DATA) == json.loads(json.dumps(summary))
    assert len(calls) == 3

    run.run(ENTRIES["short-20"], 2, options, DATA)
    for file in (tmp_path / "logs").rglob("summary.json"):  # of the second task set too
        stored = json.loads(file.read_text())
        file.write_text(json.dumps({**stored, "stsb": 50.0 + stored["seed"], "stsb_seeds": [51.0]}))
    table = report.write(tmp_path / "logs", tmp_path / "results")
    assert "| `short-20` | 2 | 4.500 ± 0.000 | 55.0 ± 0.0 | 80.0 ± 0.0 | 51.5 ± 0.7 |" in table
    record = json.loads((tmp_path / "results" / f"{kind}.json").read_text())
    assert records.problems(record, "speedrun", kind) == []
    with pytest.raises(UserError, match="holds no run of this machine's class"):
        report.write(tmp_path / "other")


def test_the_page_has_the_tables_of_the_records() -> None:
    """And the records are those of the logs."""
    for file in (ROOT / "benchmarks" / "results" / "speedrun").glob("*.json"):
        stored = json.loads(file.read_text())
        assert report.table_of(stored["rows"]) in (ROOT / "benchmarks" / "speedrun" / "README.md").read_text()
        logs = (ROOT / "benchmarks" / "speedrun" / "logs" / file.stem).glob("*/seed-*/summary.json")
        summaries = [json.loads(log.read_text()) for log in logs]
        assert sum(len(row["seeds"]) for row in stored["rows"]) == len(summaries)
        assert {summary["data_sha256"] for summary in summaries} == {data.SHA256}


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["best"], "best is not an entry; choose from bert-2018-20"),
        ([], "name an entry to run, or give --report"),
        (["short-20", "--data", "nowhere"], "--data nowhere: no such folder; name the one that holds wiki-en"),
    ):
        assert run.main(words) == 2
        assert message in capsys.readouterr().err

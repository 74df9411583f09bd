"""The speed run: entries are commands that parse, runs are scored and kept once, and its page has their tables."""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastbert.benchmarks.harness import records
from fastbert.benchmarks.speedrun import data, evaluate, report, run
from fastbert.benchmarks.speedrun.entries import CORES, CPU, ENTRIES, GPU
from fastbert.cli import flags
from fastbert.cli.pretrain import complete
from fastbert.errors import UserError
from fastbert.training.config import PretrainConfig

ROOT = Path(__file__).resolve().parents[2]
DATA = data.SpeedrunData(Path("train"), Path("held-out"), Path("blimp.tsv"), {"sst2": (Path("a.tsv"), Path("b.tsv"))})
COST = {"training_seconds": 1200.0, "command_seconds": 1230.0, "steps": 9, "tokens": 99, "tokens_per_second": 0.1}
MACHINE = {"cpu": "a processor", "usable_cores": 2.0, "features": ["avx2", "fma"], "gpu": None}
ENTRY = ENTRIES["short-20"]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "machine", lambda: MACHINE)


def options(folder: Path) -> argparse.Namespace:
    return argparse.Namespace(logs=folder / "logs", work=folder / "work", again=False, finetune_seeds=2)


def summary(seed: int, **changes: Any) -> dict[str, Any]:
    """Return the summary of a run of short-20."""
    settings = {"name": "short-20", "minutes": 20, "machine": CPU, "flags": ["--lr=3e-3"], "processes": 2, "threads": 1}
    scores = dict.fromkeys(report.SCORES, 50.0) | {"sst2_seeds": [79.5, 80.5]}
    origin = {"data_sha256": "0", "machine_details": MACHINE, "versions": {"python": "3.11.7"}, "commit": f"c{seed}"}
    return {**settings, "seed": seed, **COST, "busy_before": 0.01 * seed, **scores, **origin, **changes}


def test_an_entry_is_a_command_that_parses() -> None:
    for entry in ENTRIES.values():
        words = run.command(entry, DATA, 3, Path("out"))
        assert ("torch.distributed.run" in words) == (entry.processes > 1)
        assert entry.machine != CPU or entry.processes * entry.threads == CORES
        words = words[words.index("pretrain") + 1 : -1]  # without --quiet, which every command takes
        config = complete(flags.parse(PretrainConfig, "pretrain", words, dict), words)
        assert (config.seed, config.hours) == (3, entry.minutes / 60)
        assert config.device == ("cpu" if entry.machine == CPU else "cuda")


def test_documents_are_held_out_by_their_hash(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"holds no wiki-en/wiki_en.sent.txt.xz"):
        data.prepared(tmp_path, tmp_path / "work")
    monkeypatch.setattr(data, "SHA256", "0" * 64)
    cure = r"has the SHA-256 \w{64}, not 0000.*; delete train.txt, held-out.txt, vocab.txt there"
    with pytest.raises(UserError, match=cure):
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
        assert named["device"] == "cpu"
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
        return {**COST, "busy_before": 0.25}

    monkeypatch.setattr(evaluate, "_fastbert", command)
    monkeypatch.setattr(run, "train", train)
    first = run.run(ENTRY, 1, options(tmp_path), DATA)
    assert (first["mlm_loss"], first["blimp"], first["sst2"], first["seed"]) == (4.5, 55.0, 80.0, 1)
    assert (tmp_path / "logs" / "avx2" / "short-20" / "seed-1" / "metrics.jsonl").read_text() == "{}\n"
    kept = tmp_path / "logs" / "avx2" / "short-20" / "seed-1" / "config.json"
    assert json.loads(kept.read_text()) == {"out": "WORK/short-20-1"}
    assert sorted(words[0] for words in calls) == ["evaluate", "evaluate", "finetune"]
    assert run.run(ENTRY, 1, options(tmp_path), DATA) == json.loads(json.dumps(first))
    assert len(calls) == 3

    run.run(ENTRY, 2, options(tmp_path), DATA)
    for file in (tmp_path / "logs").rglob("summary.json"):  # of the second task set too
        stored = json.loads(file.read_text())
        file.write_text(json.dumps({**stored, "stsb": 50.0 + stored["seed"], "stsb_seeds": [51.0]}))
    tables = report.write(tmp_path / "logs", tmp_path / "results")
    assert "| `short-20` | 2 | 4.500 ± 0.000 | 55.0 ± 0.0 | 80.0 ± 0.0 | 51.5 ± 0.7 |" in tables
    assert "short-20: other programs took 25% of the cores' time before a run began" in tables
    record = json.loads((tmp_path / "results" / "avx2.json").read_text())
    assert records.problems(record, "speedrun", "avx2") == []
    with pytest.raises(UserError, match="holds no run; name an entry to run"):
        report.write(tmp_path / "other")


def test_a_model_is_filed_under_its_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "evaluate", lambda *_, **__: {"mlm_loss": 4.5})
    out = tmp_path / "work" / "short-20-0"
    out.mkdir(parents=True)

    def scored(**stored: Any) -> dict[str, Any]:
        (out / "cost.json").write_text(json.dumps({**COST, **stored}))
        shutil.rmtree(tmp_path / "logs", ignore_errors=True)
        return run.run(ENTRY, 0, options(tmp_path), DATA)

    assert scored(commit="of training")["commit"] == "of training"
    here = scored()  # as an earlier version wrote it
    assert (here["machine_details"], here["flags"]) == (MACHINE, list(ENTRY.flags))
    with pytest.raises(UserError, match=r"short-20-0: its model was trained with flags \['--lr=1'\], not .*--again"):
        scored(flags=["--lr=1"])
    with pytest.raises(UserError, match="short-20-0: its model was trained on a machine of class amx, not avx2"):
        scored(machine_details={"features": ["amx_tile"]})


def test_an_entry_has_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = replace(ENTRY, name="gpu-20", machine=GPU)
    with pytest.raises(UserError, match="gpu-20: is an entry for 1 GPU, and there is none"):
        run.machine_of(on_gpu)
    monkeypatch.setattr(records, "machine", lambda: {**MACHINE, "usable_cores": 8.0, "gpu": "NVIDIA H100 80GB HBM3"})
    assert records.machine_class(run.machine_of(on_gpu)) == "h100-80gb-hbm3"
    assert records.machine_class(run.machine_of(ENTRY)) == "avx2"
    with pytest.raises(UserError, match="short-20: is an entry for 2 CPU cores, and this process can use 8"):
        run.run(ENTRY, 0, options(tmp_path), DATA)


def test_seeds_of_one_entry_have_the_same_settings() -> None:
    (row,) = report.rows([summary(0), summary(1)])
    assert (row["busy_before"], row["commit_per_seed"], row["commit"]) == (0.01, ["c0", "c1"], "c1")
    for changes, message in (
        ({"flags": ["--lr=1"]}, r"short-20: seed 1 has flags \['--lr=1'\], but seed 0 has \['--lr=3e-3'\]"),
        ({"processes": 1}, "short-20: seed 1 has processes 1, but seed 0 has 2"),
        ({"threads": 2}, "short-20: seed 1 has threads 2, but seed 0 has 1"),
        ({"sst2_seeds": [80.0]}, "short-20: seed 1 has fine-tuning seeds 1, but seed 0 has 2"),
    ):
        with pytest.raises(UserError, match=message):
            report.rows([summary(0), summary(1, **changes)])


def test_the_page_has_the_tables_of_the_records() -> None:
    """And the records are those of the logs."""
    for file in (ROOT / "benchmarks" / "results" / "speedrun").glob("*.json"):
        stored = json.loads(file.read_text())
        assert report.table_of(stored["rows"]) in (ROOT / "benchmarks" / "speedrun" / "README.md").read_text()
        summaries = report.read(ROOT / "benchmarks" / "speedrun" / "logs" / file.stem)
        assert {each["data_sha256"] for each in summaries} == {data.SHA256}
        for row, made in zip(stored["rows"], report.rows(summaries), strict=True):
            assert row == {key: made[key] for key in row}


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["best"], "best is not an entry; choose from bert-2018-20"),
        ([], "name an entry to run, or give --report"),
        (["short-20", "--data", "nowhere"], "--data nowhere: no such folder; name the one that holds wiki-en"),
    ):
        assert run.main(words) == 2
        assert message in capsys.readouterr().err

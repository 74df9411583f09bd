"""`fastbert evaluate` of pre-trained models: minimal pairs, perplexities and held-out losses, from flags to files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from language_models import POSITIONS, saved, sentences

pytest.importorskip("tyro", reason="the command line needs tyro")
pytest.importorskip("transformers")

from fastbert import cli
from fastbert.scoring.scorer import load_scorer, score_with


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "both"
    saved(folder, "BertForPreTraining")
    return folder


def evaluate(*flags: object) -> int:
    return cli.main(["evaluate", *map(str, flags)])


def write_pairs(path: Path) -> Path:
    rows = [
        ("p", "one", "the cats run", "the cat run"),
        ("p", "one", "a cat", "a cat"),
        ("q", "two", "a dog .", "dog a"),
    ]
    path.write_text("\n".join(map("\t".join, [("phenomenon", "paradigm", "good", "bad"), *rows])))
    return path


def test_minimal_pairs_beside_ngrams(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = write_pairs(tmp_path / "pairs.tsv")
    (tmp_path / "corpus.txt").write_text("\n".join(text or "a" for text in sentences(0, 40)))
    out = tmp_path / "new" / "out"
    flags = ("--task", "blimp", "--model", model, "--data", pairs, "--out", out, "--ngram", tmp_path / "corpus.txt")
    assert evaluate(*flags, "--json", tmp_path / "figures.json") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["accuracy,", "%", "model", "ngram"]
    assert [line.split()[0] for line in shown[1:6]] == ["p", "one", "q", "two", "overall"]
    assert "model: 1 pair with equal scores, which count as wrong" in shown
    assert shown[-1] == f"scores: {out}"
    results = json.loads((out / "results.json").read_text())
    assert results == json.loads((tmp_path / "figures.json").read_text())
    assert (results["task"], results["pairs"], results["ties"]) == ("blimp", 3, 1)
    assert results["machine"]["dtype"] == "fp32"
    assert results["ngram"]["order"] == 5
    records = [json.loads(line) for line in (out / "scores.jsonl").read_text().splitlines()]
    texts = ["the cats run", "the cat run"]
    assert records[0]["model"] == pytest.approx(score_with(load_scorer(model), texts).totals, abs=1e-5)
    right = [record["model"][0] > record["model"][1] for record in records]
    assert results["paradigms"] == {"one": 50.0 * right[0], "two": 100.0 * right[2]}

    before = (out / "scores.jsonl").read_bytes()
    assert evaluate(*flags, "--limit", 1) == 2
    assert "holds results; give another folder, or --overwrite" in capsys.readouterr().err
    assert (out / "scores.jsonl").read_bytes() == before
    assert evaluate(*flags, "--limit", 1, "--overwrite", "--quiet") == 0
    assert len((out / "scores.jsonl").read_text().splitlines()) == 2


def test_perplexity_of_a_file(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["the cats run", "", "a dog ."]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"body": line}) for line in lines))
    out = tmp_path / "scores.jsonl"
    assert (
        evaluate("--task", "pseudo-perplexity", "--model", model, "--text", tmp_path / "texts.txt", "--out", out) == 0
    )
    shown = capsys.readouterr().out
    assert shown.startswith("pseudo-perplexity ")
    assert "2 texts, 7 tokens" in shown
    records = [json.loads(line) for line in out.read_text().splitlines()]
    expected = score_with(load_scorer(model), lines).totals
    assert [record["index"] for record in records] == [0, 2]
    assert [record["log_probability"] for record in records] == pytest.approx(expected[[0, 2]].tolist(), abs=1e-5)
    flags = ("--text", tmp_path / "texts.jsonl", "--text-column", "body", "--score-mode", "within-word")
    assert evaluate("--task", "pseudo-perplexity", "--model", model, *flags) == 0
    assert evaluate("--task", "pseudo-perplexity", "--model", model, *flags, "--out", out) == 2
    assert "exists" in capsys.readouterr().err

    saved(tmp_path / "causal", "BertLMHeadModel", is_decoder=True)
    flags = ("--model", tmp_path / "causal", "--text", tmp_path / "texts.txt")
    assert evaluate("--task", "pseudo-perplexity", *flags) == 0
    assert capsys.readouterr().out.startswith("perplexity ")


def test_held_out_losses(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = ["\n".join(text or "a" for text in sentences(seed, 12)) for seed in range(6)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(documents))
    figures = {}
    for task in ("mlm", "nsp"):
        flags = ("--task", task, "--model", model, "--max-length", 24, "--json", tmp_path / "figures.json")
        assert evaluate(*flags, "--corpus", tmp_path / "corpus.txt") == 0
        figures[task] = json.loads((tmp_path / "figures.json").read_text())
    shards = ("prepare", "--corpus", tmp_path / "corpus.txt", "--tokenizer", model, "--out", tmp_path / "shards")
    assert cli.main(list(map(str, shards))) == 0
    assert evaluate(*flags, "--data", tmp_path / "shards") == 0
    same = json.loads((tmp_path / "figures.json").read_text())
    assert [same[name] for name in ("loss", "accuracy", "predictions")] == [
        figures["nsp"][name] for name in ("loss", "accuracy", "predictions")
    ]
    assert figures["mlm"]["loss"] > 1
    assert figures["mlm"]["seed"] == 0
    assert "accuracy" in capsys.readouterr().out

    (tmp_path / "one.txt").write_text(documents[0])
    (tmp_path / "short.txt").write_text("a\n\na")
    for source, messages in (
        (("--corpus", "one.txt"), ("one.txt: holds one document, and next-sentence pairs need a second one",)),
        (("--corpus", "short.txt"), ("of --corpus", "short.txt (2 documents) is too short for one sample")),
        (("--data", "corpus.txt"), ("--data", "is not a folder")),
    ):
        assert evaluate(*flags, source[0], tmp_path / source[1]) == 2
        shown = capsys.readouterr().err
        assert all(message in shown for message in messages), shown

    other = tmp_path / "other"
    saved(other, "BertForMaskedLM")
    (other / "vocab.txt").write_text((other / "vocab.txt").read_text().replace("dog", "god"))
    for name in ("tokenizer.json", "fastbert_manifest.json"):
        (other / name).unlink(missing_ok=True)
    assert evaluate("--task", "mlm", "--model", other, "--max-length", 24, "--data", tmp_path / "shards") == 2
    assert "was tokenized with a different vocabulary" in capsys.readouterr().err


def test_mistakes(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = write_pairs(tmp_path / "pairs.tsv")
    (tmp_path / "long.txt").write_text("a cat\n" + "a " * POSITIONS)
    (tmp_path / "blank.txt").write_text("\n\n")
    (tmp_path / "wrong.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "out").mkdir()
    saved(tmp_path / "plain", "BertModel")
    longer = shutil.copytree(model, tmp_path / "longer")
    (longer / "fastbert_manifest.json").unlink(missing_ok=True)
    with (longer / "vocab.txt").open("a") as file:
        file.write("".join(f"new{index}\n" for index in range(9)))
    perplexity = ("--task", "pseudo-perplexity", "--model", model)
    for flags, problem in (
        (("--task", "blimp", "--data", pairs), "--model is missing"),
        (("--task", "blimp", "--model", model), "--data is missing: BLiMP's folder or file"),
        (perplexity, "--text is missing: a file of texts"),
        (("--task", "mlm", "--model", model), "--corpus is missing: text, or token shards"),
        (
            ("--task", "blimp", "--model", model, "--text", "x.txt"),
            "--text is for --task pseudo-perplexity, not for blimp",
        ),
        (("--model", model, "--limit", 3), "--limit is for --task blimp"),
        (("--task", "blimp", "--model", model, "--data", pairs, "--gold", pairs), "--gold is for files of predictions"),
        (("--task", "blimp", "--model", model, "--data", pairs, "--limit", 0), "--limit 0 must be at least 1"),
        (("--task", "blimp", "--model", model, "--data", tmp_path / "wrong.jsonl"), "line 1: not minimal pairs"),
        (("--task", "blimp", "--model", tmp_path / "plain", "--data", pairs), "holds no masked-LM head (ForMaskedLM)"),
        (("--task", "nsp", "--model", tmp_path / "plain", "--corpus", tmp_path / "long.txt"), "no next-sentence head"),
        ((*perplexity, "--text", tmp_path / "long.txt"), f"long.txt, line 2 has {POSITIONS} tokens"),
        ((*perplexity, "--text", tmp_path / "blank.txt"), "no text has a token"),
        (("--task", "mlm", "--model", longer, "--corpus", tmp_path / "long.txt"), "longer has a vocabulary of"),
        ((*perplexity, "--text", tmp_path / "long.txt", "--out", tmp_path / "out"), "must end in .jsonl"),
    ):
        assert evaluate(*flags) == 2, flags
        error = capsys.readouterr().err.splitlines()[-1]
        assert problem in error, error
    assert not any((tmp_path / "out").iterdir())

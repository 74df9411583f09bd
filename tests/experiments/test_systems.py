"""The experiments on masking, baselines and polysemy at the smallest scale, and their parts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scores of fine-tuning need scikit-learn")

from fastbert import cli
from fastbert.errors import UserError
from fastbert.experiments import blimp, hmm, masking
from fastbert.experiments.hmm import UNKNOWN, tag_with_hmm
from fastbert.experiments.occurrences import Occurrence, find_sentences
from fastbert.experiments.page import page_text
from fastbert.experiments.polysemy import States
from fastbert.experiments.registry import run_experiment
from fastbert.experiments.similarity_picture import draw_similarities, short
from fastbert.experiments.summary import Summary
from fastbert.training.config import PretrainConfig


def test_masking_trains_with_each_rule_and_scores_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "RULES", masking.RULES[:5] + masking.RULES[-1:])
    summary = run_experiment("masking", "smoke", tmp_path / "x", seeds=1, steps=1)
    assert [row.name for row in summary.rows] == [
        "15 % masked: 80 % [MASK], 10 % same, 10 % random",
        "40 % masked",
        "100 % random",
    ]
    for row in summary.rows:
        assert set(row.scores) == {"pairs", "words", "words, features"}
    # The table's order is the paper's, that of the flag has random tokens before unchanged ones.
    flags = [
        PretrainConfig.from_dict(json.loads(file.read_text())["run"])
        for file in sorted((tmp_path / "x" / "pretrain").glob("*/config.json"))
    ]
    assert [(flag.mask_prob, flag.replacement_shares) for flag in flags] == [
        (0.15, (0.0, 1.0, 0.0)),
        (0.15, (0.8, 0.1, 0.1)),
        (0.4, (0.8, 0.1, 0.1)),
    ]


def test_rules_are_those_of_the_papers_table() -> None:
    table = [(rule.mask, rule.same, rule.random) for rule in masking.RULES if rule.rate == 15]
    expected = [(80, 10, 10), (100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100)]
    assert table == expected
    assert [rule.rate for rule in masking.RULES if rule.rate != 15] == [10, 20, 30, 40]
    assert all(sum(rule) == 100 for rule in table)
    assert len({rule.key for rule in masking.RULES}) == len(masking.RULES) == 10
    assert masking.RULES[-2].name == "20 % same, 80 % random"


def test_baselines_has_a_row_per_system(tmp_path: Path) -> None:
    pytest.importorskip("gensim")
    pytest.importorskip("nltk")
    summary = run_experiment("baselines", "smoke", tmp_path / "x", seeds=2, steps=1)
    values = {row.name: {name: len(score.values) for name, score in row.scores.items()} for row in summary.rows}
    assert values == {
        "BERT, fine-tuned": {"words": 2, "pairs": 2},
        "BERT, features": {"words": 2},
        "GPT, fine-tuned": {"words": 2, "pairs": 2},
        "ELMo, features": {"words": 2},
        "static vectors, features": {"words": 2},
        "HMM": {"words": 1},
    }
    assert summary.rows[-1].scores["words"].mean > 40  # kinds of words follow from counts alone


def test_an_hmm_tags_by_words_and_by_the_tags_before(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nltk")
    train = [(("the", "play", "ends"), ("D", "N", "V")), (("we", "play", "chess"), ("P", "V", "N"))] * 5
    tags = tag_with_hmm(train, [("the", "play"), ("we", "play"), ("the", "zebra", "ends"), ()])
    assert tags == [["D", "N"], ["P", "V"], ["D", "N", "V"], []]
    assert tag_with_hmm([((UNKNOWN,), ("X",))], [(UNKNOWN, "a")]) == [["X", "X"]]
    monkeypatch.setitem(__import__("sys").modules, "nltk.tag.hmm", None)
    with pytest.raises(UserError, match="needs the package nltk: `pip install nltk`"):
        hmm.check_nltk()


def test_polysemy_leaves_neighbours_and_heat_maps(tmp_path: Path) -> None:
    pytest.importorskip("gensim")
    out = tmp_path / "x"
    summary = run_experiment("polysemy", "smoke", out, steps=1, words=("Call", "type"))
    assert [row.name for row in summary.rows] == ["static", "ELMo", "BERT"]
    assert summary.rows[0].numbers == {
        "call, mean cosine": 1.0, "call, lowest": 1.0, "type, mean cosine": 1.0, "type, lowest": 1.0
    }  # fmt: skip
    for row in summary.rows[1:]:
        assert -1 <= row.numbers["call, lowest"] <= row.numbers["call, mean cosine"] < 1
    for word, result in summary.details["words"].items():
        count = len(result["contexts"])
        assert count >= 3
        assert all(word.upper() in label for label in result["contexts"])
        for system in ("ELMo", "BERT"):
            matrix = np.array(result["cosines"][system])
            assert matrix.shape == (count, count)
            assert np.allclose(matrix, matrix.T)
            assert np.allclose(matrix.diagonal(), 1, atol=2e-3)
            for label, nearest, names in zip(
                result["contexts"], result["nearest"][system], result["neighbours"][system], strict=True
            ):
                assert nearest != label
                assert len(set(names)) == 5
                assert word not in names
    assert Summary.read(out) == summary
    assert (out / "chart.png").read_bytes().startswith(b"\x89PNG")
    assert "BERT: nearest occurrence" in (out / "table.md").read_text()
    page = page_text({out / "summary.json": summary}, out, out)
    assert "Static neighbours of **call**" in page
    assert "](summary.png)" in page
    with pytest.raises(UserError, match=r"holds an experiment with words=\['Call', 'type'\]"):
        run_experiment("polysemy", "smoke", out, steps=1, words=("call",))
    with pytest.raises(UserError, match="--words xylophone: occurs in 0 sentences of the corpus, and 3 are needed"):
        run_experiment("polysemy", "smoke", tmp_path / "y", steps=1, words=("xylophone",))


def test_blimp_has_a_row_per_phenomenon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "x"
    summary = run_experiment("blimp", "smoke", out, steps=2)
    assert [row.name for row in summary.rows] == ["word order", "all paradigms"]
    assert summary.columns() == ["BERT", "No NSP", "LTR", "5-grams"]
    by_paradigm = summary.details["paradigms"]["5-grams"]
    assert set(by_paradigm) == {"short_sentences", "long_sentences"}
    # n-grams have read these sentences, and not those with exchanged words.
    assert summary.rows[-1].scores["5-grams"].mean == sum(by_paradigm.values()) / 2 > 75
    assert summary.rows[-1].numbers["pairs"] == 10
    assert (out / "chart.png").stat().st_size > 1000
    # Systems are scored once.
    monkeypatch.setattr(blimp, "load_scorer", lambda *_: pytest.fail("scored again"))
    assert run_experiment("blimp", "smoke", out, steps=2).rows == summary.rows
    # Other pairs are other data.
    pairs = out / "sets" / "pairs.tsv"
    pairs.write_text(pairs.read_text().replace("short_sentences", "other_sentences"))
    with pytest.raises(UserError, match="holds an experiment with other data"):
        run_experiment("blimp", "smoke", out, steps=2)


def test_words_belong_to_polysemy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["experiment", "ablation", "--words", "bank", "--out", str(tmp_path / "x")]) == 2
    assert "--words belongs to polysemy, not to ablation" in capsys.readouterr().err


def test_occurrences_are_a_sample_that_the_text_alone_decides() -> None:
    documents = [[f"we saw the {chr(97 + i % 26)}{chr(97 + i // 26)} Bank of a river today", "too short bank"]
                 for i in range(300)]  # fmt: skip
    found = find_sentences(documents, ["bank"], most=20, others=7)
    again = find_sentences(documents + documents[:5], ["bank"], most=20, others=7)
    assert found == find_sentences(documents, ["bank"], most=20, others=7)
    assert len(set(found.occurrences["bank"])) == 20
    assert len(found.others) == 7
    assert {occurrence.index for occurrence in found.occurrences["bank"]} == {4}
    assert any(occurrence.words[3] > "ma" for occurrence in found.occurrences["bank"])
    assert len(set(again.occurrences["bank"])) == 20
    assert find_sentences([["1 2 3 4 5 6 bank 7 8"]], ["bank"], most=1, others=1).occurrences["bank"] == []
    phrase = [f"{number} the same old bank as before here" for number in ("one", "two", "three")]
    assert len(find_sentences([phrase], ["bank"], most=9, others=9).occurrences["bank"]) == 1
    words = ("a", "remarkably", "longwinded", "introduction", "bank", "and", "some", "extensive", "afterthoughts")
    assert Occurrence(words, 4).label == "…ngwinded introduction BANK and some extensive"
    assert Occurrence(("bank",), 0).label == "BANK"


def test_states_are_found_by_their_sentences() -> None:
    documents = [["the river bank is green today now", "the money bank is closed today now"] * 2]
    sentences = find_sentences(documents, ["bank"], most=5, others=2)
    occurrences = sentences.occurrences["bank"]
    every = [occurrence.words for occurrence in occurrences] + sentences.others
    offsets = np.cumsum([0, *map(len, every)])
    draw = np.random.default_rng(0)
    table = {word: draw.normal(size=8) for words in every for word in words}
    # A state that is the word's vector plus half of the vector of the word before it.
    states = np.array(
        [table[word] + 0.5 * table[words[i - 1]] for words in every for i, word in enumerate(words)], np.float32
    )
    found = States.of(states, offsets, sentences)
    mean = states[offsets[len(occurrences)] :].mean(axis=0)
    vectors = [states[offsets[i] + occurrence.index] - mean for i, occurrence in enumerate(occurrences)]
    expected = vectors[0] @ vectors[1] / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[1])
    assert found.cosines("bank", [0, 1])[0, 1] == pytest.approx(expected, abs=1e-6)
    assert found.nearest_occurrence("bank", 0) == 1
    assert "bank" not in found.nearest_words("bank", 0)
    assert set(found.names) <= set(table)


def test_heat_maps_show_every_number(tmp_path: Path) -> None:
    assert [short(value) for value in (1.0, 0.999, 0.5, 0.0, -0.004, -0.25, -1.0)] == [
        "1", "1", ".50", "0", "0", "-.25", "-1"
    ]  # fmt: skip
    matrix = [[1.0, -0.3], [-0.3, 1.0]]
    out = draw_similarities({"bank": (["a BANK 数", "river BANK"], {"ELMo": matrix})}, tmp_path / "x.svg")
    text = out.read_text()
    assert text.startswith("<?xml")
    assert "bank: ELMo" in text
    assert "-.30" in text

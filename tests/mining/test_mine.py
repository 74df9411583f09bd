"""Mining from file to file: what is written, what is reused, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedding import LETTERS, random_texts, saved
from reranking_models import cross_encoder

from fastbert import CrossEncoder
from fastbert.embeddings.folder import load_embedder
from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import UserError
from fastbert.mining.flags import MiningFlags
from fastbert.mining.mine import MiningReport, mine_negatives, prompts_of
from fastbert.mining.options import MiningOptions
from fastbert.tasks.readers.text_groups import Form, TextGroups, read_text_groups

TEXTS = list(dict.fromkeys(text for text in random_texts(4, 60, 12) if text))[:40]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("embedder") / "model", 1)


@pytest.fixture
def groups(tmp_path: Path) -> TextGroups:
    path = tmp_path / "train.jsonl"
    rows = [{"query_id": f"q{i}", "query": TEXTS[i], "doc_id": f"d{i}", "document": TEXTS[20 + i]} for i in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_text_groups(str(path))


def mine(groups: TextGroups, folder: Path, out: Path, **options: Any) -> MiningReport:
    return mine_negatives(groups, folder, out, device="cpu", dtype="fp32", **options)


def test_the_file(groups: TextGroups, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "negatives.jsonl"
    stages: list[tuple[str, int, int]] = []
    report = mine(groups, folder, out, options=MiningOptions(negatives=4), progress=lambda *step: stages.append(step))
    assert (report.pairs, report.queries, report.texts, report.negatives) == (20, 20, 20, 80)
    assert (report.short, report.empty, report.reused) == (0, 0, False)
    assert {stage for stage, _, _ in stages} == {"embedding anchors", "embedding texts", "searching"}
    assert stages[-1] == ("searching", 20, 20)
    again = read_text_groups(str(out))
    assert again.form is Form.TRIPLETS
    assert "negatives='negatives' (4 per row), ids='anchor_id' + 'positive_id' + 'negative_ids'" in again.description
    model, tokenizer, _ = load_embedder(folder)
    vectors = dict(zip(TEXTS, model.embed(TEXTS, tokenizer, normalize=True), strict=True))
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    for group, new, line in zip(groups, again, lines, strict=True):
        assert new.texts[:2] == group.texts
        assert new.id == group.id
        query, key = vectors[new.texts[0]], int(group.id)
        assert new.keys is not None
        assert new.keys[:2] == (f"q{key}", f"d{key}")
        assert [TEXTS.index(text) for text in new.texts[2:]] == [20 + int(name[1:]) for name in new.keys[2:]]
        scores = {text: float(vectors[text] @ query) for text in TEXTS[20:] if text != group.texts[1]}
        best = sorted(scores, key=lambda text: -scores[text])[:4]
        assert np.allclose(sorted(scores.values())[::-1][:4], line["negative_scores"], atol=1e-6)
        assert set(best) == set(new.texts[2:])
        assert group.texts[1] not in new.texts[2:]
        assert np.isclose(line["positive_score"], float(vectors[group.texts[1]] @ query), atol=1e-6)
    mean = sum(score for line in lines for score in line["negative_scores"]) / 80
    assert np.isclose(report.negative_score or 0.0, mean, atol=1e-6)
    assert str(report).startswith(f"mined 80 negatives for 20 pairs from 20 texts: {out}\nmean cosine of positives")


def test_a_second_call_returns_at_once(
    groups: TextGroups, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "negatives.jsonl"
    options = MiningOptions(negatives=2, margin=0.01)
    first = mine(groups, folder, out, options=options)
    content, record = out.read_bytes(), json.loads((tmp_path / "negatives.jsonl.json").read_text())
    assert (record["format"], record["version"], record["names"]["model"]) == (
        "fastbert-mined-negatives",
        1,
        str(folder),
    )

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the model was loaded")

    with monkeypatch.context() as patch:
        patch.setattr("fastbert.mining.mine.load_embedder", fail)
        second = mine(groups, folder, out, options=options)
        assert second.reused
        assert (second.negatives, second.removed) == (first.negatives, first.removed)
        assert str(second).startswith("reused")
        for changed, message in (
            ({"options": MiningOptions(negatives=2, margin=0.02)}, "mined from other inputs: margin=0.01, not 0.02;"),
            ({"options": options, "corpus": __file__}, "mined from other inputs: the corpus;"),
            ({"options": options, "groups": groups.examples[:9]}, "mined from other inputs: the texts;"),
        ):
            other = TextGroups(groups.path, changed.pop("groups", groups.examples), groups.form, "")
            with pytest.raises(UserError, match=message):
                mine(other, folder, out, **changed)
    model = saved(tmp_path / "other", 2)
    with pytest.raises(UserError, match="mined from other inputs: the model; give another name, or --overwrite"):
        mine(groups, model, out, options=options)
    assert out.read_bytes() == content
    with monkeypatch.context() as patch:
        patch.setattr("fastbert.mining.mine.load_embedder", fail)
        assert mine(groups, folder, out, options=options, overwrite=True).reused, "nothing is to be replaced"
    assert not mine(groups, model, out, options=options, overwrite=True).reused
    assert out.read_bytes() != content
    out.write_text(out.read_text().replace("positive", "POSITIVE", 1))
    with pytest.raises(UserError, match="was changed after it was mined"):
        mine(groups, model, out, options=options)


def test_files_without_a_readable_record_are_refused(groups: TextGroups, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "n.jsonl"
    out.write_text("mine\n")
    with pytest.raises(UserError, match=r"n\.jsonl exists, and no n\.jsonl\.json beside it says how"):
        mine(groups, folder, out)
    record = tmp_path / "n.jsonl.json"
    record.write_text('{"format": "else"}')
    with pytest.raises(UserError, match="is not a record of mined negatives"):
        mine(groups, folder, out)
    record.write_text('{"format": "fastbert-mined-negatives", "version": 2}')
    with pytest.raises(UserError, match="has version 2, and this release reads 1"):
        mine(groups, folder, out)
    assert out.read_text() == "mine\n"
    with pytest.raises(UserError, match=r"n\.txt: must end in \.jsonl"):
        mine(groups, folder, tmp_path / "n.txt")
    with pytest.raises(UserError, match="no such file"):
        mine(groups, folder, tmp_path / "m.jsonl", corpus=tmp_path / "none.txt")


def test_corpus_and_reranker(groups: TextGroups, folder: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    more = [" ".join(letter * 3) for letter in LETTERS]
    corpus.write_text("\n".join([*more, "", TEXTS[20]]) + "\n")
    ranker = cross_encoder(tmp_path / "ranker", "Bert", 3)
    out = tmp_path / "n.jsonl"
    report = mine(groups, folder, out, options=MiningOptions(negatives=3), reranker=ranker, corpus=corpus)
    assert report.texts == 20 + len(more)
    assert report.removed["reranker"] > 0
    again = read_text_groups(str(out))
    assert again.form is Form.TRIPLETS
    model = CrossEncoder(ranker, device="cpu", dtype="fp32")
    seen = 0
    for group in again:
        assert group.teacher is not None
        scores = model.predict([(group.texts[0], text) for text in group.texts[1:]])
        assert torch.allclose(scores, torch.tensor(group.teacher), atol=1e-6)
        assert all(score <= group.teacher[0] for score in group.teacher[1:])
        seen += sum(text in more for text in group.texts)
    assert seen > 0
    assert "removed of" in str(report)
    assert "reranker" in str(report)


def test_prompts() -> None:
    prompts = {"query": "q: ", "passage": "p: ", "other": "o: "}
    settings = EmbedSettings(prompts=prompts, default_prompt="other")
    assert prompts_of(settings, MiningOptions()) == ("query", "passage")
    assert prompts_of(settings, MiningOptions(query_prompt="other", document_prompt="query")) == ("other", "query")
    assert prompts_of(EmbedSettings(prompts={"other": "o: "}, default_prompt="other"), MiningOptions()) == (None, None)
    with pytest.raises(UserError, match="prompt='none' is unknown"):
        prompts_of(settings, MiningOptions(query_prompt="none"))


def test_prompts_precede_the_texts(groups: TextGroups, folder: Path, tmp_path: Path) -> None:
    """Prompts of the folder change the vectors as words before the texts do."""
    model, tokenizer, _ = load_embedder(folder)
    prompted = tmp_path / "prompted"
    model.embed_settings = EmbedSettings(prompts={"query": "a b ", "document": "c d "}, default_prompt="document")
    model.save_pretrained(prompted)
    tokenizer.save_pretrained(prompted)
    model.embed_settings.save(prompted, model.config.hidden_size)
    out = tmp_path / "n.jsonl"
    mine(groups, prompted, out, options=MiningOptions(negatives=1))
    line = json.loads(out.read_text().splitlines()[0])
    model.embed_settings = None
    both = model.embed(["a b " + line["anchor"], "c d " + line["positive"]], tokenizer, normalize=True)
    assert np.isclose(line["positive_score"], float(both[0] @ both[1]), atol=1e-6)


def test_flags() -> None:
    flags = MiningFlags(mine_negatives="m", negatives=3, mining_range=(2, 20), mining_relative_margin=0.05)
    assert flags.mining_options(seed=4) == MiningOptions(
        negatives=3, range_min=2, range_max=20, relative_margin=0.05, seed=4
    )
    assert MiningFlags().mining_options() == MiningOptions()
    with pytest.raises(UserError, match="--mining-range 2 6 must hold at least 5 ranks"):
        MiningFlags(mine_negatives="m", mining_range=(2, 6)).mining_options()
    with pytest.raises(UserError, match="--mining-margin is for --mine-negatives MODEL"):
        MiningFlags(mining_margin=0.1).mining_options()
    with pytest.raises(UserError, match="--negatives 0 must be at least 1"):
        MiningFlags(mine_negatives="m", negatives=0).mining_options()

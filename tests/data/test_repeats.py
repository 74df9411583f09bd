"""Repeated text in shards: --dedup, its report, the sample of sentences, and the warning on leaked validation text."""

import json

import numpy as np
import pytest

from fastbert.data import sentence_sample
from fastbert.data.corpus import Corpus
from fastbert.data.dedup import DedupReport
from fastbert.data.leaks import leak_warnings
from fastbert.data.mixing import open_data
from fastbert.data.prepare import prepare
from fastbert.data.pretraining import PretrainingData, split_documents
from fastbert.data.sentence_sample import SentenceSample, SentenceSampler, hash_sentences, leaked_share
from fastbert.data.shards import TokenShards
from fastbert.errors import UserError


def sentences_of(shards):
    return [" ".join(map(str, shards.sentence(i).tolist())) for i in range(shards.num_sentences)]


def test_dedup_of_files_and_of_lists(tmp_path, id_tokenizer):
    text = "7 8\n9\n\n7 8\n9\n\n10\n9\n"
    (tmp_path / "a.txt").write_text(text)
    documents = [part.split("\n") for part in text.strip().split("\n\n")]
    for mode, expected in [
        ("off", ["7 8", "9", "7 8", "9", "10", "9"]),
        ("documents", ["7 8", "9", "10", "9"]),
        ("lines", ["7 8", "9", "10"]),
        ("all", ["7 8", "9", "10"]),
    ]:
        for source in (Corpus.find(tmp_path / "a.txt", text_format="lines"), documents):
            shards = prepare(source, id_tokenizer(20), tmp_path / "out", overwrite=True, dedup=mode, workers=2)
            assert sentences_of(shards) == expected
            assert sentences_of(TokenShards.open(tmp_path / "out")) == expected
            report = DedupReport.read(tmp_path / "out")
            assert (report is None) == (mode == "off")
    assert report == DedupReport("all", 4, 3, 1, 1, 1, 4)
    assert str(report) == "dropped 1 of 3 documents that repeat (4 bytes) and 1 of 4 lines that repeat (1 bytes)"
    with pytest.raises(UserError, match="dedup='some' must be one of off, lines, documents, all"):
        prepare(documents, id_tokenizer(20), tmp_path / "out", overwrite=True, dedup="some")
    with pytest.raises(UserError, match="workers=0 must be a whole number, at least 1"):
        prepare(documents, id_tokenizer(20), tmp_path / "out", overwrite=True, workers=0)


def test_a_damaged_report_is_one_line(tmp_path, id_tokenizer):
    prepare([["7"]], id_tokenizer(20), tmp_path / "out", dedup="all")
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    del index["sha256"]
    for key, value, message in [("mode", "x", "dedup mode 'x', which is unknown"), ("lines", -1, "lines=-1")]:
        (tmp_path / "out" / "index.json").write_text(json.dumps(index | {"dedup": index["dedup"] | {key: value}}))
        with pytest.raises(UserError, match=message):
            DedupReport.read(tmp_path / "out")


def test_the_sample_holds_all_occurrences_of_some_sentences(monkeypatch, seed):
    monkeypatch.setattr(sentence_sample, "_MOST", 500)
    random = np.random.default_rng(seed)
    hashes = random.integers(0, 1 << 64, 3000, np.uint64)[random.integers(0, 3000, 20_000)]
    samplers = [SentenceSampler(), SentenceSampler()]
    numbers = np.arange(len(hashes))
    samplers[0].add(hashes, numbers)
    for part in np.array_split(numbers, 77):  # batches do not matter
        samplers[1].add(hashes[part], part)
    rows = samplers[0].rows()
    assert (rows == samplers[1].rows()).all()
    assert samplers[0].level == samplers[1].level >= 5
    assert 0 < len(rows) <= 500
    chosen = np.isin(hashes, rows["hash"])
    assert (hashes[chosen] == rows["hash"]).all()
    assert (numbers[chosen] == rows["sentence"]).all()


def test_only_long_sentences_are_sampled():
    ids = np.arange(40, dtype=np.uint16)
    hashes, index = hash_sentences(ids, np.array([0, 9, 19, 20, 40]))
    assert index.tolist() == [1, 3]
    assert hashes.tolist() == hash_sentences(ids[9:], np.array([0, 10, 11, 31]))[0].tolist()
    assert len(hash_sentences(ids[:0], np.zeros(1, np.int64))[0]) == 0


def corpus_with_leaks(leaks: int) -> list[list[str]]:
    """100 documents of one sentence of 10 tokens; the first ones repeat others."""
    texts = [" ".join(str(10 * i + j + 6) for j in range(10)) for i in range(100)]
    return [[texts[99 - i] if i < leaks else texts[i]] for i in range(100)]


def warnings_of(shards):
    splits = (PretrainingData(shards, split=split, validation_fraction=0.3) for split in ("train", "validation"))
    return list(leak_warnings(*splits))


@pytest.mark.parametrize("leaks", [0, 40])
def test_leaked_validation_text(tmp_path, id_tokenizer, leaks, caplog):
    documents = corpus_with_leaks(leaks)
    shards = prepare(documents, id_tokenizer(1100), tmp_path / "out")
    train, validation = split_documents(shards, validation_fraction=0.3)
    lines = ["".join(document) for document in documents]
    numbers = validation[:, 0].tolist()
    others = {line for i, line in enumerate(lines) if i not in numbers}
    expected = sum(lines[i] in others for i in numbers) / len(numbers)
    assert leaked_share(SentenceSample.read(shards.folder), train, validation) == pytest.approx(expected)
    warnings = warnings_of(shards)
    if leaks:
        assert 0.1 < expected < 0.9
        (warning,) = warnings
        assert f"leaked validation text in {shards.folder}: {100 * expected:.0f} % of the validation sent" in warning
        assert warning.endswith("prepare the corpus with --dedup")
        assert "40 % of the sentences of 10 tokens or more repeat an earlier one; --dedup drops" in caplog.text
        clean = prepare(documents, id_tokenizer(1100), tmp_path / "clean", dedup="all")
        assert warnings_of(clean) == []
    else:
        assert expected == 0
        assert warnings == []
        assert not caplog.text


def test_leaks_between_the_corpora_of_a_mixture(tmp_path, id_tokenizer):
    documents = corpus_with_leaks(0)
    other = [[" ".join(str(10 * i + j + 1100) for j in range(10))] for i in range(50)]
    names = {"first": documents, "second": other, "third": [*other[:40], *documents[:60]]}
    shards = [prepare(texts, id_tokenizer(2000), tmp_path / name) for name, texts in names.items()]

    def told(*chosen: int) -> list[str]:
        splits = (
            open_data(
                [shards[i] for i in chosen], None, objective="mlm", max_length=32, split=split, validation_fraction=0.3
            )
            for split in ("train", "validation")
        )
        return list(leak_warnings(*splits))

    assert told(0, 1) == []
    warnings = told(0, 1, 2)
    assert len(warnings) == 4  # the third one with each of the others, both ways
    assert all("prepare both as one corpus with --dedup" in text for text in warnings)
    assert any(f"in {shards[0].folder}: " in text and f"text of {shards[2].folder}" in text for text in warnings)


def test_older_shards_have_no_sample_and_a_damaged_one_is_refused(tmp_path, id_tokenizer):
    folder = prepare(corpus_with_leaks(40), id_tokenizer(1100), tmp_path / "out").folder
    index = json.loads((folder / "index.json").read_text())
    del index["sha256"]
    for change, message in [
        ({"level": -1}, "level=-1, which is out of range"),
        ({"level": 64}, "level 64, which is out of range"),
        ({"file": {"name": "../x", "bytes": 1600, "sha256": ""}}, "only 'sample.bin' is allowed"),
        ({"file": {"name": "sample.bin", "bytes": 1599, "sha256": ""}}, "1599 bytes and level 0, which is out"),
    ]:
        (folder / "index.json").write_text(json.dumps(index | {"sample": index["sample"] | change}))
        with pytest.raises(UserError, match=message) as caught:
            SentenceSample.read(folder)
        assert "\n" not in str(caught.value)
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "sample.bin").write_bytes(bytes(1600))
    with pytest.raises(UserError, match=r"sample\.bin is damaged"):
        SentenceSample.read(folder)
    (folder / "index.json").write_text(json.dumps({key: value for key, value in index.items() if key != "sample"}))
    assert SentenceSample.read(folder) is None
    shards = TokenShards.open(folder)
    assert shards.num_sentences == 100
    assert warnings_of(shards) == []

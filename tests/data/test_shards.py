"""Token shards: what is written is read back, and what is damaged is refused."""

import json
import lzma
import os
import pickle
import shutil
from itertools import islice

import numpy as np
import pytest

from fastbert.data.corpus import Corpus, read_documents
from fastbert.data.prepare import prepare
from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import TokenShards
from fastbert.errors import CorpusError, UserError
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.tokenizers.piece_training import train_tokenizer

LENGTHS = [[3, 1, 4], [1, 5], [9], [2, 6, 5, 3]]


def all_sentences(shards: TokenShards) -> list[list[int]]:
    return [shards.sentence(i).tolist() for i in range(shards.num_sentences)]


@pytest.mark.parametrize(
    ("shard_tokens", "num_shards"),
    [pytest.param(1, 4, id="one-document-each"), pytest.param(9, 3, id="some"), pytest.param(1 << 28, 1, id="one")],
)
@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(65_535, "<u2"), (65_536, "<u4"), (120_000, "<u4")], ids=["narrow", "limit", "wide"]
)
def test_round_trip(tmp_path, id_tokenizer, shard_tokens, num_shards, vocab_size, dtype):
    documents = [["7 8 9", f"{vocab_size - 1}", "6 6 6 6"], ["10", "11 12 13 14 15"], ["8 " * 9], ["6 7", "8 9"]]
    shards = prepare(documents, id_tokenizer(vocab_size), tmp_path / "out", shard_tokens=shard_tokens)
    reopened = TokenShards.open(tmp_path / "out")
    for opened in (shards, reopened, pickle.loads(pickle.dumps(reopened))):
        assert len(opened.shards) == num_shards
        assert all(shard.tokens.dtype == np.dtype(dtype) for shard in opened.shards)
        expected = [list(map(int, sentence.split())) for document in documents for sentence in document]
        assert all_sentences(opened) == expected
        assert opened.document_ranges().tolist() == [[0, 3], [3, 5], [5, 6], [6, 8]]
        counts = np.bincount(np.concatenate(expected), minlength=vocab_size)
        assert (opened.unigrams == counts).all()
        assert opened.corpus.num_tokens == opened.num_tokens == counts.sum()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_empty_sentences_and_documents_are_dropped(tmp_path, id_tokenizer):
    documents = [["", "7 8", " ", "9"], [], [" ", ""], ["10"]]
    shards = prepare(documents, id_tokenizer(20), tmp_path / "out")
    assert all_sentences(shards) == [[7, 8], [9], [10]]
    assert shards.document_ranges().tolist() == [[0, 2], [2, 3]]
    for nothing in ([], [[""], [" "]]):
        with pytest.raises(CorpusError, match="corpus is empty"):
            prepare(nothing, id_tokenizer(20), tmp_path / "none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_batches_do_not_show(tmp_path, id_tokenizer, random_lengths, make_shards, monkeypatch, seed):
    lengths = random_lengths(seed, documents=30)
    whole = make_shards(lengths)
    for size, workers in [(1, 1), (1, 3), (100, 2), (10_000, 1)]:
        monkeypatch.setattr("fastbert.data.prepare._BATCH_BYTES", size)
        parts = make_shards(lengths, workers=workers)
        assert all_sentences(parts) == all_sentences(whole)
        assert (parts.document_ranges() == whole.document_ranges()).all()
        assert (parts.folder / "index.json").read_bytes() == (whole.folder / "index.json").read_bytes()


def test_sentences_of_byte_level_bpe_keep_the_space_between_them(tmp_path, monkeypatch):
    """So that the text of a document is what it was, also where batches end inside of it."""
    documents = [["One house.", "Two houses.", "A third."], ["Next one."], ["Last one.", "It ends."]] * 9
    sentences = [sentence for document in documents for sentence in document]
    tokenizer = train_tokenizer(sentences, "bpe", 300, lower_case=False)
    whole = prepare(documents, tokenizer, tmp_path / "whole")
    number = 0
    for document in documents:
        ids = [token for i in range(number, number + len(document)) for token in whole.sentence(i).tolist()]
        assert tokenizer.decode(ids) == " ".join(document)
        number += len(document)
    monkeypatch.setattr("fastbert.data.prepare._BATCH_BYTES", 20)
    lines = tmp_path / "corpus.txt"
    lines.write_text("\n\n".join("\n".join(document) for document in documents))
    monkeypatch.setattr("fastbert.data.corpus._BLOCK_BYTES", 20)
    for name, source in (("lists", documents), ("file", Corpus.find(lines, text_format="lines"))):
        parts = prepare(source, tokenizer, tmp_path / name)
        assert [parts.sentence(i).tolist() for i in range(number)] == [
            whole.sentence(i).tolist() for i in range(number)
        ]


def test_progress_from_files(tmp_path, id_tokenizer):
    (tmp_path / "a.txt").write_text("7 8 9.\n\n10 11\n" * 5)
    (tmp_path / "b.txt").write_text("12 13\n")
    corpus = Corpus.find(tmp_path, text_format="lines")
    seen = []
    tokenizer = id_tokenizer(20)
    encode = tokenizer.encode_ragged
    tokenizer.encode_ragged = lambda texts: encode([text.replace(".", "") for text in texts])
    prepare(corpus, tokenizer, tmp_path / "out", progress=lambda done, sentences: seen.append((done, sentences)))
    assert seen == sorted(seen)
    assert seen[-1] == (corpus.total_bytes, 11)


def test_output_is_not_overwritten_unless_asked(tmp_path, id_tokenizer):
    out, tokenizer = tmp_path / "out", id_tokenizer(20)
    prepare([["7"]], tokenizer, out)
    with pytest.raises(UserError, match="already exists"):
        prepare([["8"]], tokenizer, out)
    assert all_sentences(TokenShards.open(out)) == [[7]]
    assert all_sentences(prepare([["8"]], tokenizer, out, overwrite=True)) == [[8]]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.doc").write_text("years of work")
    with pytest.raises(UserError, match="not a folder of token shards, so it is not overwritten"):
        prepare([["8"]], tokenizer, tmp_path / "other", overwrite=True)
    (tmp_path / "empty").mkdir()
    assert all_sentences(prepare([["9"]], tokenizer, tmp_path / "empty")) == [[9]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "other", "out"]


def test_nothing_is_left_of_a_preparation_that_fails(tmp_path, id_tokenizer):
    out, tokenizer = tmp_path / "out", id_tokenizer(20)
    prepare([["7"]], tokenizer, out)

    def interrupted():
        yield ["8"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(interrupted(), tokenizer, out, overwrite=True)
    with pytest.raises(ValueError, match="outside its vocabulary of 20"):
        prepare([["20"]], tokenizer, out, overwrite=True)
    assert all_sentences(TokenShards.open(out)) == [[7]]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_killed_preparation_is_cleaned_up_and_a_running_one_is_not_disturbed(tmp_path, id_tokenizer):
    left = tmp_path / ".out.partial"
    left.mkdir()
    (left / "shard-00000.tokens.bin").write_bytes(b"half")

    def documents():
        yield ["7"]
        with pytest.raises(UserError, match="another process is writing"):
            prepare([["8"]], id_tokenizer(20), tmp_path / "out")

    assert all_sentences(prepare(documents(), id_tokenizer(20), tmp_path / "out")) == [[7]]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_full_disk_is_one_line(tmp_path, id_tokenizer):
    def documents():
        yield ["7"]
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match=r"cannot write .*out: No space left on device; free some space"):
        prepare(documents(), id_tokenizer(20), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_real_text_with_the_real_tokenizer(tmp_path, data_dir):
    vocabulary = lzma.decompress((data_dir / "vocab" / "bert-base-uncased-vocab.txt.xz").read_bytes())
    (tmp_path / "vocab.txt").write_bytes(vocabulary)
    tokenizer = WordPieceTokenizer.from_pretrained(tmp_path / "vocab.txt")
    documents = list(islice(read_documents(data_dir / "wiki-en" / "wiki_en.sent.txt.xz"), 300))
    shards = prepare(documents, tokenizer, tmp_path / "out", shard_tokens=50_000)
    assert len(shards.shards) > 2
    assert (
        shards.fingerprint == tokenizer.fingerprint == WordPieceTokenizer.from_pretrained(tmp_path / "out").fingerprint
    )
    assert shards.num_documents == len(documents)
    ids, offsets = tokenizer.encode_ragged([sentence for document in documents for sentence in document])
    assert [shards.sentence(i).tolist() for i in range(500)] == [
        ids[offsets[i] : offsets[i + 1]].tolist() for i in range(500)
    ]
    data = PretrainingData(TokenShards.open(tmp_path / "out"), max_length=128)
    batch = data.batch(0, range(256))
    assert abs(len(batch.labels) / (batch.num_tokens - 3 * 256) - 0.15) < 0.01
    assert 0.3 < batch.next_sentence_label.double().mean() < 0.7


# Hostile and damaged folders


def edited(change):
    """A damage that edits index.json."""

    def damage(folder):
        index = json.loads((folder / "index.json").read_text())
        change(index)
        index.pop("sha256", None)
        (folder / "index.json").write_text(json.dumps(index))

    return damage


def rewritten(name, change):
    """A damage that edits an array, and the index so that sizes and checksums fit."""

    def damage(folder):
        import hashlib

        dtype = "<u2" if "tokens" in name else "<i8"
        array = np.fromfile(folder / name, dtype)
        change(array)
        array.tofile(folder / name)
        index = json.loads((folder / "index.json").read_text())
        for entry in [*index["shards"][0]["files"].values(), index["unigrams"]]:
            if entry["name"] == name:
                entry["sha256"] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        index.pop("sha256", None)
        (folder / "index.json").write_text(json.dumps(index))

    return damage


def put(index, value, *path):
    for key in path[:-1]:
        index = index[key]
    index[path[-1]] = value


def put_value(path, value):
    return edited(lambda index: put(index, value, *path))


def truncated(name):
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - 1)


def flipped(name):
    def damage(folder):
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)

    return damage


def symlinked(folder):
    outside = folder.parent / "outside.bin"
    shutil.move(folder / "shard-00000.tokens.bin", outside)
    (folder / "shard-00000.tokens.bin").symlink_to(outside)


TOKENS, SENTENCES, DOCUMENTS = (f"shard-00000.{kind}.bin" for kind in ("tokens", "sentences", "documents"))
FILES = ("shards", 0, "files")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(lambda folder: shutil.rmtree(folder), "no such folder", id="no-folder"),
        pytest.param(
            lambda folder: (folder / "index.json").unlink(),
            "is not a folder of token shards: it has no index.json",
            id="no-index",
        ),
        pytest.param(lambda folder: (folder / "index.json").write_text("{"), "not valid JSON", id="json"),
        pytest.param(lambda folder: (folder / "index.json").write_text("[" * 99999), "not valid JSON", id="json-depth"),
        pytest.param(lambda folder: (folder / "index.json").write_bytes(b"\xff"), "not valid JSON", id="json-utf8"),
        pytest.param(lambda folder: (folder / "index.json").write_text("[]"), "does not describe", id="json-list"),
        pytest.param(put_value(["format"], "mp3"), "does not describe token shards", id="format"),
        pytest.param(put_value(["version"], 2), "format version 2, newer than 1; update fastbert", id="newer"),
        pytest.param(put_value(["version"], "1"), "no valid 'version'", id="version-type"),
        pytest.param(put_value(["vocab_size"], 10**30), "out of range", id="huge-vocabulary"),
        pytest.param(put_value(["vocab_size"], True), "no valid 'vocab_size'", id="boolean"),
        pytest.param(put_value(["vocab_size"], 46), "vocab.txt has 45 lines, not vocab_size=46", id="other-vocabulary"),
        pytest.param(put_value(["special_ids", "mask"], 45), "mask id 45, outside the vocabulary", id="special-id"),
        pytest.param(put_value(["special_ids", "cls"], -1), "out of range", id="negative-special-id"),
        pytest.param(put_value(["dtype"], "object"), "dtype 'object', not 'uint16'", id="dtype"),
        pytest.param(put_value(["shards"], []), "lists no shards", id="no-shards"),
        pytest.param(put_value(["shards"], [7]), "no valid", id="shard-type"),
        pytest.param(put_value(["tokens"], 40), "tokens=40, but its shards hold 39", id="count"),
        pytest.param(put_value(["shards", 0, "tokens"], 40), "has 78 bytes, not 80", id="shard-count"),
        pytest.param(put_value(["shards", 0, "documents"], 0), "out of range", id="no-documents"),
        pytest.param(put_value(["shards", 0, "sentences"], 1 << 62), "out of range", id="overflow"),
        pytest.param(put_value([*FILES, "tokens", "name"], "../../etc/passwd"), "only 'shard-0", id="traversal"),
        pytest.param(put_value([*FILES, "tokens", "name"], "/etc/passwd"), "only 'shard-0", id="absolute"),
        pytest.param(put_value(["vocabulary", "name"], "../vocab.txt"), "only 'vocab.txt'", id="vocabulary-path"),
        pytest.param(symlinked, "missing or not a regular file", id="symlink"),
        pytest.param(lambda folder: (folder / SENTENCES).unlink(), "missing or not a regular file", id="no-file"),
        pytest.param(truncated(TOKENS), "tokens.bin has 77 bytes, not 78", id="truncated-tokens"),
        pytest.param(truncated(DOCUMENTS), "documents.bin has 39 bytes, not 40", id="truncated-documents"),
        pytest.param(flipped(TOKENS), "tokens.bin is damaged", id="flipped-tokens"),
        pytest.param(flipped(SENTENCES), "sentences.bin is damaged", id="flipped-sentences"),
        pytest.param(flipped("vocab.txt"), "vocab.txt is damaged", id="flipped-vocabulary"),
        pytest.param(flipped("unigrams.bin"), "unigrams.bin is damaged", id="flipped-unigrams"),
        pytest.param(
            rewritten(TOKENS, lambda array: put(array, 45, 10)),
            "token 10 has id 45, outside the vocabulary of 45",
            id="id",
        ),
        pytest.param(
            rewritten(SENTENCES, lambda array: put(array, 3, 2)), "offset 2 is 3, but offsets must rise", id="flat"
        ),
        pytest.param(rewritten(SENTENCES, lambda array: put(array, 1, 0)), "offset 0 is 1", id="first-offset"),
        pytest.param(rewritten(SENTENCES, lambda array: put(array, -5, 3)), "offset 3 is -5", id="negative-offset"),
        pytest.param(rewritten(DOCUMENTS, lambda array: put(array, 1 << 60, 2)), "offset 2", id="far-offset"),
        pytest.param(rewritten(DOCUMENTS, lambda array: put(array, 9, -1)), "offset 4 is 9", id="last-offset"),
        pytest.param(rewritten("unigrams.bin", lambda array: put(array, 9, 7)), "does not sum to 39", id="unigrams"),
    ],
)
def test_damage_is_refused_in_one_line(make_shards, damage, message):
    folder = make_shards(LENGTHS).folder
    damage(folder)
    with pytest.raises(UserError, match=message) as caught:
        TokenShards.open(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [TOKENS, SENTENCES, DOCUMENTS, "unigrams.bin", "vocab.txt"])
def test_every_flipped_bit_is_seen(make_shards, name, seed):
    folder = make_shards(LENGTHS).folder
    whole = (folder / name).read_bytes()
    random = np.random.default_rng(seed)
    for _ in range(40):
        data = bytearray(whole)
        data[random.integers(len(data))] ^= 1 << random.integers(8)
        (folder / name).write_bytes(data)
        with pytest.raises(UserError, match="is damaged"):
            TokenShards.open(folder)


def test_a_random_index_never_crashes(make_shards, seed):
    """Whatever one value of the index is replaced by, the answer is UserError or a corpus that is whole."""
    folder = make_shards(LENGTHS).folder
    whole = json.loads((folder / "index.json").read_text())
    del whole["sha256"]
    random = np.random.default_rng(seed)
    values = [None, True, -1, 0, 1, 7, 1 << 70, 1.5, "", "..", "x" * 10_000, [], {}, [[]], {"name": 1}]

    def paths(node, path=()):
        for key in node if isinstance(node, dict) else range(len(node)):
            yield (*path, key)
            if isinstance(node[key], dict | list):
                yield from paths(node[key], (*path, key))

    for path in paths(whole):
        index = json.loads(json.dumps(whole))
        put(index, values[random.integers(len(values))], *path)
        index.pop("sha256", None)
        (folder / "index.json").write_text(json.dumps(index))
        try:
            shards = TokenShards.open(folder)
        except UserError:
            continue
        assert shards.num_tokens == 39

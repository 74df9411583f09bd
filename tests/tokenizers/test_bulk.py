"""Lines of files, processes and threads: what the tokenizer does inside loaders and workers."""

import functools
import gzip
import lzma
import multiprocessing
import os
import random
import threading
from itertools import pairwise

import numpy as np
import pytest

from fastbert.errors import UserError
from fastbert.tokenizers import WordPieceTokenizer

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh"), "é"]
LINES = ["a b c", "", "abc é", "h" * 50, "x", " d\x0be ", "a\u2028b", "g"]


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer(VOCAB, strip_accents=False)


def rows(batches):
    """The rows of ragged batches as lists."""
    return [ids[begin:end].tolist() for ids, offsets in batches for begin, end in pairwise(offsets)]


@pytest.mark.parametrize("batch_bytes", [1, 10, 1 << 20])
def test_encode_files(tmp_path, tokenizer, batch_bytes):
    data = "\n".join(LINES).encode()
    (tmp_path / "a.txt").write_bytes(data)
    (tmp_path / "b.gz").write_bytes(gzip.compress(data.replace(b"\n", b"\r\n") + b"\r\n"))
    (tmp_path / "c.xz").write_bytes(lzma.compress(data))
    paths = [tmp_path / name for name in ("a.txt", "b.gz", "c.xz")]
    batches = list(tokenizer.encode_files(paths, batch_bytes=batch_bytes))
    # A batch has lines of one file.
    assert (len(batches) == len(paths)) == (batch_bytes == 1 << 20)
    assert all(ids.dtype == np.int32 and offsets.dtype == np.int64 for ids, offsets in batches)
    assert rows(batches) == tokenizer(LINES).input_ids * 3
    assert rows(tokenizer.encode_files(str(paths[0]), max_length=4)) == tokenizer(LINES, max_length=4).input_ids
    plain = tokenizer(LINES, add_special_tokens=False).input_ids
    assert rows(tokenizer.encode_files(paths[:1], add_special_tokens=False)) == plain
    assert list(tokenizer.encode_files([])) == []


def test_bad_files(tmp_path, tokenizer):
    (tmp_path / "bad.txt").write_bytes(b"a\nb \xff c\n")
    with pytest.raises(UserError, match=r"bad\.txt, line 2, byte 3: not UTF-8 \(0xff\)"):
        list(tokenizer.encode_files(tmp_path / "bad.txt"))
    with pytest.raises(UserError, match=r"missing\.txt: cannot be read \(.*No such file"):
        list(tokenizer.encode_files([tmp_path / "missing.txt"]))
    for name in ("cut.gz", "cut.xz"):
        whole = (gzip.compress if name.endswith("gz") else lzma.compress)(os.urandom(1000).hex().encode())
        (tmp_path / name).write_bytes(whole[:-20])
        with pytest.raises(UserError, match=rf"{name}: cannot be read"):
            list(tokenizer.encode_files(tmp_path / name))
    with pytest.raises(ValueError, match="batch_bytes=0"):
        list(tokenizer.encode_files([], batch_bytes=0))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_in_the_workers_of_a_loader(tokenizer, method):
    torch = pytest.importorskip("torch")
    collate = functools.partial(tokenizer, padding=True, return_tensors="pt")
    loader = torch.utils.data.DataLoader(
        LINES, batch_size=3, num_workers=2, collate_fn=collate, multiprocessing_context=method
    )
    batches = list(loader)
    for index, batch in enumerate(batches):
        expected = collate(LINES[3 * index : 3 * index + 3])
        assert all(torch.equal(batch[key], expected[key]) for key in expected)
        assert batch.word_ids(0) == expected.word_ids(0)
    assert len(batches) == 3


def test_fork_while_other_threads_encode(seed, tokenizer):
    rng = random.Random(seed)
    texts = ["".join(rng.choice("abcdefgh xé") for _ in range(200)) for _ in range(2000)]
    expected = tokenizer.encode_ragged(texts)[0]
    stop = threading.Event()

    def work():
        while not stop.is_set():
            tokenizer.encode_ragged(texts, threads=2)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        context = multiprocessing.get_context("fork")
        for _ in range(5):
            child = context.Process(target=_check, args=(tokenizer, texts, expected))
            child.start()
            child.join(30)
            assert child.exitcode == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _check(tokenizer, texts, expected):
    same = np.array_equal(tokenizer.encode_ragged(texts, threads=2)[0], expected)
    os._exit(0 if same and tokenizer(texts[:3], padding=True, return_tensors="np").input_ids.shape[0] == 3 else 1)


def test_calls_on_many_threads_are_independent(tokenizer):
    options = [{"padding": True}, {"max_length": 4}, {"truncation": False, "padding": "max_length", "max_length": 60}]
    expected = [tokenizer(LINES, **option).data for option in options]
    wrong = []

    def work(index):
        for _ in range(200):
            if tokenizer(LINES, **options[index]).data != expected[index]:
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_large_batches_do_not_depend_on_threads(tokenizer, threads):
    texts = [line * 250 for line in LINES] * 400
    encoding = tokenizer(texts, padding=True, return_tensors="np", return_offsets_mapping=True, threads=threads)
    # More than a thread's share, so that all of them fill a part.
    assert encoding.input_ids.size > 2 << 20
    ids, offsets = tokenizer.encode_ragged(texts, add_special_tokens=True, threads=1)
    sizes = np.diff(offsets)
    assert (encoding.attention_mask.sum(1) == sizes).all()
    np.testing.assert_array_equal(encoding.input_ids[encoding.attention_mask == 1], ids)
    assert (encoding.input_ids[encoding.attention_mask == 0] == 0).all()
    assert encoding.offset_mapping.shape == (*encoding.input_ids.shape, 2)

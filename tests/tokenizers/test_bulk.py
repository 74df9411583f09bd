"""Lines of files, processes and threads: what the tokenizer does inside loaders and workers."""

import gzip
import lzma
import os
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

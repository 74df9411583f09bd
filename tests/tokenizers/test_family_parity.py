"""Released byte-level BPE and Unigram tokenizers against the `tokenizers` library on the same tokenizer.json."""

import json
import lzma
import pickle
import random
import tarfile
from itertools import islice, pairwise

import numpy as np
import pytest
from hostile_texts import every_offset, hostile_texts
from tokenizer_parity import FAMILIES, assert_same, assert_same_decoding, assert_same_random_calls, read_both

pytest.importorskip("tokenizers")

families = pytest.mark.parametrize("family", FAMILIES)
SCALARS = [chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000]


@pytest.fixture(scope="module")
def unpacked(data_dir, tmp_path_factory):
    """Unpacks a family's tokenizer.json; both tokenizers are read once."""
    folder = data_dir / "tokenizers"
    if not folder.is_dir():
        pytest.skip(f"needs {folder}")
    made = {}

    def read(family):
        if family not in made:
            file = tmp_path_factory.mktemp(family) / "tokenizer.json"
            file.write_bytes(lzma.decompress((folder / f"{FAMILIES[family]}.xz").read_bytes()))
            made[family] = (file, *read_both(file))
        return made[family]

    return read


@pytest.fixture(scope="module")
def corpus_sample(data_dir):
    """Lines of 24 languages, of Chinese Wikipedia, naughty strings, and named edge cases."""
    texts = [text for _, text in json.loads((data_dir / "multilingual" / "edge_cases.json").read_text("utf-8"))]
    with lzma.open(data_dir / "multilingual" / "wiki-zh.txt.xz", "rt", encoding="utf-8") as lines:
        texts += islice(lines, 100)
    for name, count in (("ntrex", 12), ("blns", 600)):
        with tarfile.open(data_dir / "multilingual" / f"{name}.tar.xz") as archive:
            for member in archive:
                if member.isfile():
                    text = archive.extractfile(member).read().decode("utf-8", "replace")
                    texts += text.split("\n")[:count]
    return [*texts, "".join(texts[-300:])]


@families
def test_real_and_hostile_text(family, unpacked, corpus_sample, seed):
    _, ours, reference = unpacked(family)
    rng = random.Random(f"{seed} {family}")
    assert_same(ours, reference, corpus_sample[rng.randrange(3) :: 3] + hostile_texts(rng, 600))
    assert_same(ours, reference, [*every_offset()][rng.randrange(8) :: 8])


@families
def test_characters_in_context(family, unpacked, seed):
    _, ours, reference = unpacked(family)
    rng = random.Random(seed)
    some = [char for char in SCALARS[:0x3400] if rng.random() < 0.5] + rng.sample(SCALARS[0x3400:], 2_000)
    texts = [
        form.format(char)
        for char in some
        for form in rng.sample(["{}", "a{}b", " {} ", "'{}", "{}\u0301", "{0}{0}"], 1)
    ]
    assert_same(ours, reference, texts, batch=5_000)


@families
def test_calls_and_decoding(family, unpacked, seed):
    _, ours, reference = unpacked(family)
    rng = random.Random(f"{seed} {family}")
    texts = [text[:60] for text in hostile_texts(rng, 200, long=0) if text]
    assert_same_random_calls(ours, reference, rng, texts, 40)
    ids, bounds = ours.encode_ragged(texts)
    rows = [ids[begin:end] for begin, end in pairwise(bounds)]
    assert_same_decoding(
        ours, reference, [*rows[:60], *([rng.randrange(len(ours)) for _ in range(9)] for _ in range(40))]
    )


@families
def test_the_ways_to_encode_agree(family, unpacked, tmp_path, seed):
    """Threads, batches, files, pickled copies, `pack` and special tokens as text."""
    file, ours, reference = unpacked(family)
    rng = random.Random(seed)
    texts = hostile_texts(rng, 300)
    expected = ours.encode_ragged(texts, True)
    many = texts * (1 + 600_000 // sum(len(text.encode()) for text in texts))
    batches = [
        (ours.encode_ragged(many, True, threads=n), ours.encode_aligned_ragged(many, threads=n)) for n in (1, 2, 7)
    ]
    for ragged, aligned in batches[1:]:
        assert all(
            np.array_equal(a, b) for a, b in zip((*ragged, *aligned), (*batches[0][0], *batches[0][1]), strict=True)
        )
    single = [ours.encode_ragged([text], True)[0] for text in texts]
    assert np.array_equal(np.concatenate(single), expected[0])
    copy = pickle.loads(pickle.dumps(ours))
    assert all(np.array_equal(a, b) for a, b in zip(copy.encode_ragged(texts, True), expected, strict=True))
    lines = [text.replace("\n", " ").rstrip("\r") for text in texts]
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in lines), newline="")
    read = np.concatenate([ids for ids, _ in ours.encode_files(tmp_path / "lines.txt", batch_bytes=5_000)])
    assert np.array_equal(read, ours.encode_ragged(lines, True)[0])
    if ours.num_special_tokens_to_add():
        packed = ours.pack(texts, max_length=20)
        rows = reference_rows(reference, texts, 20)
        assert packed.input_ids.tolist() == [token for row in rows for token in row.ids]
        assert packed.token_type_ids.tolist() == [kind for row in rows for kind in row.type_ids]
    split, split_reference = read_both(file, split_special_tokens=True)
    assert_same(split, split_reference, texts)


def reference_rows(reference, texts, max_length):
    reference.enable_truncation(max_length)
    try:
        return reference.encode_batch(texts)
    finally:
        reference.no_truncation()


@pytest.mark.slow
@families
def test_whole_corpora(family, unpacked, data_dir):
    _, ours, reference = unpacked(family)
    for name in ("wiki-en/wiki_en.sent.txt.xz", "multilingual/wiki-zh.txt.xz"):
        with lzma.open(data_dir / name, "rt", encoding="utf-8") as lines:
            assert_same(ours, reference, list(islice(lines, 50_000)), batch=5_000)
    with tarfile.open(data_dir / "multilingual" / "ntrex.tar.xz") as archive:
        for member in archive:
            if member.isfile():
                text = archive.extractfile(member).read().decode("utf-8", "replace")
                assert_same(ours, reference, text.split("\n"), batch=5_000)

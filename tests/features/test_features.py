"""Features are the encoder's hidden states, of the right tokens, whatever the batch; and files hold them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from embedding import POSITIONS, random_texts, small_model, small_tokenizer
from safetensors.numpy import load_file

from fastbert import BertModel, PackedBatch, WordPieceTokenizer
from fastbert.errors import UserError
from fastbert.features.extract import Features, choose_layers, extract, extract_chunks, hidden_states
from fastbert.features.files import FeatureFile


@pytest.fixture(scope="module")
def model(seed: int) -> BertModel:
    return small_model(seed)


@pytest.fixture(scope="module")
def tokenizer() -> WordPieceTokenizer:
    return small_tokenizer()


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def states_of(model: BertModel, ids: list[int], tokenizer: WordPieceTokenizer) -> list[torch.Tensor]:
    """All hidden states of tokens between [CLS] and [SEP], alone, without the special ones."""
    whole = torch.tensor([tokenizer.cls_token_id, *ids, tokenizer.sep_token_id])
    batch = PackedBatch(
        input_ids=whole, cu_seqlens=torch.tensor([0, len(whole)], dtype=torch.int32), max_seqlen=len(whole)
    )
    states = model(batch, output_hidden_states=True).hidden_states
    return [state[1:-1] for state in states]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("embeddings", lambda states: states[0]),
        ("last", lambda states: states[2]),
        ("second-to-last", lambda states: states[1]),
        ("sum-all", lambda states: states[1] + states[2]),
        ("sum-last-four", lambda states: states[1] + states[2]),
        ("concat-last-four", lambda states: torch.cat((states[1], states[2]), 1)),
        ((0, -1), lambda states: torch.cat((states[0], states[2]), 1)),
        ([-3, 1, 1], lambda states: torch.cat((states[0], states[1], states[1]), 1)),
    ],
)
def test_tokens_of_texts_in_any_batch(
    layers, expected, model: BertModel, tokenizer: WordPieceTokenizer, seed: int
) -> None:
    texts = ["", *random_texts(seed, 12, most=40), "ab c"]
    actual = extract(model, tokenizer, texts, layers, batch_tokens=70)
    assert len(actual) == len(texts)
    assert actual.offsets[1] == 0
    for index, text in enumerate(texts):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        rows = slice(actual.offsets[index], actual.offsets[index + 1])
        assert list(actual.items[rows]) == tokenizer.convert_ids_to_tokens(ids)
        if ids:
            close(actual.values[rows], expected(states_of(model, ids, tokenizer)))
    assert actual.values.dtype == torch.float32
    assert not actual.values.requires_grad


def test_words_have_the_vector_of_their_first_token(model: BertModel, tokenizer: WordPieceTokenizer) -> None:
    sentences = [["abc", "d", "\u0007", "ef"], [], ["é", "a"]]
    result = extract(model, tokenizer, sentences, per="word")
    assert result.items == ("abc", "d", "\u0007", "ef", "é", "a")
    assert result.offsets.tolist() == [0, 4, 4, 6]
    # A word without tokens is an unknown one.
    ids = tokenizer.convert_tokens_to_ids(["a", "##b", "##c", "d", "[UNK]", "e", "##f"])
    close(result.values[:4], states_of(model, ids, tokenizer)[2][[0, 3, 4, 5]])
    close(
        extract(model, tokenizer, ["abc  d\tef"], per="word").values,
        extract(model, tokenizer, [["abc", "d", "ef"]], per="word").values,
    )
    tokens = extract(model, tokenizer, [["abc", "d"]])
    assert tokens.items == ("a", "##b", "##c", "d")


def test_long_texts_are_seen_in_parts(model: BertModel, tokenizer: WordPieceTokenizer) -> None:
    text = " ".join("abcdefghij"[index % 10] for index in range(25))
    result = extract(model, tokenizer, [text, "a"], max_length=12)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert result.offsets.tolist() == [0, 25, 26]
    for first in range(0, 25, 10):
        part = states_of(model, ids[first : first + 10], tokenizer)[2]
        close(result.values[first : first + len(part)], part)
    # Parts of words begin where a word does, unless it is longer than a part.
    words = ["abcdef", "ghijkl", "mnopqrstuvwxyz", "a"]
    result = extract(model, tokenizer, [words], per="word", max_length=12)
    pieces = [tokenizer.tokenize(word) for word in words]
    whole = tokenizer.convert_tokens_to_ids([piece for one in pieces for piece in one])
    parts = [whole[:6], whole[6:12], whole[12:22], whole[22:]]
    close(result.values[0], states_of(model, parts[0], tokenizer)[2][0])
    close(result.values[1], states_of(model, parts[1], tokenizer)[2][0])
    close(result.values[2], states_of(model, parts[2], tokenizer)[2][0])
    close(result.values[3], states_of(model, parts[3], tokenizer)[2][4])


def test_all_states_at_once_and_in_chunks(model: BertModel, tokenizer: WordPieceTokenizer, seed: int) -> None:
    sentences = [text.split() for text in random_texts(seed, 9)]
    every = hidden_states(model, tokenizer, sentences, dtype=torch.float32)
    assert every.values.shape[1:] == (3, 32)
    for number in range(3):
        close(every.values[:, number], extract(model, tokenizer, sentences, [number], per="word").values)
    half = hidden_states(model, tokenizer, sentences)
    assert half.values.dtype == torch.bfloat16
    many = [f"a {'b ' * (index % 3)}" for index in range(2500)]
    chunks = list(extract_chunks(model, tokenizer, iter(many), "embeddings"))
    assert [len(chunk) for chunk in chunks] == [1024, 1024, 452]
    joined = extract(model, tokenizer, iter(many), "embeddings")
    assert joined.values.equal(torch.cat([chunk.values for chunk in chunks]))
    assert np.diff(joined.offsets).tolist() == [1 + index % 3 for index in range(2500)]
    empty = extract(model, tokenizer, [], (0, 1))
    assert (empty.values.shape, len(empty)) == ((0, 64), 0)


def test_training_mode_is_put_back_and_changes_nothing(model: BertModel, tokenizer: WordPieceTokenizer) -> None:
    expected = extract(model, tokenizer, ["a b c"]).values
    model.train()
    assert extract(model, tokenizer, ["a b c"]).values.equal(expected)
    assert model.training
    model.eval()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layers": "first"}, "layers='first' must be embeddings, second-to-last"),
        ({"layers": [3]}, "layers: 3 is not a layer of the model, which has 0 (embeddings) to 2"),
        ({"layers": [-4]}, "layers: -4 is not a layer"),
        ({"layers": [True]}, "layers: True is not a layer"),
        ({"layers": []}, "names none"),
        ({"per": "sentence"}, "per='sentence' must be 'token' or 'word'"),
        ({"max_length": 2}, "max_length=2 must be a whole number, at least 3"),
        ({"max_length": POSITIONS + 1}, "more than the 48 positions"),
        ({"batch_tokens": 0}, "batch_tokens=0"),
        ({"texts": "a b"}, "not one text"),
        ({"texts": ["a", 3]}, "texts[1] must be a string or a list of words, not int"),
        ({"texts": [["a", 3]]}, "texts[0] must be a string or a list of words"),
    ],
)
def test_wrong_options_are_one_line(options: dict, words: str, model: BertModel, tokenizer: WordPieceTokenizer) -> None:
    with pytest.raises(UserError) as caught:
        extract(model, tokenizer, **{"texts": ["a"], **options})
    assert words in str(caught.value)


def test_names_of_a_deep_model() -> None:
    assert choose_layers("concat-last-four", 12).numbers == (9, 10, 11, 12)
    assert choose_layers("sum-all", 12).numbers == tuple(range(1, 13))
    assert choose_layers([-2], 12).numbers == (11,)


def read(path: Path) -> tuple[np.ndarray, list[int] | None, list[str] | None]:
    """Values, offsets and items of a file, as far as it has them."""
    if path.suffix == ".npy":
        return np.load(path), None, None
    if path.suffix == ".npz":
        result = np.load(path)
        return result["features"], result["offsets"].tolist(), result["items"].tolist()
    if path.suffix == ".safetensors":
        result = load_file(path)
        return result["features"], result["offsets"].tolist(), None
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["index"] for line in lines] == list(range(len(lines)))
        values = np.array([row for line in lines for row in line["features"]], dtype=np.float32)
        offsets = np.cumsum([0, *(len(line["items"]) for line in lines)]).tolist()
        return values, offsets, [item for line in lines for item in line["items"]]
    table = pytest.importorskip("pyarrow.parquet").read_table(path).to_pydict()
    counts = np.bincount(table["text"], minlength=5)
    return np.array(table["features"], dtype=np.float32), np.cumsum([0, *counts]).tolist(), table["item"]


def fail_after(file: FeatureFile, features: Features) -> None:
    with file:
        file.append(features)
        raise KeyError


@pytest.mark.parametrize("kind", FeatureFile.suffixes)
def test_files_hold_what_was_appended(
    kind: str, model: BertModel, tokenizer: WordPieceTokenizer, tmp_path: Path
) -> None:
    if kind == ".parquet":
        pytest.importorskip("pyarrow", reason="needs pyarrow")
    parts = [["a b", "é"], ["", "c d e", "f"]]
    with FeatureFile(tmp_path / f"f{kind}") as file:
        for part in parts:
            file.append(extract(model, tokenizer, part))
    expected = extract(model, tokenizer, [*parts[0], *parts[1]])
    values, offsets, items = read(tmp_path / f"f{kind}")
    close(torch.from_numpy(values), expected.values)
    assert offsets is None or offsets == expected.offsets.tolist()
    assert items is None or items == list(expected.items)
    assert (file.texts, file.items, file.width) == (5, 7, 32)
    with pytest.raises(UserError, match="exists; give another name"):
        FeatureFile(tmp_path / f"f{kind}")
    with pytest.raises(KeyError):
        fail_after(FeatureFile(tmp_path / f"g{kind}"), expected)
    assert [path.name for path in tmp_path.iterdir()] == [f"f{kind}"]

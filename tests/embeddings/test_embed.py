"""`model.embed`: pooling as its definition says, windows, options, and what it refuses."""

import logging
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from embedding import POSITIONS, random_texts, small_model, small_tokenizer
from torch import Tensor

from fastbert import BertModel, WordPieceTokenizer
from fastbert.embeddings import embed as embedding
from fastbert.embeddings.embed import Counts, EmbedOptions, embed_chunks
from fastbert.embeddings.pooling import normalized, pool
from fastbert.embeddings.rows import window_starts
from fastbert.errors import UserError

TOKENIZER = small_tokenizer()


@pytest.fixture
def model(seed: int) -> BertModel:
    return small_model(seed)


@torch.no_grad()
def states(model: BertModel, ids: list[int]) -> Tensor:
    return model(input_ids=torch.tensor([ids])).last_hidden_state[0].float()


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, verbose=False)


POOL = {"mean": lambda x: x.mean(0), "max": lambda x: x.amax(0), "cls": lambda x: x[0]}


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
@pytest.mark.parametrize("normalize", [False, True])
def test_each_text_is_pooled_over_its_own_tokens(model: BertModel, seed: int, pooling: str, normalize: bool) -> None:
    texts = ["", " \t\n", "q", *random_texts(seed, 30, most=70)]
    actual = model.embed(texts, TOKENIZER, pooling=pooling, normalize=normalize, batch_tokens=200)
    truncated = [ids if len(ids) <= POSITIONS else [*ids[: POSITIONS - 1], ids[-1]] for ids in map(ids_of, texts)]
    expected = torch.stack([POOL[pooling](states(model, ids)) for ids in truncated])
    expected = torch.nn.functional.normalize(expected) if normalize else expected
    assert actual.dtype == torch.float32
    assert actual.requires_grad is False
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("size", [47, 60, 200, 1000])
def test_windows_count_each_token_once(model: BertModel, seed: int, size: int) -> None:
    text, room = " ".join(random_texts(seed + size, size)).replace(" ", "")[:size], POSITIONS - 2
    text = " ".join(text)
    ids = ids_of(text)
    body = ids[1:-1]
    assert len(body) == size
    starts = window_starts(size, room).tolist()
    assert starts[0] == 0
    assert starts[-1] + room == size
    assert all(before + room - after >= room // 4 for before, after in pairwise(starts))
    windows = [states(model, [ids[0], *body[start : start + room], ids[-1]]) for start in starts]
    borders = [0, *[(before + after + room) // 2 for before, after in pairwise(starts)], size]
    pieces = [x[1 + begin - s : 1 + end - s] for x, s, begin, end in zip(windows, starts, borders, borders[1:])]
    tokens = torch.cat([windows[0][:1], *pieces, windows[-1][-1:]])
    assert len(tokens) == size + 2
    for pooling, expected in (("mean", tokens.mean(0)), ("max", tokens.amax(0)), ("cls", sum(x[0] for x in windows))):
        actual = model.embed(["a", text, "b c"], TOKENIZER, pooling=pooling, long="windows")[1]
        expected = expected / len(windows) if pooling == "cls" else expected
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-6)


def test_windows_leave_short_texts_as_they_are(model: BertModel, seed: int) -> None:
    texts = random_texts(seed, 20, most=POSITIONS - 2)
    whole = model.embed(texts, TOKENIZER)
    result = model.embed([*texts, "a " * 500], TOKENIZER, long="windows")[:-1]
    torch.testing.assert_close(result, whole, rtol=0, atol=0)


@pytest.mark.parametrize("room", [1, 2, 3, 4, 5, 8, 62, 510])
def test_windows_of_any_size_cover_every_token(room: int) -> None:
    for size in [*range(1, 4 * room + 3), 997 + room]:
        starts = window_starts(size, room)
        covered = {token for start in starts.tolist() for token in range(start, min(start + room, size))}
        assert covered == set(range(size))
        assert (starts[1:] > starts[:-1]).all()


def test_texts_come_from_any_iterable_in_chunks(model: BertModel, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = random_texts(seed, 50)
    whole = model.embed(texts, TOKENIZER)
    monkeypatch.setitem(embedding.CHUNK_TEXTS, "cpu", 7)
    taken: list[int] = []

    def generate() -> Iterator[str]:
        for index, text in enumerate(texts):
            taken.append(index)
            yield text

    torch.testing.assert_close(model.embed(generate(), TOKENIZER), whole, rtol=0, atol=0)
    torch.testing.assert_close(model.embed(tuple(texts), TOKENIZER), whole, rtol=0, atol=0)
    taken.clear()
    chunks = embed_chunks(model, generate(), TOKENIZER)
    assert len(next(chunks)) == 7
    assert len(taken) <= 3 * 7, "no more is read than two chunks and a text"
    monkeypatch.setattr(embedding, "CHUNK_CHARACTERS", 100)
    torch.testing.assert_close(model.embed(texts, TOKENIZER), whole, rtol=0, atol=0)


def test_nothing_gives_nothing(model: BertModel) -> None:
    assert model.embed([], TOKENIZER).shape == (0, 32)
    assert model.embed(iter(()), TOKENIZER, long="windows").shape == (0, 32)


def test_truncated_texts_are_counted_and_named_once(model: BertModel, caplog: pytest.LogCaptureFixture) -> None:
    texts = ["a b c", "a b c d", "a b c d e", "a " * 3000]
    with caplog.at_level(logging.WARNING, "fastbert"):
        model.embed(texts, TOKENIZER, max_length=6)
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 4 texts were longer than 6 tokens and truncated"
    ]
    caplog.clear()
    counts = Counts()
    model.embed(texts, TOKENIZER, max_length=6, counts=counts)
    assert (counts.texts, counts.tokens, counts.truncated) == (4, 5 + 6 + 6 + 6, 2)
    assert not caplog.records


def test_long_texts_are_cut_on_the_tokenizers_side(model: BertModel) -> None:
    left = small_tokenizer()
    left.truncation_side = "left"
    result = model.embed(["a b c d e f g"], left, max_length=5)
    torch.testing.assert_close(result, model.embed(["e f g"], TOKENIZER), rtol=0, atol=0)
    result = model.embed(["a b c d e f g"], TOKENIZER, max_length=5)
    torch.testing.assert_close(result, model.embed(["a b c"], TOKENIZER), rtol=0, atol=0)


def test_modes_of_modules_and_of_gradients_come_back(model: BertModel) -> None:
    still = model.embed(["a b"], TOKENIZER)
    model.train()
    model.pooler.eval()
    result = model.embed(["a b"], TOKENIZER)
    assert torch.equal(result, still), "dropout took part"
    assert model.training
    assert model.encoder.layer[0].training
    assert not model.pooler.training
    assert torch.is_grad_enabled()
    with pytest.raises(UserError):
        model.embed(["a", 3], TOKENIZER)
    assert model.training


def test_progress_is_told(model: BertModel, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setitem(embedding.CHUNK_TEXTS, "cpu", 8)
    told: list[int] = []
    model.embed(random_texts(seed, 20), TOKENIZER, progress=told.append)
    assert told == [8, 16, 20]
    model.embed(["a", "b"], TOKENIZER, progress=True)  # no terminal, no bar
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(UserError, match="needs the package rich"):
        model.embed(["a"], TOKENIZER, progress=True)


@pytest.mark.parametrize(
    ("texts", "options", "words"),
    [
        pytest.param("a b", {}, "not str", id="one-string"),
        pytest.param(3, {}, "not int", id="number"),
        pytest.param(["a", 3], {}, r"texts\[1\] must be a string, not int", id="not-a-string"),
        pytest.param(["a", None], {}, r"texts\[1\] must be a string, not NoneType", id="none"),
        pytest.param(["a", "b", "\ud83d"], {}, r"texts\[2\] holds a lone surrogate", id="surrogate"),
        pytest.param(["a"], {"pooling": "sum"}, "pooling='sum' must be", id="pooling"),
        pytest.param(["a"], {"long": "cut"}, "long='cut' must be", id="long"),
        pytest.param(["a"], {"max_length": 2}, "max_length=2 must be a whole number, at least 3", id="too-short"),
        pytest.param(["a"], {"max_length": 49}, "max_length=49 is more than the 48 positions", id="too-long"),
        pytest.param(["a"], {"batch_tokens": 0}, "batch_tokens=0", id="batch"),
        pytest.param(["a"], {"prompt": "query"}, "prompt='query' is unknown", id="prompt"),
        pytest.param(
            ["a", "a b c d"], {"max_length": 5, "long": "error"}, r"texts\[1\] has 6 tokens.*'a b c d'", id="error"
        ),
    ],
)
def test_wrong_input_is_named(model: BertModel, texts: object, options: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        model.embed(texts, TOKENIZER, **options)


def test_the_index_of_a_wrong_text_counts_from_the_first_chunk(
    model: BertModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(embedding.CHUNK_TEXTS, "cpu", 4)
    for long in ("error", "truncate"):
        with pytest.raises(UserError, match=r"texts\[9\]"):
            model.embed(["a"] * 9 + ["a " * 99 if long == "error" else b"a"], TOKENIZER, long=long)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(model: BertModel) -> None:
    larger = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(80))])
    with pytest.raises(UserError, match="a vocabulary of 57, but the tokenizer has 85 entries"):
        model.embed(["a"], larger)


def test_options_are_checked_before_anything_is_read(model: BertModel) -> None:
    with pytest.raises(UserError, match="max_length=99"):
        embed_chunks(model, iter(["a"]), TOKENIZER, EmbedOptions(max_length=99))


def test_a_huge_text_is_no_trouble(model: BertModel) -> None:
    text = "a b c " * 2_000_000
    result = model.embed(["a", text, "b"], TOKENIZER)
    torch.testing.assert_close(result[1], model.embed([text[:200]], TOKENIZER)[0], rtol=0, atol=0)


def test_norms_are_those_of_torch(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for width in (1, 2, 3, 37, 384):
        x = torch.randn(20, width, generator=generator)
        x[3], x[4], x[5] = 0, 1e-20, 1e18
        torch.testing.assert_close(normalized(x), torch.nn.functional.normalize(x.double()).float())


def test_a_nan_stays_in_its_row(seed: int) -> None:
    x = torch.randn(10, 4, generator=torch.Generator().manual_seed(seed))
    x[5, 1] = float("nan")
    for pooling in ("mean", "max"):
        result = pool(x, torch.tensor([0, 5, 6, 10]), pooling)
        assert result.isnan().nonzero().tolist() == [[1, 1]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_a_model_on_a_gpu_gives_the_same_within_rounding(model: BertModel, seed: int, pooling: str) -> None:
    texts = random_texts(seed, 40)
    expected = model.embed(texts, TOKENIZER, pooling=pooling, long="windows")
    actual = model.cuda().embed(texts, TOKENIZER, pooling=pooling, long="windows")
    assert actual.device.type == "cpu"
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)

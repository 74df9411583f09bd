"""Sequence to sequence as a task: rows, losses, texts, and that each kind of model learns to turn words around."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from fastbert import BertConfig, BertModel, WordPieceTokenizer
from fastbert.errors import UserError
from fastbert.finetuning.start import in_dtype
from fastbert.models import loading
from fastbert.models.seq2seq.config import SequenceConfig
from fastbert.tasks.examples import Dataset, SequenceExample
from fastbert.tasks.seq2seq.task import SequenceSettings, SequenceToSequence

WORDS = tuple("abcdefgh")
TOKENIZER = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, ",", "."])
CLS, SEP = TOKENIZER.cls_token_id, TOKENIZER.sep_token_id
CONFIG = BertConfig(
    vocab_size=len(TOKENIZER),
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=32,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.1,
)
KINDS = ("decoder", "bert2bert", "prefix")
needs_readers = pytest.mark.skipif(
    importlib.util.find_spec("fastbert.tasks.readers.sequences") is None, reason="needs the readers of task files"
)


def dataset(*pairs: tuple[str, str | None]) -> Dataset[SequenceExample]:
    examples = [
        SequenceExample(id=str(i), location=f"line {i + 1}", source=source, target=target)
        for i, (source, target) in enumerate(pairs)
    ]
    return Dataset("texts.tsv", tuple(examples))


def turned_around(count: int, seed: int) -> Dataset[SequenceExample]:
    random = Random(seed)
    texts = [random.choices(WORDS, k=random.randint(2, 5)) for _ in range(count)]
    return dataset(*((" ".join(words), " ".join(reversed(words))) for words in texts))


def task(**settings: Any) -> SequenceToSequence:
    return SequenceToSequence(SequenceSettings(**{"max_length": 16, "max_target_length": 10, **settings}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_tiny_model_learns_to_turn_words_around(kind: str) -> None:
    own = task(decoder=kind)
    rows = own.encode(turned_around(1500, 0), TOKENIZER, labelled=True)
    config = own.head_config(CONFIG)
    model: Any = own.head(config)(config)
    model.init_weights(seed=0)
    model.train()
    rng, steps = np.random.default_rng(0), 160
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 20) * (1 - step / steps)
        batch = rows.batch(rng.integers(0, len(rows), 32))
        own.loss(model, batch, own.items(batch)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    unseen = turned_around(100, 1)
    asked = own.encode(unseen, TOKENIZER, labelled=False)
    written = own.decode(unseen, asked, own.outputs(model.train(False), asked.batch(np.arange(100))))
    right = sum(one["text"] == example.target for one, example in zip(written, unseen, strict=True))
    assert right >= 95


@pytest.mark.parametrize("labelled", [True, False])
def test_rows_have_their_special_tokens(labelled: bool, caplog: pytest.LogCaptureFixture) -> None:
    own = task(max_length=5, max_target_length=4)
    with caplog.at_level(logging.WARNING):
        rows = own.encode(
            dataset(("a b", "c"), ("", ""), ("a b c d e f", "b a"), ("h", "a b c d")), TOKENIZER, labelled=labelled
        )
    a = TOKENIZER.convert_tokens_to_ids("a")
    h = a + 7
    assert rows.lengths.tolist() == [4, 2, 5, 3]
    assert rows.input_ids.tolist() == [CLS, a, a + 1, SEP, CLS, SEP, CLS, a, a + 1, a + 2, SEP, CLS, h, SEP]
    assert not rows.token_type_ids.any()
    assert rows.examples.tolist() == [0, 1, 2, 3]
    if not labelled:
        assert rows.decoder is None
        assert not caplog.records
        return
    assert rows.decoder is not None
    expected = [CLS, a + 2, SEP, CLS, SEP, CLS, a + 1, a, SEP, CLS, a, a + 1, SEP]
    assert rows.decoder.input_ids.tolist() == expected
    assert rows.decoder.offsets.tolist() == [0, 3, 5, 9, 13]
    assert [record.message for record in caplog.records] == [
        "texts.tsv, line 4: the target has 6 tokens, more than max_target_length=4, and is truncated"
    ]
    batch = rows.batch(np.array([3, 0]), np.array([7, 8]))
    assert batch.decoder is not None
    assert batch.decoder.input_ids.tolist() == [CLS, a, a + 1, SEP, CLS, a + 2, SEP]
    assert batch.decoder.dropout_key.tolist() == batch.inputs.dropout_key.tolist() == [7, 8]  # type: ignore[union-attr]
    assert own.items(batch) == 5


def test_long_targets_are_counted_or_refused() -> None:
    texts = dataset(("a", "b"), ("a", "a b c"), ("b", "a b c d e"))
    message = r"line 2: the target has 5 tokens, more than max_target_length=4, and is truncated, and so are 1 more"
    with pytest.raises(UserError, match=message):
        task(max_target_length=4, strict=True).encode(texts, TOKENIZER, labelled=True)


def test_what_a_task_cannot_do() -> None:
    for settings, message in (
        ({"num_beams": 0}, "num_beams=0 must be at least 1"),
        ({"max_target_length": 1}, "max_target_length=1 must be at least 2"),
        ({"max_length": 1}, "max_length=1 must be at least 2"),
    ):
        with pytest.raises(UserError, match=message):
            task(**settings)
    for settings, message in (
        ({"decoder": "gru"}, "kind='gru' is not one of decoder, bert2bert, prefix"),
        ({"decoder_layers": 9}, "decoder_layers=9 is more than"),
        ({"max_target_length": 34}, "max_target_length=34 needs 33 positions, and the model has 32"),
        ({"decoder": "prefix", "max_target_length": 19}, "after sources of max_length=16 needs 33 positions"),
    ):
        with pytest.raises(UserError, match=message):
            task(**settings).head_config(CONFIG)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beams", [1, 3])
def test_texts_of_ragged_rows_at_the_limits(kind: str, beams: int) -> None:
    """An empty source, one that is cut, a single row, and no row at all; the longest that positions hold."""
    most = 18 if kind == "prefix" else 33
    own = task(decoder=kind, num_beams=beams, max_target_length=most)
    texts = dataset(("", None), ("a , b .", None), (" ".join(WORDS * 4), None))
    rows = own.encode(texts, TOKENIZER, labelled=False)
    config = own.head_config(CONFIG)
    assert (config.begin_token_id, config.end_token_id) == (CLS, SEP)
    model: Any = own.head(config)(config)
    model.init_weights(seed=1)
    outputs = own.outputs(model, rows.batch(np.arange(3)))
    assert all(output.dtype == np.float32 for output in outputs)
    predictions = own.decode(texts, rows, outputs)
    assert [one["id"] for one in predictions] == ["0", "1", "2"]
    for row in range(3):
        alone = own.outputs(model, rows.batch(np.array([row])))
        assert np.array_equal(alone[0], outputs[row])
    assert own.outputs(model, rows.batch(np.array([], dtype=np.int64))) == []
    said = np.array([-1.5, *TOKENIZER.convert_tokens_to_ids(["a", ",", "b", "."])], dtype=np.float32)
    assert own.decode(dataset(("x", None)), rows, [said]) == [{"id": "0", "text": "a, b.", "score": -1.5}]


def test_a_run_begins_with_bert_and_its_settings(tmp_path: Path) -> None:
    """As fine-tuning makes its model: from the task's config, names and weights of a pre-trained folder."""
    from fastbert.models.loading import find_weights

    BertModel(CONFIG).save_pretrained(tmp_path)
    own = task(decoder="decoder", decoder_layers=1)
    config = own.head_config(BertConfig.from_pretrained(tmp_path))
    assert isinstance(config, SequenceConfig)
    model = loading.outline(own.head(config), config)
    loading.load(model, find_weights(tmp_path), torch.float32)
    texts = turned_around(5, 2)
    batch = own.encode(texts, TOKENIZER, labelled=True).batch(np.arange(5))
    whole = own.loss(model, batch, own.items(batch))
    assert whole.isfinite()
    model.save_pretrained(tmp_path / "trained")
    again = own.load_head(tmp_path / "trained")
    assert torch.equal(own.loss(again, batch, own.items(batch)), whole)
    half = in_dtype(again, torch.bfloat16)
    assert type(half) is type(again)
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}


@needs_readers
def test_files_are_read_and_scored(tmp_path: Path) -> None:
    pytest.importorskip("rouge_score", reason="needs the libraries of metrics")
    pytest.importorskip("sacrebleu", reason="needs the libraries of metrics")
    file = tmp_path / "pairs.tsv"
    file.write_text("source\ttarget\na b\tb a d c\nc d\td c b a\n")
    own = task()
    texts = own.read(str(file))
    assert [(example.source, example.target) for example in texts] == [("a b", "b a d c"), ("c d", "d c b a")]
    scores = own.score(texts, [{"id": "0", "text": "b a d c"}, {"id": "1", "text": "d c b a"}])
    assert set(scores) == set(own.metrics)
    assert all(value == pytest.approx(100.0) for value in scores.values())

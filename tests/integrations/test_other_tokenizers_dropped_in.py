"""Byte-level BPE and Unigram in transformers' pipelines, collators and Trainer, and in sentence-transformers: the
results of transformers' own tokenizers, from the object itself and from `to_transformers()`."""

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_folders import save_family

transformers = pytest.importorskip("transformers")

import fastbert  # noqa: E402
from fastbert.errors import UserError  # noqa: E402

TEXTS = ["the House was bright .", "they found a cold river and a day quite warm", "unkind"]
ENTAILS = {0: "contradiction", 1: "neutral", 2: "entailment"}
ATTRIBUTES = [
    *("SPECIAL_TOKENS_ATTRIBUTES", "chat_template", "is_fast", "model_input_names", "model_max_length", "padding_side"),
    *("truncation_side", "split_special_tokens", "vocab_size", "pad_token_type_id", "all_special_ids", "eos_token_id"),
    *("special_tokens_map", "extra_special_tokens", "added_tokens_encoder", "max_len_single_sentence", "mask_token_id"),
]

pytestmark = pytest.mark.parametrize("family", ["roberta", "xlm-roberta"])
Three = Callable[[Path], tuple[Any, Any, Any]]


@pytest.fixture
def three() -> Three:
    """Return our tokenizer of a folder, what it becomes, and the reference."""

    def load(folder: Path) -> tuple[Any, Any, Any]:
        tokenizer = fastbert.load_tokenizer(folder)
        return tokenizer, tokenizer.to_transformers(), transformers.AutoTokenizer.from_pretrained(folder)

    return load


def test_calls_attributes_and_files(family: str, three: Three, tmp_path: Path, seed: int) -> None:
    tokenizer, converted, reference = three(save_family(family, tmp_path / "model", seed))
    kinds = (transformers.PreTrainedTokenizerBase, transformers.PreTrainedTokenizerFast, type(tokenizer))
    assert all(isinstance(tokenizer, kind) for kind in kinds)
    assert isinstance(converted, transformers.PreTrainedTokenizerFast)
    for name in ATTRIBUTES:
        assert getattr(tokenizer, name) == getattr(converted, name) == getattr(reference, name), name
    for name, value in tokenizer.init_kwargs.items():
        assert converted.init_kwargs.get(name, value) == value, name
    call: dict[str, Any] = {
        "return_offsets_mapping": True, "return_special_tokens_mask": True, "padding": True, "truncation": True,
    }  # fmt: skip
    texts = [*TEXTS, f"a {tokenizer.mask_token} day", ""]
    for pairs in (None, texts[::-1]):
        rows = [dict(each(texts, pairs, max_length=14, **call)) for each in (tokenizer, converted, reference)]
        assert rows[0] == rows[1] == rows[2]
    for other in (copy.deepcopy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
        assert type(other) is type(tokenizer)
        assert other(texts)["input_ids"] == tokenizer(texts)["input_ids"]
    # An independent tokenizer, and a view that cannot be changed.
    converted.add_tokens(["another"])
    assert len(converted) == len(tokenizer) + 1 == len(tokenizer.to_transformers()) + 1
    with pytest.raises(UserError, match=r"backend_tokenizer\.normalizer: .*to_transformers\(\)"):
        tokenizer.backend_tokenizer.normalizer = None
    with pytest.raises(UserError, match="no chat template"):
        tokenizer.apply_chat_template([])
    # Saved by either library, it is the same tokenizer for both.
    tokenizer.to_transformers().save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "ours")
    for folder in (tmp_path / "theirs", tmp_path / "ours"):
        for other in (fastbert.load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)):
            assert dict(other(texts, texts)) == dict(tokenizer(texts, texts))
    names = [Path(path).name for path in tokenizer.save_vocabulary(tmp_path, "x")]
    assert names == (["x-vocab.json", "x-merges.txt"] if family == "roberta" else ["x-unigram.json"])
    backend = reference.backend_tokenizer.model.save(str(tmp_path), "y")
    assert [Path(path).name.replace("y-", "x-") for path in backend] == names
    ours, theirs = json.loads((tmp_path / names[0]).read_text()), json.loads(Path(backend[0]).read_text())
    if family != "roberta":
        # Scores are written so that the reference, whose parser rounds twice, reads them back: to the last bit but one.
        scores = [[score for _, score in content["vocab"]] for content in (ours, theirs)]
        assert scores[0] == pytest.approx(scores[1], rel=1e-14)
        ours["vocab"], theirs["vocab"] = ([piece for piece, _ in content["vocab"]] for content in (ours, theirs))
    assert ours == theirs


PIPELINES = [
    ("fill-mask", "ForMaskedLM", ["the {mask} sat on {mask} .", "a {mask} day"], {"top_k": 3}),
    ("fill-mask", "ForMaskedLM", ["a {mask} ."], {"targets": ["the", "a"]}),
    ("ner", "ForTokenClassification", TEXTS, {"aggregation_strategy": "none"}),
    ("ner", "ForTokenClassification", TEXTS, {"aggregation_strategy": "first"}),
    ("text-classification", "ForSequenceClassification", {"text": TEXTS[0], "text_pair": TEXTS[1]}, {"top_k": None}),
    ("feature-extraction", "Model", TEXTS, {}),
    ("zero-shot-classification", "ForSequenceClassification", TEXTS, {"candidate_labels": ["river", "day"]}),
]


def test_pipelines(family: str, three: Three, tmp_path: Path, seed: int) -> None:
    for task, head, inputs, options in PIPELINES:
        folder = tmp_path / head
        if not folder.exists():
            save_family(family, folder, seed, head, id2label=ENTAILS, label2id={v: k for k, v in ENTAILS.items()})
        model = getattr(transformers, f"AutoModel{head.removeprefix('Model')}").from_pretrained(folder).eval()
        tokenizers = three(folder)
        if task == "fill-mask":
            inputs = [text.format(mask=tokenizers[0].mask_token) for text in inputs]
        answers = []
        for tokenizer in tokenizers:
            pipe = transformers.pipeline(task, model=model, tokenizer=tokenizer, device="cpu")
            answers.append([pipe(inputs, **options), pipe(inputs, batch_size=2, **options)])
        assert answers[0] == answers[1] == answers[2], task


COLLATORS: dict[str, Callable[[Any], Any]] = {
    "padding": lambda t: transformers.DataCollatorWithPadding(t, pad_to_multiple_of=8),
    "tokens": lambda t: transformers.DataCollatorForTokenClassification(t),
    "mlm": lambda t: transformers.DataCollatorForLanguageModeling(t, mlm_probability=0.5, seed=3),
    "choices": lambda t: transformers.DataCollatorForMultipleChoice(t),
}


def test_collators_and_trainer(family: str, three: Three, tmp_path: Path, seed: int) -> None:
    pytest.importorskip("accelerate", reason="transformers' Trainer needs it")
    folder = save_family(family, tmp_path / "model", seed, "ForSequenceClassification", num_labels=3)
    tokenizers = three(folder)
    for name, make in COLLATORS.items():
        batches = []
        for tokenizer in tokenizers:
            rows: list[Any] = [dict(tokenizer(text, return_special_tokens_mask=name == "mlm")) for text in TEXTS[:2]]
            if name == "tokens":
                rows = [row | {"labels": list(range(len(row["input_ids"])))} for row in rows]
            if name == "choices":
                rows = [{key: [value, value] for key, value in row.items()} | {"label": 1} for row in rows]
            torch.manual_seed(0)
            batches.append(dict(make(tokenizer)(rows)))
        for batch in batches[:2]:
            assert batch.keys() == batches[2].keys()
            for key, value in batches[2].items():
                assert torch.equal(batch[key], value), (name, key)

    losses = []
    for index, tokenizer in enumerate(tokenizers):
        rows = [dict(tokenizer(text), label=number % 3) for number, text in enumerate(TEXTS * 2)]
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
        arguments = transformers.TrainingArguments(
            str(tmp_path / str(index)), max_steps=2, per_device_train_batch_size=2, report_to=[], disable_tqdm=True,
            use_cpu=True, logging_steps=1, save_steps=2, seed=1,
        )  # fmt: skip
        trainer = transformers.Trainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
        assert isinstance(trainer.data_collator, transformers.DataCollatorWithPadding)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        saved = transformers.AutoTokenizer.from_pretrained(tmp_path / str(index) / "checkpoint-2")
        assert saved(TEXTS[1]).input_ids == tokenizer(TEXTS[1]).input_ids
    assert len(losses[0]) == 2
    assert losses[0] == losses[1] == losses[2]


def test_sentence_transformers(family: str, three: Three, tmp_path: Path, seed: int) -> None:
    sentence = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    folder = save_family(family, tmp_path / "model", seed, "Model")
    scorer = save_family(family, tmp_path / "scorer", seed, "ForSequenceClassification", num_labels=1)
    vectors, scores = [], []
    for tokenizer in three(folder):
        body = Transformer(str(folder))
        body.processor = tokenizer
        model = sentence.SentenceTransformer(modules=[body, Pooling(32)], device="cpu")
        model.max_seq_length = 6
        vectors.append(model.encode(TEXTS, batch_size=2))
        model.save_pretrained(str(tmp_path / "saved"))
        again = sentence.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
        assert np.array_equal(again.encode(TEXTS, batch_size=2), vectors[-1])
        ranker = sentence.CrossEncoder(str(scorer), device="cpu")
        ranker[0].processor = tokenizer
        scores.append(ranker.predict([(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[2])]).tolist())
    assert all(np.array_equal(each, vectors[2]) for each in vectors)
    assert scores[0] == scores[1] == scores[2]

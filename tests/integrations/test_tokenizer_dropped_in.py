"""WordPieceTokenizer in transformers' pipelines, collators and Trainer, and in sentence-transformers: the results of
BertTokenizerFast, from the object itself and from `to_transformers()`."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")

from fastbert import WordPieceTokenizer  # noqa: E402
from fastbert.errors import UserError  # noqa: E402
from fastbert.tokenizers import AddedToken  # noqa: E402

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    *SPECIAL, "the", "a", "cat", "dog", "sat", "on", "mat", "in", "red", "blue", "ran", ",", ".", "##s", "un", "##aff",
    "##able", "-", "cafe", "yes", "no",
]  # fmt: skip
TEXTS = ["The unaffable cats, sat-on mats.", "a red-blue dog ran zzz in the Café's unables .", "cat"]
SHAPE = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.4,
}
LABELS = {0: "O", 1: "B-ANIMAL", 2: "I-ANIMAL"}
ENTAILS = {0: "contradiction", 1: "neutral", 2: "entailment"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Callable[..., Path]:
    """The folder of a tiny model of transformers by its class, with tokenizer; each is made once."""
    made: dict[tuple[Any, ...], Path] = {}

    def folder(name: str, id2label: dict[int, str] | None = None) -> Path:
        key = (name, *(id2label or {}).values())
        if key not in made:
            torch.manual_seed(seed)
            labels = {"id2label": id2label, "label2id": {v: k for k, v in id2label.items()}} if id2label else {}
            made[key] = tmp_path_factory.mktemp("model")
            getattr(transformers, name)(transformers.BertConfig(**SHAPE, **labels)).save_pretrained(made[key])
            WordPieceTokenizer(WORDS, model_max_length=32).save_pretrained(made[key])
        return made[key]

    return folder


@pytest.fixture
def three(folders: Callable[..., Path]) -> tuple[Any, Any, Any]:
    """Our tokenizer, what it becomes, and the reference."""
    folder = folders("BertModel")
    tokenizer = WordPieceTokenizer.from_pretrained(folder)
    return tokenizer, tokenizer.to_transformers(), transformers.BertTokenizerFast.from_pretrained(folder)


PIPELINES = [
    *(
        pytest.param(
            "ner", "BertForTokenClassification", LABELS, TEXTS, {"aggregation_strategy": strategy}, id=strategy
        )
        for strategy in ("none", "simple", "first", "average", "max")
    ),
    pytest.param(
        "ner",
        "BertForTokenClassification",
        LABELS,
        [" ".join(TEXTS * 4)],
        {"aggregation_strategy": "first", "stride": 4},
        id="ner-windows",
    ),
    pytest.param("fill-mask", "BertForMaskedLM", None, ["the [MASK] sat on [MASK]."], {"top_k": 3}, id="fill-mask"),
    pytest.param(
        "fill-mask",
        "BertForMaskedLM",
        None,
        ["a [MASK]."],
        {"targets": ["dog", "cafes", "cat"]},
        id="fill-mask-targets",
    ),
    pytest.param("text-classification", "BertForSequenceClassification", ENTAILS, TEXTS, {"top_k": None}, id="text"),
    pytest.param(
        "text-classification",
        "BertForSequenceClassification",
        ENTAILS,
        {"text": TEXTS[0], "text_pair": TEXTS[1]},
        {"top_k": None},
        id="text-pair",
    ),
    pytest.param("feature-extraction", "BertModel", None, TEXTS, {}, id="features"),
    pytest.param(
        "zero-shot-classification",
        "BertForSequenceClassification",
        ENTAILS,
        TEXTS,
        {"candidate_labels": ["cat", "dog"]},
        id="zero-shot",
    ),
]


@pytest.mark.filterwarnings("error:Tokenizer does not support real words")
@pytest.mark.parametrize(("task", "name", "labels", "inputs", "options"), PIPELINES)
def test_pipelines(task: str, name: str, labels: Any, inputs: Any, options: Any, folders: Any) -> None:
    folder = folders(name, labels)
    model = getattr(transformers, name).from_pretrained(folder).eval()
    wordpiece = WordPieceTokenizer.from_pretrained(folder)
    answers = []
    for tokenizer in (transformers.BertTokenizerFast.from_pretrained(folder), wordpiece, wordpiece.to_transformers()):
        pipe = transformers.pipeline(task, model=model, tokenizer=tokenizer, device="cpu")
        answers.append([pipe(inputs, **options), pipe(inputs, batch_size=2, **options)])
    assert answers[1] == answers[0]
    assert answers[2] == answers[0]


def test_pipelines_move_its_values_to_the_device_of_the_model(three: Any, folders: Any) -> None:
    model = transformers.BertModel.from_pretrained(folders("BertModel"))
    pipe = transformers.pipeline("feature-extraction", model=model, tokenizer=three[0], device="cpu")
    moved = pipe._ensure_tensor_on_device(pipe.preprocess(TEXTS[0]), torch.device("meta"))
    assert {value.device.type for value in moved.values()} == {"meta"}


def collators() -> dict[str, Callable[[Any], Any]]:
    return {
        "padding": lambda t: transformers.DataCollatorWithPadding(t, pad_to_multiple_of=8),
        "padding-max": lambda t: transformers.DataCollatorWithPadding(t, padding="max_length", max_length=24),
        "tokens": lambda t: transformers.DataCollatorForTokenClassification(t),
        "seq2seq": lambda t: transformers.DataCollatorForSeq2Seq(t),
        "mlm": lambda t: transformers.DataCollatorForLanguageModeling(t, mlm_probability=0.5, seed=3),
        "whole-words": lambda t: transformers.DataCollatorForLanguageModeling(
            t, mlm_probability=0.5, seed=3, whole_word_mask=True, mask_replace_prob=1, random_replace_prob=0
        ),
        "causal": lambda t: transformers.DataCollatorForLanguageModeling(t, mlm=False),
        "permutation": lambda t: transformers.DataCollatorForPermutationLanguageModeling(t),
        "choices": lambda t: transformers.DataCollatorForMultipleChoice(t),
    }


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", collators())
def test_collators(name: str, side: str, three: Any) -> None:
    batches = []
    for tokenizer in three:
        tokenizer.padding_side = side
        texts = TEXTS[:2] if name != "permutation" else ["the cats ran", "the dogs sat"]  # even lengths are required
        # transformers pads no offsets.
        more = {"return_offsets_mapping": True, "padding": "max_length"} if name == "whole-words" else {}
        rows: list[Any] = [
            dict(tokenizer(text, max_length=24, return_special_tokens_mask="mlm" in name, **more)) for text in texts
        ]
        if name in ("tokens", "seq2seq"):
            rows = [row | {"labels": list(range(len(row["input_ids"])))} for row in rows]
        if name == "permutation":
            rows = [row["input_ids"] for row in rows]
        if name == "choices":
            rows = [{key: [value, value] for key, value in row.items()} | {"label": 1} for row in rows]
        torch.manual_seed(0)
        batches.append(dict(collators()[name](tokenizer)(rows)))
    for batch in batches[:2]:
        assert batch.keys() == batches[2].keys()
        for key, value in batches[2].items():
            assert torch.equal(batch[key], value), key


@pytest.mark.parametrize("rows_of", [dict, lambda row: row], ids=["dictionaries", "encodings"])
def test_trainer_chooses_its_collator(rows_of: Any, three: Any, folders: Any, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers' Trainer needs it")
    folder = folders("BertForSequenceClassification", ENTAILS)
    losses = []
    for index, tokenizer in enumerate(three):
        rows = []
        for number, text in enumerate(TEXTS * 2):
            row = tokenizer(text, truncation=True, max_length=16)
            row["label"] = number % 3
            rows.append(rows_of(row))
        model = transformers.BertForSequenceClassification.from_pretrained(folder)
        arguments = transformers.TrainingArguments(
            str(tmp_path / str(index)), max_steps=2, per_device_train_batch_size=2, report_to=[], disable_tqdm=True,
            use_cpu=True, logging_steps=1, save_steps=2, seed=1, include_num_input_tokens_seen="non_padding",
        )  # fmt: skip
        trainer = transformers.Trainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
        assert isinstance(trainer.data_collator, transformers.DataCollatorWithPadding)
        trainer.train()
        history = trainer.state.log_history
        losses.append([{k: v for k, v in entry.items() if k in ("loss", "num_input_tokens_seen")} for entry in history])
        saved = transformers.AutoTokenizer.from_pretrained(tmp_path / str(index) / "checkpoint-2")
        assert saved(TEXTS[1]).input_ids == tokenizer(TEXTS[1]).input_ids
    assert "loss" in losses[0][0]
    assert losses[0] == losses[1] == losses[2]


def test_sentence_transformers_encode_train_and_save(three: Any, folders: Any, tmp_path: Path) -> None:
    sentence = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    folder = str(folders("BertModel"))
    vectors: list[Any] = []
    trained: list[Any] = []
    for tokenizer in three:
        body = Transformer(folder)
        body.processor = tokenizer
        model = sentence.SentenceTransformer(modules=[body, Pooling(32)], device="cpu")
        assert model.tokenizer is tokenizer
        assert model.max_seq_length == 32
        vectors.append(model.encode(TEXTS, batch_size=2))
        model.max_seq_length = 6
        vectors[-1] = np.concatenate([vectors[-1], model.encode(TEXTS)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = CosineSimilarityLoss(model)
        features = [model.preprocess(list(texts)) for texts in (TEXTS[:2], TEXTS[1:])]
        torch.manual_seed(0)
        loss([dict(part) for part in features], torch.tensor([0.1, 0.9])).backward()
        optimizer.step()
        trained.append(model.encode(TEXTS))
        model.save_pretrained(str(tmp_path / "saved"))
        again = sentence.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
        assert np.array_equal(again.encode(TEXTS), trained[-1])
    for result in (vectors, trained):
        assert np.array_equal(result[0], result[2])
        assert np.array_equal(result[1], result[2])
    assert not np.array_equal(trained[0], vectors[0][3:])


def test_cross_encoders_predict_and_rank(three: Any, folders: Any) -> None:
    sentence = pytest.importorskip("sentence_transformers")
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[2])]
    answers = []
    for tokenizer in three:
        model = sentence.CrossEncoder(str(folders("BertForSequenceClassification", {0: "score"})), device="cpu")
        model[0].processor = tokenizer
        answers.append((model.predict(pairs).tolist(), model.rank(TEXTS[0], TEXTS, return_documents=True)))
    assert answers[0] == answers[1] == answers[2]


def test_static_embeddings_take_its_backend(three: Any) -> None:
    pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    weights = np.arange(len(WORDS) * 4, dtype=np.float32).reshape(-1, 4)
    results = [
        StaticEmbedding(tokenizer, embedding_weights=weights).tokenize(TEXTS)["input_ids"] for tokenizer in three
    ]
    assert torch.equal(results[0], results[2])


ATTRIBUTES = [
    *("SPECIAL_TOKENS_ATTRIBUTES", "add_bos_token", "add_eos_token", "add_prefix_space", "backend", "chat_template"),
    *("deprecation_warnings", "files_loaded", "init_inputs", "is_fast", "model_input_names", "model_max_length"),
    *("padding_side", "truncation_side", "pretrained_vocab_files_map", "slow_tokenizer_class", "split_special_tokens"),
    *("verbose", "vocab_files_names", "vocab_size", "pad_token_type_id", "name_or_path", "all_special_ids"),
    *("special_tokens_map", "extra_special_tokens", "added_tokens_encoder", "max_len_single_sentence"),
    *("response_template", "eos_token_id", "mask_token_id", "do_lower_case", "strip_accents"),
]


def test_attributes_and_methods(three: Any, tmp_path: Path) -> None:
    tokenizer, converted, reference = three
    for name in ATTRIBUTES:
        assert getattr(tokenizer, name) == getattr(converted, name) == getattr(reference, name), name
    for name, value in tokenizer.init_kwargs.items():
        assert converted.init_kwargs.get(name, value) == value, name
    assert tokenizer.num_special_tokens_to_add(True) == reference.num_special_tokens_to_add(True)
    assert len(tokenizer) == len(converted) == len(reference)
    assert tokenizer.save_vocabulary(tmp_path, "x") == (str(tmp_path / "x-vocab.txt"),)
    assert (tmp_path / "x-vocab.txt").read_text().splitlines() == WORDS
    assert [Path(path).name for path in tokenizer.save_pretrained(tmp_path, legacy_format=False, push_to_hub=False)]
    for method, arguments, options in (
        ("push_to_hub", ("somebody/model",), {}),
        ("apply_chat_template", ([],), {}),
        ("save_pretrained", (tmp_path,), {"push_to_hub": True}),
    ):
        with pytest.raises(UserError, match=r"hf upload|no chat template"):
            getattr(tokenizer, method)(*arguments, **options)
    with pytest.raises(AttributeError, match=r"no attribute 'train_new_from_iterator'; tokenizer\.to_transformers\(\)"):
        _ = tokenizer.train_new_from_iterator
    assert not hasattr(tokenizer, "_no_such_name")


class Mine(WordPieceTokenizer):
    """A subclass, as users have them."""


def test_it_is_one_of_theirs_and_of_ours(three: Any) -> None:
    wordpiece = three[0]
    kinds = (transformers.PreTrainedTokenizerBase, transformers.PreTrainedTokenizerFast, WordPieceTokenizer)
    assert all(isinstance(wordpiece, kind) for kind in kinds)
    assert not isinstance(wordpiece, transformers.ProcessorMixin | dict)
    assert type(wordpiece) is type(wordpiece.__class__(WORDS)) is WordPieceTokenizer
    assert wordpiece.__class__.__name__ == "WordPieceTokenizer"

    assert type(Mine(WORDS).__class__(WORDS)) is Mine
    for tokenizer in (wordpiece, Mine(WORDS)):
        copies = [copy.copy(tokenizer), copy.deepcopy(tokenizer)]
        copies += [pickle.loads(pickle.dumps(tokenizer, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
        for other in copies:
            assert type(other) is type(tokenizer)
            assert other(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
            assert isinstance(other, transformers.PreTrainedTokenizerBase)


def test_the_backend_follows_and_cannot_be_changed(three: Any) -> None:
    tokenizer = three[0]
    assert tokenizer._tokenizer.model.continuing_subword_prefix == "##"
    assert tokenizer.backend_tokenizer.normalizer.lowercase is True
    tokenizer.do_lower_case = False
    assert tokenizer.backend_tokenizer.normalizer.lowercase is False
    assert tokenizer.backend_tokenizer.encode("the cats").ids == tokenizer("the cats").input_ids
    with pytest.raises(UserError, match=r"backend_tokenizer\.normalizer: .*to_transformers\(\)"):
        tokenizer.backend_tokenizer.normalizer = None
    with pytest.raises(UserError, match=r"backend_tokenizer\.add_tokens"):
        tokenizer.backend_tokenizer.add_tokens(["x"])


CONVERTED = [
    {},
    {"do_lower_case": False},
    {"strip_accents": False, "tokenize_chinese_chars": False},
    {"mask_token": "yes", "padding_side": "left", "truncation_side": "left", "model_max_length": None},
    {"additional_special_tokens": ["<e1>", "no"], "split_special_tokens": True},
    {"additional_special_tokens": ["<e1>"]},
    {
        "added_tokens": [
            AddedToken("New Word", lstrip=True),
            AddedToken("dog", single_word=True),
            AddedToken("Äx", normalized=False, rstrip=True),
        ]
    },
]


@pytest.mark.parametrize("options", CONVERTED, ids=lambda options: "-".join(options) or "plain")
def test_conversion_keeps_everything(options: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = WordPieceTokenizer([*WORDS, "中", "国", "CAT"], **options)
    converted = tokenizer.to_transformers()
    assert len(converted) == len(tokenizer)
    assert converted.added_tokens_encoder == tokenizer.added_tokens_encoder
    texts = [*TEXTS, "a <e1> yes no 中国 CAT Äx  new word [MASK] dogs dog", ""]
    call: dict[str, Any] = {
        "return_offsets_mapping": True,
        "return_special_tokens_mask": True,
        "padding": True,
        "truncation": True,
    }
    for text, pair in ((texts, None), (texts, texts[::-1])):
        actual, expected = tokenizer(text, pair, max_length=14, **call), converted(text, pair, max_length=14, **call)
        assert dict(actual) == dict(expected)
        for row in range(len(texts)):
            assert actual.word_ids(row) == expected.word_ids(row)
    # An independent tokenizer: what happens to it does not reach ours.
    before = len(tokenizer)
    converted.add_tokens(["another"])
    assert len(tokenizer) == before == len(tokenizer.to_transformers())
    # Saved by transformers, it is the same tokenizer again for both.
    tokenizer.to_transformers().save_pretrained(tmp_path)
    assert WordPieceTokenizer.from_pretrained(tmp_path)(texts)["input_ids"] == tokenizer(texts)["input_ids"]


def test_encodings_are_copied_and_merged(three: Any) -> None:
    result = three[0](TEXTS[0])
    other = result.copy()
    other["labels"] = 1
    assert "labels" not in result
    assert other.word_ids() == result.word_ids()
    assert (result | {"labels": 2})["labels"] == 2
    assert "input_ids" in result
    assert "words" not in result

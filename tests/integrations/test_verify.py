"""`verify`: what it compares, when it says that two models agree, and what it refuses."""

import dataclasses
import importlib.util
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")

from fastbert import WordPieceTokenizer  # noqa: E402
from fastbert.errors import UserError  # noqa: E402
from fastbert.integrations import verify as module  # noqa: E402
from fastbert.integrations import verify_worker  # noqa: E402
from fastbert.integrations.verify import Measured, VerifyReport, verify  # noqa: E402

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "cat", "sat", "on", "the", "mat", "."]
TEXTS = ["the cat sat on the mat .", "a cat", "", "the red mat . " * 9, "a", "cat cat cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    """A toy model of transformers, with a tokenizer."""
    home = tmp_path_factory.mktemp("model")
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=24, initializer_range=0.3,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(home)
    WordPieceTokenizer(WORDS).save_pretrained(home)
    return home


class Questioned(module._Worker):
    """A process whose original side is asked for what it cannot do before it ends, as each takes seconds to start."""

    answers: ClassVar[list[str]] = []

    def __exit__(self, *error: object) -> None:
        for method, arguments in (
            ("load", {"settings": self.settings | {"model": "nothing-here"}, "texts": ["a"]}),
            ("nonsense", {}),
        ):
            if not self.settings["accelerate"]:
                with pytest.raises(UserError) as caught:
                    self.call(method, **arguments)
                self.answers.append(str(caught.value))
        super().__exit__(*error)


@pytest.fixture(scope="module")
def report(folder: Path) -> VerifyReport:
    told: list[tuple[str, int, int]] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_Worker", Questioned)
        made = verify(folder, TEXTS, batch_size=2, threads=1, rounds=2, progress=lambda *step: told.append(step))
    assert [stage for stage, done, total in told if done == total] == ["loading", "comparing", "timing"]
    return made


def test_the_same_model_accelerated_agrees(report: VerifyReport) -> None:
    assert report.agrees
    assert 0 < report.max_abs_difference < 2e-5
    assert report.mean_abs_difference < report.max_abs_difference
    assert min(report.min_token_cosine, report.min_text_cosine) > 0.99999
    assert report.architecture == "BertModel"
    assert report.texts == 5  # the empty one is left out
    # [CLS] and [SEP] with 7, 2, 1 and 3 words; the long one is cut at the model's 24 positions
    assert report.tokens == 9 + 4 + 24 + 3 + 5
    assert report.padding_share == pytest.approx(1 - 45 / (2 * 9 + 2 * 24 + 5))
    assert report.notes == ()


def test_both_sides_are_measured(report: VerifyReport) -> None:
    for side in (report.original, report.accelerated):
        assert side.seconds > 0
        assert side.tokens_per_second == pytest.approx(45 / side.seconds)
        assert side.texts_per_second == pytest.approx(5 / side.seconds)
        assert side.peak_bytes is None or side.peak_bytes > 1 << 20
    assert report.speedup == pytest.approx(report.original.seconds / report.accelerated.seconds)
    assert report.to_dict()["agrees"] is True
    assert set(report.versions) == {"fastbert", "torch", "transformers"}


def test_what_goes_wrong_in_a_process_is_told(report: VerifyReport) -> None:
    refused, ended = Questioned.answers
    assert re.search(r"nothing-here: transformers cannot load it .* nothing is downloaded", refused)
    assert re.search(r"process of the original model ended with code 1: \w+Error: .*nonsense", ended)


@pytest.mark.parametrize(
    ("changes", "agrees"),
    [
        ({"max_abs_difference": 2e-5}, True),
        ({"max_abs_difference": 2.1e-5}, False),
        ({"max_abs_difference": float("nan")}, False),
        ({"max_abs_difference": 1.0, "tolerance": 2.0}, True),
        ({"max_abs_difference": 1.0, "dtype": "bf16", "min_token_cosine": 0.9991}, True),
        ({"max_abs_difference": 1.0, "dtype": "bf16", "min_token_cosine": 0.9989}, False),
        ({"dtype": "fp16", "min_token_cosine": float("nan")}, False),
    ],
)
def test_when_they_agree(changes: dict[str, float], agrees: bool, report: VerifyReport) -> None:
    assert dataclasses.replace(report, **changes).agrees is agrees


def test_a_difference_anywhere_is_found() -> None:
    actual = module._Differences()
    states = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    actual.add(states, states, [2, 3])
    assert actual.summary()["max_abs_difference"] == 0.0
    assert actual.summary()["min_text_cosine"] == 1.0
    other = states.copy()
    other[3] = -states[3]
    actual.add(states, other, [3, 2])
    summary = actual.summary()
    assert summary["max_abs_difference"] == pytest.approx(2 * abs(states[3]).max())
    assert summary["mean_abs_difference"] == pytest.approx(2 * abs(states[3]).sum() / 40)
    assert summary["min_token_cosine"] == pytest.approx(-1)
    expected = torch.nn.functional.cosine_similarity(*(torch.tensor(x[3:].mean(0)) for x in (states, other)), dim=0)
    assert summary["min_text_cosine"] == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_on_one_side_is_a_difference(value: float) -> None:
    result = module._Differences()
    states = np.ones((2, 3), dtype=np.float32)
    other = states.copy()
    other[1, 1] = value
    result.add(states, other, None)
    result.add(states, states, None)  # later agreement does not hide it
    assert not result.summary()["max_abs_difference"] <= 1e30
    assert not result.summary()["min_token_cosine"] >= 0.999


def test_zeros_and_infinities_on_both_sides_are_the_same() -> None:
    result = module._Differences()
    states = np.array([[0.0, 0.0], [np.inf, 1.0]], dtype=np.float32)
    result.add(states, states, None)
    assert result.summary()["max_abs_difference"] == 0.0
    assert result.summary()["min_token_cosine"] == 1.0


def side(model: Path, **changes: Any) -> verify_worker.Side:
    """One side in this process."""
    settings = {
        "model": str(model), "task": "base", "max_length": 512, "batch_size": 4, "dtype": "fp32", "device": "cpu",
        "threads": None, "accelerate": False,
    }  # fmt: skip
    return verify_worker.Side({**settings, **changes}, TEXTS)


def test_a_model_that_cannot_be_accelerated_says_what_stops_it(tmp_path: Path) -> None:
    config = transformers.FNetConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, intermediate_size=16, pad_token_id=0
    )
    transformers.FNetModel(config).save_pretrained(tmp_path)
    WordPieceTokenizer(WORDS).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="FNetModel is not an encoder that fastbert can accelerate"):
        side(tmp_path, accelerate=True)


def test_a_roberta_is_cut_where_its_positions_end(tmp_path: Path) -> None:
    config = transformers.RobertaConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=22, pad_token_id=0,
    )  # fmt: skip
    transformers.RobertaModel(config).save_pretrained(tmp_path)
    WordPieceTokenizer(WORDS).save_pretrained(tmp_path)
    made = side(tmp_path)
    assert max(max(lengths) for lengths in made.facts()["lengths"]) == 21
    assert made.compute(0, str(tmp_path / "out"))["of_tokens"]


@pytest.mark.parametrize(
    ("texts", "options", "words"),
    [
        ([], {}, "there is no text"),
        (["", " "], {}, "there is no text"),
        (["a"], {"batch_size": 0}, "batch_size=0 must be at least 1"),
        (["a"], {"max_length": 2}, "max_length=2 must be at least 3"),
        (["a"], {"threads": 0}, "threads=0 must be at least 1"),
        (["a"], {"rounds": 0}, "rounds=0 must be at least 1"),
    ],
)
def test_wrong_input_is_named(texts: list[str], options: dict[str, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        verify("folder", texts, **options)


def test_without_transformers_there_is_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"transformers, which is not installed: `pip install"):
        verify("folder", ["a"])


def test_a_folder_that_transformers_cannot_load_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing-here: transformers cannot load it .* nothing is downloaded"):
        side(tmp_path / "nothing-here")
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    merges = '{"type": "BPE", "vocab": {"a": 0}, "merges": [["b", "a"]]}'
    for added, words in (("", "KeyError: 'added_tokens'"), (', "added_tokens": []', "Exception: ")):
        (tmp_path / "tokenizer.json").write_text(f'{{"model": {merges}{added}}}')
        with pytest.raises(UserError, match=rf"{tmp_path}: transformers cannot load it \({words}"):
            side(tmp_path)


@pytest.mark.parametrize("task", ["fill-mask", "text-classification", "token-classification"])
def test_heads_are_compared_by_their_logits(task: str, folder: Path) -> None:
    original = side(folder, task=task)
    shape = original.compute(0, str(folder / "out"))
    assert shape["of_tokens"] is (task != "text-classification")
    assert shape["shape"][0] == (4 if task == "text-classification" else sum(original.facts()["lengths"][0]))


def test_defaults_are_those_of_the_issue() -> None:
    fields = {field.name for field in dataclasses.fields(Measured)}
    assert fields == {"seconds", "texts_per_second", "tokens_per_second", "peak_bytes"}
    assert (module.TOLERANCE, module.MIN_COSINE) == (2e-5, 0.999)

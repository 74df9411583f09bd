"""Tasks on a frozen ELMo: a BiLSTM and a head over the mix of its layers, from the file to predictions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from finetune_runs import config, same, weights
from toy_tasks import BAD, GOOD, PLAIN, questions, sentiment, tagged

from fastbert.errors import UserError
from fastbert.finetuning.run import finetune
from fastbert.models import registry
from fastbert.models.elmo import model as elmo
from fastbert.models.elmo.characters import read_characters
from fastbert.models.elmo.config import ElmoConfig
from fastbert.tasks.prediction import predict
from fastbert.tokenizers import WordPieceTokenizer, words
from fastbert.tokenizers.word_table import WordTable
from fastbert.training.reporter import Reporter
from fastbert.training.stopping import Stopped

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "was", "a", "."]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ELMo that knows few words, and examples of others."""
    folder = tmp_path_factory.mktemp("elmo")
    shape = ElmoConfig(
        vocab_size=len(VOCABULARY), output_size=len(VOCABULARY), hidden_size=64, intermediate_size=32,
        character_embedding_size=8, filters=(8, 16, 32), num_highways=1,
    )  # fmt: skip
    model = registry.head_class(shape, "ForBidirectionalLM")(shape)
    model.init_weights(0)
    with torch.no_grad():  # the vectors of untrained weights are nearly the same for all words
        words, projection = read_characters(PLAIN + GOOD + BAD), model.elmo.embeddings.projection
        projection.weight *= 4
        projection.bias -= model.elmo.embeddings(words, torch.arange(len(words))).mean(0)
    model.save_pretrained(folder / "model")
    WordPieceTokenizer(VOCABULARY, do_lower_case=False, split_special_tokens=True).save_pretrained(folder / "model")
    sentiment(folder / "train.tsv", 192, seed=1)
    sentiment(folder / "dev.tsv", 64, seed=2)
    tagged(folder / "tags.conll", 48)
    questions(folder / "squad.json", 48)
    return folder


def test_a_classifier_learns_and_the_encoder_stays(place: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = finetune(config(place, run, bilstm=32, epochs=(6.0,), batch_size=(8,), lr=(3e-2,)))
    assert result.scores["dev.tsv"]["accuracy"]["mean"] > 80
    before, after = weights(place / "model"), weights(run / "model")
    frozen = [name for name in before if name.startswith("elmo.")]
    assert all(torch.equal(before[name], after[name]) for name in frozen)
    assert after["elmo.mix.gamma"] != 1.0
    predictions = list(predict(str(run / "model"), str(place / "dev.tsv"), device="cpu", dtype="fp32"))
    stored = [json.loads(line) for line in (run / "predictions" / "dev.tsv.jsonl").read_text().splitlines()]
    assert [p["label"] for p in predictions] == [p["label"] for p in stored]


def test_an_interrupted_run_continues_to_the_same_bits(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a process that has numbered other words before."""
    flags = {"bilstm": 8, "epochs": (2.0,), "checkpoint_every": 3}
    finetune(config(place, tmp_path / "whole", **flags))

    def stop(metrics: dict[str, object], progress: float) -> None:
        if metrics["step"] == 10:
            raise KeyboardInterrupt

    with pytest.raises((Stopped, KeyboardInterrupt)):
        finetune(config(place, tmp_path / "run", **flags), Reporter(on_step=stop))
    table = WordTable()
    table.ids(["words", "read", "before"])
    for module in (words, elmo):
        monkeypatch.setattr(module, "WORD_TABLE", table)
    finetune(config(place, tmp_path / "run", **flags, resume=True))
    assert same(weights(tmp_path / "whole" / "model"), weights(tmp_path / "run" / "model"))


@pytest.mark.parametrize(
    ("task", "file", "metric"), [("tagging", "tags.conll", "f1"), ("span", "squad.json", "exact_match")]
)
def test_taggers_and_readers_learn_words_that_the_vocabulary_lacks(
    place: Path, tmp_path: Path, task: str, file: str, metric: str
) -> None:
    data = place / file
    settings = config(
        place,
        tmp_path / "run",
        task=task,
        train=data,
        eval=(data,),
        bilstm=16,
        epochs=(20.0,),
        batch_size=(8,),
        lr=(3e-2,),
    )
    scores = finetune(settings).scores[file]
    assert scores[metric]["mean"] > 90


def test_flags_that_train_the_frozen_encoder_are_refused(place: Path, tmp_path: Path) -> None:
    for flags, message in (
        ({"lora": 4}, "--lora adapts attention, which ELMo does not have"),
        (
            {"gradual_unfreezing": True},
            "--gradual-unfreezing is about the encoder's layers",
        ),
        ({"layer_decay": 0.9}, "--layer-decay is about the encoder's layers, and those of ELMo stay frozen"),
    ):
        with pytest.raises(UserError, match=message):
            finetune(config(place, tmp_path / "run", **flags))


def test_new_weights_are_used_at_once(place: Path) -> None:
    model = registry.load_encoder(place / "model")
    (_, before), *_ = model.states_of([["good"]])
    with torch.no_grad():
        model.load_state_dict({name: 1.5 * value for name, value in model.state_dict().items()})
    (_, after), *_ = model.states_of([["good"]])
    assert not torch.allclose(before[:, 0], after[:, 0])

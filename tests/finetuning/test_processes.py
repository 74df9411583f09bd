"""Fine-tuning in several processes: the steps and scores of one, what ends them, and how they go on."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from finetune_runs import assert_close, config, lines, same, weights, words
from ranks import Ranks
from toy_tasks import VOCABULARY, choices, echoes, feelings, questions, sentiment, tagged

from fastbert import WordPieceTokenizer
from fastbert.finetuning.run import finetune
from fastbert.models import registry
from fastbert.models.gpt2.config import GPT2Config

pytest.importorskip("tyro", reason="the command line needs tyro")

# The last step of an epoch has one example, fewer than processes.
FEW = {"train": "thirteen.tsv", "batch_size": (6,), "epochs": (2.0,), "log_every": 1, "dropout": 0.1, "lr": (1e-3,)}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    running = Ranks(tmp_path_factory.mktemp("ranks"))
    yield running
    running.close()


@pytest.fixture(scope="module", autouse=True)
def files(place: Path) -> None:
    sentiment(place / "thirteen.tsv", 13, seed=6)
    tagged(place / "tags.conll", 13, seed=1)
    questions(place / "squad.json", 13, seed=1)
    choices(place / "choices.jsonl", 13, seed=1)
    feelings(place / "sets.tsv", 13, seed=1)
    echoes(place / "echoes.tsv", 13, seed=1)
    shape: dict[str, Any] = {
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    (place / "new.json").write_text(json.dumps({"model_type": "transformer", **shape}))
    gpt = GPT2Config(**shape, vocab_size=len(VOCABULARY), max_position_embeddings=64)
    registry.head_class(gpt, "ForCausalLM")(gpt).save_pretrained(place / "gpt")
    WordPieceTokenizer(list(VOCABULARY)).save_pretrained(place / "gpt")


def flags_of(place: Path, flags: dict[str, Any]) -> dict[str, Any]:
    """The flags of a short run, with the paths of its files."""
    chosen = {**FEW, **flags}
    chosen["train"] = place / chosen["train"]
    if "model" in chosen:
        chosen["model"] = str(place / chosen["model"])
    if "tokenizer" in chosen:
        chosen["tokenizer"] = place / chosen["tokenizer"]
    if "eval" in chosen:
        chosen["eval"] = tuple(place / name for name in chosen["eval"])
    return chosen


def test_steps_and_scores_do_not_depend_on_the_number_of_processes(place: Path, ranks: Ranks, tmp_path: Path) -> None:
    """A grid with seeds, micro-batches and unfreezing, in 1 and 3 processes; tests of every kind of task have 2."""
    flags = flags_of(
        place,
        {"seeds": 2, "micro_batch": 2, "gradual_unfreezing": True, "early_stopping": 1, "epochs": (3.0,),
         "eval": ("dev.tsv",)},
    )  # fmt: skip
    whole = finetune(config(place, tmp_path / "one", **flags))
    out = tmp_path / "three"
    ended = ranks.run([words(place, out, **flags)] * 3)
    assert ended.codes == [0, 0, 0], ended.outputs
    assert ended.outputs[0].count("dev.tsv: accuracy") >= 1
    assert all(output == "" for output in ended.outputs[1:])
    assert_close(out, tmp_path / "one")
    stored = json.loads((out / "results.json").read_text())
    expected = json.loads((tmp_path / "one" / "results.json").read_text())
    assert stored["results"] == expected["results"]
    assert (stored["best"], stored["model"]) == (expected["best"], expected["model"])
    assert {path.name for path in out.iterdir()} == {path.name for path in whole.folder.iterdir()}


KINDS: dict[str, dict[str, Any]] = {
    "tagging": {"task": "tagging", "train": "tags.conll", "eval": ("tags.conll",), "class_weights": "balanced"},
    "teacher": {"student_layers": 1, "distill": "tinybert", "eval": ("dev.tsv",)},
    "span": {"task": "span", "train": "squad.json", "eval": ("squad.json",), "max_length": 16, "stride": 4},
    "choice": {"task": "choice", "train": "choices.jsonl", "eval": ("choices.jsonl",), "checkpoint_activations": True},
    "multilabel": {"task": "multilabel", "train": "sets.tsv", "eval": ("sets.tsv",), "frozen": True},
    "seq2seq": {"task": "seq2seq", "train": "echoes.tsv", "eval": ("echoes.tsv",), "max_target_length": 6},
    "pairs": {"task": "regression", "train": "pairs-dev.tsv", "eval": ("pairs-dev.tsv",), "pair_order": "both",
              "steps": 3},
    "lora": {"lora": 2, "eval": ("dev.tsv",)},
    "language model": {"model": "gpt", "lm_weight": 0.5, "eval": ("dev.tsv",), "micro_batch": 2},
    "new": {"task": "seq2seq", "architecture": "transformer", "model": "new.json", "tokenizer": "model",
            "train": "echoes.tsv", "eval": ("echoes.tsv",), "max_target_length": 6, "batch_size": (7,)},
    "bilstm": {"bilstm": 0, "eval": ("dev.tsv",)},
}  # fmt: skip
FAST = ("tagging", "teacher")


@pytest.mark.parametrize(
    "kind", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in KINDS]
)
def test_every_kind_of_task(kind: str, place: Path, ranks: Ranks, tmp_path: Path) -> None:
    """Weighted labels, windows, choices, pairs in both orders, decoders, teachers and adapters, in two processes."""
    if kind == "lora":
        pytest.importorskip("peft")
    flags = flags_of(place, {"epochs": (1.0,), **KINDS[kind]})
    if kind == "teacher":
        flags["teacher"] = str(finetune(config(place, tmp_path / "teacher", steps=1, eval=())).model)
    finetune(config(place, tmp_path / "one", **flags))
    ended = ranks.run([words(place, tmp_path / "two", **flags)] * 2)
    assert ended.codes == [0, 0], ended.outputs
    assert_close(tmp_path / "two", tmp_path / "one")


def test_a_process_that_is_killed_ends_the_others(place: Path, ranks: Ranks, tmp_path: Path) -> None:
    """They say so; the run goes on with another number of processes as it would have."""
    flags = flags_of(place, {"epochs": (4.0,), "checkpoint_every": 2, "eval": ("dev.tsv",), "eval_every": 5})
    out = tmp_path / "killed"
    command = words(place, out, **flags)
    ended = ranks.run([command] * 2, kill=1, after=str(out / "checkpoints" / "step-00000002"))
    ended.assert_killed(1)
    ended = ranks.run([[*command, "--resume"]] * 3)
    assert ended.codes == [0, 0, 0], ended.outputs
    finetune(config(place, tmp_path / "one", **flags))
    assert_close(out, tmp_path / "one")
    ended = ranks.run([["finetune", "--out", str(out), "--resume"]] * 2)
    assert ended.codes == [0, 0]
    assert "the run is finished" in ended.outputs[0]


def test_a_signal_stops_all_processes_after_the_same_step(place: Path, ranks: Ranks, tmp_path: Path) -> None:
    """Whichever process gets it; resumed, the run ends with the bits of one that was not stopped."""
    flags = flags_of(place, {"epochs": (6.0,), "checkpoint_every": 2, "seeds": 2, "eval": ()})
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    assert ranks.run([words(place, straight, **flags)] * 2).codes == [0, 0]
    command = words(place, stopped, **flags)
    after = str(stopped / "checkpoints" / "step-00000002")
    ended = ranks.run([command] * 2, kill=1, after=after, signal=int(signal.SIGTERM))
    assert ended.codes == [128 + signal.SIGTERM] * 2
    assert "continue with: torchrun --no-python --nproc-per-node=2 fastbert finetune" in ended.outputs[0]
    assert ranks.run([[*command, "--resume"]] * 2).codes == [0, 0]
    assert same(weights(stopped / "model"), weights(straight / "model"))
    assert [one["loss"] for one in lines(stopped, "train")] == [one["loss"] for one in lines(straight, "train")]


def test_processes_must_agree(place: Path, ranks: Ranks, tmp_path: Path) -> None:
    """On flags, files, and a batch with an example for each; each mistake is one line, of the first process."""
    flags, out = flags_of(place, {}), tmp_path / "run"
    ended = ranks.run([words(place, out, **flags), words(place, out, "--seed=7", **flags)])
    assert ended.codes == [2, 2]
    assert "process 1 of 2 has --seed=7, but process 0 has --seed=0" in ended.outputs[0]
    assert not out.exists()
    ended = ranks.run([words(place, out, **{**flags, "batch_size": (2,)})] * 3)
    assert ended.codes == [2, 2, 2]
    assert [output.count("fastbert: error:") for output in ended.outputs] == [1, 0, 0]
    assert "--batch-size 2 is less than one example per process for 3 processes" in ended.outputs[0]

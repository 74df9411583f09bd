"""Fine-tuning of models that read left to right: GPT's loss against transformers, resumed runs, pairs in both orders,
every task with and without a BiLSTM, and what is refused."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy_tasks
from finetune_runs import config, same, weights
from pretrain_runs import without_clocks
from torch.nn import functional as F

import fastbert
from fastbert import BertConfig, WordPieceTokenizer
from fastbert.errors import UserError
from fastbert.finetuning import language_model, order, recipe, start
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.run import FinetuneResult, finetune
from fastbert.models import registry
from fastbert.models.gpt2.config import GPT2Config
from fastbert.models.openai_gpt.config import OpenAIGPTConfig
from fastbert.tasks.predicting import outputs_of
from fastbert.tasks.prediction import predict
from fastbert.tasks.registry import make_task
from fastbert.tasks.texts import TextSettings
from fastbert.training.optimizer import decayed
from fastbert.training.reporter import Reporter
from fastbert.training.stopping import Stopped

VOCABULARY = toy_tasks.VOCABULARY
SHAPE: dict[str, Any] = {
    "vocab_size": len(VOCABULARY), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 128, "max_position_embeddings": 64, "initializer_range": 0.1,
}  # fmt: skip
LABELS = {"classification": "sentiment", "multilabel": "feelings", "regression": "moods", "tagging": "tagged"}
FILES = {**LABELS, "span": "questions", "choice": "choices"}
SUFFIX = {"tagging": ".conll", "span": ".json", "choice": ".jsonl"}


def causal_folder(folder: Path, shape: BertConfig, seed: int = 0) -> Path:
    """A folder of a language model, as pre-training leaves it."""
    model = registry.head_class(shape, "ForCausalLM")(shape)
    model.init_weights(seed=seed)
    model.save_pretrained(folder)
    WordPieceTokenizer(list(VOCABULARY), do_lower_case=True).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("causal")
    causal_folder(folder / "gpt2", GPT2Config(**SHAPE))
    causal_folder(folder / "openai-gpt", OpenAIGPTConfig(**SHAPE))
    causal_folder(folder / "bert", BertConfig(**SHAPE, is_decoder=True))
    toy_tasks.toy_folder(folder / "model")
    for task, name in FILES.items():
        for part, count, seed in (("train", 96, 1), ("dev", 32, 2)):
            getattr(toy_tasks, name)(folder / f"{task}-{part}{SUFFIX.get(task, '.tsv')}", count, seed)
    return folder


def flags(causal: Path, task: str, model: str, **others: Any) -> dict[str, Any]:
    suffix = SUFFIX.get(task, ".tsv")
    files = {"train": causal / f"{task}-train{suffix}", "eval": (causal / f"{task}-dev{suffix}",)}
    return {"task": task, "model": str(causal / model), "epochs": (1.0,), "lr": (1e-3,), **files, **others}


def logged(folder: Path, name: str) -> list[float]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record[name] for record in records if record["split"] == "train" and name in record]


def transformers_losses(causal: Path, used: FinetuneConfig, steps: int) -> list[tuple[float, float]]:
    """L3 and L1 of the first steps of a plain loop: transformers' GPT-2, padded, a linear layer, torch's AdamW."""
    transformers = pytest.importorskip("transformers")
    task = make_task("classification", used.task_settings())
    train = task.read(str(used.train))
    task.learn_labels(train)
    tokenizer = WordPieceTokenizer.from_pretrained(causal / "gpt2")
    rows = task.encode(train, tokenizer, labelled=True)
    ours = start.begin(task, causal / "gpt2", used, seed=0)
    model = transformers.GPT2LMHeadModel.from_pretrained(causal / "gpt2", attn_implementation="eager", resid_pdrop=0.0,
                                                         embd_pdrop=0.0, attn_pdrop=0.0)  # fmt: skip
    classifier = torch.nn.Linear(32, 2, bias=False)
    classifier.weight.data.copy_(ours.classifier.weight.detach())
    named = [*model.named_parameters(), *classifier.named_parameters()]
    groups = [
        {"params": [p for name, p in named if decayed(name, p)], "weight_decay": used.weight_decay},
        {"params": [p for name, p in named if not decayed(name, p)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=used.lr[0], betas=(0.9, 0.999), eps=1e-6)
    _, total = order.steps_of(rows.units, used.batch_size[0], used.epochs[0], None)
    losses = []
    for step, (_, units) in enumerate(order.batches(rows.units, used.batch_size[0], 0, 0, steps)):
        batch = rows.batch(units)
        padded = batch.inputs.unpack()
        ids, mask = padded["input_ids"], padded["attention_mask"]
        output = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        last = output.hidden_states[-1][torch.arange(len(ids)), mask.sum(1) - 1]
        task_loss = F.cross_entropy(classifier(last), batch.targets["labels"])
        following = ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100)
        lm_loss = F.cross_entropy(output.logits[:, :-1].flatten(0, 1), following.flatten())
        loss = task_loss + 0.5 * lm_loss
        losses.append((loss.item(), lm_loss.item()))
        for group in optimizer.param_groups:
            group["lr"] = used.lr[0] * recipe.factor(used.schedule, used.warmup, step, total)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for _, p in named], used.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def test_the_losses_are_those_of_the_paper_in_transformers(causal: Path, tmp_path: Path) -> None:
    values = flags(causal, "classification", "gpt2", epochs=(4.0,), dropout=0.0, log_every=1, lr=(3e-3,))
    used = config(causal, tmp_path / "run", **values)
    expected = transformers_losses(causal, used, steps=20)
    finetune(used)
    losses = list(zip(logged(tmp_path / "run", "loss"), logged(tmp_path / "run", "lm_loss"), strict=True))[:20]
    assert len(losses) == 20
    assert expected[-1][1] < expected[0][1], "the language model learns too"
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-4, atol=0)
    # Micro-batches are shares of the same means.
    finetune(config(causal, tmp_path / "micro", **{**values, "micro_batch": 5, "epochs": (1.0,)}))
    parts = logged(tmp_path / "micro", "lm_loss")
    assert parts[0] == pytest.approx(losses[0][1], rel=1e-5)
    assert logged(tmp_path / "micro", "loss")[0] == pytest.approx(losses[0][0], rel=1e-5)


def assert_same_runs(parts: FinetuneResult, whole: FinetuneResult) -> None:
    assert same(weights(parts.model), weights(whole.model))
    logs = [(result.folder / "metrics.jsonl").read_text() for result in (whole, parts)]
    assert '"lm_loss"' in logs[0]
    assert without_clocks(logs[0]) == without_clocks(logs[1])


@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_an_interrupted_run_with_both_losses_continues_bit_for_bit(causal: Path, tmp_path: Path, model: str) -> None:
    values = flags(causal, "classification", model, epochs=(2.0,), bilstm=0, log_every=4)
    whole = finetune(config(causal, tmp_path / "whole", **values))

    def stop(record: dict[str, Any], _: float) -> None:
        if record["step"] == 7:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped):
        finetune(config(causal, tmp_path / "parts", **values), Reporter(on_step=stop))
    (saved,) = (tmp_path / "parts" / "checkpoints").glob("step-*")
    names = weights(saved).keys()
    assert any(name.startswith(language_model.PART) for name in names) == (model == "bert"), "its own weights alone"
    assert_same_runs(finetune(FinetuneConfig(out=tmp_path / "parts", resume=True)), whole)
    folder = tmp_path / "whole/model"
    assert not any(language_model.PART in name for name in weights(folder))
    assert fastbert.load(folder).config.bilstm_size == 32


@pytest.mark.parametrize("task", FILES)
def test_every_task_is_trained_saved_and_predicted(causal: Path, tmp_path: Path, task: str) -> None:
    gpt = ("gpt2", "openai-gpt")[list(FILES).index(task) % 2]
    for model, others in ((gpt, {}), ("bert", {"lm_weight": 0.25, "bilstm": 0})):
        messages: list[str] = []
        out = tmp_path / model
        values = flags(causal, task, model, **{"stride": 4, **others} if task == "span" else others)
        result = finetune(config(causal, out, **values), Reporter(on_message=messages.append))
        auxiliary = model == "bert" or task not in ("tagging", "span")
        assert bool(logged(out, "lm_loss")) == auxiliary
        assert any("transformers does not" in text for text in messages) == ("bilstm" in others)
        # A folder is loaded with the same class, and gives the predictions that the run has written.
        loaded = fastbert.load(out / "model")
        assert not loaded.new_weights
        assert loaded.base_model.causal
        assert (loaded.bilstm is not None) == ("bilstm" in others)
        (name,) = result.scores
        written = [json.loads(line) for line in (out / f"predictions/{name}.jsonl").read_text().splitlines()]
        again = predict(out / "model", str(values["eval"][0]), device="cpu", dtype="fp32")
        for mine, theirs in zip(again, written, strict=True):
            for key in ("label", "labels", "tags", "text", "score"):
                if key in theirs:
                    expected = pytest.approx(theirs[key], abs=1e-3) if key == "score" else theirs[key]
                    assert mine[key] == expected


def test_a_pair_scores_the_same_in_either_order_and_in_any_batch(causal: Path, tmp_path: Path) -> None:
    finetune(config(causal, tmp_path / "run", **flags(causal, "regression", "gpt2", epochs=(8.0,), lr=(3e-3,))))
    pairs = [("the good day", "a dull road was cold"), ("the house", "warm"), ("they found", "a river, calm")]
    there, back = (
        [item["score"] for item in predict(tmp_path / "run/model", texts, device="cpu", dtype="fp32")]
        for texts in (pairs, [(second, first) for first, second in pairs])
    )
    assert there == pytest.approx(back, abs=1e-5)
    assert len({round(score, 3) for score in there}) == 3
    task = make_task("regression", TextSettings(pair_order="both"))
    rows = task.encode(
        task.read(str(causal / "regression-dev.tsv")),
        WordPieceTokenizer.from_pretrained(causal / "gpt2"),
        labelled=True,
    )
    model = fastbert.load(tmp_path / "run/model")
    whole, split = (
        torch.from_numpy(np.stack(outputs_of(task, model, rows, batch_tokens=size))) for size in (10_000, 1)
    )
    np.testing.assert_allclose(whole, split, rtol=1e-4, atol=1e-5)
    assert (whole[::2] == whole[1::2]).all()
    assert task.items(rows.batch(np.arange(5))) == 5
    # As given, by the flag; a model that reads in both directions has the given order by default.
    for number, (model_name, others) in enumerate((("gpt2", {"pair_order": "given"}), ("model", {}))):
        out = tmp_path / f"given{number}"
        finetune(config(causal, out, **flags(causal, "regression", model_name, steps=2, **others)))
        stored = json.loads((out / "model/fastbert_task.json").read_text())
        assert stored["settings"]["pair_order"] == others.get("pair_order")


def test_ulmfits_recipe_trains_the_groups_of_a_gpt_in_turn(
    causal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task("classification", TextSettings(max_length=32), ["bad", "good"])
    used = config(causal, tmp_path / "run", **flags(causal, "classification", "gpt2", layer_decay=0.5))
    model = start.begin(task, causal / "gpt2", used, seed=0)
    groups = {name: recipe.group_of(name, 2) for name, _ in model.named_parameters()}
    assert {name for name, group in groups.items() if group == 3} == {"classifier.weight"}
    assert {name for name, group in groups.items() if group == 0} == {
        f"transformer.embeddings.{table}_embeddings.weight" for table in ("word", "position")
    }
    assert groups["transformer.encoder.LayerNorm.weight"] == 2, "the last norm belongs to the last layer"
    shares = {group["share"] for group in recipe.optimizer(model, used, 1e-3).param_groups}
    assert shares == {1.0, 0.5, 0.25, 0.125}
    values = {"gradual_unfreezing": True, "schedule": "slanted-triangular", "layer_decay": 0.385}
    two = {**flags(causal, "classification", "gpt2", **values), "epochs": (2.0,), "eval": ()}  # the last is kept
    frozen: list[int] = []
    freeze = recipe.freeze

    def watched(model: torch.nn.Module, trained: range) -> None:
        frozen.append(trained.start)
        freeze(model, trained)

    monkeypatch.setattr(recipe, "freeze", watched)
    result = finetune(config(causal, tmp_path / "run", **two))
    assert frozen == [3, 2, 1, 0], "two epochs have a stage for head, layers and embeddings each"
    before, after = weights(causal / "gpt2"), weights(result.model)
    changed = {name for name in before if name in after and not torch.equal(before[name], after[name])}
    assert {name.split(".")[1] for name in changed} == {"h", "ln_f", "wte", "wpe"}


def test_other_defaults_and_refusals(causal: Path, tmp_path: Path) -> None:
    for model, others, words in (
        ("model", {"lm_weight": 0.5}, "reads in both directions"),
        ("run/model", {"lm_weight": 1.0}, "has no language-model head, it lacks cls.predictions"),
        ("gpt2", {"max_length": 65}, "--max-length 65 is more than the 64 positions"),
        ("gpt2", {"pair_order": "both"}, "is a single text, which has one order"),
    ):
        if model == "run/model":
            finetune(config(causal, causal / "run", **flags(causal, "classification", "bert", steps=1, lm_weight=0.0)))
            assert not logged(causal / "run", "lm_loss")
        with pytest.raises(UserError, match=words) as caught:
            finetune(config(causal, tmp_path / "x", **flags(causal, "classification", model, **others)))
        assert "\n" not in str(caught.value)
    for others, words in (
        ({"bilstm": 7}, "--bilstm 7 must be even"),
        ({"bilstm": -2}, "--bilstm -2 must be even"),
        ({"lm_weight": float("nan")}, "--lm-weight nan must be at least 0"),
        ({"lm_weight": 0.5, "frozen": True}, "--lm-weight and --frozen exclude each other"),
    ):
        with pytest.raises(UserError, match=words):
            config(causal, tmp_path / "x", **flags(causal, "classification", "gpt2", **others))
    for task, others, words in (
        ("seq2seq", {"bilstm": 8}, "--bilstm 8 changes nothing without --task classification"),
        ("seq2seq", {"lm_weight": 0.5}, "--lm-weight 0.5 changes nothing without --task classification"),
        ("tagging", {"pair_order": "both"}, "--pair-order both changes nothing without --task"),
    ):
        with pytest.raises(UserError, match=words):
            config(
                causal, tmp_path / "x", **{**flags(causal, "tagging", "gpt2", **others), "task": task}
            ).check_of_use()
    toy_tasks.echoes(tmp_path / "echoes.tsv", 8)
    for model in ("gpt2", "bert"):
        values = {**flags(causal, "tagging", model), "task": "seq2seq", "train": tmp_path / "echoes.tsv", "eval": ()}
        with pytest.raises(UserError, match="reads left to right"):
            finetune(config(causal, tmp_path / "x", **values))
    # Nothing is left for the loss to train: the default is 0.
    finetune(config(causal, tmp_path / "frozen", **flags(causal, "classification", "bert", steps=1, frozen=True)))
    assert not logged(tmp_path / "frozen", "lm_loss")


def test_the_flag_of_a_bilstm_may_stand_without_a_width() -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    from fastbert.cli.flags import parse

    needed = ["--task", "tagging", "--model", "m", "--train", "t.conll"]
    for words, width in ((["--bilstm"], 0), (["--bilstm", "64"], 64), ([], None)):
        assert parse(FinetuneConfig, "finetune", [*words, *needed]).bilstm == width
        assert parse(FinetuneConfig, "finetune", [*needed, *words]).bilstm == width

"""Hugging Face's Trainer with fastbert's models: losses, predictions and files as of transformers' own models."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="transformers' Trainer needs it")

import fastbert  # noqa: E402
from fastbert.errors import UserError  # noqa: E402
from fastbert.integrations.trainer import Trainer  # noqa: E402

LABELS = {0: "no", 1: "perhaps", 2: "yes"}
SHAPE = {
    "vocab_size": 60,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "attention_probs_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0,
}
HEADS = ["SequenceClassification", "MaskedLM", "TokenClassification", "QuestionAnswering", "MultipleChoice"]


def rows(head: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Texts of random tokens, with labels for the head and a column that no model takes."""
    g = torch.Generator().manual_seed(seed)
    made = []
    for index in range(count):
        # Padding competes for the answer in transformers' question answering, in ours not: the same without any.
        length = 12 if head == "QuestionAnswering" else int(torch.randint(6, 20, (1,), generator=g))
        ids = torch.randint(5, 60, (length,), generator=g).tolist()
        row: dict[str, Any] = {"input_ids": ids, "attention_mask": [1] * len(ids), "text": f"the text {index}"}
        match head:
            case "SequenceClassification":
                row["labels"] = ids[1] % 3
            case "MaskedLM":
                row["labels"] = [token if position % 3 == 1 else -100 for position, token in enumerate(ids)]
            case "TokenClassification":
                row["labels"] = [-100, *(token % 3 for token in ids[1:])]
            case "QuestionAnswering":
                row |= {"start_positions": 1, "end_positions": len(ids) - 2}
            case "MultipleChoice":
                row = {
                    "input_ids": [ids, ids[::-1]],
                    "attention_mask": [row["attention_mask"]] * 2,
                    "labels": ids[1] % 2,
                }
        made.append(row)
    return made


def collate(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    assert "text" not in batch[0], "the Trainer leaves out what forward does not take"
    fill = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    result = {}
    for name in batch[0]:
        values = [row[name] for row in batch]
        nested = isinstance(values[0], list) and isinstance(values[0][0], list)
        flat = [part for value in values for part in value] if nested else values
        if isinstance(flat[0], list):
            longest = max(map(len, flat))
            flat = [[*value, *[fill[name]] * (longest - len(value))] for value in flat]
        result[name] = torch.tensor(flat).view(len(batch), 2, -1) if nested else torch.tensor(flat)
    return result


def original(head: str, folder: Path, seed: int) -> Path:
    """A folder with transformers' own model."""
    torch.manual_seed(seed)
    labels = {"id2label": LABELS} if "Classification" in head else {}
    config = transformers.BertConfig(**SHAPE, **labels)
    getattr(transformers, f"BertFor{head}")(config).save_pretrained(folder)
    return folder


@pytest.fixture
def make(tmp_path: Path, seed: int) -> Callable[..., Any]:
    """A Trainer of our model, or of transformers' own, from the same files."""

    def build(head: str, library: Any, kind: Any = Trainer, **options: Any) -> Any:
        folder = original(head, tmp_path / "original", seed)
        model = getattr(library, f"BertFor{head}").from_pretrained(folder)
        metrics = options.pop("compute_metrics", None)
        name = options.pop("name", library.__name__)
        arguments = {
            "output_dir": str(tmp_path / name), "per_device_train_batch_size": 4, "num_train_epochs": 1,
            "learning_rate": 1e-3, "logging_steps": 1, "seed": seed % 2**31, "report_to": [], "use_cpu": True,
            "disable_tqdm": True, "save_strategy": "no", **options,
        }  # fmt: skip
        data = rows(head, 16, seed)
        return kind(
            model=model, args=transformers.TrainingArguments(**arguments), train_dataset=data, eval_dataset=data,
            data_collator=collate, compute_metrics=metrics,
        )  # fmt: skip

    return build


def losses(trainer: Any) -> torch.Tensor:
    return torch.tensor([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])


@pytest.mark.parametrize(("head", "kind"), [*((head, Trainer) for head in HEADS), ("MaskedLM", transformers.Trainer)])
def test_losses_and_predictions_are_those_of_transformers(head: str, kind: Any, make: Any) -> None:
    # Their losses are the same whatever the last bias is, so that Adam lets it drift with the rounding of its gradient.
    options = {"optim": "sgd", "learning_rate": 0.1} if head in ("QuestionAnswering", "MultipleChoice") else {}
    fast, reference = (make(head, library, kind, **options) for library in (fastbert, transformers))
    for trainer in (fast, reference):
        trainer.train()
    assert len(losses(fast)) == 4
    assert torch.allclose(losses(fast), losses(reference), atol=1e-4)
    assert losses(fast)[-1] != losses(fast)[0]
    # AdamW's first steps are whole ones also for gradients that are rounding alone.
    data = fast.eval_dataset
    bare = [{name: value for name, value in row.items() if "label" not in name and "pos" not in name} for row in data]
    for dataset in (data, bare)[: 2 if head == "QuestionAnswering" else 1]:
        mine, other = fast.predict(dataset), reference.predict(dataset)
        actual, expected = (
            x.predictions if isinstance(x.predictions, tuple) else (x.predictions,) for x in (mine, other)
        )
        assert len(actual) == len(expected)
        for a, b in zip(actual, expected):
            assert a.shape == b.shape
            if a.ndim > 1 and head not in ("SequenceClassification", "MultipleChoice"):
                for row, length in enumerate(
                    len(example["input_ids"]) for example in data
                ):  # at padding ours are zeros
                    assert abs(a[row, :length] - b[row, :length]).max() < 2e-3
            else:
                assert abs(a - b).max() < 2e-3
        assert mine.metrics.get("test_loss", 0.0) == pytest.approx(other.metrics.get("test_loss", 0.0), abs=1e-4)


@pytest.mark.parametrize(
    ("head", "options"),
    [
        pytest.param("MaskedLM", {"bf16": True}, id="bf16"),
        pytest.param("SequenceClassification", {"label_smoothing_factor": 0.1}, id="label-smoothing"),
        pytest.param("MaskedLM", {"gradient_checkpointing": True}, id="checkpoints-of-activations"),
    ],
)
def test_options_of_the_trainer_work(head: str, options: dict[str, Any], make: Any) -> None:
    fast, reference = (make(head, library, **options) for library in (fastbert, transformers))
    for trainer in (fast, reference):
        trainer.train()
    assert torch.allclose(losses(fast), losses(reference), atol=2e-2 if "bf16" in options else 1e-4)
    assert fast.evaluate()["eval_loss"] == pytest.approx(reference.evaluate()["eval_loss"], abs=2e-2)
    if "gradient_checkpointing" in options:
        assert fast.model.is_gradient_checkpointing


@pytest.mark.parametrize("head", ["MaskedLM", "TokenClassification"])
def test_accumulated_gradients_are_those_of_one_large_batch(head: str, make: Any) -> None:
    """Also where the batches hold unequal numbers of labels."""
    whole = make(head, fastbert, per_device_train_batch_size=8, name="whole")
    parts = make(head, fastbert, per_device_train_batch_size=2, gradient_accumulation_steps=4, name="parts")
    for trainer in (whole, parts):
        trainer.train()
    assert len(losses(whole)) == 2
    assert torch.allclose(losses(whole), losses(parts), atol=1e-5)
    for a, b in zip(whole.model.parameters(), parts.model.parameters()):
        assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("head", ["MaskedLM", "TokenClassification", "SequenceClassification"])
def test_a_batch_without_labels_takes_no_part_in_a_mean_over_several(head: str, make: Any) -> None:
    model = make(head, fastbert).model.train()
    ids = torch.arange(5, 17).view(2, 6)
    labels = torch.full((2,) if head == "SequenceClassification" else ids.shape, -100)
    loss = model(ids, labels=labels, num_items_in_batch=torch.tensor(7)).loss
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert all(p.grad is None or float(p.grad.abs().max()) == 0.0 for p in model.parameters())


def test_metrics_see_a_prediction_for_every_token(make: Any) -> None:
    seen = []

    def accuracy(result: Any) -> dict[str, float]:
        labelled = result.label_ids != -100
        seen.append((result.predictions.shape, result.label_ids.shape))
        return {"accuracy": float((result.predictions.argmax(-1) == result.label_ids)[labelled].mean())}

    trainer = make("TokenClassification", fastbert, compute_metrics=accuracy, learning_rate=1e-2, num_train_epochs=3)
    before = trainer.evaluate()["eval_accuracy"]
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] > before
    assert seen[0][0] == (*seen[0][1], 3)


@pytest.mark.parametrize("head", HEADS)
def test_what_it_saves_loads_in_both_libraries(head: str, make: Any, tmp_path: Path) -> None:
    trainer = make(head, fastbert)
    trainer.save_model(str(tmp_path / "saved"))
    auto = getattr(transformers, f"AutoModelFor{head}")
    reference, loading = auto.from_pretrained(tmp_path / "saved", output_loading_info=True)
    fast = getattr(fastbert, f"BertFor{head}").from_pretrained(tmp_path / "saved")
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert fast.new_weights == ()
    inputs = collate([{k: v for k, v in row.items() if k != "text"} for row in rows(head, 3, 1)])
    inputs = {name: value for name, value in inputs.items() if name in ("input_ids", "attention_mask")}
    is_token = inputs["attention_mask"].bool()
    with torch.inference_mode():
        results = [model.eval()(**inputs)[0] for model in (trainer.model, fast, reference)]
    if results[0].shape[:2] == is_token.shape and head != "MultipleChoice":
        results = [logits[is_token] for logits in results]
    assert torch.equal(results[0], results[1])
    assert torch.allclose(results[0], results[2], atol=2e-5)
    if head == "SequenceClassification":
        assert reference.config.id2label == fast.config.id2label == LABELS


def test_saving_over_the_files_that_the_model_lies_in(make: Any, tmp_path: Path) -> None:
    """Weights that nobody changed may still be pages of the file, which the library writes to in place."""
    folder = str(tmp_path / "saved")
    make("SequenceClassification", fastbert).save_model(folder)
    trainer = make("SequenceClassification", fastbert)
    trainer.model = fastbert.BertForSequenceClassification.from_pretrained(folder)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.save_model(folder)
    again = fastbert.BertForSequenceClassification.from_pretrained(folder)
    assert all(torch.equal(value, before[name]) for name, value in again.state_dict().items())
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    assert not list(Path(folder).glob("*.before"))


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(make: Any, tmp_path: Path) -> None:
    head, options = "MaskedLM", {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}
    whole = make(head, fastbert, name="whole", **options)
    whole.train()
    resumed = make(head, fastbert, name="resumed", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert resumed.state.global_step == whole.state.global_step == 8
    for a, b in zip(whole.model.state_dict().items(), resumed.model.state_dict().items()):
        assert a[0] == b[0]
        assert torch.equal(a[1], b[1]), a[0]
    assert json.loads((tmp_path / "whole/checkpoint-6/config.json").read_text())["architectures"] == [f"BertFor{head}"]


def test_the_best_checkpoint_comes_back_at_the_end(make: Any) -> None:
    trainer = make(
        "MaskedLM", fastbert, num_train_epochs=2, save_strategy="epoch", eval_strategy="epoch",
        load_best_model_at_end=True, learning_rate=5e-2,
    )  # fmt: skip
    trainer.train()
    scores = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(min(scores), abs=1e-5)


def test_a_classifier_of_several_labels_trains_as_theirs(make: Any) -> None:
    fast, reference = (make("SequenceClassification", library) for library in (fastbert, transformers))
    labels = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    ids = torch.arange(5, 17).view(2, 6)
    config = fastbert.BertConfig.from_dict(
        {**fast.model.config.to_dict(), "problem_type": "multi_label_classification"}
    )
    model = fastbert.BertForSequenceClassification(config)
    model.load_state_dict(fast.model.state_dict())
    assert torch.allclose(
        model.eval()(ids, labels=labels).loss, reference.model.eval()(ids, labels=labels).loss, atol=1e-6
    )


def test_what_the_trainer_asks_in_passing(make: Any) -> None:
    fast, reference = (make("MaskedLM", library) for library in (fastbert, transformers))
    assert fast.floating_point_ops({"input_ids": torch.ones(2, 3)}) > 0
    for option in ({}, {"only_trainable": True}, {"exclude_embeddings": True}):
        assert fast.model.num_parameters(**option) == reference.model.num_parameters(**option)
    assert json.loads(fast.model.config.to_json_string())["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}
    fast.model.config.use_cache = True  # an encoder has none, so nothing changes
    assert fast.model.config == fastbert.BertConfig.from_dict(fast.model.config.to_dict())
    with pytest.raises(dataclasses.FrozenInstanceError):
        fast.model.config.hidden_size = 96
    with pytest.raises(UserError, match="every_n_layers=2"):
        fast.model.gradient_checkpointing_enable(every_n_layers=2)
    fast.model.gradient_checkpointing_enable({"use_reentrant": False})
    assert fast.model.is_gradient_checkpointing
    fast.model.gradient_checkpointing_disable()
    assert not fast.model.is_gradient_checkpointing


def test_models_of_transformers_are_saved_as_ever(make: Any, tmp_path: Path) -> None:
    trainer = make("MaskedLM", transformers)
    trainer.save_model(str(tmp_path / "theirs"))
    assert fastbert.BertForMaskedLM.from_pretrained(tmp_path / "theirs").new_weights == ()


def test_without_transformers_there_is_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastbert.integrations import trainer

    monkeypatch.delitem(vars(trainer), "Trainer", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"Trainer requires transformers .*pip install"):
        _ = trainer.Trainer
    with pytest.raises(AttributeError, match="no attribute 'Coach'"):
        _ = trainer.Coach

"""peft's own entry points on our models: `get_peft_model` with each task type, a training step, files, and the methods
that learn prompts."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("peft", reason="needs peft")
pytest.importorskip("transformers")

import peft
from toys import COLUMNS, VOCABULARY, inputs, masks, toy

import fastbert
from fastbert import BertConfig
from fastbert.errors import UserError

ROWS = 4
SHAPE = BertConfig(
    vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=3, num_attention_heads=2, intermediate_size=80,
    max_position_embeddings=64, num_labels=3, pad_token_id=1,
)  # fmt: skip
# By task type: the class, and the labels of a batch.
TASKS: dict[str, tuple[str, dict[str, Tensor]]] = {
    "SEQ_CLS": ("BertForSequenceClassification", {"labels": torch.tensor([0, 1, 2, 0])}),
    "TOKEN_CLS": ("BertForTokenClassification", {"labels": torch.arange(ROWS * COLUMNS).view(ROWS, COLUMNS) % 3}),
    "QUESTION_ANS": (
        "BertForQuestionAnswering",
        {"start_positions": torch.tensor([1, 2, 0, 1]), "end_positions": torch.tensor([0, 3, 2, 4])},
    ),
    "FEATURE_EXTRACTION": ("BertModel", {}),
}
LORA = {"r": 2, "target_modules": ["query", "value"], "init_lora_weights": False}
PROMPTS: dict[str, dict[str, Any]] = {
    "PromptTuningConfig": {"num_virtual_tokens": 3},
    "PromptEncoderConfig": {"num_virtual_tokens": 3, "encoder_hidden_size": 16},
}


def pair(name: str, folder: Path, seed: int) -> tuple[Any, Any]:
    """A model of transformers, and ours with its weights."""
    theirs = toy(name, seed, **({} if name in ("BertModel", "BertForQuestionAnswering") else {"num_labels": 3}))
    theirs.save_pretrained(folder)
    return theirs, getattr(fastbert, name).from_pretrained(folder, mapped=False)


def first(output: Any) -> Tensor:
    """The hidden states or logits of an output."""
    return next(output[name] for name in ("last_hidden_state", "logits", "start_logits") if name in output)


def step(model: Any, kwargs: dict[str, Tensor]) -> Tensor:
    """One step of training; returns its loss."""
    output = model(**kwargs)
    loss = output["loss"] if "loss" in output else first(output).square().mean()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert trained
    optimizer = torch.optim.SGD(trained, lr=0.1)
    loss.backward()
    assert any(bool(parameter.grad.any()) for parameter in trained if parameter.grad is not None)
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("task", TASKS)
def test_lora_of_each_task_type(task: str, tmp_path: Path, seed: int) -> None:
    name, labels = TASKS[task]
    theirs, ours = pair(name, tmp_path / "base", seed)
    fresh = copy.deepcopy(ours)
    arguments = inputs(seed, masks()["full"], segments=True) | labels
    torch.manual_seed(seed)
    expected = peft.get_peft_model(theirs, peft.LoraConfig(task_type=task, **LORA)).eval()
    torch.manual_seed(seed)
    adapted = peft.get_peft_model(ours, peft.LoraConfig(task_type=task, **LORA)).eval()
    for _ in range(2):  # before and after a step
        torch.testing.assert_close(step(adapted, arguments), step(expected, arguments), rtol=1e-4, atol=1e-4)
    adapted.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval()
    with torch.no_grad():
        outputs = [first(model(**arguments)) for model in (adapted, again, expected)]
    torch.testing.assert_close(outputs[1], outputs[0])
    torch.testing.assert_close(outputs[1], outputs[2], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", PROMPTS)
@pytest.mark.parametrize("task", [task for task in TASKS if task != "TOKEN_CLS"])
def test_prompt_tuning_and_p_tuning(task: str, kind: str, tmp_path: Path, seed: int) -> None:
    name, labels = TASKS[task]
    theirs, ours = pair(name, tmp_path / "base", seed)
    fresh = copy.deepcopy(ours)
    # peft leaves out segments where it embeds the tokens itself, except for some tasks.
    arguments = inputs(seed, masks()["right"]) | labels
    config = getattr(peft, kind)
    torch.manual_seed(seed)
    adapted = peft.get_peft_model(ours, config(task_type=task, **PROMPTS[kind])).eval()
    expected = peft.get_peft_model(theirs, config(task_type=task, **PROMPTS[kind])).eval()
    expected.load_state_dict(adapted.prompt_encoder.state_dict(prefix="prompt_encoder."), strict=False)
    with torch.no_grad():
        there = first(expected(**arguments))
        actual = first(adapted(**arguments))
        if task == "SEQ_CLS":
            torch.testing.assert_close(actual, there, rtol=1e-3, atol=1e-3)
        else:  # padding has zeros
            real = torch.cat((torch.ones(ROWS, 3), arguments["attention_mask"]), 1).bool()
            torch.testing.assert_close(actual[real], there[real], rtol=1e-3, atol=1e-3)
    step(adapted, arguments)
    adapted.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval()
    with torch.no_grad():
        torch.testing.assert_close(first(again(**arguments)), first(adapted(**arguments)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", TASKS)
def test_prefix_tuning_says_that_it_does_not_work(task: str, seed: int) -> None:
    name, labels = TASKS[task]
    model = getattr(fastbert, name)(SHAPE)
    adapted = peft.get_peft_model(model, peft.PrefixTuningConfig(task_type=task, num_virtual_tokens=3))
    with pytest.raises(UserError, match=r"past_key_values .*prefix tuning does not work; use LoRA") as caught:
        adapted(**inputs(seed, masks()["right"]), **labels)
    assert "\n" not in str(caught.value)


def test_labels_of_tokens_under_prompts_are_named(seed: int) -> None:
    """peft puts prompts before the tokens, but no labels before theirs: nothing can be learnt."""
    name, labels = TASKS["TOKEN_CLS"]
    config = peft.PromptTuningConfig(task_type="TOKEN_CLS", num_virtual_tokens=3)
    adapted = peft.get_peft_model(getattr(fastbert, name)(SHAPE), config)
    with pytest.raises(UserError, match=r"labels have shape \(4, 19\), but the input \(4, 22\)"):
        adapted(**inputs(seed, masks()["right"]), **labels)

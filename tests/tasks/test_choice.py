"""Multiple choice against transformers' recipe for SWAG, written out here: rows, losses, predictions."""

import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sweeps import sweep
from task_twins import (
    all_outputs,
    batches,
    gradient_difference,
    our_tokenizer,
    rows_of,
    some_text,
    their_tokenizer,
    twins,
)

from fastbert.errors import UserError
from fastbert.tasks.choice import Choice
from fastbert.tasks.examples import ChoiceExample, Dataset
from fastbert.tasks.settings import TaskSettings


def prompt(text: str, *endings: str, start: str = "", label: int | None = 0, number: int = 0) -> ChoiceExample:
    return ChoiceExample(
        id=f"p{number}", location=f"line {number + 2}", prompt=text, endings=endings, start=start, label=label
    )


def dataset(*examples: ChoiceExample) -> Dataset[ChoiceExample]:
    return Dataset("choices.tsv", examples)


def task(max_length: int = 128) -> Choice:
    return Choice(TaskSettings(max_length=max_length))


def random_dataset(seed: int, choices: int, count: int = 40) -> Dataset[ChoiceExample]:
    rng = random.Random(seed)

    def text() -> str:
        return some_text(rng, rng.randint(0, 25)).strip(" ")

    return dataset(
        *(
            prompt(
                text(),
                *(text() for _ in range(choices)),
                start=rng.choice(["", "the", text()]),
                label=rng.randrange(choices),
                number=number,
            )
            for number in range(count)
        )
    )


def their_inputs(data: Dataset[ChoiceExample], reference: Any, max_length: int) -> Any:
    """Those of transformers' run_swag: a batch of pairs, the prompt with each ending."""
    prompts = [example.prompt for example in data for _ in example.endings]
    endings = [f"{example.start} {ending}" for example in data for ending in example.endings]
    return reference(prompts, endings, truncation=True, max_length=max_length)


@sweep("choices", [2, 4, 5])
@sweep("max_length", [5, 6, 17, 40, 512])
def test_rows_are_those_of_transformers(seed: int, choices: int, max_length: int) -> None:
    # Transformers makes a row of every piece that it cuts off, so there are few of short rows.
    data = random_dataset(seed, choices, 8 if max_length < 10 else 40)
    rows = task(max_length).encode(data, our_tokenizer(), labelled=True)
    expected = their_inputs(data, their_tokenizer(), max_length)
    assert rows_of(rows) == list(zip(expected["input_ids"], expected["token_type_ids"]))
    assert (rows.per_unit, rows.units) == (choices, len(data))
    assert rows.examples.tolist() == [index for index in range(len(data)) for _ in range(choices)]
    assert rows.unit_targets["labels"].tolist() == [example.label for example in data]


def test_the_loss_is_that_of_transformers_whole_and_in_parts(tmp_path: Path, seed: int) -> None:
    data, reference = random_dataset(seed, 3, 11), their_tokenizer()
    ours, theirs = twins("BertForMultipleChoice", tmp_path, seed)
    choice = task(40)
    rows = choice.encode(data, our_tokenizer(), labelled=True)
    padded = reference.pad(their_inputs(data, reference, 40), return_tensors="pt")
    inputs = {name: value.view(11, 3, -1) for name, value in padded.items()}
    expected = theirs(**inputs, labels=torch.tensor([example.label for example in data])).loss
    expected.backward()
    total = 0.0
    for batch in batches(rows, 4):
        part = choice.loss(ours, batch, 11)
        part.backward()
        total += part.item()
    assert sum(choice.items(batch) for batch in batches(rows, 4)) == 11
    assert total == pytest.approx(expected.item(), abs=1e-5)
    assert gradient_difference(ours, theirs) < 1e-4


def test_probabilities_are_those_of_transformers(tmp_path: Path, seed: int) -> None:
    data, reference = random_dataset(seed, 3, 11), their_tokenizer()
    ours, theirs = twins("BertForMultipleChoice", tmp_path, seed)
    choice = task(40)
    rows = choice.encode(data, our_tokenizer(), labelled=False)
    assert not rows.unit_targets
    padded = reference.pad(their_inputs(data, reference, 40), return_tensors="pt")
    with torch.no_grad():
        logits = theirs.eval()(**{name: value.view(11, 3, -1) for name, value in padded.items()}).logits
    expected = logits.softmax(-1)
    predictions = choice.decode(data, rows, all_outputs(choice, ours, rows, 100))
    for example, prediction, probabilities in zip(data, predictions, expected, strict=True):
        assert prediction["id"] == example.id
        assert prediction["probabilities"] == pytest.approx(probabilities.tolist(), abs=1e-5)
        assert prediction["label"] == int(np.argmax(prediction["probabilities"]))
    json.dumps(predictions)


def test_accuracy_counts_the_endings_that_are_right() -> None:
    data = dataset(*(prompt("a", "b", "c", label=label) for label in (0, 1, 1, 0)))
    predictions = [{"id": "", "label": label} for label in (0, 0, 1, 1)]
    assert task().score(data, predictions) == {"accuracy": 50.0}


def test_a_length_without_room_is_refused() -> None:
    with pytest.raises(UserError, match="max_length=4 leaves no room for a prompt and an ending: use 5 or more"):
        task(4).encode(dataset(prompt("a", "b", "c")), our_tokenizer(), labelled=True)


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "choices.jsonl"
    lines = [{"prompt": "a b", "endings": ["c", "d e"], "label": 1}, {"prompt": "c", "endings": ["d", "e"], "label": 0}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = task().read(str(file))
    assert [(example.prompt, example.endings, example.label) for example in data] == [
        ("a b", ("c", "d e"), 1),
        ("c", ("d", "e"), 0),
    ]
    assert task().encode(data, our_tokenizer(), labelled=True).units == 2
    assert task().read(str(file), labelled=False)[0].label is None


def test_real_choices_are_whole_rows(data_dir: Path, released_tokenizer: Any) -> None:
    with tarfile.open(data_dir / "finetune/CODAH.tar.xz") as archive:
        member = next(member for member in archive if Path(member.name).name == "full_data.tsv")
        content = archive.extractfile(member)
        assert content is not None
        lines = [line.rstrip("\n").split("\t") for line in io.TextIOWrapper(content, "utf-8")]
    data = dataset(
        *(prompt(line[1], *line[2:6], label=int(line[6]), number=number) for number, line in enumerate(lines))
    )
    choice, tokenizer = task(), released_tokenizer("bert-base-uncased")
    rows = choice.encode(data, tokenizer, labelled=True)
    assert len(rows) == 4 * len(lines) > 10_000
    decoded = tokenizer.decode(rows.input_ids[: rows.offsets[1]])
    assert decoded == f"[CLS] {lines[0][1].lower()} [SEP] {lines[0][2].lower()} [SEP]".replace("  ", " ")
    logits = np.eye(4, dtype=np.float32)[rows.unit_targets["labels"]].reshape(-1, 1)
    assert choice.score(data, choice.decode(data, rows, list(logits))) == {"accuracy": 100.0}

"""Tasks that share a base: each computes what it computes alone, and memory is taken once."""

import json
from pathlib import Path

import pytest
import torch
from embedding import random_texts, saved, small_tokenizer

from fastbert import BertForSequenceClassification, BertForTokenClassification, PackedBatch
from fastbert.checkpoints.delta.files import write_delta
from fastbert.errors import UserError
from fastbert.serving.multi_task_model import ServedTasks


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, seed: int) -> dict[str, Path]:
    """A base; a classifier on it frozen, a tagger with a changed layer; deltas of both."""
    root = tmp_path_factory.mktemp("tasks")
    base = saved(root / "base", seed)
    torch.manual_seed(seed)
    frozen = BertForSequenceClassification.from_pretrained(base, num_labels=3)
    frozen.save_pretrained(root / "frozen")
    tagger = BertForTokenClassification.from_pretrained(base, num_labels=5, mapped=False)
    tagger.bert.encoder.layer[1].output.dense.weight.data += 0.1
    tagger.save_pretrained(root / "tagger")
    small_tokenizer().save_pretrained(root / "tagger")
    for name in ("frozen", "tagger"):
        write_delta(root / name, base, root / f"{name}.delta")
    return {path.name: path for path in root.iterdir()}


@pytest.fixture
def batch(seed: int) -> PackedBatch:
    return small_tokenizer().pack(random_texts(seed, 7), max_length=30)


@torch.no_grad()
def test_deltas_and_folders_compute_what_they_compute_alone(folders: dict[str, Path], batch: PackedBatch) -> None:
    tasks = ServedTasks(folders["base"])
    for name in ("frozen", "tagger", "frozen.delta", "tagger.delta"):
        tasks.add(name, folders[name])
    alone = {
        "frozen": BertForSequenceClassification.from_pretrained(folders["frozen"]),
        "tagger": BertForTokenClassification.from_pretrained(folders["tagger"]),
    }
    for name in ("frozen", "tagger", "frozen.delta", "tagger.delta", "frozen"):
        task = tasks.use(name)
        assert tasks.current is task
        kind = name.removesuffix(".delta")
        assert task.model(batch).logits.equal(alone[kind](batch).logits)
        assert type(task.model) is type(alone[kind])
        assert not task.model.training
    head, dense = 4 * (3 * 32 + 3), 4 * 32 * 72
    assert tasks.use("frozen.delta").own_bytes == tasks.use("frozen").own_bytes == head
    assert tasks.use("tagger.delta").own_bytes == 4 * (5 * 32 + 5) + dense
    one, two = tasks.use("frozen.delta").model, tasks.use("tagger.delta").model
    assert one.bert.encoder.layer[0].output.dense.weight is two.bert.encoder.layer[0].output.dense.weight
    assert one.bert.encoder.layer[1].output.dense.weight is not two.bert.encoder.layer[1].output.dense.weight
    assert tasks.shared_bytes == sum(parameter.nbytes for parameter in one.bert.parameters())
    assert list(tasks) == ["frozen", "tagger", "frozen.delta", "tagger.delta"]


@torch.no_grad()
def test_in_another_dtype(folders: dict[str, Path], batch: PackedBatch) -> None:
    tasks = ServedTasks(folders["base"], dtype=torch.bfloat16)
    model = tasks.add("a", folders["tagger.delta"]).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    alone = BertForTokenClassification.from_pretrained(folders["tagger"], dtype=torch.bfloat16)
    assert model(batch).logits.equal(alone(batch).logits)


def test_adapters_leave_the_base_alone(folders: dict[str, Path], batch: PackedBatch, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs peft")
    from fastbert.finetuning.adapters import add_lora, save_adapter

    model = BertForSequenceClassification.from_pretrained(folders["base"], num_labels=3, mapped=False)
    adapted = add_lora(model, rank=2)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.3 * torch.randn(parameter.shape)
    save_adapter(adapted, tmp_path / "adapter")
    tasks = ServedTasks(folders["base"])
    first = tasks.add("frozen", folders["frozen.delta"])
    with torch.no_grad():
        before = first.model(batch).logits
        served = tasks.add("lora", tmp_path / "adapter")
        torch.testing.assert_close(served.model(batch).logits, model(batch).logits, rtol=1e-4, atol=1e-5)
        assert first.model(batch).logits.equal(before)
    assert (
        served.model.bert.encoder.layer[0].output.dense.weight is first.model.bert.encoder.layer[0].output.dense.weight
    )
    assert served.own_bytes < 0.6 * tasks.shared_bytes
    (tmp_path / "adapter/config.json").unlink()
    with pytest.raises(UserError, match=r"does not describe the head; put the config\.json"):
        tasks.add("again", tmp_path / "adapter")


@pytest.mark.usefixtures("unchecked_folders")
def test_names_and_strangers_are_refused(folders: dict[str, Path], tmp_path: Path, seed: int) -> None:
    tasks = ServedTasks(folders["base"])
    with pytest.raises(UserError, match="no task is in use"):
        tasks.current  # noqa: B018
    with pytest.raises(UserError, match="no task 'a'; there are none"):
        tasks.use("a")
    tasks.add("a", folders["frozen.delta"])
    with pytest.raises(UserError, match="task 'a' exists already"):
        tasks.add("a", folders["frozen.delta"])
    with pytest.raises(UserError, match="no such folder"):
        tasks.add("b", tmp_path / "absent")
    other = ServedTasks(saved(tmp_path / "other", seed + 1))
    with pytest.raises(UserError, match="belongs to a different base"):
        other.add("a", folders["frozen.delta"])
    assert "a" not in other
    assert len(other) == 0
    tasks.use("a")
    tasks.remove("a")
    with pytest.raises(UserError, match="no task is in use"):
        tasks.current  # noqa: B018
    with pytest.raises(UserError, match="no task 'a'"):
        tasks.remove("a")
    config = json.loads((folders["frozen"] / "config.json").read_text()) | {"intermediate_size": 16}
    (folders["frozen"] / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"lacks bert\.encoder\.layer\.0\.intermediate\.dense\.weight in the shape"):
        tasks.add("c", folders["frozen"])

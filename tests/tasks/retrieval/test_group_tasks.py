"""Tasks on groups of texts before any training: what they read, refuse and report, and which prompts they use."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from retrieval_data import masked_folder
from toy_tasks import VOCABULARY

from fastbert import BertConfig, BertForSequenceClassification, WordPieceTokenizer, load_embedder
from fastbert.checkpoints.pipeline_files import encoder_folder
from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import UserError
from fastbert.finetuning import start
from fastbert.finetuning.config import FinetuneConfig
from fastbert.retrieval.settings import TokenSettings
from fastbert.tasks.base import Task
from fastbert.tasks.registry import make_task, task_class
from fastbert.tasks.retrieval.teacher import taught


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return masked_folder(tmp_path_factory.mktemp("groups") / "model")


def make(name: str, **settings: Any) -> Any:
    return make_task(name, task_class(name).settings_type(**{"max_length": 32, **settings}))


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def trained_on(task: Task[Any], file: str, folder: Path) -> Any:
    """The rows to train on."""
    train = task.read(file)
    task.learn_labels(train)
    task.base_config(folder)
    return task.encode(train, task.load_tokenizer(folder), labelled=True)


def saved_embedder(source: Path, folder: Path, settings: EmbedSettings) -> Path:
    model, tokenizer, _ = load_embedder(source)
    model.embed_settings = settings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("flags", "prompts", "sides"),
    [
        ({}, {"query": "a ", "passage": "the ", "document": "the "}, ("a ", "the ")),
        ({"query_prompt": "", "document_prompt": ""}, {"query": "", "passage": "the ", "document": ""}, ("", "")),
        ({"document_prompt": "one "}, {"query": "a ", "passage": "the ", "document": "one "}, ("a ", "one ")),
    ],
)
def test_prompts_of_flags_replace_those_of_the_folder(
    flags: dict[str, str], prompts: dict[str, str], sides: tuple[str, str], folder: Path, tmp_path: Path
) -> None:
    """In training and in the folder that is written, an empty one too."""
    settings = EmbedSettings(prompts={"query": "a ", "passage": "the "})
    source = saved_embedder(folder, tmp_path / "source", settings)
    task = make("embedding", **flags)
    task.base_config(source)
    assert tuple(side.prompt for side in task.sides()) == sides
    model = start.begin(task, source, FinetuneConfig(task="embedding", model=str(source), train=tmp_path / "-"), 0)
    task.prepare(model, source, 0)
    task.save_model(model, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config_sentence_transformers.json").read_text())["prompts"]
    assert written == prompts


def test_a_default_prompt_is_that_of_no_role(folder: Path, tmp_path: Path) -> None:
    """The trained folder says so, for `encode` as for `encode_document`."""
    settings = EmbedSettings(prompts={"all": "a ", "query": "the "}, default_prompt="all")
    source = saved_embedder(folder, tmp_path / "source", settings)
    task = make("embedding")
    task.base_config(source)
    assert [side.prompt for side in task.sides()] == ["the ", ""]
    assert task.save_prompts(task.settings.stored_prompts) == {"all": "a ", "query": "the ", "document": ""}


@pytest.mark.parametrize("task", ["embedding", "rerank", "splade"])
def test_an_encoder_in_a_sub_folder_is_trained(task: str, folder: Path, tmp_path: Path) -> None:
    """Older folders of sentence-transformers have it in 0_Transformer, with its tokenizer."""
    source = tmp_path / "source"
    inner = shutil.copytree(folder, source / "0_Transformer")
    kinds = ["Transformer", "SpladePooling" if task == "splade" else "Pooling"]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (source / modules[1]["path"]).mkdir()
    (source / modules[1]["path"] / "config.json").write_text("{}")
    (source / "modules.json").write_text(json.dumps(modules))
    (inner / "sentence_bert_config.json").write_text('{"max_seq_length": 20, "do_lower_case": true}')
    assert encoder_folder(source) == inner
    trained = make(task)
    file = write(tmp_path / "train.jsonl", *[{"anchor": "A Good", "positive": "one", "negative": "bad"}] * 3)
    rows = trained_on(trained, file, source)
    plain = trained_on(make(task), file, folder)
    assert np.array_equal(rows.input_ids, plain.input_ids)
    config = FinetuneConfig(task=task, model=str(source), train=Path(file))
    model = start.begin(trained, source, config, 0)
    whole = start.begin(make(task), folder, config, 0)
    assert torch.equal(
        model.base_model.embeddings.word_embeddings.weight, whole.base_model.embeddings.word_embeddings.weight
    )


@pytest.mark.parametrize("labels", [1, 3])
def test_a_reranker_begins_with_any_classifier(labels: int, tmp_path: Path) -> None:
    """A head with one label stays, one of classes is replaced."""
    names = tuple("abc"[:labels])
    config = BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        num_labels=labels, label_names=names,
    )  # fmt: skip
    classifier = BertForSequenceClassification(config)
    classifier.init_weights(seed=3)
    classifier.save_pretrained(tmp_path / "source")
    WordPieceTokenizer(list(VOCABULARY)).save_pretrained(tmp_path / "source")
    run = FinetuneConfig(task="rerank", model=str(tmp_path / "source"), train=tmp_path / "-", max_length=32)
    model: Any = start.begin(make("rerank"), tmp_path / "source", run, 0)
    assert model.classifier.weight.shape == (1, 32)
    assert torch.equal(model.classifier.weight, classifier.classifier.weight) == (labels == 1)
    assert bool(model.new_weights) == (labels > 1)


LABELLED = [{"query": query, "document": text, "label": label} for query, text, label in (
    ("a", "good", 2), ("b", "bad", 0), ("c", "one", 1),
)]  # fmt: skip


def test_grades_are_scaled_by_the_range_that_an_error_asks_for(folder: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", *LABELLED)
    with pytest.raises(UserError, match=r"line 1: the score 2 is outside of 0 to 1, .*--score-range"):
        trained_on(make("rerank"), file, folder)
    rows = trained_on(make("rerank", score_range=(0.0, 2.0)), file, folder)
    assert rows.row_targets["labels"].tolist() == [1.0, 0.0, 0.5]


@pytest.mark.parametrize(
    ("loss", "label", "message"),
    [
        ("cosine", 2, "the score 2 is not between -1 and 1, as --loss cosine needs; give the range"),
        ("contrastive", 2, "the score 2 is not between 0 and 1, as --loss contrastive needs"),
        ("online-contrastive", 0.5, "the score 0.5 is neither 0 nor 1, .*use --loss contrastive"),
    ],
)
def test_scores_that_a_loss_cannot_read(loss: str, label: float, message: str, folder: Path, tmp_path: Path) -> None:
    rows = [{"text1": "a", "text2": "b", "label": 1}, {"text1": "c", "text2": "d", "label": label}]
    with pytest.raises(UserError, match=f"line 2: {message}"):
        trained_on(make("embedding", loss=loss), write(tmp_path / "train.jsonl", *rows), folder)


def test_queries_without_a_relevant_text_are_reported(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"query": "a", "documents": ["good", "bad"], "labels": [label, 0]} for label in (1, 0, 2)]
    file = write(tmp_path / "train.jsonl", *rows)
    with caplog.at_level(logging.WARNING, "fastbert"):
        assert trained_on(make("embedding"), file, folder).units == 2
    assert "1 of 3 queries have no text with a label above 0, and --loss info-nce learns nothing" in caplog.text
    with pytest.raises(UserError, match="1 of 3 queries"):
        trained_on(make("rerank", strict=True), file, folder)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "fastbert"):
        make("embedding").read_gold(file)
    assert "1 of 3 queries have no text with a label above 0; nDCG, MRR and MAP leave them out" in caplog.text


def test_negatives_that_are_cut_off_are_reported(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"query": "a", "pos": ["b"], "neg": ["c"] * count, "scores": [1.0, *[0.5] * count]} for count in (3, 2)]
    task = make("embedding", loss="margin-mse")
    with caplog.at_level(logging.WARNING, "fastbert"):
        encoded = trained_on(task, write(tmp_path / "train.jsonl", *rows), folder)
    assert encoded.unit_sizes.tolist() == [4, 4]
    assert "rows have 2 to 3 negatives, and --loss margin-mse reads as many of each: the first 2" in caplog.text


def test_lists_without_labels_are_predicted_with_a_score_per_text(folder: Path, tmp_path: Path) -> None:
    """So that predictions can be compared with labels later."""
    rows = [{"query": "a", "documents": ["good", "bad", "one"], "labels": [1, 0, 0]}] * 2
    file = write(tmp_path / "dev.jsonl", *rows)
    task = make("embedding")
    dataset = task.read(file, labelled=False)
    count = len(task.encode(dataset, task.load_tokenizer(folder), labelled=False))
    vectors = list(np.eye(count, 4, dtype=np.float32) + 0.1)
    predictions = task.decode(dataset, None, vectors)
    assert [len(each["scores"]) for each in predictions] == [3, 3]
    assert "ndcg@10" in task.score(task.read_gold(file), predictions)


@pytest.mark.parametrize(("flag", "refused"), [(2, True), (3, False), (0, False), (600, True)])
def test_lengths_of_queries_are_checked_before_training(flag: int, refused: bool, folder: Path) -> None:
    if not refused:
        task = make("colbert", query_length=flag)
        task.base_config(folder)
        task.known.check_width(32, "-")
        return
    with pytest.raises(UserError, match=f"--query-length {flag} "):
        make("colbert", query_length=flag).base_config(folder)


def test_a_longer_expansion_raises_the_limit_of_queries(folder: Path) -> None:
    """A folder with both would be refused when the trained model is written."""
    task = make("colbert", query_length=24)
    task._take(TokenSettings(lengths={"query": 16}, dense=()))
    task.known.check_width(32, "-")
    assert task.known.lengths["query"] == 24


def test_a_prompt_that_a_cross_encoder_cannot_store_is_refused() -> None:
    with pytest.raises(UserError, match=r"--document-prompt 'a ': a cross-encoder's folder stores"):
        make("rerank", document_prompt="a ")


def test_a_teacher_reads_its_prompts(folder: Path, tmp_path: Path) -> None:
    settings = EmbedSettings(prompts={"query": "a ", "passage": "the "}, default_prompt="query")
    teacher = saved_embedder(folder, tmp_path / "teacher", settings)
    train = make("embedding").read(write(tmp_path / "train.jsonl", {"anchor": "good", "positive": "good"}))
    messages: list[str] = []
    scores = taught(train, teacher, messages.append, "cpu")[0].teacher
    assert "on cpu" in messages[0]
    model, tokenizer, _ = load_embedder(folder)
    a, b = model.embed(["a good", "the good"], tokenizer, normalize=True)
    assert scores is not None
    assert scores[0] == pytest.approx(float(a @ b), abs=1e-5)
    assert scores[0] < 1 - 1e-4
    far = saved_embedder(folder, tmp_path / "far", EmbedSettings(similarity="euclidean"))
    with pytest.raises(UserError, match="compares vectors by euclidean distance"):
        taught(train, far, messages.append, "cpu")

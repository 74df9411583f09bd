"""Commands that use a model with a NaN weight fail, name the weight and write nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from embedding import LETTERS, POSITIONS, VOCABULARY, small_model, small_tokenizer

from fastbert import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification, BertModel
from fastbert.cli import main
from fastbert.embeddings.embed import embed
from fastbert.errors import UserError
from fastbert.features.extract import extract, hidden_states
from fastbert.tasks.finetuned_model import save_task
from fastbert.tasks.predicting import predict
from fastbert.tasks.registry import make_task
from fastbert.tasks.settings import TaskSettings

SHAPE = BertConfig(
    vocab_size=len(VOCABULARY),
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=POSITIONS,
)
WEIGHT = "encoder.layer.0.output.dense.weight"


def saved(folder: Path, kind: Any, task: str | None = None, labels: tuple[str, ...] = ("a", "b")) -> Path:
    """A model with a NaN among its weights."""
    config = SHAPE if task is None else make_task(task, TaskSettings(max_length=16), labels).head_config(SHAPE)
    model = kind(config)
    model.init_weights(seed=1)
    with torch.no_grad():
        next(value for name, value in model.named_parameters() if name.endswith(WEIGHT))[3, 5] = torch.nan
    model.save_pretrained(folder)
    small_tokenizer().save_pretrained(folder)
    if task is not None:
        save_task(make_task(task, TaskSettings(max_length=16), labels), folder)
    return folder


def test_every_command_names_the_weight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = saved(tmp_path / "base", BertModel)
    classifier = saved(tmp_path / "classifier", BertForSequenceClassification, "classification")
    tagger = saved(tmp_path / "tagger", BertForTokenClassification, "tagging", ("O", "B-x"))
    blanks = saved(tmp_path / "blanks", BertForMaskedLM)
    (tmp_path / "texts.txt").write_text("a b c\nd e\n")
    (tmp_path / "gold.tsv").write_text("label\tsentence\na\tx y\nb\tz\n")
    (tmp_path / "words.conll").write_text("a O\nb B-x\n\n")
    out = tmp_path / "out"
    commands = {
        "embed": ["--model", base, "--text", tmp_path / "texts.txt", "--out", f"{out}.npy", "--dtype", "fp32"],
        "features": ["--model", base, "--text", tmp_path / "texts.txt", "--out", f"{out}.npz"],
        "predict": ["--model", classifier, "--text", tmp_path / "gold.tsv", "--out", f"{out}.jsonl"],
        "evaluate": ["--model", classifier, "--gold", tmp_path / "gold.tsv"],
        "predict tagger": ["--model", tagger, "--text", tmp_path / "words.conll", "--out", f"{out}.jsonl"],
        "fill-mask": ["--model", blanks, "a [MASK] c"],
    }
    before = sorted(tmp_path.iterdir())
    for name, words in commands.items():
        code = main([name.split()[0], *map(str, words)])
        printed = capsys.readouterr()
        assert code != 0, name
        assert f"{WEIGHT}: this weight of the model holds NaN or infinity" in printed.err, (name, printed.err)
        assert sorted(tmp_path.iterdir()) == before, name


def test_a_text_is_named_where_the_weights_are_finite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, tokenizer = small_model(0), small_tokenizer()
    with torch.no_grad():  # infinite only where the letter is
        position = tokenizer.convert_tokens_to_ids("q")
        model.embeddings.word_embeddings.weight[position] = 3e38 * torch.tensor([1.0, -1.0]).repeat(16)
    texts = [*LETTERS[:10], "q", "z"]
    with pytest.raises(UserError, match=r"^texts\[10\]: the model's output is NaN or infinite"):
        embed(model, texts, tokenizer)
    with pytest.raises(UserError, match=r"^texts\[10\]: the model's output is NaN or infinite"):
        extract(model, tokenizer, texts)
    with pytest.raises(UserError, match=r"^texts\[10\]"):
        hidden_states(model, tokenizer, [[text] for text in texts])
    task = make_task("classification", TaskSettings(max_length=16), ["a", "b"])
    head = BertForSequenceClassification(task.head_config(model.config))
    head.bert = model
    (tmp_path / "texts.tsv").write_text("sentence\na b\nc\nb q\n")
    with pytest.raises(UserError, match=r"texts.tsv, line 4: the model's output is NaN"):
        predict(task, head, tokenizer, task.read(str(tmp_path / "texts.tsv"), labelled=False))

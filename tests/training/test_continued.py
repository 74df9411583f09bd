"""Continued pre-training: --init with a folder, its tokenizer, more positions, more words; what is refused."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pretrain_runs import stop_at, timeless, weights

import fastbert
from fastbert.cli import main
from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.training.config import PretrainConfig
from fastbert.training.metrics import read_metrics
from fastbert.training.pretrain import pretrain
from fastbert.training.replay import replay
from fastbert.training.reporter import Reporter
from fastbert.training.stopping import Stopped

pytestmark = pytest.mark.usefixtures("one_thread", "no_plots")
NEXT_TO_NOTHING = 1e-12  # a learning rate that leaves the weights as training found them


def said(messages: list[str]) -> Reporter:
    return Reporter(on_message=messages.append)


def continued(config: PretrainConfig, folder: Path | str, out: str = "continued", **changes) -> PretrainConfig:
    """The run of the fixture, from the weights of a folder."""
    options = {"tokenizer": None, "model": "base", "init": str(folder), "out": config.out.with_name(out), "lr": None}
    return replace(config, **{**options, **changes})


def save_model(config: PretrainConfig, folder: Path, kind: str, model_config: BertConfig) -> Path:
    """A folder with a model of random weights and the tokenizer of the fixture."""
    torch.manual_seed(3)
    getattr(fastbert, kind)(model_config).save_pretrained(folder)
    WordPieceTokenizer.from_pretrained(config.tokenizer).save_pretrained(folder)
    return folder


def test_a_run_continues_from_the_folder_of_another_one(config: PretrainConfig) -> None:
    first = pretrain(replace(config, steps=60, lr=1e-2, eval_every=60))
    messages: list[str] = []
    second = continued(config, config.out, steps=1, lr=NEXT_TO_NOTHING)
    pretrain(second, said(messages))
    before, after = weights(config.out), weights(second.out)
    assert before.keys() == after.keys()
    assert all(torch.allclose(tensor, after[name], atol=1e-7) for name, tensor in before.items())
    stored = json.loads((second.out / "config.json").read_text())
    assert len(stored["initial"]) == 64
    assert any("continuing a bert of 2 layers" in line for line in messages)
    assert not any("new weights" in line or "left out" in line for line in messages)
    assert stored["run"]["objective"] == "mlm+nsp"
    # The defaults of trained weights are not those of new ones.
    third = continued(config, config.out / "model", "third", steps=2, batch_size=None, micro_batch=None)
    pretrain(third)
    flags = json.loads((third.out / "config.json").read_text())["run"]
    assert (flags["lr"], flags["dropout"], flags["init"]) == (5e-4, None, str(config.out / "model"))
    assert read_metrics(third.out / "metrics.jsonl")[0].mlm_loss < first.validation.mlm_loss + 0.5


def test_heads_that_a_folder_lacks_are_new_and_said_and_others_are_left_out(
    config: PretrainConfig, tmp_path: Path
) -> None:
    shape = BertConfig.from_pretrained(config.model)
    for kind, objective, new, left in (
        ("BertModel", "mlm", "cls.predictions.bias", None),
        ("BertForMaskedLM", "mlm", "bert.pooler.dense.bias", None),
        ("BertForSequenceClassification", "mlm", "cls.predictions.bias", "classifier.bias, classifier.weight"),
        ("BertForPreTraining", "mlm+nsp", None, None),
    ):
        folder = save_model(config, tmp_path / kind, kind, shape)
        messages: list[str] = []
        run = continued(config, folder, kind + "-run", steps=1, lr=NEXT_TO_NOTHING, eval_every=1)
        pretrain(run, said(messages))
        text = "\n".join(messages)
        assert json.loads((run.out / "config.json").read_text())["run"]["objective"] == objective
        assert ("new weights for" in text) == (new is not None), text
        assert new is None or new in text
        assert ("left out" in text) == (left is not None)
        assert left is None or f"left out: {left}" in text
        before, after = (fastbert.load(path).base_model.state_dict() for path in (folder, run.out / "model"))
        assert all(torch.allclose(after[name], tensor, atol=1e-7) for name, tensor in before.items())


def test_folders_of_transformers_are_continued_with_more_positions(config: PretrainConfig, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = WordPieceTokenizer.from_pretrained(config.tokenizer)
    shape = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 48, "max_position_embeddings": 40,
    }  # fmt: skip
    for kind, extra in (("Bert", {}), ("Roberta", {"pad_token_id": 0, "type_vocab_size": 1})):
        folder = tmp_path / kind
        theirs = getattr(transformers, f"{kind}ForMaskedLM")(getattr(transformers, f"{kind}Config")(**shape, **extra))
        theirs.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        run = continued(
            config, folder, kind + "-run", steps=2, lr=NEXT_TO_NOTHING, max_positions=90, max_length=80, eval_every=2
        )
        pretrain(run)
        back = getattr(transformers, f"{kind}ForMaskedLM").from_pretrained(run.out / "model")
        offset = 1 if kind == "Roberta" else 0
        assert back.config.max_position_embeddings == 90 + offset
        old, new = (model.base_model.embeddings.position_embeddings.weight for model in (theirs, back))
        usable = old[offset:]
        torch.testing.assert_close(new[:40], old, atol=1e-7, rtol=0)
        torch.testing.assert_close(new[offset:], usable[torch.arange(90) % len(usable)], atol=1e-7, rtol=0)
        for name, weight in theirs.state_dict().items():
            if "position_embeddings" not in name:
                torch.testing.assert_close(weight, back.state_dict()[name], atol=1e-7, rtol=0)
        assert back(input_ids=torch.randint(5, len(tokenizer), (1, 85))).logits.isfinite().all()


def test_an_interrupted_run_equals_an_uninterrupted_one_without_its_folder(
    config: PretrainConfig, tmp_path: Path
) -> None:
    """Once there is a checkpoint, nothing of the folder is read; before, it must hold the weights of the start."""
    shape = BertConfig.from_pretrained(config.model)
    folder = save_model(config, tmp_path / "base", "BertModel", shape)
    whole = continued(config, folder, "whole", max_positions=70)
    pretrain(whole)
    cut = continued(config, folder, "cut", max_positions=70)
    with pytest.raises(Stopped):
        pretrain(cut, stop_at(6))
    assert [step.is_equal for step in replay(whole.out, 1, 3)] == [True] * 3
    folder.rename(tmp_path / "gone")
    assert [step.is_equal for step in replay(whole.out, 6, 7)] == [True] * 2  # from a checkpoint
    with pytest.raises(UserError, match=r"--init .*base: is neither structured nor normal, and no model"):
        list(replay(whole.out, 1, 3))
    pretrain(replace(cut, resume=True))
    assert all(torch.equal(tensor, weights(cut.out)[name]) for name, tensor in weights(whole.out).items())
    assert timeless(whole.out) == timeless(cut.out)
    shutil.rmtree(cut.out / "checkpoints")
    (cut.out / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match=r"--init .*base: is neither structured nor normal, and no model"):
        pretrain(replace(cut, resume=True, steps=13))
    torch.manual_seed(4)
    fastbert.BertModel(shape).save_pretrained(folder)
    WordPieceTokenizer.from_pretrained(config.tokenizer).save_pretrained(folder)
    with pytest.raises(UserError, match=r"--init .*base: has different weights than when the run began; put those"):
        pretrain(replace(cut, resume=True, steps=13))


def test_new_words_get_rows_of_their_pieces(config: PretrainConfig, tmp_path: Path) -> None:
    """The tokenizer of `fastbert vocab --extend` with the old model, and the model that it extends, are the same."""
    pytest.importorskip("tyro", reason="the command line needs tyro")
    letters = [*"abcdefghij", *(f"##{letter}" for letter in "abcdefghij")]
    base = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *letters, "[unused1]"])
    shape = replace(BertConfig.from_pretrained(config.model), vocab_size=len(base))
    folder = save_model(config, tmp_path / "base", "BertForPreTraining", shape)
    base.save_pretrained(folder)
    command = [
        "vocab",
        "--quiet",
        "--corpus",
        str(config.corpus[0]),
        "--text-format",
        "lines",
        "--extend",
        "--add",
        "4",
    ]
    assert main([*command, "--tokenizer", str(folder), "--out", str(tmp_path / "words")]) == 0
    assert main([*command, "--model", str(folder), "--out", str(tmp_path / "model")]) == 0
    options = {"steps": 1, "lr": NEXT_TO_NOTHING, "eval_every": 1}
    messages: list[str] = []
    run = continued(config, folder, tokenizer=tmp_path / "words", **options)
    pretrain(run, said(messages))
    assert any(line.startswith("4 new entries") for line in messages)
    model, before = fastbert.load(run.out / "model"), fastbert.load(folder)
    tokenizer = fastbert.load_tokenizer(run.out / "model")
    assert model.config.vocab_size == len(tokenizer) == len(base) + 3
    new, old = (each.get_input_embeddings().weight for each in (model, before))
    torch.testing.assert_close(new[: len(base) - 1], old[:-1], atol=1e-6, rtol=0)
    for entry in range(len(base) - 1, len(tokenizer)):
        pieces = base.convert_tokens_to_ids(base.tokenize(tokenizer.convert_ids_to_tokens(entry)))
        torch.testing.assert_close(new[entry], old[pieces].mean(0), atol=1e-6, rtol=0)
    other = continued(config, tmp_path / "model", "other", **options)
    pretrain(other)
    assert all(torch.equal(tensor, weights(other.out)[name]) for name, tensor in weights(run.out).items())


def test_contradictions_are_refused_by_name(config: PretrainConfig, tmp_path: Path) -> None:
    shape = BertConfig.from_pretrained(config.model)
    folder = save_model(config, tmp_path / "base", "BertForPreTraining", shape)
    bare = tmp_path / "bare"
    fastbert.BertModel(shape).save_pretrained(bare)
    lines = Path(config.tokenizer).read_text().splitlines()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "vocab.txt").write_text("\n".join([*lines[:-2], lines[-1], lines[-2]]) + "\n")
    (tmp_path / "short.txt").write_text("\n".join(lines[:-3]) + "\n")
    (tmp_path / "wide.json").write_text(json.dumps({**shape.to_dict(), "hidden_size": 64}))
    model = fastbert.BertForPreTraining(shape)
    model.bert.pooler.dense.weight.data[0, 0] = float("nan")
    model.save_pretrained(tmp_path / "nan")
    WordPieceTokenizer.from_pretrained(config.tokenizer).save_pretrained(tmp_path / "nan")
    for options, message in (
        ({"init": "structred"}, "--init structred: is neither structured nor normal, and no model: structred: no such"),
        ({"init": str(tmp_path / "model.json")}, "--init .*model.json: is neither structured nor normal, .* is a file"),
        ({"init": str(tmp_path / "other")}, "config.json: no such file; a model folder holds a config.json"),
        ({"init": str(bare)}, "--init .*bare: holds no tokenizer; name that of its training with --tokenizer"),
        ({"init": str(bare), "tokenizer": tmp_path / "short.txt"}, "--init .*bare has a vocabulary of 36, but the"),
        ({"tokenizer": tmp_path / "other"}, "--tokenizer .*other: was not made from the vocabulary of --init .*base;"),
        ({"tokenizer": tmp_path / "short.txt"}, "short.txt: was not made from the vocabulary of --init .*; leave"),
        ({"architecture": "roberta"}, "--architecture roberta, but --init .* has model_type='bert'; leave"),
        (
            {"model": "mini"},
            "--model mini has num_hidden_layers=4, but --init .*base has 2, which stays; leave",
        ),
        ({"model": str(tmp_path / "wide.json")}, "wide.json has hidden_size=64, but --init .*base has 32, which stays"),
        ({"norm": "pre"}, "--norm pre: the layers of --init .*base are post-norm, and keep what they were trained"),
        ({"objective": "rtd"}, "--objective rtd: a model of bert that sees the whole text cannot have it"),
        ({"max_length": 65}, "--max-length 65 is more than the model's max_position_embeddings=64"),
        ({"max_positions": 63}, "--max-positions 63: --init .* has positions for 64 tokens, more than 63; a table"),
        ({"init": str(tmp_path / "nan")}, "--init .*nan: bert.pooler.dense.weight holds NaN or infinity, so this"),
    ):
        refused = continued(config, folder, **options)
        with pytest.raises(UserError, match=message) as error:
            pretrain(refused)
        assert "\n" not in str(error.value)
        assert not (refused.out / "checkpoints").exists()
        shutil.rmtree(refused.out, ignore_errors=True)
    student = {"init": None, "teacher": "t", "student_layers": 1}
    for options, message in (
        ({"teacher": "t"}, "--init .* and --teacher exclude each other"),
        ({"teacher": "t", "student_layers": 1}, "--init .* and --teacher exclude each other"),
        ({"vocab_size": 300}, "--vocab-size is for a vocabulary that is built, and --init .* has its own"),
        ({"cased": True}, "--cased is for a vocabulary that is built, and --init .* has its own"),
        ({"extend_positions": "repeat"}, "--extend-positions extends the position table of a model: give --init"),
        ({**student, "norm": "pre"}, "--norm and --student-layers exclude each other: a student has its teacher's"),
        ({**student, "max_positions": 9}, "--max-positions and --student-layers exclude each other"),
        ({"max_positions": 0}, "--max-positions 0 must be from 1 to 1,048,576"),
        ({"init": ""}, "--init '': is empty; give structured or normal, or the folder of a model"),
    ):
        with pytest.raises(UserError, match=message):
            continued(config, folder, **options)


def test_a_different_or_damaged_folder_is_refused(config: PretrainConfig, tmp_path: Path) -> None:
    folder = save_model(config, tmp_path / "base", "BertModel", BertConfig.from_pretrained(config.model))
    run = continued(config, folder, steps=2)
    pretrain(run)
    with pytest.raises(UserError, match=r"--init .*other differs from the run being resumed, which has .*base"):
        pretrain(replace(run, resume=True, init=str(tmp_path / "other"), steps=3))
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"base: not as it was written .*model.safetensors has 0 bytes"):
        pretrain(continued(config, folder, "damaged"))
    with pytest.raises(UserError, match="already holds a run"):
        pretrain(replace(run, init=str(run.out)))
    with pytest.raises(UserError, match=re.escape(f"--init {run.out / 'model'}")):
        pretrain(replace(run, init=str(run.out), overwrite=True))
    assert (run.out / "model" / "model.safetensors").is_file()


def test_other_architectures_are_continued(config: PretrainConfig, tmp_path: Path) -> None:
    """The discriminator of ELECTRA with the generator beside it, a left-to-right model, DistilBERT and ELMo."""
    for architecture, objective, changes in (
        ("electra", "rtd", {"generator_size": 0.5}),
        ("gpt2", "ltr", {}),
        ("distilbert", "mlm", {}),
        ("elmo", "bilm", {"max_length": 16}),
    ):
        first = replace(
            config, steps=2, eval_every=2, eval_samples=4, lr=NEXT_TO_NOTHING, architecture=architecture, model="tiny",
            out=tmp_path / architecture, **changes,
        )  # fmt: skip
        pretrain(first)
        second = replace(
            first, architecture=None, model="base", tokenizer=None, init=str(first.out), generator_size=None,
            out=tmp_path / f"{architecture}-2",
        )  # fmt: skip
        messages: list[str] = []
        pretrain(second, said(messages))
        assert not any("new weights" in line or "no generator" in line for line in messages), messages
        assert json.loads((second.out / "config.json").read_text())["run"]["objective"] == objective
        for part in ("model", "generator") if architecture == "electra" else ("model",):
            before, after = (fastbert.load(run.out / part).state_dict() for run in (first, second))
            assert all(torch.allclose(tensor, after[name], atol=1e-6) for name, tensor in before.items()), part
    alone = (tmp_path / "electra" / "model").rename(tmp_path / "alone")
    third = continued(config, alone, "third", steps=1, lr=NEXT_TO_NOTHING, eval_every=1)
    pretrain(third, said(messages))
    assert any("no generator beside it fits; a new one of 0.25 times its width" in line for line in messages)
    before, after = (fastbert.load(folder).state_dict() for folder in (alone, third.out / "model"))
    alone.rename(tmp_path / "moved")
    pretrain(replace(third, resume=True, steps=2))
    assert all(torch.allclose(tensor, after[name], atol=1e-6) for name, tensor in before.items())

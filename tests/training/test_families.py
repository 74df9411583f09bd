"""Pre-training of RoBERTa, XLM-RoBERTa, CamemBERT and DistilBERT: folders that transformers loads, with its special
tokens, positions and segments."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

import fastbert
from fastbert import WordPieceTokenizer
from fastbert.errors import UserError
from fastbert.tokenizers import ByteLevelBPETokenizer, UnigramTokenizer
from fastbert.training.config import PretrainConfig, default_objective
from fastbert.training.metrics import read_metrics
from fastbert.training.pretrain import pretrain
from fastbert.training.run_files import save_tokenizer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")
FAMILIES = ("roberta", "xlm-roberta", "camembert", "distilbert")


def test_trained_folders_are_those_of_transformers(config: PretrainConfig) -> None:
    words = (config.out.parent / "vocab.txt").read_text().split()[6:12]
    for name in FAMILIES:
        run = replace(config, architecture=name, model="tiny", steps=2, out=config.out.with_name(name))
        result = pretrain(run)
        assert result.objective == "mlm"
        assert all(record.nsp_loss is None for record in read_metrics(run.out / "metrics.jsonl"))
        theirs: Any
        theirs, info = transformers.AutoModelForMaskedLM.from_pretrained(result.model, output_loading_info=True)
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), name
        tokenizer = transformers.AutoTokenizer.from_pretrained(result.model)
        assert theirs.config.pad_token_id == tokenizer.pad_token_id
        if name != "distilbert":
            ids = (theirs.config.bos_token_id, theirs.config.eos_token_id, theirs.config.type_vocab_size)
            assert ids == (tokenizer.cls_token_id, tokenizer.sep_token_id, 1)
        ours = fastbert.load(result.model)
        assert ours.config.max_sequence_length == 512
        # Texts of different lengths, alone and in pairs: positions, padding and segments.
        for texts in ([" ".join(words), words[0]], [(" ".join(words), words[1]), (words[0], words[2])]):
            inputs = tokenizer(texts, padding=True, return_tensors="pt")
            assert "token_type_ids" not in inputs
            mask = inputs["attention_mask"].bool()
            with torch.no_grad():
                actual, expected = ours(**inputs).logits[mask], theirs.eval()(**inputs).logits[mask]
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: name + text)


def test_a_vocabulary_of_the_familys_kind_is_built(config: PretrainConfig) -> None:
    """Without --tokenizer; its padding token has id 1, so that positions begin at 2."""
    kinds = {"roberta": ByteLevelBPETokenizer, "xlm-roberta": UnigramTokenizer, "electra": WordPieceTokenizer}
    for name, kind in kinds.items():
        run = replace(
            config, architecture=name, model="tiny", steps=1, tokenizer=None, vocab_size=300, objective=None,
            out=config.out.with_name(name),
        )  # fmt: skip
        folder = pretrain(run).model
        tokenizer, model = fastbert.load_tokenizer(folder), fastbert.load(folder)
        assert type(tokenizer) is kind
        assert len(tokenizer) == model.config.vocab_size
        assert tokenizer.fingerprint == fastbert.load_tokenizer(run.out / "tokenizer").fingerprint
        if kind is not WordPieceTokenizer:
            assert tokenizer.pad_token_id == model.config.pad_token_id == 1
            assert model.position_offset == 2
            theirs = transformers.AutoTokenizer.from_pretrained(folder)
            assert theirs("a b <mask>.")["input_ids"] == tokenizer("a b <mask>.")["input_ids"]
    chosen = replace(run, architecture="roberta", vocab_kind="wordpiece", overwrite=True)
    assert type(fastbert.load_tokenizer(pretrain(chosen).model)) is WordPieceTokenizer


def test_tokenizers_return_what_the_model_reads(tmp_path: Any) -> None:
    """Whatever the tokenizer's own folder says: DistilBERT's has no segments, and ELECTRA has."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    with_types, without = ["input_ids", "token_type_ids", "attention_mask"], ["input_ids", "attention_mask"]
    for rows, names in itertools.product(("bert", "roberta"), (with_types, without)):
        for segments in (True, False):
            tokenizer = WordPieceTokenizer(pieces, row_format=rows, model_input_names=names)
            save_tokenizer(tokenizer, tmp_path, segments=segments)
            expected = with_types if segments and rows == "bert" else without
            assert fastbert.load_tokenizer(tmp_path).model_input_names == expected
            assert set(transformers.AutoTokenizer.from_pretrained(tmp_path)("a", "a")) == set(expected)


def test_a_config_gets_the_padding_token_of_the_vocabulary(config: PretrainConfig, tmp_path: Any) -> None:
    """Positions begin behind it, so that fewer or more of them are left."""
    vocabulary = (tmp_path / "vocab.txt").read_text().split()
    moved = [*vocabulary[1:4], "[PAD]", *vocabulary[4:]]
    (tmp_path / "moved.txt").write_text("\n".join(moved) + "\n")
    run = replace(config, architecture="roberta", model="tiny", steps=1, tokenizer=tmp_path / "moved.txt")
    model = fastbert.load(pretrain(run).model)
    assert (model.config.pad_token_id, model.config.max_position_embeddings) == (3, 516)
    assert model.position_offset == 4
    (tmp_path / "roberta.json").write_text(
        f'{{"model_type": "roberta", "vocab_size": {len(moved)}, "hidden_size": 32, "num_hidden_layers": 1,'
        ' "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 34}'
    )
    run = replace(run, architecture=None, model=str(tmp_path / "roberta.json"), overwrite=True)
    with pytest.raises(UserError, match=r"--max-length 32 is more than .*max_position_embeddings=34, of which 4 are"):
        pretrain(run)
    assert fastbert.load(pretrain(replace(run, max_length=30)).model).config.pad_token_id == 3


def test_a_student_of_another_family_learns_from_a_teacher(config: PretrainConfig) -> None:
    teacher = pretrain(replace(config, steps=2, objective="mlm")).model
    student = replace(
        config, corpus=(), data=config.out / "data", tokenizer=None, architecture="distilbert", model="tiny",
        teacher=str(teacher), out=config.out.with_name("student"), steps=4, log_every=1,
    )  # fmt: skip
    assert type(fastbert.load(pretrain(student).model)).__name__ == "DistilBertForMaskedLM"
    losses = [record.mlm_loss for record in read_metrics(student.out / "metrics.jsonl")]
    plain = replace(student, teacher=None, out=config.out.with_name("plain"))
    pretrain(plain)
    assert losses != [record.mlm_loss for record in read_metrics(plain.out / "metrics.jsonl")]
    with pytest.raises(UserError, match="--student-layers takes layers of a BERT, not of --architecture distilbert"):
        replace(student, student_layers=1)


def test_each_architecture_has_the_objective_of_its_paper() -> None:
    objectives = {name: default_objective(name) for name in ("bert", "electra", "gpt2", "elmo", *FAMILIES)}
    assert objectives == {"bert": "mlm+nsp", "electra": "rtd", "gpt2": "ltr", "elmo": "bilm"} | dict.fromkeys(
        FAMILIES, "mlm"
    )

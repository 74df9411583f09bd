"""Whole runs on a toy model: files, falling loss, batches, objectives and budgets."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pretrain_runs import weights
from safetensors.torch import load_file

import fastbert
from fastbert.errors import UserError
from fastbert.models import BertForPreTraining
from fastbert.training import checkpoint
from fastbert.training.config import PretrainConfig
from fastbert.training.metrics import read_metrics
from fastbert.training.pretrain import pretrain

KEYS = {
    "step", "split", "loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy", "tokens", "tokens_per_second",
    "learning_rate", "seconds",
}  # fmt: skip
COSTS = {"gradient_norm", "mfu", "memory_bytes", "data_seconds", "validation_seconds", "checkpoint_seconds"}


def test_a_run_leaves_what_the_design_says(config: PretrainConfig) -> None:
    result = pretrain(replace(config, steps=150, lr=1e-2, eval_every=50))
    run = config.out
    for name in ("config.json", "tokenizer/tokenizer_config.json", "vocab.txt", "metrics.jsonl", "loss.png"):
        assert (run / name).is_file(), name
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")
    for name in ("config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json", "README.md", "loss.png"):
        assert (run / "model" / name).is_file(), name
    saved = {path.name for path in (run / "checkpoints" / "step-00000150").iterdir()}
    assert saved == {"manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"}
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(record.keys() == (KEYS | COSTS if record["split"] == "train" else KEYS) for record in records)
    train = [record for record in records if record["split"] == "train"]
    assert [record["step"] for record in train][:4] == [1, 2, 4, 6]
    assert 0 < train[-1]["mfu"] < 2
    assert train[-1]["checkpoint_seconds"] > 0 < train[-1]["validation_seconds"]
    card = (run / "model" / "README.md").read_text()
    assert f"| {150:,} | {records[-1]['tokens']:,} | {records[-1]['mlm_loss']:.4g} |" in card
    assert train[-1]["mlm_loss"] < train[0]["mlm_loss"] - 0.03
    assert result.validation.mlm_loss < records[0]["mlm_loss"]
    assert [record["step"] for record in records if record["split"] == "validation"] == [50, 100, 150]
    assert 2.5 < result.unigram_cross_entropy < 4.0
    assert not list(run.rglob("*partial*"))


def test_the_trained_model_loads_in_transformers(config: PretrainConfig) -> None:
    transformers = pytest.importorskip("transformers")
    pretrain(replace(config, steps=2))
    theirs = transformers.AutoModelForPreTraining.from_pretrained(config.out / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(config.out / "model")
    text = (config.out / "vocab.txt").read_text().split()[10:16]
    inputs = tokenizer(" ".join(text), return_tensors="pt")
    ours = BertForPreTraining.from_pretrained(config.out / "model")
    with torch.no_grad():
        mine, other = ours(**inputs), theirs(**inputs)
    torch.testing.assert_close(mine.prediction_logits, other.prediction_logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine.seq_relationship_logits, other.seq_relationship_logits, rtol=1e-5, atol=1e-5)


def test_micro_batches_change_nothing_but_rounding(config: PretrainConfig) -> None:
    pretrain(replace(config, steps=3, micro_batch=8))
    other = replace(config, steps=3, micro_batch=3, out=config.out.with_name("other"))
    pretrain(other)
    for name, tensor in weights(config.out).items():
        torch.testing.assert_close(tensor, weights(other.out)[name], rtol=1e-3, atol=2e-5)


def test_checkpointed_activations_and_bf16_train(config: PretrainConfig) -> None:
    checkpointed = replace(config, checkpoint_activations=True, dtype="bf16", deterministic=True)
    result = pretrain(checkpointed)
    assert result.validation.mlm_loss < 3.6
    other = replace(checkpointed, checkpoint_mode="selective", out=config.out.with_name("other"))
    assert pretrain(other).validation.mlm_loss == result.validation.mlm_loss


@pytest.mark.parametrize("objective", ["mlm", "mlm+sop"])
def test_other_objectives(config: PretrainConfig, objective: str) -> None:
    result = pretrain(replace(config, objective=objective))
    assert (result.validation.nsp_loss is None) == (objective == "mlm")
    # Without pairs nothing trains the embedding of second segments: the model gets that of the first.
    table = "bert.embeddings.token_type_embeddings.weight"
    trained = load_file(checkpoint.find(config.out / "checkpoints")[-1] / "model.safetensors")[table]
    first, second = weights(config.out)[table]
    assert torch.equal(first, trained[0])
    assert torch.equal(second, trained[0 if objective == "mlm" else 1])
    assert not torch.equal(*trained)


def test_a_model_that_is_continued_without_pairs_keeps_its_second_segment(config: PretrainConfig) -> None:
    pretrain(replace(config, steps=1))
    second = replace(config, objective="mlm", init=str(config.out), out=config.out.with_name("continued"), steps=1)
    pretrain(second)
    table = "bert.embeddings.token_type_embeddings.weight"
    before, after = weights(config.out)[table], weights(second.out)[table]
    torch.testing.assert_close(after[1], before[1], rtol=1e-3, atol=1e-5)  # only decayed
    assert not torch.equal(*after)


def test_the_rule_of_masking_is_that_of_training_and_validation(config: PretrainConfig) -> None:
    """Tokens that all stay are easy to predict, from themselves; both splits show it."""
    config = replace(config, steps=60, eval_every=60, lr=1e-2, objective="mlm")
    usual = pretrain(config).validation
    stay = pretrain(replace(config, out=config.out.with_name("stay"), mask_replacement=(0.0, 0.0, 100.0)))
    assert stay.validation.mlm_loss < 0.8 * usual.mlm_loss
    other = replace(config, out=stay.folder, resume=True, steps=61, mask_replacement=(100.0, 0.0, 0.0))
    with pytest.raises(UserError, match=r"--mask-replacement 100\.0 0\.0 0\.0 differs from the run being resumed"):
        pretrain(other)


def test_left_to_right_runs_make_a_model_that_sees_no_later_tokens(config: PretrainConfig) -> None:
    config = replace(config, objective="ltr")
    result = pretrain(replace(config, steps=150, lr=1e-2, eval_every=150))
    assert result.title == "next-token"
    assert result.validation.nsp_loss is None
    # Nine words in ten follow from the one before them.
    assert result.validation.mlm_loss < result.unigram_cross_entropy - 0.5
    model = fastbert.load(result.model)
    assert type(model).__name__ == "BertLMHeadModel"
    assert model.config.is_decoder
    assert model.config.extra["bos_token_id"] == 2
    assert model.config.extra["eos_token_id"] == 3


def test_hours_end_a_run(config: PretrainConfig) -> None:
    result = pretrain(replace(config, steps=None, hours=1.5 / 3600))
    last = read_metrics(config.out / "metrics.jsonl")[-1]
    assert 1.5 <= last.seconds < 10
    assert result.validation.step == last.step


def test_only_the_newest_checkpoints_are_kept(config: PretrainConfig) -> None:
    pretrain(replace(config, keep_checkpoints=2))
    names = [path.name for path in checkpoint.find(config.out / "checkpoints")]
    assert names == ["step-00000008", "step-00000012"]


def test_prepared_shards_give_the_same_model_as_their_corpus(config: PretrainConfig, tmp_path: Path) -> None:
    from fastbert.data.corpus import Corpus
    from fastbert.data.prepare import prepare
    from fastbert.tokenizers import WordPieceTokenizer

    pretrain(replace(config, steps=2))
    tokenizer = WordPieceTokenizer.from_pretrained(config.tokenizer)
    prepare(Corpus.find(config.corpus, text_format="lines"), tokenizer, tmp_path / "shards")
    other = replace(config, corpus=(), tokenizer=None, data=tmp_path / "shards", steps=2, out=tmp_path / "from-shards")
    pretrain(other)
    for name, tensor in weights(config.out).items():
        assert torch.equal(tensor, weights(other.out)[name]), name

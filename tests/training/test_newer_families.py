"""Pre-training of newer architectures with their papers' defaults: folders that transformers loads, and runs that
resume."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from pretrain_runs import assert_resumes_to_the_bit

import fastbert
from fastbert.planning.flags import PlanFlags
from fastbert.planning.plan import make_plan
from fastbert.training.config import PretrainConfig
from fastbert.training.metrics import read_metrics
from fastbert.training.objectives import model_config, with_objective
from fastbert.training.pretrain import pretrain

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")
FAMILIES = ("mpnet", "deberta-v2", "nomic_bert", "eurobert", "albert")


def test_trained_folders_are_those_of_transformers(config: PretrainConfig) -> None:
    words = (config.out.parent / "vocab.txt").read_text().split()[6:12]
    for name in FAMILIES:
        own = {"tokenizer": None, "vocab_size": 300} if name == "mpnet" else {}
        run = replace(
            config, architecture=name, model="tiny", steps=2, objective=None, out=config.out.with_name(name), **own
        )
        result = pretrain(run)
        assert result.objective == ("mlm+sop" if name == "albert" else "mlm")
        theirs: Any
        theirs, info = transformers.AutoModelForMaskedLM.from_pretrained(result.model, output_loading_info=True)
        assert not info["missing_keys"], name
        assert not info["mismatched_keys"], name
        tokenizer = transformers.AutoTokenizer.from_pretrained(result.model)
        assert theirs.config.pad_token_id == tokenizer.pad_token_id
        ours = fastbert.load(result.model)
        inputs = tokenizer([" ".join(words), words[0]], padding=True, return_tensors="pt")
        mask = inputs["attention_mask"].bool()
        with torch.no_grad():
            expected = theirs.eval()(**inputs).logits[mask]
            output = ours(**inputs)
        actual = output.prediction_logits if name == "albert" else output.logits
        torch.testing.assert_close(actual[mask], expected, rtol=1e-5, atol=1e-5, msg=lambda t, name=name: name + t)


def test_modernbert_has_its_papers_defaults_and_resumes(config: PretrainConfig) -> None:
    chosen = with_objective(PretrainConfig(corpus=("a",), architecture="modernbert"))
    assert (chosen.objective, chosen.mask_prob) == ("mlm", 0.3)
    model: Any = model_config(chosen, None)
    assert (model.num_hidden_layers, model.hidden_size, model.intermediate_size) == (22, 768, 1152)
    assert (model.local_attention, model.max_position_embeddings, model.layer_types[:4]) == (
        128,
        8192,
        ("full_attention", "sliding_attention", "sliding_attention", "full_attention"),
    )
    thetas = [model.rope_parameters[kind]["rope_theta"] for kind in ("full_attention", "sliding_attention")]
    assert thetas == [160_000, 10_000]
    assert not any((model.attention_bias, model.mlp_bias, model.norm_bias))
    large: Any = model_config(replace(chosen, model="large"), None)
    assert (large.num_hidden_layers, large.hidden_size, large.intermediate_size) == (28, 1024, 2624)
    assert with_objective(PretrainConfig(corpus=("a",), architecture="modernbert", mask_prob=0.15)).mask_prob == 0.15
    assert with_objective(PretrainConfig(corpus=("a",))).mask_prob == 0.15
    run = replace(
        config, architecture="modernbert", model="tiny", steps=6, tokenizer=None, vocab_size=300,
        out=config.out.with_name("modernbert"),
    )  # fmt: skip
    resumed = assert_resumes_to_the_bit(run, step=4)
    folder = resumed.out / "model"
    theirs, info = transformers.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert (theirs.config.bos_token_id, theirs.config.sep_token_id) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert all(record.nsp_loss is None for record in read_metrics(run.out / "metrics.jsonl"))
    plan = make_plan(PlanFlags(architecture="modernbert", model="base", gpus=1, batch_size=64))
    assert plan.record()["total_parameters"] == 149_655_232

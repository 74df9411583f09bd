"""ELECTRA's pre-training: the generator's samples, both losses against transformers, and whole runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pretrain_runs import stop_at, timeless
from safetensors.torch import load_file

import fastbert
from fastbert import cli
from fastbert.errors import UserError
from fastbert.models.electra.config import ElectraConfig, generator_config
from fastbert.models.electra.pretraining import DISCRIMINATOR_WEIGHT, GeneratorAndDiscriminator
from fastbert.models.electra.sampling import sample, sample_tokens, uniform_draws
from fastbert.packing import PackedBatch
from fastbert.training.config import PretrainConfig
from fastbert.training.device_step import StepStats, StepSums
from fastbert.training.metrics import Totals, read_metrics
from fastbert.training.pretrain import pretrain
from fastbert.training.stopping import Stopped

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPE = {
    "vocab_size": 300, "embedding_size": 24, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def electra(config: PretrainConfig, tmp_path: Path) -> PretrainConfig:
    """A run of a small ELECTRA on the corpus of `config`."""
    model = json.loads(Path(config.model).read_text())
    shape = {**SHAPE, "vocab_size": model["vocab_size"], "model_type": "electra"}
    (tmp_path / "electra.json").write_text(json.dumps(shape))
    return replace(config, model=str(tmp_path / "electra.json"), generator_size=0.5)


def masked_batch(lengths: list[int], keys: list[int], seed: int) -> PackedBatch:
    """Sequences of random tokens of which every third is masked."""
    generator = torch.Generator().manual_seed(seed)
    cu_seqlens = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    ids = torch.randint(5, 300, (sum(lengths),), generator=generator)
    positions = torch.arange(1, len(ids), 3)
    return PackedBatch(
        input_ids=ids.index_fill(0, positions, 4),
        cu_seqlens=cu_seqlens,
        max_seqlen=max(lengths),
        dropout_key=torch.tensor(keys),
        masked_positions=positions,
        labels=ids[positions],
    )


@pytest.mark.parametrize("size", [1, 255, 300, 1025])
def test_samples_invert_the_distribution_function(size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(7, size, generator=generator) * 3
    logits[0, 1:] = -torch.inf
    logits[1, : size // 2] = -torch.inf
    probabilities = logits.softmax(-1)
    ends = probabilities.double().cumsum(-1)
    for _ in range(50):
        uniform = torch.rand(7, dtype=torch.float64, generator=generator)
        samples = sample(logits, uniform)
        assert (probabilities.gather(1, samples[:, None]) > 0).all()
        after = ends.gather(1, samples[:, None])[:, 0]
        target = uniform * ends[:, -1]
        assert (after > target - 1e-12).all()
        assert (after - probabilities.double().gather(1, samples[:, None])[:, 0] <= target + 1e-12).all()
    assert (sample(logits, torch.full((7,), 1 - 2.0**-54, dtype=torch.float64)) < size).all()


def test_frequencies_are_the_softmax_and_draws_follow_keys_and_positions(seed: int) -> None:
    # Rows of one distribution, at the positions of sequences with keys of their own.
    rows, size = 200_000, 40
    keys = torch.randint(-(2**63), 2**63 - 1, (rows // 100,), generator=torch.Generator().manual_seed(seed))
    batch = PackedBatch(
        input_ids=torch.zeros(rows, dtype=torch.int64),
        cu_seqlens=torch.arange(0, rows + 1, 100, dtype=torch.int32),
        max_seqlen=100,
        dropout_key=keys,
    )
    draws = uniform_draws(batch, keys, torch.arange(rows))
    assert draws.unique().numel() == rows
    logits = torch.randn(size, generator=torch.Generator().manual_seed(seed + 1)) * 2
    counts = torch.bincount(sample(logits.expand(rows, size), draws), minlength=size).double()
    expected = logits.double().softmax(-1) * rows
    assert float(((counts - expected) ** 2 / expected).sum()) < 90  # chi-square of 39 degrees: 1 in 10^5 is above
    # A sequence has the same draws in any batch.
    part = batch[37:38]
    assert part.dropout_key is not None
    assert torch.equal(uniform_draws(part, part.dropout_key, torch.arange(5, 9)), draws[3705:3709])


def test_losses_and_gradients_are_those_of_transformers(tmp_path: Path, seed: int) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    model = GeneratorAndDiscriminator(ElectraConfig(**SHAPE), 0.5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model = model.double().eval()
    batch = masked_batch([12, 12, 12], [3, -5, 9], seed)
    output = model(batch)
    output.loss.backward()
    x, _ = model.generator.base_model.encode(batch, token_indices=batch.masked_positions)
    assert batch.dropout_key is not None
    corrupted, replaced = model.replaced(batch, batch.dropout_key, x)
    assert 0 < int(replaced.sum()) <= len(batch.labels)  # type: ignore[arg-type]
    assert torch.equal(corrupted.input_ids[0::3], batch.input_ids[0::3])

    theirs = {}
    for name, kind in (("generator", "ElectraForMaskedLM"), ("discriminator", "ElectraForPreTraining")):
        model.get_submodule(name).save_pretrained(tmp_path / name)  # type: ignore[operator]
        theirs[name] = getattr(transformers, kind).from_pretrained(tmp_path / name).double().eval()
    labels = torch.full_like(batch.input_ids, -100).index_copy(0, batch.masked_positions, batch.labels)  # type: ignore[arg-type]
    mlm = theirs["generator"](batch.input_ids.view(3, 12), labels=labels.view(3, 12)).loss
    rtd = theirs["discriminator"](corrupted.input_ids.view(3, 12), labels=replaced.view(3, 12)).loss
    loss = mlm + DISCRIMINATOR_WEIGHT * rtd
    loss.backward()
    torch.testing.assert_close(output.loss.double(), loss, rtol=1e-6, atol=1e-6)
    shared = "electra.embeddings.word_embeddings.weight"
    expected = {f"{name}.{key}": p.grad for name, other in theirs.items() for key, p in other.named_parameters()}
    for name, parameter in model.named_parameters():
        part = model.get_submodule(name.split(".")[0])
        gradient = expected[f"{name.split('.')[0]}.{part.key_map.file_name(name.split('.', 1)[1])}"]  # type: ignore[operator, union-attr]
        if ".embeddings." in name:
            gradient = gradient + expected[name.replace("discriminator", "generator")]
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: name + m)
    assert expected[f"generator.{shared}"] is not None
    assert int(output.rtd_replaced) == int(replaced.sum())
    assert int(output.rtd_count) == batch.num_tokens


def test_a_run_learns_both_tasks_and_its_folders_load_in_transformers(
    electra: PretrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    shape = json.loads(Path(electra.model).read_text())
    shape |= {"embedding_size": 48, "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 128}
    Path(electra.model).write_text(json.dumps(shape))
    run = replace(electra, steps=250, batch_size=16, micro_batch=None, lr=8e-3, eval_every=125, eval_samples=32)
    result = pretrain(run)
    records = read_metrics(electra.out / "metrics.jsonl")
    assert result.title == "generator's masked-LM"
    for record in records:
        assert record.rtd_loss is not None
        assert record.loss == pytest.approx(record.mlm_loss + DISCRIMINATOR_WEIGHT * record.rtd_loss)
    assert result.validation.mlm_loss < result.unigram_cross_entropy - 0.3
    # Better than the share of replaced tokens, which a discriminator learns without reading the text.
    loss, share = result.validation.rtd_loss, result.validation.rtd_replaced
    assert loss is not None
    assert share is not None
    assert loss < -share * math.log(share) - (1 - share) * math.log(1 - share) - 0.005
    assert (electra.out / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert result.generator is not None
    for folder, kind in ((result.model, "AutoModelForPreTraining"), (result.generator, "AutoModelForMaskedLM")):
        other, info = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
        assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        ours = fastbert.load(folder)
        inputs = transformers.AutoTokenizer.from_pretrained(folder)("abcd [MASK]", "efgh", return_tensors="pt")
        with torch.no_grad():
            torch.testing.assert_close(ours(**inputs).logits, other.eval()(**inputs).logits, rtol=1e-5, atol=1e-5)
        assert other.config.hidden_dropout_prob == 0.1
    assert (other.config.hidden_size, other.config.embedding_size) == (32, 48)
    tables = [load_file(folder / "model.safetensors")["electra.embeddings.word_embeddings.weight"]
              for folder in (result.model, result.generator)]  # fmt: skip
    assert torch.equal(*tables)
    # Its generator fills in blanks, whichever of the run's folders is named.
    capsys.readouterr()
    for folder in (electra.out, result.model, result.generator):
        assert cli.main(["fill-mask", "abcd [MASK]", "--model", str(folder)]) == 0
    first, second, third = capsys.readouterr().out.split("abcd [MASK]\n")[1:]
    assert first == second == third


def test_an_interrupted_run_continues_to_the_same_bits(electra: PretrainConfig) -> None:
    """Samples are a function of seed, epoch, sample and position."""
    electra = replace(electra, dropout=0.1)
    pretrain(electra)
    other = replace(electra, out=electra.out.with_name("other"))
    with pytest.raises(Stopped):
        pretrain(other, stop_at(7))
    pretrain(replace(other, resume=True))
    for folder in ("model", "generator"):
        whole, resumed = (load_file(run.out / folder / "model.safetensors") for run in (electra, other))
        for name, tensor in whole.items():
            assert torch.equal(tensor, resumed[name]), name
    assert timeless(electra.out) == timeless(other.out)
    pretrain(PretrainConfig(out=other.out, resume=True))  # finished
    assert timeless(electra.out) == timeless(other.out)


def test_micro_batches_change_nothing_but_rounding(electra: PretrainConfig) -> None:
    electra = replace(electra, steps=4, log_every=1)
    losses = []
    for size in (8, 3):
        run = replace(electra, micro_batch=size, out=electra.out.with_name(f"micro-{size}"))
        pretrain(run)
        losses.append([(r.mlm_loss, r.rtd_loss) for r in read_metrics(run.out / "metrics.jsonl")])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_sums_survive_a_checkpoint_and_a_device(seed: int) -> None:
    model = GeneratorAndDiscriminator(ElectraConfig(**SHAPE), 0.25).eval()
    with torch.no_grad():
        output = model(masked_batch([9, 14], [1, 2], seed))
    totals, sums = Totals(), StepSums(torch.device("cpu"))
    totals.add(output)
    sums.add(output)
    sums.finish(torch.tensor(2.5))
    read, norm = StepStats(sums.numbers, False, sums.extras).read()
    of_device = Totals()
    of_device.add(read)
    expected = totals.read()
    assert norm == 2.5
    assert expected["loss"] == pytest.approx(float(output.loss))
    assert expected["rtd_accuracy"] == int(output.rtd_correct) / 23
    for each in (of_device, Totals.from_state(json.loads(json.dumps(totals.to_state())))):
        assert each.read() == expected


def test_generators_have_whole_heads() -> None:
    base = ElectraConfig.preset("base")
    assert (base.embedding_size, ElectraConfig.preset("small").embedding_size) == (768, 128)
    sizes = [generator_config(base, fraction) for fraction in (0.25, 1 / 3, 1.0, 0.01)]
    assert [(c.hidden_size, c.num_attention_heads, c.intermediate_size) for c in sizes] == [
        (192, 3, 768), (256, 4, 1024), (768, 12, 3072), (8, 1, 32),
    ]  # fmt: skip
    assert {c.num_hidden_layers for c in sizes} == {12}
    assert {c.embedding_size for c in sizes} == {768}


def test_refusals_name_the_cure(config: PretrainConfig, electra: PretrainConfig) -> None:
    with pytest.raises(UserError, match=r"--generator-size 1.5 must be above 0 and at most 1"):
        replace(electra, generator_size=1.5)
    with pytest.raises(UserError, match="--generator-size belongs to --objective rtd, not mlm; leave it out"):
        pretrain(replace(electra, objective="mlm"))
    with pytest.raises(UserError, match="--teacher teaches masked tokens, and --objective rtd trains a discriminator"):
        replace(electra, objective="rtd", teacher="folder")
    with pytest.raises(UserError, match="masked_positions and labels"):
        GeneratorAndDiscriminator(ElectraConfig(**SHAPE), 0.5)(masked_batch([4], [1], 0).input_ids)
    head = GeneratorAndDiscriminator(ElectraConfig(**SHAPE), 0.5).generator.cls.predictions
    assert sample_tokens(head, torch.zeros(0, 16), torch.zeros(0, dtype=torch.float64)).shape == (0,)

"""Muon: singular values near 1, the steps of its papers, work shared by processes, runs that resume to the bit."""

from __future__ import annotations

import functools
from dataclasses import replace

import optimizer_references
import pytest
import torch
from pretrain_runs import assert_resumes_to_the_bit
from torch import Tensor, nn

from fastbert import BertConfig, BertForPreTraining
from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig
from fastbert.training import muon
from fastbert.training.config import PretrainConfig
from fastbert.training.muon import Muon, orthogonalised
from fastbert.training.optimizer_choice import pretraining_optimizer
from fastbert.training.optimizer_flags import OptimizerFlags

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPES = [(24, 40), (40, 24), (24, 24)]


def draws(seed: int) -> functools.partial:
    generator = torch.Generator().manual_seed(seed)
    return functools.partial(lambda scale: [scale * torch.randn(shape, generator=generator) for shape in SHAPES])


def make(weights_: list[Tensor], **options: object) -> tuple[Muon, list[nn.Parameter]]:
    own = [nn.Parameter(weight.clone()) for weight in weights_]
    return Muon([{"params": own, "orthogonal": True}], lr=1e-2, weight_decay=0.1, **options), own


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_singular_values_move_to_about_one(dtype: torch.dtype, seed: int) -> None:
    for matrix in [*draws(seed)(7.0), torch.stack(draws(seed)(1e-3)[:1] * 3)]:
        result = orthogonalised(matrix, dtype).double()
        u, values, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
        moved = (u.mT @ result @ vh.mT).diagonal(dim1=-2, dim2=-1)
        kept = values > 0.05 * values.amax(-1, keepdim=True)  # small ones take more iterations
        assert 0.6 < float(moved[kept].min()) <= float(moved[kept].max()) < 1.3
    assert not orthogonalised(torch.zeros(3, 4), dtype).any()


def test_a_hundred_steps_are_those_of_the_papers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp32 those of a float64 reference, but for rounding, which iterations enlarge; in bf16 about those of
    torch.optim.Muon."""
    draw = draws(seed)
    initial = draw(0.1)
    reference = optimizer_references.Muon(initial, [0.1] * 3, 1e-2, (0.9, 0.98), 1e-6)
    theirs = [nn.Parameter(weight.clone()) for weight in initial]
    torchs = torch.optim.Muon(theirs, lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    exact, own = make(initial)
    narrow, rounded = make(initial)
    for _ in range(100):
        gradients = draw(0.01)
        reference.step(gradients)
        for parameters in (own, rounded, theirs):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
        monkeypatch.setattr(muon, "_matmul_dtype", lambda device: torch.float32)
        exact.step(clear=True)
        monkeypatch.setattr(muon, "_matmul_dtype", lambda device: torch.bfloat16)
        narrow.step()
        torchs.step()
    assert not any(parameter.grad.any() for parameter in own)
    for index, expected in enumerate(reference.weights):
        assert float((own[index].detach() - expected).norm() / expected.norm()) < 3e-6
        assert float((rounded[index] - theirs[index]).detach().norm() / theirs[index].detach().norm()) < 2e-2


def test_processes_share_the_work(seed: int) -> None:
    """Each matrix is computed once, and all processes get it to the bit; the work is about equal."""
    matrices = draws(seed)(1.0) * 2
    alone, _ = make(matrices)
    expected = alone._orthogonalised(matrices)
    parts: list[Tensor] = []
    for rank in range(3):
        process, _ = make(matrices)
        process.share(rank, 3, lambda flat: parts.append(flat.clone()))
        process._orthogonalised(matrices)
    assert sorted(map(sorted, muon._assigned([matrix.shape for matrix in matrices], 3))) == [[0, 4], [1, 2], [3, 5]]
    process.share(0, 3, lambda flat: flat.copy_(parts[0] + parts[1] + parts[2]))
    assert all(map(torch.equal, process._orthogonalised(matrices), expected))


def test_only_matrices_of_the_layers_are_muons() -> None:
    model = BertForPreTraining(BertConfig.preset("tiny"))
    optimizer = pretraining_optimizer(model, OptimizerFlags(optimizer="muon"), 1e-3)
    names = [name for group in optimizer.param_groups if group["orthogonal"] for name in group["param_names"]]
    assert len(names) == 2 * 6
    assert all(name.startswith("bert.encoder.layer.") and name.endswith(".weight") for name in names)
    assert optimizer.flatten_if_faster(model, torch.device("cpu"), torch.float32) is not None


def test_skipped_steps_and_masters(seed: int) -> None:
    weights_ = [weight.bfloat16() for weight in draws(seed)(0.1)]
    optimizer, own = make(weights_, masters=True)
    for parameter in own:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    assert all(torch.equal(optimizer.state[p]["master"].bfloat16(), p.detach()) for p in own)
    before = [(p.detach().clone(), optimizer.state[p]["momentum_buffer"].clone()) for p in own]
    optimizer.found_inf = torch.ones(())
    own[0].grad[0, 0] = torch.inf
    optimizer.step()
    for parameter, (weight, momentum) in zip(own, before, strict=True):
        assert torch.equal(parameter, weight)
        assert torch.equal(optimizer.state[parameter]["momentum_buffer"], momentum)


def test_a_run_resumes_to_the_bit(config: PretrainConfig) -> None:
    assert_resumes_to_the_bit(replace(config, optimizer="muon"))


def test_what_it_is_not_for_is_refused(config: PretrainConfig) -> None:
    with pytest.raises(UserError, match="--optimizer muon needs whole matrices in every process: use --parallel ddp"):
        PretrainConfig(optimizer="muon", parallel="fsdp")
    assert FinetuneConfig(optimizer="muon").optimizer == "muon"
    with pytest.raises(UserError, match=r"--optimizer muon is for the matrices of .*: use adamw"):
        muon.split_groups([{"params": [("word_embeddings.weight", nn.Parameter(torch.zeros(2, 2)))]}])

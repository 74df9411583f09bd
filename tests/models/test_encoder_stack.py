"""The layers of a model that does not change any more, as one call: the bits of single layers, and what prevents it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cpu_kernels
import pytest
import torch
from encoder_families import CASES, LENGTHS, batch_of, model_of
from served_models import toy_folders

import fastbert
from fastbert import BertConfig, use_backend
from fastbert.errors import UserError
from fastbert.features.attention import attention_probabilities
from fastbert.models.encoder import EncoderModel
from fastbert.models.encoder_stack import EncoderStack, freeze_layers
from fastbert.ops.native import prepacked_weights
from fastbert.ops.native.matmul_table import same_in_every_batch
from fastbert.serving.kinds import load_served

SHAPE = {
    "vocab_size": 99, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 160,
    "max_position_embeddings": 40,
}  # fmt: skip


def bert(seed: int, layers: int = 3, **values: Any) -> EncoderModel:
    torch.manual_seed(seed)
    model = fastbert.BertModel(BertConfig(**{**SHAPE, **values}, num_hidden_layers=layers)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def batch_with(seed: int) -> Any:
    return batch_of(LENGTHS, torch.randint(5, 99, (sum(LENGTHS),), generator=torch.Generator().manual_seed(seed)))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether the calls of stacks were computed by them."""
    made: list[bool] = []
    original = EncoderStack._run

    def counted(self: EncoderStack, *arguments: Any) -> Any:
        output = original(self, *arguments)
        made.append(output is not None)
        return output

    monkeypatch.setattr(EncoderStack, "_run", counted)
    return iter([made])


def compared(model: EncoderModel, batch: Any, made: list[bool], *, is_used: bool = True, **options: Any) -> None:
    """Compare the outputs, with and without the stack, bit for bit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastbert.models.encoder.current_stack", lambda *_: None)
        expected = model.encode(batch, **options)
    made.clear()
    assert torch.equal(model.encode(batch, **options)[0], expected[0])
    assert any(made) == (is_used and not options.keys() & {"causal", "output_hidden_states"})


def test_layers_have_the_same_bits(runs: Iterator[list[bool]], seed: int) -> None:
    made, rows = next(runs), torch.tensor([0, 3, sum(LENGTHS) - 1])
    batch = batch_with(seed)
    models = [bert(seed, layers) for layers in (1, 2, 3)] + [model_of("albert", seed)]
    models += [bert(seed, hidden_act="gelu_pytorch_tanh"), bert(seed).quantize("int8")]
    with torch.no_grad(), same_in_every_batch():
        for model in models:
            assert freeze_layers(model)
            for dtype in (torch.float32, torch.bfloat16):
                with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
                    for options in ({}, {"token_indices": rows}, {"token_indices": rows[:0]}):
                        compared(model, batch, made, **options)
            model.bfloat16()
        whole = bert(seed).bfloat16()
        assert freeze_layers(whole)
        compared(whole, batch, made)


@pytest.mark.parametrize("level", cpu_kernels.KERNELS)
def test_few_tokens_have_the_same_bits_with_every_kernel(level: str, runs: Iterator[list[bool]], seed: int) -> None:
    made = next(runs)
    batches = [batch_of(lengths, torch.randint(5, 99, (sum(lengths),))) for lengths in ((5,), (16, 0, 1), (30, 34))]
    with cpu_kernels.running(level), torch.no_grad(), use_backend("native" if level == "portable" else None):
        for heads, width in ((4, 64), (3, 96)):
            model = bert(seed, hidden_size=width, num_attention_heads=heads)
            for dtype, kind in ((torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, "int8")):
                model.to(dtype).quantize(kind)
                for batch in batches:
                    compared(model, batch, made)
                    compared(model, batch, made, token_indices=torch.tensor([0, 4, 2]))


MANY = {
    "even": (64,) * 8,
    "lengths of all kinds": (150, 7, 0, 90, 1, 40, 33, 12, 60, 200, 0, 0, 128, 17, 5, 81, 64, 3, 29, 110),
    "one longer than a group": (350, 100, 90, 200, 33, 128, 60, 17, 5, 3, 29, 110),
    "uneven": (400, 20, 3),
    "a single one": (300,),
    "long": (385, 384, 100),
    "short ones": (3,) * 200,
}
SHARED_DIFFERENTLY = ("lengths of all kinds", "one longer than a group")  # with other numbers of threads
IN_SOFTWARE = ("uneven", "one longer than a group")  # an emulated kernel takes a second for a hundred tokens


@pytest.mark.parametrize("level", cpu_kernels.KERNELS)
def test_many_tokens_have_the_same_bits_with_every_kernel(level: str, runs: Iterator[list[bool]], seed: int) -> None:
    """Threads compute whole layers of groups of sequences, if these can be shared evenly."""
    made, threads = next(runs), torch.get_num_threads()
    model = bert(seed, max_position_embeddings=400)
    with cpu_kernels.running(level), torch.no_grad(), use_backend("native" if level == "portable" else None):
        for dtype, kind in ((torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, "int8")):
            model.to(dtype).quantize(kind)
            for name, lengths in MANY.items():
                if cpu_kernels.in_software(level) and name not in IN_SOFTWARE:
                    continue
                tokens = sum(lengths)
                batch = batch_of(lengths, torch.randint(5, 99, (tokens,)))
                try:
                    for count in (1, 2, 3) if name in SHARED_DIFFERENTLY else (2,):
                        torch.set_num_threads(count)
                        compared(model, batch, made)
                        rows = torch.tensor([0, tokens - 1, tokens // 2])
                        for some in (rows, rows[:0]) if count == 2 else ():
                            compared(model, batch, made, token_indices=some)
                except AssertionError as error:
                    raise AssertionError(f"{name}, {count} threads, {dtype}, {kind}") from error
                finally:
                    torch.set_num_threads(threads)


def test_a_token_may_be_read_more_often_than_there_are_tokens(seed: int) -> None:
    model, batch = bert(seed), batch_of((3, 2), torch.randint(5, 99, (5,)))
    assert freeze_layers(model)
    with torch.no_grad(), same_in_every_batch():
        whole = model.encode(batch)[0]
        for count in (5, 6, 70, 2000):
            rows = torch.arange(count) * 3 % 5
            assert torch.equal(model.encode(batch, token_indices=rows)[0], whole[rows]), count


def test_calls_that_the_layers_compute_one_by_one(runs: Iterator[list[bool]], seed: int) -> None:
    model, batch, made = bert(seed), batch_with(seed), next(runs)
    assert freeze_layers(model)
    assert not freeze_layers(model)  # it is frozen
    with same_in_every_batch():
        compared(model, batch, made, is_used=False)  # with gradients
        with torch.no_grad():
            compared(model, batch, made, causal=True)
            compared(model, batch, made, output_hidden_states=True)
            with use_backend("eager"):
                compared(model, batch, made, is_used=False)
            made.clear()
            assert attention_probabilities(model, batch_of((5,), batch.input_ids[:5]), layer=1).shape[-1] == 5
            assert not any(made)


def test_models_that_are_not_frozen(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for case in CASES:
        if case != "albert":
            model = model_of(case, seed)
            assert not freeze_layers(model), case
            assert model.encoder.stack is None
    changes: list[Callable[[EncoderModel], object]] = [
        lambda model: model.encoder.layer[1].output.dense.register_forward_hook(lambda *_: None),
        lambda model: model.encoder.layer[1].register_forward_hook(lambda *_: None),
        lambda model: setattr(model.encoder.layer[0].output, "dense", torch.nn.Sequential(torch.nn.Linear(160, 64))),
        lambda model: model.train(),
        lambda model: model.double(),
        lambda model: model.encoder.layer[1].output.dense.register_parameter("bias", None),
    ]
    for change in changes:
        model = bert(seed)
        change(model)
        assert not freeze_layers(model)
    monkeypatch.setattr(prepacked_weights, "CHECK_ALL", True)
    assert not freeze_layers(bert(seed))


def test_offsets_and_rows_outside_of_the_tokens_are_refused(seed: int) -> None:
    model, batch = bert(seed), batch_with(seed)
    assert freeze_layers(model)
    tokens = sum(LENGTHS)
    with torch.no_grad(), same_in_every_batch():
        for rows in (torch.tensor([tokens]), torch.tensor([-1])):
            with pytest.raises(UserError, match=f"outside the {tokens} tokens"):
                model.encode(batch, token_indices=rows)
        batch.cu_seqlens[-1] += 1
        with pytest.raises(UserError, match=f"cu_seqlens ends at {tokens + 1}, but there are {tokens} tokens"):
            model.encode(batch)


def test_served_models_are_frozen(tmp_path: Path, seed: int) -> None:
    for name, folder in toy_folders(tmp_path, seed).items():
        assert load_served(name, str(folder), device="cpu", dtype="fp32").encoder.encoder.stack is not None, name

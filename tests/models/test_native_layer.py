"""The encoder on CPUs: a layer in one native call against its single operations, at every level; and what decides.

One file: every test runs the same layer at every CPU capability.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import cpu_kernels
import emulator
import pytest
import torch
from accuracy import assert_as_accurate
from torch import Tensor

import fastbert
from fastbert import _C, BertConfig, BertModel, PackedBatch, use_backend
from fastbert.errors import UserError
from fastbert.ops.encoder_layer import native_inference
from fastbert.ops.native import prepacked_weights

CONFIG = BertConfig.preset(
    "tiny", vocab_size=97, hidden_size=96, num_attention_heads=3, intermediate_size=160, num_hidden_layers=2,
    max_position_embeddings=160,
)  # fmt: skip
LENGTHS = [13, 1, 0, 40, 130]


@pytest.fixture(params=cpu_kernels.KERNELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every kernel, in software where this processor lacks it."""
    with cpu_kernels.running(request.param):
        yield request.param


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The dtypes in which the native layer multiplied, one per call."""
    made: list[str] = []
    original = native_inference._run

    def counted(*arguments) -> Tensor:
        made.append(arguments[-1])
        return original(*arguments)

    monkeypatch.setattr(native_inference, "_run", counted)
    return made


@pytest.fixture(autouse=True)
def layers_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_encoder_stack` tests all layers in one call."""
    monkeypatch.setattr("fastbert.models.encoder.current_stack", lambda *_: None)


def model_of(seed: int, dtype: torch.dtype = torch.bfloat16, config: BertConfig = CONFIG) -> BertModel:
    """Weights larger than a new model's, so that errors show."""
    model = BertModel(config)
    model.init_weights(seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return model.to(dtype).eval()


def batch_of(lengths: list[int], seed: int) -> PackedBatch:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    ids = torch.randint(0, 97, (sum(lengths),), generator=generator)
    return PackedBatch(input_ids=ids, cu_seqlens=ends, max_seqlen=max(lengths))


@torch.no_grad()
def states(model: BertModel, batch: PackedBatch, backend: str | None = None) -> Tensor:
    # Plain C++ multiplies only where it is asked to.
    forced = "native" if backend is None and _C.cpu_capability() == "portable" else backend
    with use_backend(forced):
        return model(batch).last_hidden_state


@pytest.mark.parametrize("tanh", [False, True], ids=["erf", "tanh"])
def test_is_as_accurate_as_torch(level: str, tanh: bool, calls: list[str], seed: int) -> None:
    config = replace(CONFIG, hidden_act="gelu_new" if tanh else "gelu")
    model, batch = model_of(seed, config=config), batch_of(LENGTHS, seed)
    executed = emulator.executed() if cpu_kernels.in_software(level) else 0
    actual = states(model, batch)
    assert calls == ["bf16"] * 2
    if cpu_kernels.in_software(level):
        assert emulator.executed() > executed, "the kernel's own instructions never ran"
    exact = states(model.double(), batch, "eager")
    assert_as_accurate(actual, states(model.bfloat16(), batch, "eager"), exact, floor=2e-3)


def test_autocast_serves_fp32_weights(level: str, calls: list[str], seed: int) -> None:
    model, batch = model_of(seed, torch.float32), batch_of(LENGTHS, seed)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual, expected = states(model, batch), states(model, batch, "eager")
    assert calls == ["bf16"] * 2
    assert actual.dtype == expected.dtype == torch.bfloat16
    assert_as_accurate(actual, expected, states(model.double(), batch, "eager"), floor=2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_int8_is_close_and_undone(level: str, dtype: torch.dtype, calls: list[str], seed: int) -> None:
    model, batch = model_of(seed, dtype), batch_of(LENGTHS, seed)
    before = states(model, batch)
    count = len(calls)
    assert model.quantize("int8") is model
    quantised = states(model, batch)
    assert calls[count:] == ["int8"] * 2
    exact = states(model.double(), batch, "eager")
    model.to(dtype)
    cosine = torch.nn.functional.cosine_similarity(quantised.double(), exact, dim=-1)
    assert cosine.min() > 0.99
    assert not torch.equal(quantised, before)
    assert torch.equal(states(model.quantize(None), batch), before)


@pytest.mark.parametrize("kind", ["bf16", "int8", "autocast"])
def test_a_text_has_the_same_bits_in_every_batch(level: str, kind: str, seed: int) -> None:
    model = model_of(seed, torch.float32 if kind == "autocast" else torch.bfloat16)
    model.quantize("int8" if kind == "int8" else None)
    lengths = [13, 128, 1, 64, 129, 17, 40]
    if level == "avx512-bf16" and cpu_kernels.in_software(level):
        lengths = [13, 33, 1, 17]  # of its instructions the emulator executes a million in seconds
    batch = batch_of(lengths, seed)
    threads = torch.get_num_threads()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
        whole = states(model, batch)
        order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed)).tolist()
        pieces = [batch[i].input_ids for i in order]
        ends = torch.tensor([0, *map(len, pieces)]).cumsum(0).int()
        shuffled = PackedBatch(input_ids=torch.cat(pieces), cu_seqlens=ends, max_seqlen=160)
        try:
            torch.set_num_threads(1)
            moved = states(model, shuffled)
            torch.set_num_threads(3)
            alone = [states(model, batch[i]) for i in range(len(lengths))]
        finally:
            torch.set_num_threads(threads)
    for place, i in enumerate(order):
        rows = whole[batch.cu_seqlens[i] : batch.cu_seqlens[i + 1]]
        assert torch.equal(rows, moved[ends[place] : ends[place + 1]]), f"sequence {i} of length {lengths[i]}"
        assert torch.equal(rows, alone[i]), f"sequence {i} of length {lengths[i]} alone"


def test_padding_changes_nothing(level: str, seed: int) -> None:
    model, batch = model_of(seed), batch_of([5, 30, 17], seed)
    packed, padded = states(model, batch), batch.unpack()
    padded.pop("labels", None)
    for extra in (0, 9):
        inputs = {name: torch.nn.functional.pad(values, (0, extra)) for name, values in padded.items()}
        with torch.no_grad(), use_backend("native" if level == "portable" else None):
            actual = model(**inputs).last_hidden_state
        mask = inputs["attention_mask"].bool()
        assert torch.equal(actual[mask], packed)
        assert not actual[~mask].any()


def test_a_nan_stays_in_its_sequence(level: str, seed: int) -> None:
    model, batch = model_of(seed), batch_of([20, 20, 33], seed)
    before = states(model, batch)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[96] = torch.nan
    ids = batch.input_ids.clone()
    ids[ids == 96] = 0
    clean = states(model, replace(batch, input_ids=ids))
    ids[25] = 96
    hurt = states(model, replace(batch, input_ids=ids))
    assert hurt[20:40].isnan().all()
    assert torch.equal(hurt[:20], clean[:20])
    assert torch.equal(hurt[40:], clean[40:])
    assert before.isfinite().all()


def test_causal_attention(level: str, seed: int) -> None:
    model, batch = model_of(seed), batch_of([20, 33], seed)
    with torch.no_grad():
        actual, _ = model.encode(batch, causal=True)
        with use_backend("eager"):
            expected, _ = model.encode(batch, causal=True)
            exact, _ = model.double().encode(batch, causal=True)
    assert_as_accurate(actual, expected, exact, floor=2e-3)


def test_what_the_native_layer_leaves_to_single_operations(calls: list[str], seed: int) -> None:
    batch, model = batch_of([5, 9], seed), model_of(seed)
    model(batch)  # a gradient may be wanted
    assert calls == []
    with torch.no_grad():
        model.train()(batch)  # dropout
        assert calls == []
        model.eval()
        handle = model.encoder.layer[0].output.dense.register_forward_hook(lambda *_: None)
        model(batch)
        assert len(calls) == 1  # the layer without a hook
        handle.remove()
        model(batch)
        assert len(calls) == 3
        model.double()(batch)
        with use_backend("eager"):
            model.bfloat16()(batch)
        assert len(calls) == 3


def test_a_frozen_model_is_served_without_no_grad(calls: list[str], seed: int) -> None:
    model = model_of(seed).requires_grad_(False)
    model(batch_of([5, 9], seed))
    assert calls == ["bf16"] * 2


def test_quantised_models_train_with_their_own_weights(calls: list[str], seed: int) -> None:
    model, batch = model_of(seed, torch.float32).quantize("int8"), batch_of([5, 9], seed)
    model(batch).last_hidden_state.square().mean().backward()
    assert calls == []
    assert model.encoder.layer[0].output.dense.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("way", ["data", "in place", "optimizer", "load_state_dict"])
def test_changed_weights_are_used(way: str, seed: int) -> None:
    model, batch = model_of(seed, torch.float32), batch_of([5, 9], seed)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = states(model, batch)
        weight = model.encoder.layer[1].intermediate.dense.weight
        if way == "data":
            weight.data = weight.data * 1.5
        elif way == "in place":
            weight.data.mul_(1.5)
        elif way == "load_state_dict":
            model.load_state_dict({name: tensor * 1.1 for name, tensor in model.state_dict().items()})
        else:
            weight.grad = torch.ones_like(weight)
            torch.optim.AdamW([weight], lr=0.1, fused=True).step()
        second = states(model, batch)
        assert not torch.equal(first, second)
        prepacked_weights.forget(model.parameters())
        assert torch.equal(states(model, batch), second)


def test_compiled_whole(calls: list[str], seed: int) -> None:
    model = model_of(seed)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for lengths in ([5, 9], [20, 3, 7]):
        batch = batch_of(lengths, seed)
        with torch.no_grad():
            actual = compiled(batch).last_hidden_state
        torch.testing.assert_close(actual, states(model, batch), atol=0.05, rtol=0.05)
    assert calls


def test_the_compiled_operator_is_sound(seed: int) -> None:
    model, batch = model_of(seed), batch_of([5, 9], seed)
    weights = model.encoder.layer[0].fusible_parameters()
    assert weights is not None
    x = torch.randn(14, 96).bfloat16()
    arguments = (
        x,
        [w.detach() for w in weights],
        batch.cu_seqlens,
        3,
        1e-12,
        False,
        False,
        None,
        torch.bfloat16,
        "bf16",
    )
    torch.library.opcheck(torch.ops.fastbert.encoder_layer_native.default, arguments)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([1, 14], "cu_seqlens starts at 1: it must start at 0"),
        ([0, 9, 5, 14], "cu_seqlens decreases from 9 to 5 at sequence 1"),
        ([0, 5, 99], "cu_seqlens ends at 99, but there are 14 tokens"),
        ([0, -5, 14], "cu_seqlens decreases from 0 to -5"),
    ],
)
def test_wrong_offsets_are_named(offsets: list[int], message: str, seed: int) -> None:
    good = batch_of([5, 9], seed)
    batch = replace(good, cu_seqlens=torch.tensor(offsets, dtype=torch.int32))
    with pytest.raises(UserError, match=message):
        states(model_of(seed), batch)


@pytest.mark.parametrize(("lengths", "rows"), [([], 0), ([0], 0), ([0, 0], 0)])
def test_empty_batches(lengths: list[int], rows: int, level: str, seed: int) -> None:
    batch = PackedBatch(
        input_ids=torch.zeros(0, dtype=torch.int64), cu_seqlens=torch.zeros(len(lengths) + 1, dtype=torch.int32),
        max_seqlen=0,
    )  # fmt: skip
    assert states(model_of(seed), batch).shape == (rows, 96)


def test_nan_weights_give_nan_not_a_crash(level: str, seed: int) -> None:
    model, batch = model_of(seed), batch_of([5, 9], seed)
    with torch.no_grad():
        model.encoder.layer[0].intermediate.dense.weight[3, 5] = torch.nan
        model.encoder.layer[1].output.dense.weight[0] = torch.inf
    for kind in (None, "int8"):
        assert states(model.quantize(kind), batch).isnan().all()


def test_quantize_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UserError, match="quantize\\('int4'\\): choose \"int8\""):
        BertModel(CONFIG).quantize("int4")
    with pytest.raises(UserError, match="the model is on meta: int8 is for CPUs"), torch.device("meta"):
        BertModel(CONFIG).quantize("int8")


def test_the_fastest_dtype_is_chosen_by_name(tmp_path, seed: int) -> None:
    model_of(seed, torch.float32).save_pretrained(tmp_path)
    assert BertModel.from_pretrained(tmp_path).dtype == torch.float32
    fast = BertModel.from_pretrained(tmp_path, dtype="fastest").dtype
    features = _C.cpu_capability_features()
    if not torch.cuda.is_available():
        assert fast == (torch.bfloat16 if features["avx512_bf16"] else torch.float32)
    with pytest.raises(UserError, match="dtype='fast' must be a torch dtype"):
        BertModel.from_pretrained(tmp_path, dtype="fast")


def test_native_can_be_forced_and_says_what_it_lacks(seed: int) -> None:
    batch, model = batch_of([5, 9], seed), model_of(seed)
    assert torch.equal(states(model, batch, "native"), states(model, batch))
    with use_backend("native"), pytest.raises(UserError, match="backend 'native' does not support"):
        model.half()(batch)
    assert "native" in {choice.backend for choice in fastbert.ops.dispatch.report(torch.device("cpu"))}


@pytest.mark.parametrize("heads", [1, 2])
def test_heads_wider_than_the_kernels_take(heads: int, calls: list[str], seed: int) -> None:
    config = replace(CONFIG, hidden_size=520, num_attention_heads=heads, intermediate_size=64)
    model, batch = model_of(seed, config=config), batch_of([9, 14], seed)
    actual, expected = states(model, batch), states(model, batch, "eager")
    assert calls == []
    assert torch.nn.functional.cosine_similarity(actual.double(), expected.double(), dim=-1).min() > 0.999


def test_rows_of_another_width_are_named(seed: int) -> None:
    model, batch = model_of(seed), batch_of([5, 9], seed)
    model.embeddings.register_forward_hook(lambda module, inputs, output: output[:, :32])
    with pytest.raises(UserError, match="x has 32 columns, but the layer is 96 wide"):
        states(model, batch)


@pytest.mark.parametrize("what", ["weight", "bias", "offsets"])
def test_memory_that_was_given_back_is_named(what: str, seed: int) -> None:
    model, batch = model_of(seed), batch_of([5, 9], seed)
    dense = model.encoder.layer[0].output.dense
    lost = {"weight": dense.weight.data, "bias": dense.bias.data, "offsets": batch.cu_seqlens}[what]
    lost.untyped_storage().resize_(0)
    with pytest.raises(UserError, match="was given back"):
        states(model, replace(batch, sequence_ids=batch.sequence_ids))


def test_offsets_on_another_device_are_named(seed: int) -> None:
    model, batch = model_of(seed), batch_of([5, 9], seed)
    with pytest.raises(UserError, match="cu_seqlens is on meta, x on cpu"):
        states(model, replace(batch, cu_seqlens=batch.cu_seqlens.to("meta")))


def test_layers_that_train_in_bf16_get_rounded_numbers_of_rows(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """torch's library keeps a kernel for each number of rows: also where only the last layer is not ours."""

    class Adapted(torch.nn.Linear):
        pass

    model, batch = model_of(seed), batch_of([5, 9], seed)
    model.encoder.layer[1].output.dense.__class__ = Adapted
    rows = []
    original = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda x, *rest: (rows.append(len(x)), original(x, *rest))[1])
    model(batch)
    assert {count for count in rows if count > 2} == {64}


def test_parameters_can_be_swapped(seed: int) -> None:
    model, batch = model_of(seed), batch_of([5, 9], seed)
    before = states(model, batch)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        states(model, batch)
        model.float()
        states(model.bfloat16(), batch)
        model.load_state_dict(model.state_dict())
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert torch.equal(states(model, batch), before)


def test_a_few_weights_loaded_in_inference_mode(seed: int) -> None:
    with torch.inference_mode():
        model, batch = model_of(seed), batch_of([5, 9], seed)
        first = states(model, batch)
        changed = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        changed["encoder.layer.0.intermediate.dense.weight"][5, 3:20] += 4
        model.load_state_dict(changed)
        assert not torch.equal(states(model, batch), first)


def test_one_model_serves_threads_that_reset_it(seed: int) -> None:
    model, batch = model_of(seed), batch_of([5, 9], seed)
    expected = states(model, batch)

    def work(index: int) -> bool:
        equal = True
        for _ in range(40):
            if index % 2:
                model.eval()
            with torch.no_grad():
                equal = equal and torch.equal(model(batch).last_hidden_state, expected)
        return equal

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))

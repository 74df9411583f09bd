"""`accelerate` beside the models as they were: outputs, gradients, arguments, and the way back."""

import copy
import pickle
from typing import Any

import pytest
import torch
from accuracy import assert_as_accurate
from torch import Tensor

import fastbert
from fastbert.errors import UserError
from fastbert.integrations.accelerate import explain

pytest.importorskip("transformers", reason="needs transformers")
from toys import COLUMNS, FAMILIES, gradients, inputs, masks, real, toy

DTYPES = [pytest.param(torch.float32, id="fp32"), pytest.param(torch.bfloat16, id="bf16")]
HEADS = [
    "BertForPreTraining", "BertForMaskedLM", "BertForNextSentencePrediction", "BertForSequenceClassification",
    "BertForTokenClassification", "BertForQuestionAnswering", "RobertaForMaskedLM", "RobertaForSequenceClassification",
    "XLMRobertaForMaskedLM", "XLMRobertaForTokenClassification", "CamembertForMaskedLM", "ElectraForPreTraining",
    "ElectraForMaskedLM", "ElectraForSequenceClassification", "DistilBertForMaskedLM",
    "DistilBertForSequenceClassification", "DistilBertForQuestionAnswering",
]  # fmt: skip


def tokens_of(value: Tensor, there: Tensor) -> Tensor:
    """Return the rows of real tokens of an output with one row per token; other outputs whole."""
    return value[there] if value.shape[:2] == there.shape else value


def compare(model: Any, inputs: dict[str, Tensor], there: Tensor, dtype: torch.dtype, **options: Any) -> Any:
    """The accelerated model's output, compared field by field with the original's; the model stays accelerated."""
    exact = copy.deepcopy(model).double()(**inputs, **options)
    model.to(dtype)
    eager = model(**inputs, **options)
    assert fastbert.accelerate(model) is model
    actual = model(**inputs, **options)
    assert type(actual) is type(eager)
    assert list(actual.keys()) == list(eager.keys())
    for name in actual:
        triples = [(actual[name], eager[name], exact[name])]
        if isinstance(actual[name], tuple):
            triples = list(zip(actual[name], eager[name], exact[name], strict=True))
        for i, (result, reference, truth) in enumerate(triples):
            parts = (tokens_of(value, there) for value in (result, reference, truth))
            assert_as_accurate(*parts, f"{name} {i}", factor=4.0)  # a head has few numbers to be lucky with
    return actual


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["none", "full", "right", "holes"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_an_encoder_gives_what_it_gave(family: str, mask: str, dtype: torch.dtype, seed: int) -> None:
    there = real(masks()[mask])
    kwargs = inputs(seed, masks()[mask], segments=family in ("Bert", "Electra"))
    actual = compare(toy(f"{family}Model", seed), kwargs, there, dtype, output_hidden_states=True)
    assert not actual.last_hidden_state[~there].any(), "outputs at padding must be zeros"
    assert all(not state[~there].any() for state in actual.hidden_states)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HEADS)
@torch.no_grad()
def test_a_head_gives_what_it_gave(name: str, dtype: torch.dtype, seed: int) -> None:
    mask = masks()["right"]
    compare(toy(name, seed), inputs(seed, mask), real(mask), dtype)


@torch.no_grad()
def test_choices_are_scored_as_before(seed: int) -> None:
    model, mask = toy("BertForMultipleChoice", seed), masks()["right"]
    kwargs = {name: tensor.view(2, 2, COLUMNS) for name, tensor in inputs(seed, mask).items()}
    compare(model, kwargs, torch.ones(2, 2, dtype=torch.bool), torch.float32)


@pytest.mark.parametrize("name", ["BertModel", "RobertaForMaskedLM", "ElectraForMaskedLM", "DistilBertModel"])
@pytest.mark.parametrize("mask", ["none", "holes"])
def test_gradients_are_those_of_the_original(name: str, mask: str, seed: int) -> None:
    there, kwargs = real(masks()[mask]), inputs(seed, masks()[mask])
    model = toy(name, seed).train()
    double = copy.deepcopy(model).double()
    upstream = None
    results = []
    for one in (double, model, fastbert.accelerate(copy.deepcopy(model))):
        value = one(**kwargs)[0][there]
        if upstream is None:
            upstream = torch.randn(value.shape, generator=torch.Generator().manual_seed(seed))
        results.append(gradients(one, value, upstream))
    exact, eager, actual = results
    assert actual.keys() == eager.keys()
    for parameter, truth in exact.items():
        assert_as_accurate(actual[parameter], eager[parameter], truth, parameter, factor=4.0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("backend", ["eager", "triton"])
@pytest.mark.parametrize("name", ["BertForMaskedLM", "DistilBertModel"])
def test_other_backends(name: str, backend: str, seed: int) -> None:
    if backend == "triton":
        pytest.importorskip("triton", reason="needs triton")
    there, kwargs = real(masks()["holes"]), inputs(seed, masks()["holes"])
    model = toy(name, seed).train()
    upstream = None
    results = []
    for accelerated in (False, True):
        with fastbert.use_backend(backend):
            one = fastbert.accelerate(copy.deepcopy(model)) if accelerated else model
            value = one(**kwargs)[0][there]
            upstream = torch.randn(value.shape) if upstream is None else upstream
            results.append((value, gradients(one, value, upstream)))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-3, atol=1e-3)
    for parameter, grad in results[0][1].items():
        scale = max(1.0, float(grad.abs().max()))
        torch.testing.assert_close(results[1][1][parameter], grad, rtol=1e-3, atol=1e-3 * scale)


def test_the_padding_row_gets_no_gradient(seed: int) -> None:
    model = fastbert.accelerate(toy("BertModel", seed).train())
    ids = inputs(seed, None)["input_ids"]
    ids[:, 4] = 1  # the padding's id, attended as any other
    states = model(input_ids=ids).last_hidden_state
    states.backward(torch.randn(states.shape, generator=torch.Generator().manual_seed(seed)))
    grad = model.embeddings.word_embeddings.weight.grad
    assert not grad[1].any()
    assert grad[ids[0, 0]].any()


@pytest.mark.parametrize("name", ["BertModel", "DistilBertModel", "RobertaModel"])
def test_dropout_drops_in_training_alone(name: str, seed: int) -> None:
    kwargs = inputs(seed, masks()["right"])
    model = fastbert.accelerate(toy(name, seed, dropout=0.3))
    with torch.no_grad():
        assert torch.equal(model(**kwargs)[0], model(**kwargs)[0])
        still = model(**kwargs)[0]
        model.train()
        torch.manual_seed(seed)
        first, second = model(**kwargs)[0], model(**kwargs)[0]
        torch.manual_seed(seed)
        again = model(**kwargs)[0]
        average = torch.stack([model(**kwargs)[0] for _ in range(200)]).mean(0)
    assert not torch.equal(first, second)
    assert torch.equal(first, again), "dropout must follow torch's generator"
    there = real(masks()["right"])
    cosine = torch.nn.functional.cosine_similarity(average[there], still[there], dim=-1)
    assert cosine.min() > 0.6
    assert cosine.mean() > 0.85


def test_training_follows_the_same_losses(seed: int) -> None:
    """Parameters are shared, in place: an optimizer made before `accelerate` trains the accelerated model."""
    kwargs = inputs(seed, masks()["right"])
    labels = kwargs["input_ids"].masked_fill(~real(masks()["right"]), -100)
    losses = []
    for accelerated in (False, True):
        model = toy("BertForMaskedLM", seed).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if accelerated:
            fastbert.accelerate(model)
        losses.append([])
        for _ in range(8):
            loss = model(**kwargs, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    assert losses[1][-1] < 0.95 * losses[1][0]


def test_under_autocast_outputs_keep_their_dtypes(seed: int) -> None:
    kwargs = inputs(seed, masks()["right"])
    model = toy("BertModel", seed).train()
    outputs = []
    for one in (model, fastbert.accelerate(copy.deepcopy(model))):
        with torch.autocast("cpu", torch.bfloat16):
            outputs.append(one(**kwargs, output_hidden_states=True))
    expected, actual = outputs
    assert actual.last_hidden_state.dtype == expected.last_hidden_state.dtype == torch.float32
    assert actual.pooler_output.dtype == expected.pooler_output.dtype
    there = real(masks()["right"])
    difference = (actual.last_hidden_state - expected.last_hidden_state)[there].abs().max()
    assert difference < 0.2


@torch.no_grad()
def test_left_padding_is_served_where_nothing_reads_the_first_column(seed: int) -> None:
    mask = masks()["left"]
    for family in ("Electra", "DistilBert"):
        actual = compare(toy(f"{family}Model", seed), inputs(seed, mask), real(mask), torch.float32)
        assert not actual.last_hidden_state[~real(mask)].any()
    model = toy("ElectraForSequenceClassification", seed)
    kwargs = inputs(seed, mask)
    before = model(**kwargs).logits
    assert torch.equal(fastbert.accelerate(model)(**kwargs).logits, before)


@pytest.mark.parametrize("name", ["BertModel", "RobertaModel", "DistilBertModel", "ElectraModel"])
@torch.no_grad()
def test_embeddings_and_positions_of_ones_own(name: str, seed: int) -> None:
    mask = masks()["holes"]
    model, kwargs = toy(name, seed), inputs(seed, mask)
    vectors = model.embeddings.word_embeddings(kwargs.pop("input_ids"))
    actual = compare(model, {"inputs_embeds": vectors, **kwargs}, real(mask), torch.float32)
    assert not actual.last_hidden_state[~real(mask)].any()
    positions = torch.arange(COLUMNS).flip(0)[None] + 2
    for ids in (positions, positions.expand(4, -1)):
        fastbert.restore(model)
        compare(model, {**inputs(seed, mask), "position_ids": ids}, real(mask), torch.float32)
    assert not explain(fastbert.restore(model))


@torch.no_grad()
def test_arguments_by_position_and_tuples(seed: int) -> None:
    for name in ("BertModel", "DistilBertModel"):
        model, kwargs = toy(name, seed), inputs(seed, masks()["right"])
        before = model(kwargs["input_ids"], kwargs["attention_mask"], return_dict=False)
        actual = fastbert.accelerate(model)(kwargs["input_ids"], kwargs["attention_mask"], return_dict=False)
        assert isinstance(actual, tuple)
        assert len(actual) == len(before)
        there = real(masks()["right"])
        torch.testing.assert_close(actual[0][there], before[0][there], rtol=1e-4, atol=1e-4)


def test_restore_gives_everything_back(seed: int) -> None:
    model = toy("BertForMaskedLM", seed)
    state, keys = dict(vars(model.bert)), list(model.state_dict())
    kwargs = inputs(seed, masks()["right"])
    with torch.no_grad():
        before = model(**kwargs).logits
        fastbert.accelerate(fastbert.accelerate(model))
        assert list(model.state_dict()) == keys
        assert not torch.equal(model(**kwargs).logits, before)
        fastbert.restore(model)
        assert torch.equal(model(**kwargs).logits, before)
    assert vars(model.bert).keys() == state.keys()
    assert fastbert.restore(model) is model


@torch.no_grad()
def test_copies_files_and_moves(seed: int, tmp_path: Any) -> None:
    model, kwargs = toy("BertForMaskedLM", seed), inputs(seed, masks()["right"])
    fastbert.accelerate(model)
    actual = model(**kwargs).logits
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(**kwargs).logits, actual)
        other.bert.encoder.layer[0].output.dense.weight.mul_(2.0)
        assert not torch.equal(other(**kwargs).logits, actual)
        assert torch.equal(model(**kwargs).logits, actual), "a copy must not compute with the original's weights"
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(fastbert.accelerate(loaded)(**kwargs).logits, actual)
    model.load_state_dict({name: tensor * 0.5 for name, tensor in model.state_dict().items()})
    half = fastbert.restore(copy.deepcopy(model))(**kwargs).logits
    there = real(masks()["right"])
    torch.testing.assert_close(model(**kwargs).logits[there], half[there], rtol=1e-4, atol=1e-4)


def test_an_empty_row_and_an_empty_batch(seed: int) -> None:
    model, kwargs = toy("ElectraModel", seed), inputs(seed, masks()["right"])
    kwargs["attention_mask"][1] = 0
    fastbert.accelerate(model)
    with torch.no_grad():
        output = model(**kwargs).last_hidden_state
    assert not output[1].any()
    assert output.isfinite().all()
    kwargs["attention_mask"][:] = 0
    with torch.no_grad():
        assert not model(**kwargs).last_hidden_state.any()


def test_ids_and_masks_that_do_not_fit(seed: int) -> None:
    model = fastbert.accelerate(toy("BertModel", seed))
    kwargs = inputs(seed, masks()["right"])
    with pytest.raises(RuntimeError, match=r"scalar types|Long"):  # the original's own
        model(input_ids=kwargs["input_ids"].float())
    with pytest.raises((UserError, IndexError), match=r"outside|out of range|211"):
        model(input_ids=torch.full((1, 3), 211))
    with pytest.raises(ValueError, match="exactly one"):
        model()


@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_compilers_tracers_and_exporters(seed: int) -> None:
    """Compiled around, since an encoder is one operation a layer already; traced and exported as the original."""
    model, kwargs = toy("BertModel", seed).requires_grad_(False), inputs(seed, masks()["right"])
    there = real(masks()["right"])
    before = model(**kwargs).last_hidden_state
    fastbert.accelerate(model)
    compiled = torch.compile(model, backend="eager")(**kwargs).last_hidden_state
    torch.testing.assert_close(compiled[there], before[there], rtol=1e-4, atol=1e-4)
    assert not compiled[~there].any()
    exported = torch.export.export(model, (), kwargs).module()(**kwargs).last_hidden_state
    torch.testing.assert_close(exported, before, rtol=1e-4, atol=1e-4)
    arguments = (kwargs["input_ids"], kwargs["attention_mask"])
    traced = torch.jit.trace(lambda *inner: model(*inner).last_hidden_state, arguments, check_trace=False)
    torch.testing.assert_close(traced(*arguments), before, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_quantised_layers_stay_close(seed: int) -> None:
    model, kwargs = toy("BertModel", seed), inputs(seed, masks()["right"])
    before = model(**kwargs).last_hidden_state
    actual = fastbert.accelerate(model, quantize="int8")(**kwargs).last_hidden_state
    there = real(masks()["right"])
    cosine = torch.nn.functional.cosine_similarity(actual[there], before[there], dim=-1)
    assert 0.99 < cosine.min() < 1.0
    with pytest.raises(UserError, match=r"quantize=.int4."):
        fastbert.accelerate(model, quantize="int4")

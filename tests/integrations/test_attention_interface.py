"""`attn_implementation="fastbert"`: transformers' encoders give what they give with sdpa, at every real token."""

import copy
import logging
from typing import Any

import pytest
import torch
from accuracy import assert_as_accurate
from attention_models import COLUMNS, CONFIGS, SHAPE, WITHOUT_DROPOUT, build, padding, run
from torch import Tensor

transformers = pytest.importorskip("transformers")

from fastbert import use_backend  # noqa: E402
from fastbert.errors import UserError  # noqa: E402
from fastbert.integrations.transformers import attention  # noqa: E402

pytestmark = pytest.mark.usefixtures("attention_interface")


KINDS = ["holes", "left", "right", "a-row-of-padding", "none"]


@pytest.mark.parametrize(
    ("family", "kind"), [(family, kind) for family in CONFIGS for kind in (KINDS if family == "bert" else KINDS[:2])]
)
def test_real_tokens_and_gradients_are_those_of_sdpa(family: str, kind: str, seed: int) -> None:
    config = CONFIGS[family]()
    mask = padding(kind)
    kept = mask.bool()
    ids = torch.randint(3, 60, mask.shape, generator=torch.Generator().manual_seed(seed))
    upstream = torch.randn(int(kept.sum()), 48, generator=torch.Generator().manual_seed(seed))
    inputs = {"input_ids": ids, "attention_mask": mask}
    actual = run(build(config, seed, "fastbert"), inputs, upstream, kept)
    expected = run(build(config, seed, "sdpa"), inputs, upstream, kept)
    # Eager attention would not do for the exact one: some models take its softmax in fp32, whatever the dtype.
    exact = run(build(config, seed, "sdpa", torch.float64), inputs, upstream, kept)
    assert len(actual) == len(expected) == len(exact) > 10
    for number, tensors in enumerate(zip(actual, expected, exact)):
        assert_as_accurate(*tensors, what=f"tensor {number}")
    assert torch.allclose(actual[0], expected[0], atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "electra", "xlm-roberta"])
def test_encoders_run_packed_and_find_the_tokens_once(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tokens, calls = [], []
    inner, of = attention.ops.attention, attention.Rows.from_mask
    monkeypatch.setattr(attention.ops, "attention", lambda q, *a, **k: (tokens.append(len(q)), inner(q, *a, **k))[1])
    monkeypatch.setattr(attention.Rows, "from_mask", lambda kept: (calls.append(1), of(kept))[1])
    mask = padding("holes")
    with caplog.at_level(logging.WARNING, "fastbert"):
        build(CONFIGS[name](), seed, "fastbert")(input_ids=mask + 3, attention_mask=mask)
    assert tokens == [int(mask.sum())] * 2
    assert calls == [1]
    assert caplog.messages == []


def test_a_model_loads_with_it(tmp_path: Any, seed: int) -> None:
    build(CONFIGS["bert"](), seed, "sdpa").save_pretrained(tmp_path)
    fast = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="fastbert")
    reference = transformers.AutoModel.from_pretrained(tmp_path)
    mask = padding("right")
    assert fast.config._attn_implementation == "fastbert"
    with torch.inference_mode():
        a, b = (m(input_ids=mask + 4, attention_mask=mask).last_hidden_state[mask.bool()] for m in (fast, reference))
    assert torch.allclose(a, b, atol=1e-5)


def test_what_stands_at_padding_changes_nothing(seed: int) -> None:
    model, mask = build(CONFIGS["bert"](), seed, "fastbert"), padding("holes")
    ids = torch.randint(3, 60, mask.shape)
    others = torch.where(mask.bool(), ids, torch.randint(3, 60, mask.shape))
    first, second = (model(input_ids=x, attention_mask=mask).last_hidden_state[mask.bool()] for x in (ids, others))
    assert torch.equal(first, second)


@pytest.mark.parametrize("kind", ["right", "left", "holes"])
def test_cross_attention_of_equal_length_keeps_every_query(kind: str, seed: int) -> None:
    """The keys' padding says nothing of the queries, whose own padding is different."""
    config = transformers.BertConfig(**SHAPE, is_decoder=True, add_cross_attention=True)
    mask, query_mask = padding(kind), padding("right").flip(0)
    g = torch.Generator().manual_seed(seed)
    inputs = {
        "input_ids": torch.randint(3, 60, mask.shape, generator=g),
        "attention_mask": query_mask,
        "encoder_hidden_states": torch.randn(3, COLUMNS, 48, generator=g),
        "encoder_attention_mask": mask,
    }
    kept = query_mask.bool()
    upstream = torch.randn(int(kept.sum()), 48, generator=g)
    exact = {**inputs, "encoder_hidden_states": inputs["encoder_hidden_states"].double()}
    actual, expected, double = (
        run(build(config, seed, name, dtype), kwargs, upstream, kept)
        for name, dtype, kwargs in (
            ("fastbert", torch.float32, inputs),
            ("sdpa", torch.float32, inputs),
            ("eager", torch.float64, exact),
        )
    )
    for number, tensors in enumerate(zip(actual, expected, double)):
        assert_as_accurate(*tensors, what=f"tensor {number}")


@pytest.mark.parametrize("name", ["BertLMHeadModel", "LlamaForCausalLM", "MistralForCausalLM"])
def test_a_decoder_with_a_cache_writes_what_it_writes_with_sdpa(name: str, seed: int) -> None:
    kind = getattr(transformers, name)
    settings: dict[str, Any] = {**SHAPE, "is_decoder": True}
    if name != "BertLMHeadModel":
        settings = {**WITHOUT_DROPOUT, "num_attention_heads": 4, "num_key_value_heads": 2}
    settings |= {"sliding_window": 4} if name.startswith("Mistral") else {}
    torch.manual_seed(seed)
    model = kind(kind.config_class(**settings, initializer_range=0.3)).eval()
    mask = padding("left")[:2]
    ids = torch.randint(3, 60, mask.shape)
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    texts, logits = [], []
    for implementation in ("fastbert", "sdpa"):
        model.set_attn_implementation(implementation)
        texts.append(model.generate(ids, attention_mask=mask, **options))
        logits.append(model(ids, attention_mask=mask).logits[mask.bool()])
    assert texts[0].shape == (2, COLUMNS + 6)
    assert torch.equal(*texts)
    assert torch.allclose(*logits, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_mask_of_the_users_own_goes_to_sdpa_and_is_said_once(
    dtype: torch.dtype, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    ids = torch.randint(3, 60, (2, COLUMNS), generator=torch.Generator().manual_seed(seed))
    allowed = torch.rand(2, 1, COLUMNS, COLUMNS, generator=torch.Generator().manual_seed(seed)) > 0.4
    allowed |= torch.eye(COLUMNS, dtype=torch.bool)
    mask = allowed if dtype == torch.bool else torch.zeros(allowed.shape).masked_fill(~allowed, -1e9)
    with caplog.at_level(logging.WARNING, "fastbert"):
        actual = build(CONFIGS["bert"](), seed, "fastbert")(input_ids=ids, attention_mask=mask).last_hidden_state
    expected = build(CONFIGS["bert"](), seed, "sdpa")(input_ids=ids, attention_mask=mask).last_hidden_state
    assert torch.equal(actual, expected)
    assert len(caplog.messages) == 1
    assert "BertSelfAttention runs in transformers' sdpa: the mask is one of its own" in caplog.messages[0]


def test_sequences_laid_end_to_end_do_not_see_each_other(seed: int) -> None:
    model = build(CONFIGS["bert"](), seed, "fastbert")
    ids = torch.randint(3, 60, (1, COLUMNS), generator=torch.Generator().manual_seed(seed))
    offsets, cuts = torch.tensor([0, 6, 17], dtype=torch.int32), [(0, 6), (6, 17)]
    lengths: dict[str, Any] = {
        "cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": 11, "max_length_k": 11,
    }  # fmt: skip
    places = torch.cat([torch.arange(end - start) for start, end in cuts])[None]
    packed = model(input_ids=ids, position_ids=places, **lengths).last_hidden_state
    alone = [model(input_ids=ids[:, start:end]).last_hidden_state for start, end in cuts]
    assert torch.allclose(packed, torch.cat(alone, 1), atol=1e-5)
    with pytest.raises(UserError, match="neither padding nor further rows"):
        model(input_ids=ids, attention_mask=padding("right")[1:2], **lengths)


@pytest.mark.parametrize("kind", ["right", "none"])
def test_probabilities_are_given_when_asked_for(kind: str, seed: int) -> None:
    mask = padding(kind)
    inputs = {"input_ids": mask + 5, "attention_mask": mask, "output_attentions": True}
    actual, expected = (build(CONFIGS["bert"](), seed, name)(**inputs) for name in ("fastbert", "eager"))
    assert len(actual.attentions) == 2
    for a, b in zip((*actual.attentions, actual.last_hidden_state), (*expected.attentions, expected.last_hidden_state)):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_of_activations_drop_the_same(reentrant: bool, seed: int) -> None:
    config = CONFIGS["bert"]()
    config.attention_probs_dropout_prob = 0.3
    mask = padding("right")
    gradients = []
    for checkpoints in (False, True):
        model = build(config, seed, "fastbert").train()
        if checkpoints:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        torch.manual_seed(seed)
        states = model(input_ids=mask + 5, attention_mask=mask).last_hidden_state[mask.bool()]
        states.square().mean().backward()
        gradients.append(model.encoder.layer[0].attention.self.query.weight.grad)
    assert gradients[0].abs().max() > 0
    assert torch.allclose(*gradients, atol=1e-7)


@pytest.mark.parametrize("backend", ["eager", "native", "triton"])
def test_every_backend_serves_it(backend: Any, seed: int) -> None:
    if backend == "triton":
        pytest.importorskip("triton")
    if backend == "native" and torch.cuda.is_available():
        pytest.skip("a CPU's backend")
    device = "cuda" if torch.cuda.is_available() and backend == "triton" else "cpu"
    config = transformers.BertConfig(**{**SHAPE, "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1})
    mask = padding("holes").to(device)
    expected = build(config, seed, "sdpa").to(device)(input_ids=mask + 5, attention_mask=mask).last_hidden_state
    with use_backend(backend):
        actual = build(config, seed, "fastbert").to(device)(input_ids=mask + 5, attention_mask=mask).last_hidden_state
    assert torch.allclose(actual[mask.bool()], expected[mask.bool()], atol=1e-5)


def test_autocast_runs_in_its_dtype(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes, inner = [], attention.ops.attention
    monkeypatch.setattr(attention.ops, "attention", lambda q, *a, **k: (dtypes.append(q.dtype), inner(q, *a, **k))[1])
    mask = padding("holes")
    with torch.autocast("cpu", torch.bfloat16):
        actual, expected = (
            build(CONFIGS["bert"](), seed, name)(input_ids=mask + 5, attention_mask=mask).last_hidden_state[mask.bool()]
            for name in ("fastbert", "sdpa")
        )
    assert dtypes == [torch.bfloat16] * 2
    assert actual.dtype == expected.dtype
    assert torch.nn.functional.cosine_similarity(actual.float(), expected.float()).min() > 0.999


@pytest.mark.parametrize("kind", ["right"])
def test_compiled_it_computes_the_same(kind: str, seed: int) -> None:
    model, mask = build(CONFIGS["bert"](), seed, "fastbert"), padding(kind)
    plain = model(input_ids=mask + 5, attention_mask=mask).last_hidden_state
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager")(input_ids=mask + 5, attention_mask=mask).last_hidden_state
    assert torch.allclose(plain[mask.bool()], compiled[mask.bool()], atol=1e-5)
    layers = copy.deepcopy(model)  # the mask from Python, the layers from a graph
    for layer in layers.encoder.layer:
        layer.compile(backend="eager")
    partly = layers(input_ids=mask + 5, attention_mask=mask).last_hidden_state
    assert torch.allclose(plain[mask.bool()], partly[mask.bool()], atol=1e-5)


class States(torch.nn.Module):
    """A model's hidden states, from two tensors, as tracers want it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return states


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("tracer", ["jit", "export"])
def test_what_is_traced_serves_other_masks(tracer: str, seed: int) -> None:
    model, ids = States(build(CONFIGS["bert"](), seed, "fastbert")).requires_grad_(False), padding("none") + 5
    inputs = (ids, padding("right"))
    if tracer == "jit":
        traced = torch.jit.trace(model, inputs, check_trace=False)
    else:
        traced = torch.export.export(model, inputs).module()
    for kind in ("right", "left", "holes"):
        kept = padding(kind).bool()
        assert torch.allclose(traced(ids, padding(kind))[kept], model(ids, padding(kind))[kept], atol=1e-5)


def test_transforms_of_torch_differentiate_it(seed: int) -> None:
    model, mask = States(build(CONFIGS["bert"](), seed, "fastbert")), padding("right")

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        states: Tensor = torch.func.functional_call(model, parameters, (mask + 5, mask))
        return states[mask.bool()].square().mean()

    parameters = dict(model.named_parameters())
    gradients = torch.func.grad(loss)(parameters)
    loss(parameters).backward()
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            assert torch.allclose(gradients[name], parameter.grad, atol=1e-6), name


@pytest.mark.parametrize("kind", ["right", "left"])
def test_a_model_with_position_biases_computes_the_same(kind: str, seed: int) -> None:
    config = transformers.T5Config(
        vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0,
    )  # fmt: skip
    mask = padding(kind)
    inputs = {"input_ids": mask + 5, "attention_mask": mask, "decoder_input_ids": mask[:, :4] + 7}
    actual, expected = (build(config, seed, name)(**inputs).last_hidden_state for name in ("fastbert", "sdpa"))
    assert torch.allclose(actual, expected, atol=1e-5)

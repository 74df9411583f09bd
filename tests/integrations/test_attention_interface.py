"""`attn_implementation="fastbert"`: transformers' encoders give what they give with sdpa, at every real token."""

import copy
import logging
import sys
from typing import Any

import pytest
import torch
from accuracy import assert_as_accurate
from torch import Tensor

transformers = pytest.importorskip("transformers")

from fastbert import use_backend  # noqa: E402
from fastbert.errors import UserError  # noqa: E402
from fastbert.integrations.transformers import attention  # noqa: E402
from fastbert.integrations.transformers.attention import register_attention  # noqa: E402

COLUMNS = 17
SHAPE = {
    "vocab_size": 60,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "attention_probs_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0,
}
WITHOUT_DROPOUT = {name: value for name, value in SHAPE.items() if not name.endswith("prob")}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
CONFIGS = {
    "bert": lambda: transformers.BertConfig(**SHAPE),
    "roberta": lambda: transformers.RobertaConfig(**SHAPE),
    "xlm-roberta": lambda: transformers.XLMRobertaConfig(**SHAPE),
    "electra": lambda: transformers.ElectraConfig(**SHAPE, embedding_size=20),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=60, dim=48, n_layers=2, n_heads=3, hidden_dim=64, dropout=0.0, attention_dropout=0.0
    ),
    "albert": lambda: transformers.AlbertConfig(**SHAPE, embedding_size=20),
    "modernbert-within-its-window": lambda: transformers.ModernBertConfig(
        **WITHOUT_DROPOUT, **SPECIAL, local_attention=64
    ),
    "modernbert-beyond-its-window": lambda: transformers.ModernBertConfig(
        **WITHOUT_DROPOUT, **SPECIAL, local_attention=8
    ),
    "eurobert-grouped-keys": lambda: transformers.EuroBertConfig(
        **WITHOUT_DROPOUT, **SPECIAL, head_dim=16, num_key_value_heads=1
    ),
    "mpnet-own-attention": lambda: transformers.MPNetConfig(**SHAPE),
}


@pytest.fixture(autouse=True, scope="module")
def registered() -> str:
    return register_attention()


@pytest.fixture(autouse=True)
def unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_logged", set())


def padding(kind: str) -> Tensor:
    mask = torch.ones(3, COLUMNS, dtype=torch.long)
    match kind:
        case "right":
            mask[1, 9:] = mask[2, 1:] = 0
        case "left":
            mask[1, :9] = mask[2, :-1] = 0
        case "holes":
            mask[0, 3:7] = mask[1, ::2] = mask[2, 0] = 0
        case "a-row-of-padding":
            mask[1] = 0
    return mask


def build(config: Any, seed: int, implementation: str, dtype: torch.dtype = torch.float32) -> Any:
    """The same weights for every implementation and dtype, larger than fresh ones, so that attention is no average."""
    torch.manual_seed(seed)
    model = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "embed" not in name:
                parameter.mul_(5)
    model.set_attn_implementation(implementation)
    return model.eval().to(dtype)


def run(model: Any, inputs: dict[str, Tensor], upstream: Tensor, is_token: Tensor) -> list[Tensor]:
    """The hidden states at real tokens, and the gradients of all parameters of a loss on them."""
    model.zero_grad()
    states = model(**inputs).last_hidden_state[is_token]
    (states * upstream.to(states.dtype)).sum().backward()
    return [states, *(p.grad for p in model.parameters() if p.grad is not None)]


KINDS = ["holes", "left", "right", "a-row-of-padding", "none"]


@pytest.mark.parametrize(
    ("family", "kind"), [(family, kind) for family in CONFIGS for kind in (KINDS if family == "bert" else KINDS[:2])]
)
def test_real_tokens_and_gradients_are_those_of_sdpa(family: str, kind: str, seed: int) -> None:
    config = CONFIGS[family]()
    mask = padding(kind)
    is_token = mask.bool()
    ids = torch.randint(3, 60, mask.shape, generator=torch.Generator().manual_seed(seed))
    upstream = torch.randn(int(is_token.sum()), 48, generator=torch.Generator().manual_seed(seed))
    inputs = {"input_ids": ids, "attention_mask": mask}
    ours = run(build(config, seed, "fastbert"), inputs, upstream, is_token)
    theirs = run(build(config, seed, "sdpa"), inputs, upstream, is_token)
    # Eager attention would not do for the exact one: some models take its softmax in fp32, whatever the dtype.
    exact = run(build(config, seed, "sdpa", torch.float64), inputs, upstream, is_token)
    assert len(ours) == len(theirs) == len(exact) > 10
    for number, tensors in enumerate(zip(ours, theirs, exact)):
        assert_as_accurate(*tensors, what=f"tensor {number}")
    assert torch.allclose(ours[0], theirs[0], atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "electra", "xlm-roberta"])
def test_encoders_run_packed_and_find_the_tokens_once(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tokens, result = [], []
    inner, of = attention.ops.attention, attention.Rows.from_mask
    monkeypatch.setattr(attention.ops, "attention", lambda q, *a, **k: (tokens.append(len(q)), inner(q, *a, **k))[1])
    monkeypatch.setattr(attention.Rows, "from_mask", lambda is_token: (result.append(1), of(is_token))[1])
    mask = padding("holes")
    with caplog.at_level(logging.WARNING, "fastbert"):
        build(CONFIGS[name](), seed, "fastbert")(input_ids=mask + 3, attention_mask=mask)
    assert tokens == [int(mask.sum())] * 2
    assert result == [1]
    assert caplog.messages == []


def test_a_model_loads_with_it(tmp_path: Any, seed: int) -> None:
    build(CONFIGS["bert"](), seed, "sdpa").save_pretrained(tmp_path)
    ours = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="fastbert")
    theirs = transformers.AutoModel.from_pretrained(tmp_path)
    mask = padding("right")
    assert ours.config._attn_implementation == "fastbert"
    with torch.inference_mode():
        a, b = (m(input_ids=mask + 4, attention_mask=mask).last_hidden_state[mask.bool()] for m in (ours, theirs))
    assert torch.allclose(a, b, atol=1e-5)


def test_what_stands_at_padding_changes_nothing(seed: int) -> None:
    model, mask = build(CONFIGS["bert"](), seed, "fastbert"), padding("holes")
    ids = torch.randint(3, 60, mask.shape)
    others = torch.where(mask.bool(), ids, torch.randint(3, 60, mask.shape))
    first, second = (model(input_ids=x, attention_mask=mask).last_hidden_state[mask.bool()] for x in (ids, others))
    assert torch.equal(first, second)


def test_without_padding_there_is_no_mask() -> None:
    from transformers.masking_utils import create_bidirectional_mask

    config = CONFIGS["bert"]()
    config._attn_implementation = "fastbert"
    for mask in (None, torch.ones(3, COLUMNS, dtype=torch.long)):
        assert create_bidirectional_mask(config, torch.zeros(3, COLUMNS, 48), mask) is None
    made = create_bidirectional_mask(config, torch.zeros(3, COLUMNS, 48), padding("left"))
    assert made is not None
    assert made.shape == (3, 1, COLUMNS, COLUMNS)
    assert torch.equal(made[1, 0, 0] == 0, padding("left")[1].bool())


class Plain(torch.nn.Module):
    """An attention module of nobody's."""

    is_causal = False


def heads(rows: int, count: int, columns: int, dim: int, seed: int) -> Tensor:
    return torch.randn(rows, count, columns, dim, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def sdpa(*inputs: Any, **options: Any) -> Tensor:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    result: Tensor = sdpa_attention_forward(*inputs, **options)[0]
    return result


@pytest.mark.parametrize("kind", ["right", "left", "holes"])
def test_cross_attention_of_equal_length_keeps_every_query(kind: str, seed: int) -> None:
    """The keys' padding says nothing of the queries, whose own is another."""
    config = transformers.BertConfig(**SHAPE, is_decoder=True, add_cross_attention=True)
    mask, other_mask = padding(kind), padding("right").flip(0)
    g = torch.Generator().manual_seed(seed)
    inputs = {
        "input_ids": torch.randint(3, 60, mask.shape, generator=g),
        "attention_mask": other_mask,
        "encoder_hidden_states": torch.randn(3, COLUMNS, 48, generator=g),
        "encoder_attention_mask": mask,
    }
    is_token = other_mask.bool()
    upstream = torch.randn(int(is_token.sum()), 48, generator=g)
    exact = {**inputs, "encoder_hidden_states": inputs["encoder_hidden_states"].double()}
    ours, theirs, double = (
        run(build(config, seed, name, dtype), arguments, upstream, is_token)
        for name, dtype, arguments in (
            ("fastbert", torch.float32, inputs),
            ("sdpa", torch.float32, inputs),
            ("eager", torch.float64, exact),
        )
    )
    for number, tensors in enumerate(zip(ours, theirs, double)):
        assert_as_accurate(*tensors, what=f"tensor {number}")


@pytest.mark.parametrize("name", ["BertLMHeadModel", "LlamaForCausalLM", "MistralForCausalLM"])
def test_a_decoder_with_a_cache_writes_what_it_writes_with_sdpa(name: str, seed: int) -> None:
    kind = getattr(transformers, name)
    fields: dict[str, Any] = {**SHAPE, "is_decoder": True}
    if name != "BertLMHeadModel":
        fields = {**WITHOUT_DROPOUT, "num_attention_heads": 4, "num_key_value_heads": 2}
    fields |= {"sliding_window": 4} if name.startswith("Mistral") else {}
    torch.manual_seed(seed)
    model = kind(kind.config_class(**fields, initializer_range=0.3)).eval()
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
        ours = build(CONFIGS["bert"](), seed, "fastbert")(input_ids=ids, attention_mask=mask).last_hidden_state
    theirs = build(CONFIGS["bert"](), seed, "sdpa")(input_ids=ids, attention_mask=mask).last_hidden_state
    assert torch.equal(ours, theirs)
    assert len(caplog.messages) == 1
    assert "BertSelfAttention runs in transformers' sdpa: the mask is one of its own" in caplog.messages[0]


def test_in_inference_mode_a_mask_that_can_be_written_to_has_no_note() -> None:
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    is_token = padding("right").bool()
    with torch.inference_mode():
        for function, noted in ((causal_mask_function, False), (bidirectional_mask_function, True)):
            mask = attention.attention_mask(3, 17, 17, 0, 0, function, is_token, device="cpu")
            assert (attention._padding(mask) is not None) == noted


@pytest.mark.parametrize("change", ["written", "cut"])
def test_a_mask_that_was_changed_counts_as_it_is(change: str, seed: int) -> None:
    is_token = padding("right").bool()
    options: dict[str, Any] = {"device": "cpu", "allow_is_bidirectional_skip": False}
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    function = causal_mask_function if change == "written" else bidirectional_mask_function
    mask = attention.attention_mask(3, 17, 17, 0, 0, function, is_token, **options)
    assert mask is not None
    assert attention._padding(mask) is not None
    assert attention._padding(mask.detach()) is not None, "checkpoints of activations detach what they keep"
    if change == "written":
        mask[:, :, 1:, 0] = torch.finfo(mask.dtype).min
    columns = 17 if change == "written" else 9
    mask = mask[..., :columns]
    q, k = heads(3, 2, 17, 8, seed), heads(3, 2, columns, 8, seed + 1)
    ours, _ = attention.attention_forward(Plain(), q, k, k, mask)
    assert torch.allclose(ours, sdpa(Plain(), q, k, k, mask), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({"softcap": 50.0}, "does not compute capped scores", id="softcap"),
        pytest.param({"s_aux": torch.zeros(2)}, "does not compute attention sinks", id="sinks"),
        pytest.param({"sliding_window": 4}, "sliding_window=4 of 17 keys came without its mask", id="window"),
        pytest.param({"cu_seq_lens_q": torch.tensor([0, 17])}, "comes with cu_seq_lens_k", id="half-an-offset"),
    ],
)
def test_what_sdpa_would_leave_out_in_silence_is_refused(options: dict[str, Any], words: str, seed: int) -> None:
    q = heads(1, 2, 17, 8, seed)
    with pytest.raises(UserError, match=words):
        attention.attention_forward(Plain(), q, q, q, None, **options)


@pytest.mark.parametrize(
    ("q", "k", "v", "options"),
    [
        pytest.param((1, 2, 9, 300), (1, 2, 9, 300), (1, 2, 9, 300), {}, id="wide-heads"),
        pytest.param((1, 2, 9, 8), (1, 2, 9, 8), (1, 2, 9, 5), {}, id="values-of-another-width"),
        pytest.param((1, 2, 4, 8), (1, 2, 9, 8), (1, 2, 9, 8), {"is_causal": True}, id="causal-with-more-keys"),
        pytest.param(
            (1, 2, 9, 8), (1, 2, 9, 8), (1, 2, 9, 8), {"position_bias": torch.ones(1, 2, 9, 9).tril()}, id="bias"
        ),
        pytest.param((0, 2, 9, 8), (0, 2, 9, 8), (0, 2, 9, 8), {}, id="no-rows"),
        pytest.param((2, 2, 9, 8), (2, 2, 9, 8), (2, 2, 9, 8), {"is_causal": True}, id="served-causal"),
        pytest.param((2, 2, 4, 8), (2, 2, 9, 8), (2, 2, 9, 8), {}, id="served-fewer-queries"),
        pytest.param((2, 2, 1, 8), (2, 2, 9, 8), (2, 2, 9, 8), {"is_causal": True}, id="served-one-query"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_every_call_is_computed_as_sdpa_computes_it(
    q: Any, k: Any, v: Any, options: dict[str, Any], dtype: torch.dtype, seed: int
) -> None:
    inputs = [heads(*shape, seed + i).to(dtype) for i, shape in enumerate((q, k, v))]
    options = {name: x.to(dtype) if isinstance(x, Tensor) else x for name, x in options.items()}
    ours, weights = attention.attention_forward(Plain(), *inputs, None, scaling=0.3, **options)
    theirs = sdpa(Plain(), *inputs, None, scaling=0.3, **options)
    assert weights is None
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    assert torch.allclose(ours, theirs, atol=1e-5 if dtype in (torch.float32, torch.float64) else 2e-2)


def test_sequences_laid_end_to_end_do_not_see_each_other(seed: int) -> None:
    model = build(CONFIGS["bert"](), seed, "fastbert")
    ids = torch.randint(3, 60, (1, COLUMNS), generator=torch.Generator().manual_seed(seed))
    offsets, cuts = torch.tensor([0, 6, 17], dtype=torch.int32), [(0, 6), (6, 17)]
    lengths: dict[str, Any] = {
        "cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": 11, "max_length_k": 11,
    }  # fmt: skip
    positions = torch.cat([torch.arange(end - start) for start, end in cuts])[None]
    packed = model(input_ids=ids, position_ids=positions, **lengths).last_hidden_state
    alone = [model(input_ids=ids[:, start:end]).last_hidden_state for start, end in cuts]
    assert torch.allclose(packed, torch.cat(alone, 1), atol=1e-5)
    with pytest.raises(UserError, match="neither padding nor further rows"):
        model(input_ids=ids, attention_mask=padding("right")[1:2], **lengths)


@pytest.mark.parametrize("kind", ["right", "none"])
def test_probabilities_are_given_when_asked_for(kind: str, seed: int) -> None:
    mask = padding(kind)
    inputs = {"input_ids": mask + 5, "attention_mask": mask, "output_attentions": True}
    ours, theirs = (build(CONFIGS["bert"](), seed, name)(**inputs) for name in ("fastbert", "eager"))
    assert len(ours.attentions) == 2
    for a, b in zip((*ours.attentions, ours.last_hidden_state), (*theirs.attentions, theirs.last_hidden_state)):
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


def test_dropout_drops_a_share_and_scales_the_rest(seed: int) -> None:
    torch.manual_seed(seed)
    q, v = torch.zeros(8, 4, 128, 8), torch.ones(8, 4, 128, 8)
    out, _ = attention.attention_forward(Plain(), q, q, v, None, dropout=0.25)
    assert out.std() > 0.01
    assert abs(float(out.mean()) - 1) < 0.01
    again, _ = attention.attention_forward(Plain(), q, q, v, None, dropout=0.25)
    assert not torch.equal(out, again)


@pytest.mark.parametrize("backend", ["eager", "native", "triton"])
def test_every_backend_serves_it(backend: Any, seed: int) -> None:
    if backend == "triton":
        pytest.importorskip("triton")
    if backend == "native" and torch.cuda.is_available():
        pytest.skip("a CPU's backend")
    device = "cuda" if torch.cuda.is_available() and backend == "triton" else "cpu"
    config = transformers.BertConfig(**{**SHAPE, "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1})
    mask = padding("holes").to(device)
    theirs = build(config, seed, "sdpa").to(device)(input_ids=mask + 5, attention_mask=mask).last_hidden_state
    with use_backend(backend):
        ours = build(config, seed, "fastbert").to(device)(input_ids=mask + 5, attention_mask=mask).last_hidden_state
    assert torch.allclose(ours[mask.bool()], theirs[mask.bool()], atol=1e-5)


def test_autocast_runs_in_its_dtype(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes, inner = [], attention.ops.attention
    monkeypatch.setattr(attention.ops, "attention", lambda q, *a, **k: (dtypes.append(q.dtype), inner(q, *a, **k))[1])
    mask = padding("holes")
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = (
            build(CONFIGS["bert"](), seed, name)(input_ids=mask + 5, attention_mask=mask).last_hidden_state[mask.bool()]
            for name in ("fastbert", "sdpa")
        )
    assert dtypes == [torch.bfloat16] * 2
    assert ours.dtype == theirs.dtype
    assert torch.nn.functional.cosine_similarity(ours.float(), theirs.float()).min() > 0.999


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
        is_token = padding(kind).bool()
        assert torch.allclose(traced(ids, padding(kind))[is_token], model(ids, padding(kind))[is_token], atol=1e-5)


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
    ours, theirs = (build(config, seed, name)(**inputs).last_hidden_state for name in ("fastbert", "sdpa"))
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_names_of_others_are_not_taken() -> None:
    assert register_attention() == "fastbert"
    for name in ("sdpa", "eager", "flash_attention_2", "paged|fastbert", "someone/kernel"):
        with pytest.raises(UserError, match="is reserved or in use"):
            register_attention(name)


def test_without_transformers_there_is_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"needs transformers 5.10 or later .*pip install"):
        register_attention()

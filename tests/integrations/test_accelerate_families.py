"""`accelerate` of the encoders whose layers a spec describes, beside the models as they were."""

import copy
import logging
from typing import Any

import pytest
import torch
from accuracy import assert_as_accurate, assert_gradients_as_accurate
from torch import Tensor, nn

import fastbert
from fastbert.errors import UserError
from fastbert.integrations.accelerate import explain
from fastbert.integrations.forward_patch import patch_of

pytest.importorskip("transformers", reason="needs transformers")
from encoder_toys import KINDS, encoder
from toys import COLUMNS, gradients, inputs, masks, real

HEADS = [
    ("mpnet", "ForMaskedLM"), ("mpnet", "ForSequenceClassification"), ("modernbert", "ForMaskedLM"),
    ("modernbert", "ForTokenClassification"), ("modernbert", "ForQuestionAnswering"), ("deberta-v3", "ForMaskedLM"),
    ("deberta-v3", "ForSequenceClassification"), ("deberta-v2", "ForMaskedLM"), ("deberta-v2", "ForQuestionAnswering"),
    ("nomic", "ForMaskedLM"), ("nomic", "ForSequenceClassification"), ("eurobert", "ForMaskedLM"),
    ("eurobert", "ForSequenceClassification"), ("albert", "ForPreTraining"), ("albert", "ForTokenClassification"),
    ("jina-v3", "ForMaskedLM"), ("jina-v3", "ForSequenceClassification"),
]  # fmt: skip


def read_first(model: Any) -> bool:
    """Whether the encoder has a pooler, which reads the first column."""
    return getattr(model, "pooler", None) is not None


def compare(actual: Any, eager: Any, exact: Any, there: Tensor, what: str) -> None:
    """Compare outputs field by field, at tokens."""
    assert type(actual) is type(eager)
    assert list(actual.keys()) == list(eager.keys())
    for name in actual:
        triple = [one[name] if isinstance(one[name], tuple) else (one[name],) for one in (actual, eager, exact)]
        for result, reference, truth in zip(*triple, strict=True):
            parts = (v[there] if v.shape[:2] == there.shape else v for v in (result, reference, truth))
            assert_as_accurate(*parts, f"{what} {name}")


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_gives_what_it_gave(kind: str, seed: int) -> None:
    model = encoder(kind, seed)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    double = copy.deepcopy(model).double()
    for mask in ("none", "right", "left"):
        if mask == "left" and read_first(model):
            continue
        there, kwargs = real(masks()[mask]), inputs(seed, masks()[mask])
        kwargs["output_hidden_states"] = True
        with torch.no_grad():
            exact, eager = double(**kwargs), model(**kwargs)
            assert fastbert.accelerate(model) is model
            actual = model(**kwargs)
            as_tuple = model(**kwargs, return_dict=False)
        compare(actual, eager, exact, there, mask)
        assert all(not state[~there].any() for state in (actual.last_hidden_state, *actual.hidden_states))
        assert torch.equal(as_tuple[0], actual.last_hidden_state)
        assert not patch_of(model).reasons
        fastbert.restore(model)
        assert all(map(torch.equal, model(**kwargs).hidden_states, eager.hidden_states))
    assert len(explain(fastbert.accelerate(model))) == 1
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_texts_beyond_the_trained_length(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    for kind in ("modernbert", "deberta-v3"):
        model = fastbert.accelerate(encoder(kind, seed))
        longest = model.config.max_position_embeddings
        with torch.no_grad():
            model(torch.full((1, longest), 5))
            assert not caplog.records
            for _ in range(2):
                assert model(torch.full((1, longest + 1), 5)).last_hidden_state.isfinite().all()
        assert [f"has {longest + 1} tokens" in record.message for record in caplog.records] == [True], kind
        caplog.clear()
    model = fastbert.accelerate(encoder("mpnet", seed))
    rows = model.config.max_position_embeddings
    with pytest.raises(UserError, match=f"position_ids holds {rows}, outside the model's table of {rows} rows: trunc"):
        model(torch.full((1, rows - 1), 5))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_original(kind: str, seed: int) -> None:
    there, kwargs = real(masks()["right"]), inputs(seed, masks()["right"])
    model = encoder(kind, seed).train()
    upstream = torch.randn(int(there.sum()), 32, generator=torch.Generator().manual_seed(seed))
    results = []
    for one in (copy.deepcopy(model).double(), model, fastbert.accelerate(copy.deepcopy(model))):
        results.append(gradients(one, one(**kwargs).last_hidden_state[there], upstream))
    exact, eager, actual = results
    assert_gradients_as_accurate(actual, eager, exact)


@pytest.mark.parametrize(("kind", "head"), HEADS)
@torch.no_grad()
def test_a_head_gives_what_it_gave(kind: str, head: str, seed: int) -> None:
    mask = masks()["right"]
    there, kwargs = real(mask), inputs(seed, mask)
    model = encoder(kind, seed, head)
    exact, eager = copy.deepcopy(model).double()(**kwargs), model(**kwargs)
    compare(fastbert.accelerate(model)(**kwargs), eager, exact, there, head)
    assert not any(patch.reasons for patch in map(patch_of, model.modules()) if patch is not None)


@torch.no_grad()
def test_choices_are_scored_as_before(seed: int) -> None:
    kwargs = {name: tensor.view(2, 2, COLUMNS) for name, tensor in inputs(seed, masks()["right"]).items()}
    for kind in ("mpnet", "deberta-v3", "albert", "modernbert"):
        model = encoder(kind, seed, "ForMultipleChoice")
        before = model(**kwargs).logits
        torch.testing.assert_close(fastbert.accelerate(model)(**kwargs).logits, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["mpnet", "modernbert", "deberta-v3", "nomic", "eurobert", "albert"])
@torch.no_grad()
def test_dtypes_and_int8_stay_close(kind: str, seed: int) -> None:
    mask = masks()["right"]
    there, kwargs = real(mask), inputs(seed, mask)
    model = encoder(kind, seed)
    exact = copy.deepcopy(model).double()(**kwargs).last_hidden_state[there]
    eight = fastbert.accelerate(copy.deepcopy(model), quantize="int8")(**kwargs).last_hidden_state[there]
    cosine = torch.cosine_similarity(eight.double(), exact, dim=-1)
    assert cosine.mean() > 0.99
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(**kwargs).last_hidden_state
        actual = fastbert.accelerate(model)(**kwargs).last_hidden_state
    assert_as_accurate(actual[there], mixed[there], exact, "autocast")
    half = fastbert.restore(model).to(torch.bfloat16)
    eager = half(**kwargs).last_hidden_state
    actual = fastbert.accelerate(half)(**kwargs).last_hidden_state
    assert_as_accurate(actual[there], eager[there], exact, "bf16")


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_positions_and_embeddings_of_ones_own(kind: str, seed: int) -> None:
    mask = masks()["right"]
    there, kwargs = real(mask), inputs(seed, mask)
    model = encoder(kind, seed)
    embeds = torch.randn(4, COLUMNS, model.get_input_embeddings().embedding_dim)
    cases = [
        {"inputs_embeds": embeds, "attention_mask": mask},
        {**kwargs, "position_ids": torch.arange(COLUMNS)[None] * 2 + 3},
    ]
    before = [model(**case).last_hidden_state for case in cases]
    fastbert.accelerate(model)
    for case, expected in zip(cases, before, strict=True):
        actual = model(**case).last_hidden_state
        torch.testing.assert_close(actual[there], expected[there], rtol=1e-4, atol=1e-4)
    assert not patch_of(model).reasons


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_replayed(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastbert.integrations.transformers import encoder as packed_forward

    model = fastbert.accelerate(encoder(kind, seed, dropout=0.3, num_hidden_layers=2))
    kwargs = inputs(seed, masks()["right"])
    quiet = model(**kwargs).last_hidden_state
    assert torch.equal(quiet, model(**kwargs).last_hidden_state)
    model.train()
    outputs = []
    for number in (seed, seed, seed + 1):
        torch.manual_seed(number)
        outputs.append(model(**kwargs).last_hidden_state)
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], quiet)
    if not getattr(type(model), "supports_gradient_checkpointing", False):
        return
    results, original = [], packed_forward.checkpoint
    model.gradient_checkpointing_enable()
    for function in (lambda layer, *args, use_reentrant: layer(*args), original):
        monkeypatch.setattr(packed_forward, "checkpoint", function)
        torch.manual_seed(seed)
        value = model(**kwargs).last_hidden_state
        results.append(gradients(model, value, torch.ones_like(value) * torch.arange(32)))
    for name, grad in results[0].items():
        assert grad.isfinite().all()
        torch.testing.assert_close(results[1][name], grad, rtol=1e-4, atol=1e-4 * max(1.0, float(grad.abs().max())))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_modules_with_hooks_or_of_another_class_run_their_own_forward(kind: str, seed: int) -> None:
    mask = masks()["right"]
    there, kwargs = real(mask), inputs(seed, mask)
    model = encoder(kind, seed)
    before = model(**kwargs).last_hidden_state
    fastbert.accelerate(model)
    layers = [module for module in model.modules() if type(module).__name__.endswith("Layer") and module is not model]
    others = [module for module in model.children() if not isinstance(module, nn.ModuleList)]
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv1d)]
    for module in (*layers[:2], *others, *convolutions):
        shapes: list[Any] = []

        def hook(module: nn.Module, args: Any, output: Any, shapes: list[Any] = shapes) -> None:
            shapes.append(output[0].shape if isinstance(output, tuple) else getattr(output, "shape", None))

        handle = module.register_forward_hook(hook)
        actual = model(**kwargs).last_hidden_state
        handle.remove()
        name = type(module).__name__
        torch.testing.assert_close(actual[there], before[there], rtol=1e-4, atol=1e-4, msg=name)
        assert shapes or "Rotary" in name, f"the hook of {name} was not called"
        assert all(shape is None or len(shape) != 3 or shape[0] in (1, 4) for shape in shapes)
    patch_of(model).reasons.clear()
    for name, linear in list(model.named_modules()):
        if type(linear) is nn.Linear and "layer" in name:
            linear.__class__ = type("QuantisedLinear", (nn.Linear,), {"__module__": "torchao.toy"})
    actual = model(**kwargs).last_hidden_state
    torch.testing.assert_close(actual[there], before[there], rtol=1e-4, atol=1e-4)
    assert len(explain(model)) == 1


def test_adapters(seed: int) -> None:
    peft = pytest.importorskip("peft", reason="needs peft")
    mask = masks()["right"]
    there, kwargs = real(mask), inputs(seed, mask)
    for kind, targets in (
        ("modernbert", ["Wqkv", "Wi"]),
        ("nomic", ["q_proj", "gate_proj"]),
        ("deberta-v3", ["query_proj"]),
    ):
        model = peft.get_peft_model(encoder(kind, seed), peft.LoraConfig(target_modules=targets, r=2))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.normal_(0.0, 0.2)
        upstream = torch.randn(int(there.sum()), 32)
        before = model(**kwargs).last_hidden_state[there]
        expected = gradients(model, before, upstream)
        after = fastbert.accelerate(model)(**kwargs).last_hidden_state[there]
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
        for name, grad in gradients(model, after, upstream).items():
            torch.testing.assert_close(grad, expected[name], rtol=1e-3, atol=1e-3 * max(1.0, float(grad.abs().max())))


@torch.no_grad()
def test_unsupported_calls_fall_back_with_one_warning(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    kwargs = inputs(seed, masks()["right"])
    square = masks()["right"][:, None, None, :].expand(4, 1, COLUMNS, COLUMNS)
    holes = inputs(seed, masks()["holes"])
    cases: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
        "output_attentions=True": (("deberta-v3", "mpnet", "albert"), {**kwargs, "output_attentions": True}),
        "4 dimensions": (("nomic", "eurobert"), {**kwargs, "attention_mask": square.bool()}),
        "padding between tokens, whose distances count": (("mpnet", "modernbert", "deberta-v2"), holes),
        "padding in the first column, which the pooler or a head reads": (
            ("mpnet", "albert", "jina-v3"), inputs(seed, masks()["left"]),
        ),
    }  # fmt: skip
    for words, (kinds, case) in cases.items():
        for kind in kinds:
            options = {"attn_implementation": "eager"} if "output_attentions" in case else {}
            model = encoder(kind, seed, **options)
            before = model(**case).last_hidden_state
            fastbert.accelerate(model)
            caplog.clear()
            with caplog.at_level(logging.WARNING, "fastbert"):
                assert torch.equal(model(**case).last_hidden_state, before)
                model(**case)
            line = f"{type(model).__name__} falls back to its original forward for calls with "
            messages = [record.message for record in caplog.records]
            assert [message.startswith(line) and words in message for message in messages] == [True], kind
    for kind in ("nomic", "eurobert", "albert", "jina-v3"):  # rotary and absolute positions are those of the columns
        model, there = encoder(kind, seed), real(masks()["holes"])
        before = model(**holes).last_hidden_state
        actual = fastbert.accelerate(model)(**holes).last_hidden_state
        torch.testing.assert_close(actual[there], before[there], rtol=1e-4, atol=1e-4)
        assert not patch_of(model).reasons


def test_models_that_are_not_known_are_named_and_left_alone(seed: int) -> None:
    import transformers

    small = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    longformer = transformers.LongformerConfig(**small, intermediate_size=32, attention_window=4)
    fnet = transformers.FNetConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, intermediate_size=32)
    models = {
        "FNetModel": transformers.FNetForMaskedLM(fnet),
        "LongformerModel": transformers.LongformerModel(longformer),
    }
    ropes = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    models["rope_type"] = encoder("nomic", seed, rope_parameters=ropes)
    changed = encoder("jina-v3", seed)
    changed.rotary_emb.inv_freq.mul_(0.5)
    models["rotary_emb.inv_freq"] = changed
    remote = encoder("nomic", seed)
    remote.__class__ = type("RemoteModel", (type(remote),), {"__module__": "transformers_modules.folder.modeling"})
    models["RemoteModel"] = remote
    for words, model in models.items():
        with pytest.raises(UserError, match=rf"{words}.* the model is unchanged"):
            fastbert.accelerate(model)
        assert all(patch_of(module) is None for module in model.modules())


def test_a_weight_that_changes_counts(seed: int) -> None:
    kwargs = inputs(seed, None)
    for kind in ("deberta-v3", "modernbert", "albert"):
        model = fastbert.accelerate(encoder(kind, seed))
        with torch.no_grad():
            model(**kwargs)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model(**kwargs).last_hidden_state.square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            actual = model(**kwargs).last_hidden_state
            expected = fastbert.restore(model)(**kwargs).last_hidden_state
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)

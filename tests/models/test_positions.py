"""Positions that attention reads: buckets and angles as transformers', keys that are left out, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_families import CASES, MODERN, SHAPE, padded

import fastbert
from fastbert.errors import UserError
from fastbert.models import registry
from fastbert.models.architecture import RelativeBiasSpec, RelativeEmbeddingsSpec
from fastbert.models.keyed import KeyedBatch
from fastbert.models.positions import relative_bias_rows, relative_embedding_rows
from fastbert.models.rotary import frequencies, rotary_spec
from fastbert.ops.dispatch import use_backend

transformers = pytest.importorskip("transformers")


def test_buckets_of_all_distances_equal_transformers() -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    distances = torch.arange(-5000, 5001)
    rows = relative_bias_rows(distances, RelativeBiasSpec(32))
    assert torch.equal(rows, MPNetEncoder.relative_position_bucket(distances))
    assert (int(rows.min()), int(rows.max())) == (0, 31)
    queries = torch.empty(1, 1, 1500, 1)
    for buckets, longest in ((256, 512), (8, 64), (32, 128), (6, 2000), (-1, 40)):
        span = buckets if buckets > 0 else longest
        expected = build_relative_position(queries, queries, bucket_size=buckets, max_position=longest)[0]
        expected = (expected + span).clamp(0, 2 * span - 1)
        spec = RelativeEmbeddingsSpec(span, buckets if buckets > 0 else None, longest)
        place = torch.arange(1500)
        assert torch.equal(relative_embedding_rows(place - place[:, None], spec), expected), (buckets, longest)


def test_frequencies_equal_transformers() -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for parameters in (
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.8, "beta_fast": 16, "beta_slow": 2},
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.7, "truncate": False},
    ):
        values = {"rope_theta": 5000.0, "original_max_position_embeddings": 512, **parameters}
        config = transformers.EuroBertConfig(**SHAPE, rope_parameters=dict(values))
        expected, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, None)
        inverse, ours = frequencies(rotary_spec(values, 8, 64))
        assert torch.equal(inverse, expected), parameters
        assert ours == factor, parameters


@pytest.mark.parametrize("case", ["nomic", "deberta-v3", "modernbert"])
def test_keys_that_are_left_out(case: str, seed: int) -> None:
    """Of models with rotary positions they are as if masked; windows and relative positions are refused."""
    prefix, values = CASES[case]
    torch.manual_seed(seed)
    config = registry.find_class(f"{prefix}Model").config_type.from_dict(values)  # type: ignore[union-attr]
    model = getattr(fastbert, f"{prefix}Model")(config).eval()
    ids, keys = padded(case, seed)["input_ids"][:1, :12], torch.tensor([0, 1, 4, 7])
    batch = KeyedBatch(
        input_ids=ids[0], cu_seqlens=torch.tensor([0, 12]).int(), max_seqlen=12, key_indices=keys,
        cu_seqlens_k=torch.tensor([0, 4]).int(),
    )  # fmt: skip
    if case != "nomic":
        with pytest.raises(UserError, match="use a model with absolute or rotary positions"):
            model(batch)
        return
    mask = torch.zeros(1, 12, dtype=torch.int64)
    mask[0, keys] = 1
    with torch.no_grad():
        expected = model(ids, mask).last_hidden_state[0, keys]
        torch.testing.assert_close(model(batch).last_hidden_state[keys], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("case", "table"), [("mpnet", "bias"), ("deberta-v3", "embeddings")])
@torch.no_grad()
def test_hooks_of_tables_of_relative_positions_run(case: str, table: str, seed: int) -> None:
    prefix, values = CASES[case]
    torch.manual_seed(seed)
    config = registry.find_class(f"{prefix}Model").config_type.from_dict(values)  # type: ignore[union-attr]
    model, inputs = getattr(fastbert, f"{prefix}Model")(config).eval(), padded(case, seed)
    module = getattr(model.positions, table)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0.0, 0.3)
    module.weight.normal_(0.0, 2.0)
    before = model(**inputs).last_hidden_state
    handle = module.register_forward_hook(lambda _, __, output: output.sin())
    hooked = [model(**inputs).last_hidden_state for _ in range(2)]
    handle.remove()
    module.weight.copy_(module.weight.sin())
    expected = model(**inputs).last_hidden_state
    assert (expected - before).abs().max() > 1e-3
    for states in hooked:
        torch.testing.assert_close(states, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", ["modernbert", "eurobert", "nomic"])
@torch.no_grad()
def test_dtypes_under_autocast_do_not_depend_on_the_backend(case: str, seed: int, tmp_path: Path) -> None:
    """Those of encoders with norms in front are transformers'."""
    prefix, values = CASES[case]
    torch.manual_seed(seed)
    reference = getattr(transformers, f"{prefix}Model")(getattr(transformers, f"{prefix}Config")(**values)).eval()
    reference.save_pretrained(tmp_path)
    model, inputs = fastbert.load(tmp_path).eval(), padded(case, seed)
    with torch.autocast("cpu", torch.bfloat16):
        theirs, actual = (one(**inputs, output_hidden_states=True) for one in (reference, model))
        with use_backend("eager"):
            eager = model(**inputs, output_hidden_states=True)
    dtypes = [[state.dtype for state in (x.last_hidden_state, *x.hidden_states)] for x in (actual, eager, theirs)]
    assert dtypes[0] == dtypes[1]
    assert case == "nomic" or dtypes[0] == dtypes[2] == [torch.float32] * (values["num_hidden_layers"] + 2)


def test_a_layer_in_another_dtype_is_named(seed: int) -> None:
    prefix, values = CASES["deberta-v3"]
    torch.manual_seed(seed)
    config = registry.find_class(f"{prefix}Model").config_type.from_dict(values)  # type: ignore[union-attr]
    model, inputs = getattr(fastbert, f"{prefix}Model")(config).eval(), padded("deberta-v3", seed)
    model.encoder.layer[1].to(torch.bfloat16)
    for trains in (False, True):
        with (
            torch.set_grad_enabled(trains),
            pytest.raises(UserError, match=r"^layer 1: the weight of .* has dtype torch.bfloat16, but its input torch"),
        ):
            model(**inputs)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert model(**inputs).last_hidden_state.isfinite().all()


def test_z_steps_repeat_the_last_layer(seed: int, tmp_path: Path) -> None:
    _, values = CASES["deberta-v3"]
    torch.manual_seed(seed)
    reference = transformers.DebertaV2Model(transformers.DebertaV2Config(**values)).eval()
    reference.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "z_steps": 3}))
    model = fastbert.load(tmp_path)
    ids, encoder = padded("deberta-v3", seed)["input_ids"][:1], reference.encoder
    mask = torch.ones(1, 1, 20, 20)
    with torch.no_grad():
        states = reference(ids, output_hidden_states=True).hidden_states
        queries = states[-1]
        for _ in range(2):
            queries = encoder.layer[-1](
                states[-2], mask, query_states=queries, relative_pos=encoder.get_rel_pos(states[-1]),
                rel_embeddings=encoder.get_rel_embedding(),
            )[0]  # fmt: skip
        torch.testing.assert_close(model(ids).last_hidden_state, queries, rtol=1e-5, atol=1e-5)
        batch = fastbert.PackedBatch(input_ids=ids[0], cu_seqlens=torch.tensor([0, 20]).int(), max_seqlen=20)
        rows, _ = model.encode(batch, token_indices=torch.tensor([3, 0]))
        torch.testing.assert_close(rows, queries[0, [3, 0]], rtol=1e-5, atol=1e-5)
    model.double().train().checkpoint_activations("layer")
    model(ids).last_hidden_state.square().sum().backward()
    assert model.encoder.layer[-1].attention.self.query.weight.grad.any()


def test_the_released_head_of_deberta_v3(seed: int, tmp_path: Path) -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2OnlyMLMHead

    _, values = CASES["deberta-v3"]
    torch.manual_seed(seed)
    config = registry.config_from_dict({**values, "model_type": "deberta-v2", "legacy": False})
    model = fastbert.DebertaV2ForMaskedLM(config).eval()
    model.save_pretrained(tmp_path)
    assert type(fastbert.load(tmp_path)) is fastbert.DebertaV2ForMaskedLM
    head = DebertaV2OnlyMLMHead(transformers.DebertaV2Config(**values)).eval()
    from safetensors.torch import load_file

    tensors = load_file(tmp_path / "model.safetensors")
    prefix = "lm_predictions."
    head.load_state_dict({name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)})
    ids = padded("deberta-v3", seed)["input_ids"][:1]
    with torch.no_grad():
        expected = head(model.deberta(ids).last_hidden_state, model.deberta.embeddings.word_embeddings)
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-5, atol=1e-5)


BAD: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("modernbert", {"local_attention": 0}, "local_attention=0 must be 2 tokens or more, half of them on each side"),
    ("modernbert", {"local_attention": 10**30}, "local_attention=1000.* must be 2 tokens or more"),
    ("modernbert", {"classifier_activation": []}, "classifier_activation="),
    ("modernbert", {"hidden_size": 36}, "rotary embeddings of 9 dims: they turn pairs, so use an even number"),
    ("modernbert", {"layer_types": ["full_attention"]}, "layer_types=.* must name full_attention or sliding_attention"),
    ("modernbert", {"hidden_activation": "mish"}, "hidden_act='mish' is not one of gelu, gelu_new"),
    ("modernbert", {"rope_parameters": {"full_attention": {"rope_theta": 0}}}, "rope_theta=0.0 must be a positive"),
    ("eurobert", {"rope_parameters": {"rope_type": "dynamic", "factor": 2}}, "rope_type='dynamic' is not supported"),
    ("eurobert", {"rope_parameters": {"rope_type": "yarn"}}, "factor=None must be a positive number for 'yarn'"),
    ("eurobert", {"num_key_value_heads": 3}, "num_key_value_heads=3 must divide num_attention_heads=4"),
    ("eurobert", {"rope_theta": "big"}, "rope_theta='big' must be a positive number"),
    ("mpnet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets=16: the table must have 32 rows"),
    ("deberta-v2", {"relative_attention": True, "pos_att_type": ["x2y"]}, "pos_att_type=.* must be of c2p and p2c"),
    ("deberta-v2", {"conv_kernel_size": 4}, "conv_kernel_size=4 .* the size must be odd"),
    ("deberta-v2", {"z_steps": 9}, "z_steps=9 must be from 0 to num_hidden_layers=3"),
    ("nomic_bert", {"n_embd": 32, "activation_function": "swiglu", "prenorm": True}, "prenorm=True is not supported"),
    ("albert", {"inner_group_num": 2}, "inner_group_num=2 is not supported, only 1"),
)


def test_invalid_configs_are_one_line_with_the_value() -> None:
    for kind, changes, message in BAD:
        values = {**(MODERN if kind == "modernbert" else SHAPE), "pad_token_id": 1, **changes, "model_type": kind}
        with pytest.raises(UserError, match=message) as error:
            registry.config_from_dict(values)
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="have 32 buckets, which do not fit a table of 20 rows"):
        RelativeBiasSpec(20)
    with pytest.raises(UserError, match="position_buckets=2048"):
        RelativeEmbeddingsSpec(2048, 2048, 512)


def test_released_names_of_nomic_are_read() -> None:
    released = {
        "model_type": "nomic_bert", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48, "n_positions": 64,
        "vocab_size": 99, "activation_function": "swiglu", "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "layer_norm_epsilon": 1e-12, "prenorm": False,
        "qkv_proj_bias": False, "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling.NomicBertModel"},
    }  # fmt: skip
    config: Any = registry.config_from_dict(released)
    assert (config.hidden_size, config.intermediate_size, config.hidden_act) == (32, 48, "silu")
    assert (config.rope_parameters["rope_theta"], config.max_position_embeddings) == (1000, 64)
    theirs = transformers.NomicBertConfig(**config.to_dict())
    assert (theirs.hidden_size, theirs.rope_parameters["rope_theta"]) == (32, 1000)


def test_texts_beyond_the_trained_length(caplog: Any) -> None:
    _, values = CASES["modernbert"]
    model = fastbert.ModernBertModel(registry.config_from_dict({**values, "model_type": "modernbert"})).eval()
    with torch.no_grad():
        model(torch.randint(5, 99, (1, 64)))
        assert not [record for record in caplog.records if record.name == "fastbert"]
        for _ in range(2):
            assert model(torch.randint(5, 99, (1, 70))).last_hidden_state.isfinite().all()
    assert sum("was trained for up to max_position_embeddings=64" in record.message for record in caplog.records) == 1
    _, values = CASES["mpnet"]
    model = fastbert.MPNetModel(registry.config_from_dict({**values, "model_type": "mpnet", "pad_token_id": 1}))
    with pytest.raises(UserError, match="position_ids holds 64, outside the model's table of 64 rows"):
        model(torch.randint(5, 99, (1, 63)))

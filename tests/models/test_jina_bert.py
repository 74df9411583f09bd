"""JinaBERT v2 against its published formulas, written out here; no release has been compared. Folders that ask for
remote code are read by a record, or refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fastbert
from fastbert.errors import UserError
from fastbert.models import registry
from fastbert.models.positions import alibi_slopes

CONFIG: dict[str, Any] = {
    "model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "geglu", "vocab_size": 99,
    "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 40,
    "max_position_embeddings": 16, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.1,
    "architectures": ["JinaBertModel"],
    "auto_map": {
        "AutoConfig": "jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig",
        "AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel",
    },
}  # fmt: skip


def formula(weights: dict[str, Tensor], ids: Tensor, slopes: Tensor) -> Tensor:
    """Return the states of one text, from the papers: BERT's layers (Devlin et al. 2019), slopes by distance in both
    directions instead of positions (Press et al. 2022), GEGLU networks (Shazeer 2020)."""

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-12)

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    x = weights["embeddings.word_embeddings.weight"][ids] + weights["embeddings.token_type_embeddings.weight"][0]
    x = norm("embeddings.LayerNorm", x)
    places = torch.arange(len(ids))
    distances = (places[:, None] - places).abs()
    for layer in range(2):
        name = f"encoder.layer.{layer}"
        q, k, v = (
            linear(f"{name}.attention.self.{part}", x).view(len(ids), 6, 6).transpose(0, 1)
            for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(1, 2) / math.sqrt(6) - slopes[:, None, None] * distances
        context = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
        x = norm(f"{name}.attention.output.LayerNorm", x + linear(f"{name}.attention.output.dense", context))
        gate, up = linear(f"{name}.mlp.gated_layers", x).chunk(2, dim=-1)
        x = norm(f"{name}.mlp.layernorm", x + linear(f"{name}.mlp.wo", F.gelu(gate) * up))
    return x


def test_slopes_are_those_of_the_paper() -> None:
    torch.testing.assert_close(alibi_slopes(8), torch.tensor([2.0**-power for power in range(1, 9)]))
    # Six heads: those of four, then every second of eight.
    expected = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])
    torch.testing.assert_close(alibi_slopes(6), expected)
    assert len(alibi_slopes(12)) == 12


def test_models_equal_the_published_formulas(tmp_path: Path, seed: int, caplog: Any) -> None:
    torch.manual_seed(seed)
    config = registry.config_from_dict(CONFIG)
    model = fastbert.JinaBertModel(config)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    model.eval().save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert (saved["model_type"], saved["position_embedding_type"], saved["auto_map"]) == (
        "bert",
        "alibi",
        CONFIG["auto_map"],
    )
    loaded = fastbert.load(tmp_path)
    assert type(loaded) is fastbert.JinaBertModel
    assert loaded.config == config
    tensors = {model.key_map.file_name(name): tensor for name, tensor in loaded.state_dict().items()}
    assert {"encoder.layer.1.mlp.gated_layers.weight", "encoder.layer.1.mlp.wo.bias"} < tensors.keys()
    assert "encoder.layer.1.mlp.gated_layers.bias" not in tensors
    ids = torch.randint(0, 99, (3, 14))
    mask = (torch.arange(14) < torch.tensor([14, 5, 9])[:, None]).long()
    states = loaded(ids, mask).last_hidden_state
    for row, length in enumerate((14, 5, 9)):
        expected = formula(tensors, ids[row, :length], alibi_slopes(6))
        torch.testing.assert_close(states[row, :length], expected, rtol=1e-4, atol=1e-5)
    gaps = torch.ones(1, 14, dtype=torch.int64)
    gaps[0, 3:6] = 0
    with torch.no_grad():
        exported = torch.export.export(loaded, (), {"input_ids": ids[:1], "attention_mask": gaps}).module()
        kept = gaps[0] == 1
        torch.testing.assert_close(
            loaded(ids[:1], gaps)[0][0, kept],
            exported(input_ids=ids[:1], attention_mask=gaps)[0][0, kept],
            rtol=1e-4,
            atol=1e-5,
        )
    caplog.clear()
    loaded(torch.randint(0, 99, (1, 20)))
    loaded(torch.randint(0, 99, (1, 21)))
    assert [record.message for record in caplog.records if record.name == "fastbert"] == [
        "a text has 20 tokens, but the model was trained for up to max_position_embeddings=16: its positions go on, but"
        " results may be worse; truncate the text to stay within them"
    ]


def test_folders_that_ask_for_remote_code_are_refused(tmp_path: Path) -> None:
    def read(**changes: Any) -> Any:
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **changes}))
        return registry.read_config(tmp_path)

    assert read().model_type == "jina_bert"
    foreign = {"AutoModel": "zhihan1996/DNABERT-2-117M--bert_layers.BertModel"}
    with pytest.raises(UserError, match=r"asks for remote code, 'zhihan1996/DNABERT-2-117M--bert_layers.BertModel'"):
        read(auto_map=foreign, position_embedding_type="absolute")
    lora = {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"}
    with pytest.raises(UserError, match=r"asks for remote code, .*XLMRobertaLoRA.* which fastbert does not execute"):
        read(model_type="xlm-roberta", auto_map=lora)
    with pytest.raises(UserError, match="qk-post-norm"):
        read(auto_map={"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"})
    with pytest.raises(UserError, match="feed_forward_type='original' is not one of geglu, reglu"):
        read(feed_forward_type="original")
    assert read(position_embedding_type=None, auto_map={"AutoTokenizer": ["a--b.C", None]}).model_type == "bert"

"""Pre-LN BERT against a plain module of torch and against transformers, and its training runs."""

import json
from pathlib import Path

import pytest
import torch
from accuracy import assert_as_accurate
from torch import Tensor, nn
from torch.nn import functional as F

import fastbert
from fastbert.models.roberta_prelayernorm.config import RobertaPreLayerNormConfig
from fastbert.packing import PackedBatch

CONFIG = RobertaPreLayerNormConfig(
    vocab_size=61, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=48,
    max_position_embeddings=31, type_vocab_size=2, pad_token_id=0, initializer_range=0.2, layer_norm_eps=1e-5,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
LENGTHS = (30, 1, 17)


class Plain(nn.Module):
    """The same model as formulas: x + attention(norm(x)), x + network(norm(x)), and a norm behind the last layer."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterDict(
            {name.replace(".", "/"): nn.Parameter(tensor) for name, tensor in weights.items()}
        )

    def __getitem__(self, name: str) -> Tensor:
        return self.weights[name.replace(".", "/")]

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self[f"{name}.weight"], self[f"{name}.bias"])

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self[f"{name}.weight"], self[f"{name}.bias"], CONFIG.layer_norm_eps)

    def encode(self, ids: Tensor, types: Tensor) -> Tensor:
        """Return hidden states (tokens, width) of one sequence."""
        tables = "roberta_prelayernorm.embeddings"
        x = self[f"{tables}.word_embeddings.weight"][ids] + self[f"{tables}.token_type_embeddings.weight"][types]
        x = x + self[f"{tables}.position_embeddings.weight"][1 : 1 + len(ids)]  # behind that of the padding, 0
        x = self.norm(f"{tables}.LayerNorm", x)
        for index in range(CONFIG.num_hidden_layers):
            layer = f"roberta_prelayernorm.encoder.layer.{index}"
            normed = self.norm(f"{layer}.attention.LayerNorm", x)
            q, k, v = (
                self.linear(f"{layer}.attention.self.{part}", normed).unflatten(1, (2, 16)).transpose(0, 1)
                for part in ("query", "key", "value")
            )
            attended = (q @ k.transpose(1, 2) / 4).softmax(-1) @ v
            x = x + self.linear(f"{layer}.attention.output.dense", attended.transpose(0, 1).flatten(1))
            inner = F.gelu(self.linear(f"{layer}.intermediate.dense", self.norm(f"{layer}.intermediate.LayerNorm", x)))
            x = x + self.linear(f"{layer}.output.dense", inner)
        return self.norm("roberta_prelayernorm.encoder.LayerNorm", x)

    def forward(self, sequences: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return logits of all tokens and those of sentence pairs."""
        states = [self.encode(*sequence) for sequence in sequences]
        pooled = torch.tanh(
            self.linear("roberta_prelayernorm.pooler.dense", torch.stack([state[0] for state in states]))
        )
        x = F.gelu(self.linear("cls.predictions.transform.dense", torch.cat(states)))
        x = self.norm("cls.predictions.transform.LayerNorm", x)
        table = self["roberta_prelayernorm.embeddings.word_embeddings.weight"]
        return x @ table.T + self["cls.predictions.bias"], self.linear("cls.seq_relationship", pooled)


def test_values_and_gradients_are_those_of_its_formulas() -> None:
    torch.manual_seed(0)
    model = fastbert.RobertaPreLayerNormForPreTraining(CONFIG)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    sequences = [(torch.randint(1, 61, (length,)), torch.randint(0, 2, (length,))) for length in LENGTHS]
    ids, types = (torch.cat(part) for part in zip(*sequences, strict=True))
    cu_seqlens = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    batch = PackedBatch(
        input_ids=ids, token_type_ids=types, cu_seqlens=cu_seqlens, max_seqlen=max(LENGTHS),
        position_ids=torch.cat([torch.arange(length) for length in LENGTHS]),
    )  # fmt: skip
    upstream = torch.randn(len(ids), 61), torch.randn(len(LENGTHS), 2)
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items() if "decoder" not in name}

    def reference(dtype: torch.dtype) -> dict[str, Tensor]:
        plain = Plain({name: tensor.to(dtype) for name, tensor in weights.items()})
        outputs = plain(sequences)
        torch.autograd.backward(outputs, [gradient.to(dtype) for gradient in upstream])
        gradients = {name.replace("/", "."): parameter.grad for name, parameter in plain.weights.items()}
        return {"mlm": outputs[0].detach(), "nsp": outputs[1].detach(), **gradients}

    output = model(batch)
    torch.autograd.backward((output.prediction_logits, output.seq_relationship_logits), upstream)
    named = dict(model.named_parameters())
    actual = {"mlm": output.prediction_logits, "nsp": output.seq_relationship_logits}
    actual |= {name: named[name].grad for name in weights}
    exact, eager = reference(torch.float64), reference(torch.float32)
    for name, value in actual.items():
        assert_as_accurate(value.detach(), eager[name], exact[name], name)


def test_transformers_computes_the_same(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    model = fastbert.RobertaPreLayerNormForPreTraining(CONFIG).eval()
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == "roberta-prelayernorm"
    inputs = {
        "input_ids": torch.randint(1, 61, (2, 30)),
        "token_type_ids": torch.randint(0, 2, (2, 30)),
        "attention_mask": torch.ones(2, 30, dtype=torch.int64),
    }
    inputs["input_ids"][1, 20:], inputs["attention_mask"][1, 20:] = 0, 0
    real = inputs["attention_mask"].bool()
    encoder = transformers.AutoModel.from_pretrained(tmp_path).eval()
    masked_lm = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        ours = model.base_model(**inputs, output_hidden_states=True)
        theirs = encoder(**inputs, output_hidden_states=True)
        logits, expected = model(**inputs).prediction_logits, masked_lm(**inputs).logits
    torch.testing.assert_close(ours.pooler_output, theirs.pooler_output, rtol=1e-5, atol=1e-5)
    for mine, other in zip(ours.hidden_states, theirs.hidden_states, strict=True):
        torch.testing.assert_close(mine[real], other[real], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits[real], expected[real], rtol=1e-5, atol=1e-5)
    masked_lm.save_pretrained(tmp_path / "theirs")
    back = fastbert.load(tmp_path / "theirs")
    assert type(back) is fastbert.RobertaPreLayerNormForMaskedLM
    with torch.no_grad():
        torch.testing.assert_close(back(**inputs).logits[real], expected[real], rtol=1e-5, atol=1e-5)

"""Which modules of transformers' encoders are what: BERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, DistilBERT.

Classes are known by name and home, so that nothing here imports transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fastbert.integrations.layer_modules import LayerModules
from fastbert.integrations.module_checks import dropped, home_of_forward, is_own
from fastbert.integrations.transformers.embeddings import columns_of

HOME = "transformers.models"


@dataclass(frozen=True)
class Family:
    """BERT's own layout, which RoBERTa, XLM-RoBERTa, CamemBERT and ELECTRA share."""

    model: str
    """Name of the encoder's class."""
    home: str
    """The module of transformers that defines it."""
    output: str = "BaseModelOutputWithPoolingAndCrossAttentions"
    order: tuple[str, ...] = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
    """The arguments of forward that may be given by position."""
    idle: tuple[str, ...] = ()
    """Arguments that forward takes and does not look at."""

    def stack(self, model: Any) -> tuple[nn.Module, nn.ModuleList]:
        """The module that runs the layers, and the layers."""
        return model.encoder, model.encoder.layer

    def containers(self, layer: Any) -> tuple[nn.Module, ...]:
        """What stands between a layer and its leaves."""
        attention = layer.attention
        return attention, attention.self, attention.output, layer.intermediate, layer.output

    def parts(self, layer: Any) -> LayerModules | None:
        """The leaves of a layer; None where it computes something else with them."""
        attention, output = layer.attention, layer.output
        own, first = attention.self, attention.output
        first_p, last_p = dropped(first.dropout), dropped(output.dropout)
        if first_p is None or last_p is None or not _is_usual(own, own.num_attention_heads, own.query):
            return None
        return LayerModules(
            query=own.query,
            key=own.key,
            value=own.value,
            attention_output=first.dense,
            attention_norm=first.LayerNorm,
            intermediate=layer.intermediate.dense,
            activation=layer.intermediate.intermediate_act_fn,
            output=output.dense,
            output_norm=output.LayerNorm,
            heads=own.num_attention_heads,
            head_dim=own.attention_head_size,
            attention_p=_attention_p(own),
            attention_output_p=first_p,
            output_p=last_p,
        )

    def call(self, layer: nn.Module, hidden: Tensor, mask: Any, position_ids: Tensor | None) -> Any:
        """A layer as the library's encoder calls it."""
        idle = {"encoder_attention_mask": None, "past_key_values": None}
        return layer(hidden, mask, None, position_ids=position_ids, **idle)

    def decodes(self, model: Any) -> bool:
        """Whether the model looks to the left only, or at another sequence."""
        return bool(model.config.is_decoder or model.config.add_cross_attention)

    def as_written(self, layer: Any) -> bool:
        """Whether a layer is made of the library's own modules, none of them with a forward of its own."""
        if not is_own(layer, self.home):
            return False
        return all(is_own(part, self.home) for part in self.containers(layer))

    def tables(self, embeddings: Any) -> list[nn.Module]:
        """The tables of token, position and, where there are any, segment embeddings."""
        return [embeddings.word_embeddings, embeddings.position_embeddings, embeddings.token_type_embeddings]

    def positions(self, embeddings: Any, input_ids: Tensor) -> Tensor | None:
        """Position ids (sequences, length), or (1, length) where they are the columns."""
        return columns_of(embeddings, input_ids.shape[1])

    def pooler(self, model: Any) -> nn.Module | None:
        """What makes a vector of the first token's, if the model has it."""
        return model.pooler

    def projection(self, model: Any) -> nn.Module | None:
        """What stands between embeddings and layers."""
        return None


class Roberta(Family):
    """Positions count the tokens that are not padding, from behind the padding's own position."""

    def positions(self, embeddings: Any, input_ids: Tensor) -> Tensor | None:
        positions: Tensor = embeddings.create_position_ids_from_input_ids(input_ids, embeddings.padding_idx)
        return positions


class Electra(Family):
    """Embeddings may be narrower than the layers; there is no pooler."""

    def pooler(self, model: Any) -> nn.Module | None:
        return None

    def projection(self, model: Any) -> nn.Module | None:
        projection: nn.Module | None = getattr(model, "embeddings_project", None)
        return projection


class DistilBert(Family):
    """Other names, no segments, no pooler, and nothing is dropped behind the attention's output product."""

    def stack(self, model: Any) -> tuple[nn.Module, nn.ModuleList]:
        return model.transformer, model.transformer.layer

    def containers(self, layer: Any) -> tuple[nn.Module, ...]:
        return layer.attention, layer.ffn

    def parts(self, layer: Any) -> LayerModules | None:
        attention, network = layer.attention, layer.ffn
        last_p = dropped(network.dropout)
        if last_p is None or not _is_usual(attention, attention.n_heads, attention.q_lin):
            return None
        return LayerModules(
            query=attention.q_lin,
            key=attention.k_lin,
            value=attention.v_lin,
            attention_output=attention.out_lin,
            attention_norm=layer.sa_layer_norm,
            intermediate=network.lin1,
            activation=network.activation,
            output=network.lin2,
            output_norm=layer.output_layer_norm,
            heads=attention.n_heads,
            head_dim=attention.attention_head_size,
            attention_p=_attention_p(attention),
            attention_output_p=0.0,
            output_p=last_p,
        )

    def call(self, layer: nn.Module, hidden: Tensor, mask: Any, position_ids: Tensor | None) -> Any:
        return layer(hidden, mask)

    def decodes(self, model: Any) -> bool:
        return False

    def tables(self, embeddings: Any) -> list[nn.Module]:
        return [embeddings.word_embeddings, embeddings.position_embeddings]

    def pooler(self, model: Any) -> nn.Module | None:
        return None


FAMILIES: tuple[Family, ...] = (
    Family("BertModel", f"{HOME}.bert.modeling_bert"),
    Roberta("RobertaModel", f"{HOME}.roberta.modeling_roberta"),
    Roberta("XLMRobertaModel", f"{HOME}.xlm_roberta.modeling_xlm_roberta"),
    Roberta("CamembertModel", f"{HOME}.camembert.modeling_camembert"),
    Electra("ElectraModel", f"{HOME}.electra.modeling_electra", "BaseModelOutputWithPastAndCrossAttentions"),
    DistilBert(
        "DistilBertModel",
        f"{HOME}.distilbert.modeling_distilbert",
        "BaseModelOutput",
        ("input_ids", "attention_mask", "inputs_embeds", "position_ids"),
        ("token_type_ids",),
    ),
)


def _is_usual(attention: Any, heads: int, query: Any) -> bool:
    """Whether attention is scaled and cut into heads as published, and looks both ways."""
    size = attention.attention_head_size
    wide = getattr(query, "out_features", heads * size)
    return attention.scaling == size**-0.5 and heads * size == wide and not attention.is_causal


def _attention_p(attention: Any) -> float:
    """The library asks the attention whether it trains, not its dropout."""
    return float(attention.dropout.p) if attention.training else 0.0


# What forward calls of its own class, beside the modules.
_CALLED = ("forward", "_create_attention_masks")


def family_of(module: nn.Module) -> Family | None:
    """The family of an encoder, also of a subclass that computes as its parent does; None: of none."""
    own: Any = type(module)
    for kind in own.__mro__:
        for family in FAMILIES:
            if kind.__name__ == family.model and kind.__module__ == family.home:
                same = all(getattr(own, name, None) is getattr(kind, name, None) for name in _CALLED)
                return family if same and home_of_forward(kind) == family.home else None
    return None


@dataclass(frozen=True)
class PredictionHead:
    """A masked-LM head: activation and LayerNorm behind a product, then the product with the vocabulary."""

    dense: nn.Module
    activation: Any
    norm: nn.Module
    decoder: nn.Module


# Class of the head, and where in it the parts are.
_HEADS = {
    ("BertLMPredictionHead", f"{HOME}.bert.modeling_bert"): True,
    ("RobertaLMHead", f"{HOME}.roberta.modeling_roberta"): False,
    ("XLMRobertaLMHead", f"{HOME}.xlm_roberta.modeling_xlm_roberta"): False,
    ("CamembertLMHead", f"{HOME}.camembert.modeling_camembert"): False,
}


def is_prediction_head(module: nn.Module) -> bool:
    """Whether a module is a masked-LM head of one of the families."""
    return (type(module).__name__, type(module).__module__) in _HEADS


def prediction_head(module: Any) -> PredictionHead | None:
    """The parts of a masked-LM head; None: something stands between them that is not the library's own."""
    from torch.nn import functional as F

    if not is_own(module, type(module).__module__):
        return None
    if not _HEADS[type(module).__name__, type(module).__module__]:
        return PredictionHead(module.dense, F.gelu, module.layer_norm, module.decoder)
    transform = module.transform
    if not is_own(transform, type(module).__module__):
        return None
    return PredictionHead(transform.dense, transform.transform_act_fn, transform.LayerNorm, module.decoder)

"""The outputs of a graph: hidden states, the logits of a head, and pooled embeddings of texts."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fastbert.embeddings.pooling import SMALLEST_NORM
from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import UserError
from fastbert.integrations.onnx.encoder import add_encoder
from fastbert.integrations.onnx.functions import activate, linear, norm
from fastbert.integrations.onnx.graph import Graph
from fastbert.integrations.onnx.inputs import BATCH, CHOICES, LENGTH, LOWEST, Inputs
from fastbert.models.architecture import ArchitectureSpec
from fastbert.models.base import PreTrainedModel
from fastbert.models.electra.heads import ForReplacedTokenDetection
from fastbert.models.encoder import EncoderModel
from fastbert.models.heads.base import ClassificationHead, ModelWithHead
from fastbert.models.heads.causal import ForCausalLM
from fastbert.models.heads.prediction import PredictionTransform, VocabularyHead
from fastbert.models.heads.pretraining import ForMaskedLM, ForPreTraining
from fastbert.models.heads.sequence import ForMultipleChoice, ForNextSentencePrediction, ForSequenceClassification
from fastbert.models.heads.tokens import ForQuestionAnswering, ForTokenClassification

TOKENS = (BATCH, LENGTH)


@torch.no_grad()
def build_graph(model: Any, settings: EmbedSettings | None = None, *, for_quantizer: bool = False) -> Graph:
    """Return the graph of a model in fp32 on the CPU, and of the embeddings of texts that `settings` describe.

    Raises `UserError` for models whose parts have no form in ONNX here.
    """
    spec = spec_of(model)
    graph = Graph(model, for_quantizer=for_quantizer)
    encoder = model if isinstance(model, EncoderModel) else model.base_model
    bias = encoder.positions.bias
    inputs = Inputs(
        graph, spec, None if bias is None else bias.weight, choices=isinstance(model, ForMultipleChoice)
    )  # fmt: skip
    x = add_encoder(graph, inputs, encoder, causal=isinstance(model, ForCausalLM))
    if isinstance(model, EncoderModel):
        graph.output("last_hidden_state", x, (*TOKENS, model.config.hidden_size))
    else:
        HeadGraph(graph, inputs, model).add(x)
    if settings is not None:
        with graph.scope("sentence_embedding"):
            embedding = _embedding(graph, inputs, settings, x)
        width = len(settings.dense[-1].weight) if settings.dense else model.config.hidden_size
        graph.output("sentence_embedding", embedding, (BATCH, width))
    return graph


def spec_of(model: Any) -> ArchitectureSpec:
    """Return the spec of a model's encoder. Raises `UserError` for a model that has no form in ONNX here."""
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise UserError(f"{name} is not an encoder with a head; ONNX files are written of these")
    spec: ArchitectureSpec = model.architecture.spec(model.config)
    if not isinstance(model, (EncoderModel, *HEADS)):
        raise UserError(f"{name} has a head without a form in ONNX here; supported are {', '.join(map(_name, HEADS))}")
    if isinstance(model, ModelWithHead) and model.bilstm is not None:
        raise UserError(f"{name} has a BiLSTM behind its encoder (bilstm_size), which has no form in ONNX here")
    return spec


def _name(kind: type) -> str:
    return f"...{kind.__name__}"


class HeadGraph:
    """The head of a model."""

    def __init__(self, graph: Graph, inputs: Inputs, model: Any) -> None:
        self.graph = graph
        self.inputs = inputs
        self.model = model

    def add(self, x: str) -> None:
        """Add the outputs of the head over hidden states x (batch, length, hidden_size)."""
        graph, model, config = self.graph, self.model, self.model.config
        with graph.scope("head"):
            if isinstance(model, ForMaskedLM | ForPreTraining):
                logits = self._vocabulary(model.cls.predictions, x)
                name = "logits" if isinstance(model, ForMaskedLM) else "prediction_logits"
                graph.output(name, logits, (*TOKENS, config.vocab_size))
                if isinstance(model, ForPreTraining):
                    pair = linear(graph, model.cls.seq_relationship, self._pooled(x))
                    graph.output("seq_relationship_logits", pair, (BATCH, 2))
            elif isinstance(model, ForCausalLM):
                graph.output("logits", self._vocabulary(model.head, x), (*TOKENS, config.vocab_size))
            elif isinstance(model, ForNextSentencePrediction):
                graph.output("logits", linear(graph, model.cls.seq_relationship, self._pooled(x)), (BATCH, 2))
            elif isinstance(model, ForSequenceClassification):
                graph.output("logits", self._of_sequences(model.classifier, x), (BATCH, config.num_labels))
            elif isinstance(model, ForMultipleChoice):
                self._choices(self._of_sequences(model.classifier, x))
            elif isinstance(model, ForTokenClassification):
                graph.output("logits", self._of_tokens(model.classifier, x), (*TOKENS, config.num_labels))
            elif isinstance(model, ForQuestionAnswering):
                ends = graph.ops("Split", 2, self._of_tokens(model.qa_outputs, x), axis=-1)
                for name, end in zip(("start_logits", "end_logits"), ends, strict=True):
                    graph.output(name, graph.op("Squeeze", end, graph.ints(2)), TOKENS)
            else:
                assert isinstance(model, ForReplacedTokenDetection)
                head = model.discriminator_predictions
                gelu = "gelu_tanh" if head.approximate == "tanh" else "gelu"
                inner = activate(graph, gelu, linear(graph, head.dense, x))
                logits = graph.op("Squeeze", linear(graph, head.dense_prediction, inner), graph.ints(2))
                graph.output("logits", logits, TOKENS)

    def _vocabulary(self, head: VocabularyHead, x: str) -> str:
        """Return the scores of all tokens of the vocabulary, (batch, length, vocab_size)."""
        graph, transform = self.graph, head.transform
        if isinstance(transform, PredictionTransform):
            inner = activate(graph, transform.activation, linear(graph, transform.dense, x))
            x = norm(graph, transform.LayerNorm, inner)
        return linear(graph, head.decoder, x)

    def _pooled(self, x: str) -> str:
        """Return the tokens that stand for their sequences, behind the pooler if there is one: (batch, width)."""
        encoder = self.model.base_model
        token = summary(self.graph, self.inputs, x, last=encoder.causal)
        if encoder.pooler is None:
            return token
        return self.graph.op("Tanh", linear(self.graph, encoder.pooler.dense, token))

    def _of_sequences(self, classifier: nn.Module, x: str) -> str:
        """Return the logits of sequences, (batch, classes)."""
        if not isinstance(classifier, ClassificationHead):
            assert isinstance(classifier, nn.Linear)
            return linear(self.graph, classifier, self._pooled(x))
        if classifier.pooling == "logits":
            return mean(self.graph, self.inputs, self._classified(classifier, x))
        pooled = mean(self.graph, self.inputs, x) if classifier.pooling == "mean" else self._pooled(x)
        return self._classified(classifier, pooled)

    def _of_tokens(self, classifier: nn.Module, x: str) -> str:
        """Return the logits of tokens, (batch, length, classes)."""
        if isinstance(classifier, ClassificationHead):
            return self._classified(classifier, x)
        assert isinstance(classifier, nn.Linear)
        return linear(self.graph, classifier, x)

    def _classified(self, head: ClassificationHead, x: str) -> str:
        """Return the logits of x (..., width), (..., classes)."""
        inner = activate(self.graph, head.activation, linear(self.graph, head.dense, x))
        if head.LayerNorm is not None:
            inner = norm(self.graph, head.LayerNorm, inner)
        return linear(self.graph, head.out_proj, inner)

    def _choices(self, scores: str) -> None:
        """Add the scores of choices, (batch * choices, 1), as (batch, choices)."""
        graph = self.graph
        choices = graph.op("Shape", "input_ids", start=1, end=2)
        shape = graph.op("Concat", graph.ints(-1), choices, axis=0)
        graph.output("logits", graph.op("Reshape", scores, shape), (BATCH, CHOICES))


HEADS: tuple[type[ModelWithHead], ...] = (
    ForMaskedLM, ForPreTraining, ForCausalLM, ForNextSentencePrediction, ForSequenceClassification, ForMultipleChoice,
    ForTokenClassification, ForQuestionAnswering, ForReplacedTokenDetection,
)  # fmt: skip


def summary(graph: Graph, inputs: Inputs, x: str, *, last: bool) -> str:
    """Return the first token of each sequence that is not padding, or the last: (batch, width)."""
    mask = graph.cast(inputs.mask, "INT32")
    index = graph.op("ArgMax", mask, axis=1, keepdims=1, select_last_index=int(last))
    return graph.op("GatherND", x, index, batch_dims=1)


def mean(graph: Graph, inputs: Inputs, x: str) -> str:
    """Return the mean of each sequence's tokens, (batch, width), 0 of a sequence without tokens."""
    mask = inputs.float_mask()
    total = graph.op("ReduceSum", graph.op("Mul", x, mask), graph.ints(1), keepdims=0)
    count = graph.op("ReduceSum", mask, graph.ints(1), keepdims=0)
    return graph.op("Div", total, graph.op("Max", count, graph.number(1.0)))


def _embedding(graph: Graph, inputs: Inputs, settings: EmbedSettings, x: str) -> str:
    """Return the embedding of each text: pooled hidden states, dense layers, normalisation."""
    if settings.pooling == "cls":
        x = summary(graph, inputs, x, last=False)
    elif settings.pooling == "max":
        visible = graph.op("Unsqueeze", inputs.mask, graph.ints(2))
        x = graph.op("ReduceMax", graph.op("Where", visible, x, graph.number(LOWEST)), axes=[1], keepdims=0)
    else:
        x = mean(graph, inputs, x)
    for index, dense in enumerate(settings.dense):
        x = graph.op("MatMul", x, graph.tensor(f"dense.{index}.weight.T", dense.weight.T))
        if dense.bias is not None:
            x = graph.op("Add", x, graph.tensor(f"dense.{index}.bias", dense.bias))
        x = activate(graph, dense.activation, x)
    if not settings.normalize:
        return x
    length = graph.op("ReduceL2", x, axes=[1], keepdims=1)
    return graph.op("Div", x, graph.op("Max", length, graph.number(SMALLEST_NORM)))

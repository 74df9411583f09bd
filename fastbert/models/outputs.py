"""The outputs of models, read by attribute, key and index as in transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NoReturn, Self

from torch import Tensor
from torch.utils import _pytree


class ModelOutput:
    """The base of the outputs: `output.loss`, `output["loss"]` and `output[0]` are the same. Fields that are None have
    neither key nor index; `output["name"] = value` sets or adds a field.

    It is registered as a `Mapping` and can be made from one, `type(output)({"loss": ...})`, as code that maps nested
    results does.
    """

    def __init_subclass__(cls) -> None:
        """Register the class as a pytree node: exporters and transforms look for tensors in trees."""
        super().__init_subclass__()
        _pytree.register_pytree_node(
            cls,
            _flatten,
            partial(_unflatten, cls),
            serialized_type_name=f"{cls.__module__}.{cls.__name__}",
            flatten_with_keys_fn=_flatten_with_keys,
        )

    def __post_init__(self) -> None:
        first = getattr(self, fields(self)[0].name)  # type: ignore[arg-type]
        if isinstance(first, Mapping | Iterator):
            setattr(self, fields(self)[0].name, None)  # type: ignore[arg-type]
            for name, value in dict(first).items():
                self[name] = value

    def keys(self) -> list[str]:
        """Return the names of the fields that are not None."""
        return [name for name, value in vars(self).items() if value is not None]

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the fields that are not None, in order."""
        return tuple(value for value in vars(self).values() if value is not None)

    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, str):
            if key not in self.keys():
                raise KeyError(key)
            return getattr(self, key)
        return self.to_tuple()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, key, value)

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field, or the default if it is None or unknown."""
        return self[key] if key in self.keys() else default

    def values(self) -> list[Any]:
        """Return the fields that are not None, in order."""
        return list(self.to_tuple())

    def items(self) -> list[tuple[str, Any]]:
        """Return names and values of the fields that are not None."""
        return list(zip(self.keys(), self.to_tuple(), strict=True))


Mapping.register(ModelOutput)


def _flatten(output: ModelOutput) -> tuple[list[Any], list[str]]:
    """Return the fields that are not None, and their names."""
    return output.values(), output.keys()


def _flatten_with_keys(output: ModelOutput) -> tuple[list[tuple[Any, Any]], list[str]]:
    """Return the same, each field with its key."""
    return [(_pytree.MappingKey(name), value) for name, value in output.items()], output.keys()


def _unflatten(kind: type[ModelOutput], values: Any, names: list[str]) -> ModelOutput:
    """Make an output of fields and their names."""
    output = kind.__new__(kind)
    for field in fields(kind):  # type: ignore[arg-type]
        setattr(output, field.name, None)
    for name, value in zip(names, values, strict=True):
        setattr(output, name, value)
    return output


class HeadOutput(ModelOutput, dict[Any, Any]):  # type: ignore[misc]
    """The base of the outputs of heads: an instance of dict, since transformers' Trainer and pipelines treat anything
    else as a tuple, or leave it on the GPU. Its contents are its attributes, which cannot be deleted."""

    __eq__: Callable[[object], bool] = object.__eq__  # type: ignore[assignment]
    __ne__: Callable[[object], bool] = object.__ne__  # type: ignore[assignment]
    __hash__ = object.__hash__  # type: ignore[assignment]

    def fill_dictionary(self) -> None:
        """Copy the fields into the dictionary itself, which C code reads: torch.jit crashes on an empty one."""
        dict.update(self, self.items())

    def copy(self) -> Self:
        """Return a shallow copy."""
        return copy(self)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Raise TypeError: fields can be set, not removed."""
        raise TypeError(f"{type(self).__name__}: fields can be set, not removed; change a copy, dict(output)")

    __delitem__: Callable[..., NoReturn] = _refuse
    __ior__: Callable[..., NoReturn] = _refuse
    clear: Callable[..., NoReturn] = _refuse
    pop: Callable[..., NoReturn] = _refuse
    popitem: Callable[..., NoReturn] = _refuse
    setdefault: Callable[..., NoReturn] = _refuse
    update: Callable[..., NoReturn] = _refuse


@dataclass(eq=False)
class EncoderOutput(ModelOutput):
    """The output of an encoder, in the dtype of the parameters, or of autocast.

    `last_hidden_state` (tokens, hidden_size) packed or (sequences, length, hidden_size) padded; `pooler_output`
    (sequences, hidden_size), None without a pooler; `hidden_states`, if requested: the outputs of the embeddings and of
    each layer, of the shape of the first.

    Example:
        >>> import fastbert
        >>> inputs = fastbert.load_tokenizer("runs/mine/model")("a short one.", return_tensors="pt")
        >>> output = fastbert.BertModel.from_pretrained("runs/mine/model")(**inputs)
        >>> type(output).__name__
        'EncoderOutput'
        >>> output.last_hidden_state.shape, output["last_hidden_state"] is output[0], list(output)
        (torch.Size([1, 6, 16]), True, ['last_hidden_state', 'pooler_output'])
    """

    last_hidden_state: Tensor
    pooler_output: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


@dataclass(eq=False)
class PreTrainingOutput(HeadOutput):
    """The output of both pre-training heads; `hidden_states` as in `EncoderOutput`.

    `prediction_logits` (..., vocab_size) and `seq_relationship_logits` (sequences, 2) have the dtype of the parameters,
    or of autocast. With labels, `loss` is the sum of both mean losses, an fp32 scalar. For means over several batches
    there are scalars too: the sums over the labels (`mlm_loss_sum`, `nsp_loss_sum`, fp32), the numbers of labels
    (`mlm_count`, `nsp_count`, int64) and the numbers of correct predictions (`mlm_correct`, `nsp_correct`, int64).

    Example:
        >>> import fastbert
        >>> inputs = fastbert.load_tokenizer("runs/mine/model")("a short one.", return_tensors="pt")
        >>> output = fastbert.BertForPreTraining.from_pretrained("runs/mine/model")(**inputs)
        >>> type(output).__name__
        'PreTrainingOutput'
        >>> output.prediction_logits.shape, output.seq_relationship_logits.shape
        (torch.Size([1, 6, 9]), torch.Size([1, 2]))
    """

    loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    mlm_loss_sum: Tensor | None = None
    mlm_count: Tensor | None = None
    mlm_correct: Tensor | None = None
    nsp_loss_sum: Tensor | None = None
    nsp_count: Tensor | None = None
    nsp_correct: Tensor | None = None

    @property
    def sop_logits(self) -> Tensor | None:
        """Return `seq_relationship_logits` under the name that ALBERT's have in transformers."""
        return self.seq_relationship_logits


@dataclass(eq=False)
class LogitsOutput(HeadOutput):
    """The output of a head; `hidden_states` as in `EncoderOutput`.

    `loss`, if there are labels: the mean over them, an fp32 scalar; `logits`, of the shape that the head documents, in
    the dtype of the parameters, or of autocast.

    Example:
        >>> import fastbert
        >>> inputs = fastbert.load_tokenizer("runs/mine/model")("a short one.", return_tensors="pt")
        >>> output = fastbert.BertForNextSentencePrediction.from_pretrained("runs/mine/model")(**inputs)
        >>> type(output).__name__
        'LogitsOutput'
        >>> output.logits.shape, output.loss
        (torch.Size([1, 2]), None)
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


@dataclass(eq=False)
class MaskedLMOutput(LogitsOutput):
    """The output of a masked language model in pre-training; `hidden_states` as in `EncoderOutput`.

    `logits` (..., vocab_size) have the dtype of the parameters, or of autocast. With labels, `loss` is their mean
    cross-entropy, an fp32 scalar, and for means over several batches there are scalars: the sum over the labels
    (`mlm_loss_sum`, fp32), their number (`mlm_count`, int64) and the number of correct predictions (`mlm_correct`,
    int64), as in `PreTrainingOutput`; those of sentence pairs are None.
    """

    mlm_loss_sum: Tensor | None = None
    mlm_count: Tensor | None = None
    mlm_correct: Tensor | None = None
    nsp_loss_sum: None = None
    nsp_count: None = None
    nsp_correct: None = None


@dataclass(eq=False)
class CausalLMOutput(MaskedLMOutput):
    """The output of a language model that predicts the next token; fields as in `MaskedLMOutput`."""


@dataclass(eq=False)
class SpanOutput(HeadOutput):
    """The output of span question answering; `hidden_states` as in `EncoderOutput`.

    `start_logits` and `end_logits`, fp32 (tokens,) packed or (sequences, length) padded; `loss`, if there are
    positions: the mean of both cross-entropies, an fp32 scalar.

    Example:
        >>> import fastbert
        >>> inputs = fastbert.load_tokenizer("runs/mine/model")("a short one.", return_tensors="pt")
        >>> output = fastbert.BertForQuestionAnswering.from_pretrained("runs/mine/model")(**inputs)
        >>> type(output).__name__
        'SpanOutput'
        >>> output.start_logits.shape, output.end_logits.shape
        (torch.Size([1, 6]), torch.Size([1, 6]))
    """

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None

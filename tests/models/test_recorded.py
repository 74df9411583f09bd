"""Models whose calls PyTorch records or transforms: torch.jit.trace, torch.export, ONNX and torch.func give what the
model gives, for other batch sizes and lengths too."""

import io
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from fastbert import models
from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.models.outputs import LogitsOutput
from fastbert.models.seq2seq.config import SequenceConfig
from fastbert.models.seq2seq.model import BertForSequenceToSequence
from fastbert.packing import PackedBatch

CONFIG = BertConfig(
    vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
    max_position_embeddings=24, num_labels=3,
)  # fmt: skip
HEADS = (
    "BertModel", "BertForPreTraining", "BertForMaskedLM", "BertForNextSentencePrediction",
    "BertForSequenceClassification", "BertForTokenClassification", "BertForQuestionAnswering",
)  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def made(name: str, seed: int, **changes: Any) -> Any:
    model = getattr(models, name)(CONFIG)
    model.init_weights(seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    return model.eval()


def inputs(rows: int, columns: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, a mask with padding on both sides and holes, and segments."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 60, (rows, columns), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, columns - 3 :] = 0
    mask[-1, :2] = 0
    mask[-1, 4] = 0
    return ids, mask, torch.randint(0, 2, (rows, columns), generator=generator)


def tensors(output: Any) -> tuple[Tensor, ...]:
    return output if isinstance(output, tuple) else output.to_tuple()


def agree(recorded: Callable[..., Any], model: nn.Module, seed: int) -> None:
    """The recording gives what the model gives, of the shape that was recorded and of others."""
    for rows, columns in ((2, 16), (3, 9), (5, 24)):
        arguments = inputs(rows, columns, seed)
        with torch.no_grad():
            actuals, expected = tensors(recorded(*arguments)), tensors(model(*arguments))
        for actual, value in zip(actuals, expected, strict=True):
            torch.testing.assert_close(actual, value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_traces_of_torch_jit(name: str, seed: int) -> None:
    model = made(name, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(model, inputs(2, 16, seed))
    agree(traced, model, seed)
    operators = {node.kind() for node in traced.inlined_graph.nodes()}
    assert not any("fastbert" in operator for operator in operators)


class Wrapped(nn.Module):
    """A module that uses one of ours."""

    def __init__(self, model: nn.Module, name: str | None) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> Any:
        output = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)
        return output if self.name is None else getattr(output, self.name)


def test_outputs_inside_a_traced_module_are_what_they_always_are(seed: int) -> None:
    model = made("BertForSequenceClassification", seed)
    traced = torch.jit.trace(Wrapped(model, "logits"), inputs(2, 16, seed))
    agree(lambda *arguments: (traced(*arguments),), model, seed)
    # An output as the result is a dictionary to the tracer, which refuses it or takes it, and never crashes.
    with pytest.raises(RuntimeError, match="Encountering a dict at the output of the tracer"):
        torch.jit.trace(Wrapped(model, None), inputs(2, 16, seed))
    loose = torch.jit.trace(Wrapped(model, None), inputs(2, 16, seed), strict=False)
    agree(lambda *arguments: tuple(loose(*arguments).values()), model, seed)


@pytest.mark.parametrize("name", HEADS)
def test_exported_programs(name: str, seed: int) -> None:
    model = made(name, seed)
    sizes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("columns", max=24)}
    program = torch.export.export(model, inputs(2, 16, seed), dynamic_shapes=(sizes, sizes, sizes))
    agree(program.module(), model, seed)
    assert not any("fastbert" in str(node.target) for node in program.graph.nodes)


def test_an_exported_program_is_saved_and_loaded(seed: int) -> None:
    model, arguments = made("BertForSequenceClassification", seed), inputs(2, 16, seed)
    program = torch.export.export(model, (arguments[0],), {"labels": torch.tensor([0, 2])}, strict=True)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    actual = torch.export.load(file).module()(arguments[0], labels=torch.tensor([0, 2]))
    assert isinstance(actual, LogitsOutput)
    expected = model(arguments[0], labels=torch.tensor([0, 2]))
    torch.testing.assert_close(actual.loss, expected.loss)
    torch.testing.assert_close(actual.logits, expected.logits)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [False, True], ids=["torchscript", "dynamo"])
@pytest.mark.parametrize("name", ["BertModel", "BertForTokenClassification"])
def test_onnx(name: str, dynamo: bool, tmp_path: Path, seed: int) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    pytest.importorskip("onnx", reason="needs onnx")
    if dynamo:
        pytest.importorskip("onnxscript", reason="this exporter needs onnxscript")
    model, file = made(name, seed), str(tmp_path / "model.onnx")
    names, sizes = ["input_ids", "attention_mask", "token_type_ids"], {0: "rows", 1: "columns"}
    if dynamo:
        options: dict[str, Any] = {"dynamic_shapes": [{i: torch.export.Dim(n) for i, n in sizes.items()}] * 3}
    else:
        options = {"dynamic_axes": dict.fromkeys(names, sizes), "opset_version": 17}
    torch.onnx.export(model, inputs(2, 16, seed), file, dynamo=dynamo, input_names=names, **options)
    session = onnxruntime.InferenceSession(file)

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        actual = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)})
        return tuple(map(torch.from_numpy, actual))

    agree(run, model, seed)


# What labels each head takes: of two rows of ids.
LABELS: dict[str, Callable[[Tensor], dict[str, Tensor]]] = {
    "BertForSequenceClassification": lambda ids: {"labels": ids[:, 0] % 3},
    "BertForTokenClassification": lambda ids: {"labels": torch.where(ids % 2 == 0, ids % 3, -100)},
    "BertForMaskedLM": lambda ids: {"labels": torch.where(ids % 2 == 0, ids, -100)},
    "BertForNextSentencePrediction": lambda ids: {"labels": ids[:, 0] % 2},
    "BertForQuestionAnswering": lambda ids: {
        "start_positions": ids[:, 0] % 3 + 6,
        "end_positions": ids[:, 0] % 3 + 8,
    },
}


@pytest.mark.parametrize("name", LABELS)
def test_gradients_by_transforms(name: str, seed: int) -> None:
    """`grad` of a functional call is what backward gives; `vmap` of it gives each row's own."""
    model, (ids, mask, _) = made(name, seed), inputs(2, 16, seed)
    labels = LABELS[name](ids)
    parameters = {key: parameter.detach() for key, parameter in model.named_parameters()}

    def loss(weights: dict[str, Tensor], ids: Tensor, mask: Tensor, labels: dict[str, Tensor]) -> Tensor:
        total: Tensor = functional_call(model, weights, (ids, mask), labels).loss
        return total

    def of_row(weights: dict[str, Tensor], ids: Tensor, mask: Tensor, labels: dict[str, Tensor]) -> Tensor:
        return loss(weights, ids[None], mask[None], {key: value[None] for key, value in labels.items()})

    whole = grad(loss)(parameters, ids, mask, labels)
    rows = vmap(grad(of_row), in_dims=(None, 0, 0, 0))(parameters, ids, mask, labels)
    for index in (slice(0, 2), slice(0, 1), slice(1, 2)):
        model.zero_grad()
        model(ids[index], mask[index], **{key: value[index] for key, value in labels.items()}).loss.backward()
        for key, parameter in model.named_parameters():
            actual = whole[key] if index == slice(0, 2) else rows[key][index.start]
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(
                actual, expected, rtol=1e-3, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}"
            )


def test_other_transforms(seed: int) -> None:
    """Ensembles, rows by `vmap`, forward-mode derivatives, and packed batches under `grad`."""
    model, (ids, mask, _) = made("BertForSequenceClassification", seed), inputs(2, 16, seed)
    expected = model(ids, mask).logits
    parameters = {key: parameter.detach() for key, parameter in model.named_parameters()}
    stacked = {key: torch.stack((value, value.flip(0))) for key, value in parameters.items()}
    several = vmap(lambda weights: functional_call(model, weights, (ids, mask)).logits)(stacked)
    torch.testing.assert_close(several[0], expected, rtol=1e-4, atol=1e-5)
    rows = vmap(lambda ids, mask: model(ids[None], mask[None]).logits[0])(ids, mask)
    torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-5)

    def logits(weights: dict[str, Tensor]) -> Tensor:
        actual: Tensor = functional_call(model, weights, (ids, mask)).logits
        return actual

    value, tangent = jvp(logits, (parameters,), (parameters,))
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
    step = {key: parameter * 1.001 for key, parameter in parameters.items()}
    torch.testing.assert_close((logits(step) - value) / 1e-3, tangent, rtol=0.1, atol=0.1)

    batch = PackedBatch(input_ids=ids.flatten(), cu_seqlens=torch.tensor([0, 11, 29, 32]).int(), max_seqlen=18)
    actual = grad(lambda weights: functional_call(model, weights, (batch,)).logits.square().sum())(parameters)
    model.zero_grad()
    model(batch).logits.square().sum().backward()
    torch.testing.assert_close(actual["classifier.weight"], model.classifier.weight.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertForSequenceClassification"])
def test_dropout_under_transforms(name: str, seed: int) -> None:
    """Each row draws its own masks, and the same generator's state draws the same ones again."""
    model, (ids, _, _) = made(name, seed).train(), inputs(2, 16, seed)
    ids = ids[:1].expand(2, -1)
    parameters = {key: parameter.detach() for key, parameter in model.named_parameters()}

    def of_row(weights: dict[str, Tensor], ids: Tensor, labels: Tensor) -> Tensor:
        actual: Tensor = functional_call(model, weights, (ids[None],), {"labels": labels[None]}).loss
        return actual

    labels = LABELS[name](ids)["labels"]
    losses = []
    for _ in range(2):
        torch.manual_seed(seed)
        losses.append(vmap(of_row, in_dims=(None, 0, 0), randomness="different")(parameters, ids, labels))
    assert torch.equal(*losses)
    assert losses[0][0] != losses[0][1]


def test_what_cannot_be_recorded_is_one_line(seed: int) -> None:
    with torch.device("meta"):
        model = models.BertModel(CONFIG)
    for ids in (torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, 4, dtype=torch.int64, device="meta")):
        with pytest.raises(UserError, match="on the meta device, which holds no values") as caught:
            model(ids)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["decoder", "prefix"])
def test_encoder_decoders_are_transformed_but_not_traced(kind: str, seed: int) -> None:
    shape = {field.name: getattr(CONFIG, field.name) for field in fields(BertConfig)}
    # torch.func.functional_call loses parameters of modules that a model has twice, as shared embeddings are.
    config = SequenceConfig(
        **{**shape, "kind": kind, "sharing": "none", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    )
    model = BertForSequenceToSequence(config)
    ids, mask, _ = inputs(3, 10, seed)
    targets = inputs(3, 7, seed + 1)[0]
    kwargs = {"target": targets, "attention_mask": mask}
    message = "cannot be traced or exported: its encoder, a BertModel, can be"
    with pytest.raises(UserError, match=message):
        torch.jit.trace(lambda ids: model(ids, **kwargs, return_logits=True).logits, (ids,))
    with pytest.raises(UserError, match=message):
        torch.export.export(model, (ids,), kwargs)
    parameters = {key: parameter.detach() for key, parameter in model.named_parameters()}
    actual = grad(lambda weights: functional_call(model, weights, (ids,), kwargs).loss)(parameters)
    model(ids, **kwargs).loss.backward()
    for key, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(actual[key], parameter.grad, rtol=1e-3, atol=1e-5)


def test_packed_batches_are_not_traced(seed: int) -> None:
    model = made("BertModel", seed).requires_grad_(False)
    ids = inputs(1, 16, seed)[0]

    class Packs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Tensor) -> Tensor:
            batch = PackedBatch(input_ids=ids[0], cu_seqlens=torch.tensor([0, 16]).int(), max_seqlen=16)
            actual: Tensor = self.model(batch).last_hidden_state
            return actual

    for record in (torch.jit.trace, torch.export.export):
        with pytest.raises(UserError, match="a PackedBatch cannot be traced or exported: give input_ids"):
            record(Packs(), (ids,))

"""`softmax` by the Triton kernels, which are imported when they first run."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.dropout.arguments import quantized
from fastbert.ops.operation import Reason
from fastbert.ops.softmax.arguments import SoftmaxArguments
from fastbert.ops.triton_backend import TritonBackend, unsupported_dtype


class Triton(TritonBackend[SoftmaxArguments]):
    """bf16, fp16 and fp32 with the keys of a row contiguous; fp32 arithmetic."""

    def supports(self, arguments: SoftmaxArguments) -> Reason | None:
        """Support half precision and fp32 on GPUs, and in Triton's interpreter.

        Raises UserError for scores whose keys are not contiguous: a copy of them should not go unnoticed.
        """
        scores = arguments.scores
        self.require_device(scores.device, "scores")
        reason = unsupported_dtype("scores", scores)
        if reason is None and scores.shape[3] > 1 and scores.stride(3) != 1:
            raise UserError(
                f"scores is not contiguous: strides {tuple(scores.stride())} of shape {tuple(scores.shape)}, but the"
                " keys of a query must be contiguous; call scores.contiguous()"
            )
        return reason

    def forward(self, arguments: SoftmaxArguments) -> Tensor:
        """Return probabilities, contiguous, shape and dtype of scores."""
        from fastbert.kernels.softmax import softmax as kernels

        return kernels.forward(_inputs(arguments))

    def backward(self, arguments: SoftmaxArguments, grad: Tensor) -> Tensor:
        """Return the gradient of scores, contiguous; the probabilities are recomputed."""
        from fastbert.kernels.softmax import softmax as kernels

        return kernels.backward(grad, _inputs(arguments))


def _inputs(arguments: SoftmaxArguments) -> Any:
    from fastbert.kernels.softmax import softmax as kernels

    return kernels.SoftmaxInputs(
        *arguments[:3], arguments.dropout_key, *quantized(arguments.dropout_p), arguments.dropout_site
    )

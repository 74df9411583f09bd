"""`softmax` by the Triton kernels, which are imported when they first run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from fastbert.ops.dropout.arguments import quantized_attention
from fastbert.ops.operation import Reason
from fastbert.ops.softmax.arguments import SoftmaxArguments
from fastbert.ops.triton_backend import TritonBackend, unsupported_dtype

if TYPE_CHECKING:
    from fastbert.kernels.softmax.softmax import SoftmaxInputs


class Triton(TritonBackend[SoftmaxArguments]):
    """bf16, fp16 and fp32 with the keys of a row contiguous; fp32 arithmetic."""

    def supports(self, arguments: SoftmaxArguments) -> Reason | None:
        """Support half precision and fp32 with contiguous keys on GPUs, and in Triton's interpreter."""
        scores = arguments.scores
        self.require_device(scores.device, "scores")
        if scores.shape[3] > 1 and scores.stride(3) != 1:
            return Reason(
                f"scores is not contiguous: strides {tuple(scores.stride())} of shape {tuple(scores.shape)}, but the"
                " keys of a query must be contiguous; call scores.contiguous()"
            )
        return unsupported_dtype("scores", scores)

    def forward(self, arguments: SoftmaxArguments) -> Tensor:
        """Return probabilities, contiguous, shape and dtype of scores."""
        from fastbert.kernels.softmax import softmax as kernels

        return kernels.forward(_inputs(arguments))

    def backward(self, arguments: SoftmaxArguments, grad: Tensor) -> Tensor:
        """Return the gradient of scores, contiguous; the probabilities are recomputed."""
        from fastbert.kernels.softmax import softmax as kernels

        return kernels.backward(grad, _inputs(arguments))


def _inputs(arguments: SoftmaxArguments) -> SoftmaxInputs:
    from fastbert.kernels.softmax.softmax import SoftmaxInputs

    scores, mask, scale, dropout_p, dropout_key, dropout_site = arguments
    return SoftmaxInputs(scores, mask, scale, dropout_key, *quantized_attention(dropout_p), dropout_site)

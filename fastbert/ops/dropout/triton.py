"""`dropout` by the Triton kernel, which is imported when it first runs."""

from __future__ import annotations

from torch import Tensor

from fastbert.kernels.dropout.inputs import DropoutInputs
from fastbert.ops.dropout.arguments import DropoutArguments, TokenDropout, quantized
from fastbert.ops.operation import Reason
from fastbert.ops.triton_backend import TritonBackend, unsupported_dtype


def kernel_inputs(dropout: TokenDropout | None) -> DropoutInputs | None:
    """Return a dropout as the launchers of kernels receive it."""
    if dropout is None:
        return None
    threshold, keep_scale = quantized(dropout.p)
    return DropoutInputs(dropout.key, dropout.sequence_ids, dropout.offsets, threshold, keep_scale, dropout.site)


class Triton(TritonBackend[DropoutArguments]):
    """bf16, fp16 and fp32, multiplied in fp32."""

    def supports(self, arguments: DropoutArguments) -> Reason | None:
        """Support half precision and fp32 on GPUs, and in Triton's interpreter."""
        self.require_device(arguments.x.device, "x")
        return unsupported_dtype("x", arguments.x)

    def forward(self, arguments: DropoutArguments) -> Tensor:
        """Return x with elements dropped and the others scaled, contiguous, shape and dtype of x."""
        from fastbert.kernels.dropout import launchers

        dropout = kernel_inputs(arguments.dropout)
        assert dropout is not None
        return launchers.apply(arguments.x, dropout)

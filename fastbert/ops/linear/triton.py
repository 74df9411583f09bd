"""The linear layer by Triton kernels with GELU in the epilogue of the matmul, imported when they first run."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.ops.autocast import is_autocast_enabled, matmul_dtype, without_autocast
from fastbert.ops.gelu.arguments import BiasGeluArguments
from fastbert.ops.gelu.op import BIAS_GELU, bias_gelu
from fastbert.ops.linear.arguments import APPROXIMATIONS, LinearArguments
from fastbert.ops.operation import Reason
from fastbert.ops.triton_backend import TritonBackend

HALF = (torch.bfloat16, torch.float16)


class Triton(TritonBackend[LinearArguments]):
    """PyTorch's matmul, or one with GELU in its epilogue where `fuses` holds and the configurations prefer it."""

    def supports(self, arguments: LinearArguments) -> Reason | None:
        """Support all calls: those that are not fused are composed of other operations."""
        if arguments.activation is not None:
            self.require_device(arguments.x.device, "x")
        return None

    def fuses(self, arguments: LinearArguments) -> bool:
        """Return whether the fused kernel may compute a call: half precision, sizes that are multiples of 16."""
        x, weight, bias, activation = arguments
        dtype = matmul_dtype(x)
        cast = is_autocast_enabled(x.device) and x.dtype != torch.float64
        if activation is None or dtype not in HALF or not (cast or weight.dtype == dtype):
            return False
        if bias is not None and bias.dtype not in (dtype, torch.float32):
            return False
        return not (weight.shape[0] % 16 or weight.shape[1] % 16 or weight.numel() == 0)

    def compose(self, arguments: LinearArguments) -> Tensor:
        """Return activation(x weight^T + bias) by PyTorch's matmul and `bias_gelu`."""
        x, weight, bias, activation = arguments
        if activation is None:
            return F.linear(x, weight, bias)
        approximate, dtype = APPROXIMATIONS[activation], matmul_dtype(x)
        if dtype in HALF:
            # The matmul adds the bias: a sum after it would round to half precision twice.
            cast = is_autocast_enabled(x.device) and x.dtype != torch.float64
            bias = bias if cast or bias is None else bias.to(dtype)
            return bias_gelu(F.linear(x, weight, bias), None, approximate)
        # After the matmul, the gradient of the bias is summed in the same pass as that of GELU.
        return bias_gelu(F.linear(x, weight), bias, approximate)

    def forward(self, arguments: LinearArguments, keep_u: bool) -> tuple[Tensor, Tensor]:
        """Return y = gelu(u) and u = x weight^T + bias, of no rows without `keep_u`; x (rows, in) is half precision."""
        from fastbert.kernels.linear import feed_forward

        x, weight, bias, activation = arguments
        with without_autocast(x.device):
            y, u = feed_forward.up_projection(x, weight.to(x.dtype), bias, activation == "gelu_tanh", keep_u)
        return y, u if keep_u else u[:0]

    def backward(self, u: Tensor, tanh: bool, grad: Tensor, sums: bool) -> tuple[Tensor, Tensor | None]:
        """Return the gradient of u and, with `sums`, its fp32 sums over the rows."""
        return BIAS_GELU.backend(self.name).backward(BiasGeluArguments(u, None, tanh), grad, sums)

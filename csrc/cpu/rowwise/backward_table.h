// Dispatch table of backward.h, one per CPU capability.
#pragma once

#include <cstddef>

#include "cpu/rowwise/backward.h"

namespace fastbert {

// Each kernel computes rows first..last of a call whose vectors are fp32, and adds what is summed over rows to `sums`,
// in the call's layout. `scratch` holds two rows of floats and is aligned to 64 bytes. Arrays are indexed by dtype.
struct RowGradientKernels {
    template <class Call>
    using Kernel = void (*)(const Call& call, std::size_t first, std::size_t last, float* scratch, float* sums);

    Kernel<LayerNormBackwardCall> norm[2];
    Kernel<GeluBackwardCall> gelu[2];
    Kernel<GatedBackwardCall> gated[2];
    Kernel<GeluNormBackwardCall> gelu_norm[2];
    Kernel<EmbeddingNormBackwardCall> embedding_norm[2][2];  // by the dtypes of the tables and of the gradient
    void (*softmax[2])(const SoftmaxBackwardCall& call, std::size_t first, std::size_t last, float* scratch);
};

const RowGradientKernels& row_gradient_kernels_portable();
const RowGradientKernels& row_gradient_kernels_avx2();
const RowGradientKernels& row_gradient_kernels_avx512();

}  // namespace fastbert

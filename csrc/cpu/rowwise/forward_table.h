// Dispatch table of rowwise.h, one per CPU capability.
#pragma once

#include <cstddef>

#include "cpu/rowwise/rowwise.h"

namespace fastbert {

// Each kernel computes rows first..last of a call whose vectors are fp32. `scratch` holds two rows of floats (width, or
// keys) and is aligned to 64 bytes. Arrays are indexed by dtype.
struct RowKernels {
    template <class Call>
    using Kernel = void (*)(const Call& call, std::size_t first, std::size_t last, float* scratch);

    Kernel<LayerNormCall> layer_norm[2];
    Kernel<DropoutAddNormCall> dropout_add_layer_norm[2];
    Kernel<GeluCall> bias_gelu[2];
    Kernel<GatedCall> gated[2];
    Kernel<GeluNormCall> gelu_layer_norm[2];
    Kernel<EmbeddingCall> embedding_layer_norm[2][2];  // by the dtypes of the tables and of the result
    Kernel<SoftmaxCall> softmax[2];
    Kernel<DropoutCall> drop[2];
};

const RowKernels& row_kernels_portable();
const RowKernels& row_kernels_avx2();
const RowKernels& row_kernels_avx512();

}  // namespace fastbert

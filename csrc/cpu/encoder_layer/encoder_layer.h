// A whole encoder layer on packed tokens, forward: what a model of few tokens would spend between single operations is
// several times what their kernels take.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/simd/bfloat16.h"
#include "cpu/gemm/gemm.h"

namespace fastbert {

// Biases and LayerNorms, fp32 (width,), the projections' biases joined (3 width,), the inner one (inner,).
struct LayerVectors {
    const float *projections, *attention_output, *attention_norm, *attention_norm_bias;
    const float *intermediate, *output, *output_norm, *output_norm_bias;
};

// The products' weights, laid out for one element.
struct LayerWeights {
    const PrepackedWeight* projections;  // query, key and value, one below the other
    const PrepackedWeight* attention_output;
    const PrepackedWeight* intermediate;
    const PrepackedWeight* output;
};

struct LayerCall {
    const void* x;         // (tokens, width), rows `x_stride` elements apart
    Dtype x_dtype;
    std::size_t x_stride;
    void* y;               // (outputs, width), contiguous; not x
    Dtype y_dtype;         // of activations inside, too
    std::size_t tokens;
    const std::int64_t* rows;  // (outputs,), the tokens whose output is wanted, each below `tokens`; or null: all
    std::size_t outputs;   // as many as tokens without `rows`
    const std::int32_t* cu_seqlens;  // (sequences + 1,), from 0 up to tokens
    std::size_t sequences;
    std::size_t heads;
    float eps;
    bool tanh;             // GELU by its approximation
    bool causal;
};

// y = the layer's output. Throws std::bad_alloc.
void encoder_layer(const LayerCall& call, const LayerWeights& weights, const LayerVectors& vectors);

}  // namespace fastbert

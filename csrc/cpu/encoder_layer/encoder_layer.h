// A whole encoder layer on packed tokens, forward only: for models with few tokens, dispatching single operations costs
// several times their kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/simd/bfloat16.h"
#include "cpu/attention/attention.h"
#include "cpu/gemm/gemm.h"

namespace fastbert {

// Biases and norm weights, fp32 (width,); the concatenated projection biases (of queries, keys and values), the
// intermediate bias (of a gated network both halves). Those that a layer lacks are null.
struct LayerVectors {
    const float *projections, *attention_output, *attention_norm, *attention_norm_bias;
    const float *intermediate, *output, *output_norm, *output_norm_bias;
};

// Prepacked weights, all for the same element type.
struct LayerWeights {
    const PrepackedWeight* projections;  // query, key and value, stacked
    const PrepackedWeight* attention_output;
    const PrepackedWeight* intermediate;
    const PrepackedWeight* output;
};

// A layer of a stack: weights, vectors, and the epsilons of the attention's and the output's norm.
struct StackLayer {
    LayerWeights weights;
    LayerVectors vectors;
    float attention_eps = 0.0F, output_eps = 0.0F;
};

struct LayerCall {
    const void* x;         // (tokens, width), rows `x_stride` elements apart
    Dtype x_dtype;
    std::size_t x_stride;
    void* y;               // (outputs, width), contiguous; not x
    Dtype y_dtype;         // also of intermediate activations
    std::size_t tokens;
    const std::int64_t* rows;  // (outputs,): indices of the output tokens; null for all
    std::size_t outputs;   // equals `tokens` if `rows` is null
    const std::int32_t* cu_seqlens;  // (sequences + 1,), from 0 to tokens
    std::size_t sequences;
    // Its heads, dims, group, scale, mask and positions; the layer sets the rest.
    AttentionCall attention;
    float attention_eps, output_eps;
    // The activation of the feed-forward network; of a gated one, whose weight is, that of its gates.
    Epilogue::Activation activation;
    Activation gate = Activation::gelu;
    // The norms are in front of attention and of the network, not behind them: LayerNorm, or RMSNorm if `rms`. That of
    // attention may be absent.
    bool pre_norm = false, rms = false;
};

// Compute the layer's output. Throws std::bad_alloc.
void encoder_layer(const LayerCall& call, const LayerWeights& weights, const LayerVectors& vectors);

// Compute layers of one width, each of the outputs of the one before; `call` describes the first layer's input and the
// last one's output, and its `rows` are those of the last layer. `states` holds two such outputs of all tokens, one for
// two layers, none for one. Throws std::bad_alloc.
void encoder_stack(const LayerCall& call, std::span<const StackLayer> layers, void* states);

}  // namespace fastbert

// One token per row through a stack of decoder layers: left-to-right generation with cached keys and values.
//
// A step multiplies few rows by every weight once, so it takes as long as reading the weights; calls between the
// kernels would add as much again for small models. Each row's bits are independent of the other rows and of the number
// of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/encoder_layer/encoder_layer.h"
#include "cpu/gemm/gemm.h"

namespace fastbert {

// Layers of one width and one element type; in pre-LN layers the norms precede attention and the feed-forward network.
struct DecoderStack {
    std::span<const StackLayer> layers;
    std::size_t heads = 0;
    bool pre_norm = false;  // x + f(norm(x)) as in GPT-2, else norm(x + f(x)) as in BERT and GPT
    Epilogue::Activation activation = Epilogue::Activation::gelu;  // or gelu_tanh
    FusedNorm final_norm;  // of the last layer's output; null for none
};

struct DecoderStep {
    const void* x = nullptr;   // (rows, width), rows `x_stride` elements apart
    std::size_t x_stride = 0;
    Dtype dtype = Dtype::fp32;  // of x, y, the caches and the activations inside
    std::size_t rows = 0;
    // Per layer (rows, slots, heads, head_dim), contiguous: slot `slot` is written, and slots starts[row].. `slot` are
    // read.
    std::span<void* const> keys, values;
    std::size_t slots = 0, slot = 0;
    const std::int64_t* starts = nullptr;  // (rows,): from 0 to `slot`
    void* y = nullptr;                     // (rows, width), contiguous; not x
};

// Compute a step. Throws std::bad_alloc.
void decoder_step(const DecoderStack& stack, const DecoderStep& step);

}  // namespace fastbert

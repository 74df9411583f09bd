// Gradients of weights: a^T b over the tokens, and with it the gradient of a bias, the sums of a's columns.
#pragma once

#include <cstddef>

#include "cpu/simd/bfloat16.h"

namespace fastbert {

struct WeightGradientCall {
    const void *a = nullptr, *b = nullptr;  // (tokens, rows) and (tokens, columns)
    Dtype dtype = Dtype::bf16;              // of both
    std::size_t a_stride = 0, b_stride = 0;  // elements
    std::size_t tokens = 0, rows = 0, columns = 0;
    float* out = nullptr;  // (rows, columns), rows `out_stride` elements apart
    std::size_t out_stride = 0;
    bool accumulate = false;  // add to what `out` holds
    float* sums = nullptr;    // (rows,), not added to what it holds; or null
};

// The tokens are cut in chunks by their number alone, and a chunk's sums, fp32, are added to those before it: the
// result has the same bits on any number of threads. Throws std::bad_alloc.
void weight_gradient(const WeightGradientCall& call);

}  // namespace fastbert

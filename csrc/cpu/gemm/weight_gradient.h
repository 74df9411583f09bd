// Weight gradients: a^T b over the tokens, and the bias gradient, the column sums of a.
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
    bool accumulate = false;  // add to `out` instead of overwriting it
    float* sums = nullptr;    // (rows,), always overwritten; may be null
};

// Compute a weight gradient. Tokens are split into chunks by their number alone, and the fp32 sums of chunks are added
// in order: the bits do not depend on the number of threads. Throws std::bad_alloc.
void weight_gradient(const WeightGradientCall& call);

}  // namespace fastbert

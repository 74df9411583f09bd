// The gradient of a table of embeddings from those of the tokens' sums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/rowwise/rowwise.h"

namespace fastbert {

// gradient[id] = sum of dsum[token] over the tokens with that id, zero for rows without any.
struct TableGradientCall {
    std::size_t tokens = 0, width = 0;
    Dtype dtype = Dtype::fp32;    // of the gradient
    const float* dsum = nullptr;  // (tokens, width)
    Ids ids;                      // those outside of the table are left out
    std::int64_t rows = 0;
    void* gradient = nullptr;  // (rows, width)
};

// Every row is written once. Tokens are added up in their order, in fp32, an id's many tokens in blocks of a fixed
// length whose sums are then added up in order: bits do not depend on threads.
void table_gradient(const TableGradientCall& call);

}  // namespace fastbert

// The gradient of an embedding table from the gradients of the tokens' sums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/rowwise/rowwise.h"

namespace fastbert {

// gradient[id] = sum of dsum[token] over the tokens with that id; zero for unused rows.
struct EmbeddingBackwardCall {
    std::size_t tokens = 0, width = 0;
    Dtype dtype = Dtype::fp32;    // of the gradient
    const float* dsum = nullptr;  // (tokens, width)
    Ids ids;                      // ids outside the table are ignored
    std::int64_t rows = 0;
    void* gradient = nullptr;  // (rows, width)
};

// Every row is written once. Tokens are added in order, in fp32; those of a frequent id in blocks of a fixed length
// whose sums are then added in order, so the bits do not depend on threads.
void embedding_backward(const EmbeddingBackwardCall& call);

}  // namespace fastbert

// The most probable token of each row of logits, and its log probability.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/simd/bfloat16.h"

namespace fastbert {

struct BestTokensCall {
    const void* logits = nullptr;  // (rows, vocab_size), rows `stride` elements apart
    Dtype dtype = Dtype::fp32;
    std::size_t rows = 0, vocab_size = 0, stride = 0;
    std::int64_t* tokens = nullptr;    // (rows,): the first of the highest logits, of NaNs the first
    float* log_probabilities = nullptr;  // (rows,): highest - logsumexp(logits)
};

// Each row's bits are independent of the other rows and of the number of threads. Throws std::bad_alloc.
void best_tokens(const BestTokensCall& call);

// Of a part of a row: its first highest logit, and the sum of exp(logit - highest).
struct BestOfPart {
    std::size_t index = 0;
    float highest = 0.0F, total = 0.0F;
};

// Logits first.. below last of a row.
using BestTokenKernel = BestOfPart (*)(const void* row, std::size_t first, std::size_t last);

BestTokenKernel best_token_portable(Dtype dtype);
BestTokenKernel best_token_avx2(Dtype dtype);
BestTokenKernel best_token_avx512(Dtype dtype);

}  // namespace fastbert

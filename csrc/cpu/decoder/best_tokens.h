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

// Of a part of a row: its highest logit, and the sum of exp(logit - highest); NaN if there is a NaN or an infinity.
struct PartOfRow {
    float highest = 0.0F, total = 0.0F;
};

// Logits first.. below last of a row.
using PartKernel = PartOfRow (*)(const void* row, std::size_t first, std::size_t last);

PartKernel part_of_row_portable(Dtype dtype);
PartKernel part_of_row_avx2(Dtype dtype);
PartKernel part_of_row_avx512(Dtype dtype);

}  // namespace fastbert

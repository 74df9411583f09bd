// Cross-entropy of rows of logits, whose gradient takes their place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/simd/bfloat16.h"

namespace fastbert {

// With p = softmax(logits), lse their logarithm of the sum of exponentials, t the target (1 - label_smoothing at the
// label, label_smoothing / vocabulary added everywhere): loss = lse - t . logits + z_loss lse^2 of each row, fp32.
struct CrossEntropyCall {
    void* logits = nullptr;  // (rows, vocabulary); where `gradients` is set, p (1 + 2 z_loss lse) - t takes their place
    Dtype dtype = Dtype::fp32;
    std::size_t rows = 0, vocabulary = 0, stride = 0;  // elements from one row to the next
    const std::int64_t* labels = nullptr;              // (rows,): below `vocabulary`, or `ignored`
    std::int64_t ignored = -100;
    float label_smoothing = 0.0F, z_loss = 0.0F;
    bool gradients = false;
    // (rows,): a row's loss, and whether its label is the first of its highest logits. Ignored rows have neither, and
    // gradients of zero.
    float* losses = nullptr;
    std::uint8_t* correct = nullptr;
};

// A row's results have the same bits whatever the others are, on any number of threads.
void cross_entropy(const CrossEntropyCall& call);

using CrossEntropyKernel = void (*)(const CrossEntropyCall& call, std::size_t first, std::size_t last);

CrossEntropyKernel cross_entropy_portable(Dtype dtype);
CrossEntropyKernel cross_entropy_avx2(Dtype dtype);
CrossEntropyKernel cross_entropy_avx512(Dtype dtype);

}  // namespace fastbert

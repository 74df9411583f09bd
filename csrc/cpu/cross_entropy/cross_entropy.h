// Cross-entropy of rows of logits; gradients are written in place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/simd/bfloat16.h"

namespace fastbert {

// With p = softmax(logits), lse = logsumexp(logits) and the target t (1 - label_smoothing at the label, plus
// label_smoothing / vocab_size everywhere): loss = lse - t . logits + z_loss lse^2 per row, in fp32.
struct CrossEntropyCall {
    void* logits = nullptr;  // (rows, vocab_size); replaced by p (1 + 2 z_loss lse) - t if `gradients`
    Dtype dtype = Dtype::fp32;
    std::size_t rows = 0, vocab_size = 0, stride = 0;  // stride in elements
    const std::int64_t* labels = nullptr;              // (rows,): below `vocab_size`, or `ignore_index`
    std::int64_t ignore_index = -100;
    float label_smoothing = 0.0F, z_loss = 0.0F;
    bool gradients = false;
    // (rows,): the loss of each row, and whether its label is the first of its highest logits. Ignored rows have loss
    // 0, are not correct and have zero gradients.
    float* losses = nullptr;
    std::uint8_t* correct = nullptr;
};

// Each row's bits are independent of the other rows and of the number of threads.
void cross_entropy(const CrossEntropyCall& call);

using CrossEntropyKernel = void (*)(const CrossEntropyCall& call, std::size_t first, std::size_t last);

CrossEntropyKernel cross_entropy_portable(Dtype dtype);
CrossEntropyKernel cross_entropy_avx2(Dtype dtype);
CrossEntropyKernel cross_entropy_avx512(Dtype dtype);

}  // namespace fastbert

// AdamW (Loshchilov and Hutter 2019, algorithm 2) in one pass over memory, and the gradient checks before it: norm and
// non-finite elements.
//
// The formula and its rounding are those of torch's fused step on x86 processors with FMA, bit for bit. Elements are
// independent and sums are split at fixed offsets, so no result depends on the number of threads.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "cpu/gemm/gemm.h"

namespace fastbert {

struct AdamSettings {
    double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
};

// A contiguous fp32 weight (rows, columns) with its gradient and optimizer state; `step` counts the steps before this
// one.
struct AdamParameter {
    float* weight = nullptr;
    float* gradient = nullptr;
    float* exp_avg = nullptr;
    float* exp_avg_sq = nullptr;
    float* step = nullptr;
    std::size_t rows = 0, columns = 0;
    AdamSettings settings;

    std::size_t size() const { return rows * columns; }
};

// A prepacked copy, bf16 or fp32; row 0 of the parameter is row `offset` of the copy.
struct AdamCopy {
    PrepackedWeight* packed = nullptr;
    bool transposed = false;
    std::size_t parameter = 0;  // index in the call's parameters
    std::size_t offset = 0;
};

struct AdamCall {
    std::span<const AdamParameter> parameters;
    std::span<const AdamCopy> copies;
    float grad_scale = 1.0F;  // of all gradients, for clipping
    bool zero_grad = false;   // after use
};

// Return true if two of the call's tensors share memory that it writes: they must then be updated one after the other.
bool overlaps(const AdamCall& call);

// Update all parameters, which must not overlap, and rewrite their prepacked copies from rows still in cache.
void adamw(const AdamCall& call);

struct FloatSpan {
    const float* data = nullptr;
    std::size_t size = 0;
};

struct NonFinite {
    std::size_t tensor = 0, element = 0;
};

struct SquaresResult {
    double sum = 0;                // of all squares, fp64
    std::optional<NonFinite> non_finite;  // the first NaN or infinity; `sum` is then undefined
};

SquaresResult sum_of_squares(std::span<const FloatSpan> tensors);

// Rewrite prepacked copies completely from rows of weights, bf16 or fp32, on all threads.
struct CopyPart {
    PrepackedWeight* packed = nullptr;
    bool transposed = false;
    std::size_t offset = 0;
    const void* weight = nullptr;
    Dtype dtype = Dtype::fp32;
    std::size_t rows = 0, stride = 0;
};
void repack_all(std::span<const CopyPart> parts);

}  // namespace fastbert

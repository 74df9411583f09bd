// The optimiser's step (AdamW, Loshchilov and Hutter 2019, algorithm 2) in one pass over memory, and what a gradient
// is looked at for before it: its norm, and whether it is a number throughout.
//
// The formula and its roundings are those of torch's fused step on x86 processors with FMA, bit for bit. Elements are
// computed by themselves and sums are cut at fixed places, so no result depends on the number of threads.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "cpu/gemm/gemm.h"

namespace fastbert {

struct AdamSettings {
    double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
};

// A contiguous fp32 weight (rows, columns) with what belongs to it; `step` counts the steps before this one.
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

// A packed copy, bf16 or fp32, of which a parameter's row 0 is row `offset`.
struct AdamCopy {
    PrepackedWeight* packed = nullptr;
    bool transposed = false;
    std::size_t parameter = 0;  // which of the call's
    std::size_t offset = 0;
};

struct AdamCall {
    std::span<const AdamParameter> parameters;
    std::span<const AdamCopy> copies;
    float factor = 1.0F;  // of all gradients, to clip them
    bool clear = false;   // write zeros to the gradients once they are used
};

// Whether two of the call's tensors share memory that it writes: then they must be computed one after the other.
bool overlaps(const AdamCall& call);

// One step of all parameters, which must not overlap, and their packed copies anew from rows that are still in cache.
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
    std::optional<NonFinite> non_finite;  // the first NaN or infinity; then `sum` means nothing
};

SquaresResult sum_of_squares(std::span<const FloatSpan> tensors);

// Rows of weights, bf16 or fp32, into packed copies: everything anew, on all threads.
struct CopyPart {
    PrepackedWeight* packed = nullptr;
    bool transposed = false;
    std::size_t offset = 0;
    const void* weight = nullptr;
    Dtype dtype = Dtype::fp32;
    std::size_t rows = 0, stride = 0;
};
void refill(std::span<const CopyPart> parts);

}  // namespace fastbert

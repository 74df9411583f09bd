// AdamW (Loshchilov and Hutter 2019, algorithm 2) in one pass over memory, and the gradient checks before it: norm and
// non-finite elements. StableAdamW and LAMB are AdamW with a learning rate per parameter, which follows from sums of a
// pass before it that only reads.
//
// The formula and its rounding are those of torch's fused step on x86 processors with FMA, bit for bit. Elements are
// independent and sums are split at fixed offsets, so no result depends on the number of threads.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "cpu/adamw/kernel_table.h"
#include "cpu/gemm/gemm.h"

namespace fastbert {

struct AdamSettings {
    double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
};

// A contiguous weight (rows, columns) with its gradient and optimizer state; `step` counts the steps before this one.
// With a bf16 parameter `narrow`, whose gradient is bf16 too, `weight` is its fp32 master.
struct AdamParameter {
    float* weight = nullptr;
    void* gradient = nullptr;
    float* exp_avg = nullptr;
    float* exp_avg_sq = nullptr;
    float* step = nullptr;
    std::size_t rows = 0, columns = 0;
    AdamSettings settings;
    BFloat16* narrow = nullptr;

    std::size_t size() const { return rows * columns; }
    std::size_t gradient_bytes() const { return size() * size_of(narrow ? Dtype::bf16 : Dtype::fp32); }
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

enum class AdamRule { stable, lamb };

// Return the sums of each parameter, from which its learning rate follows, without writing anything. LAMB: zeros for
// parameters without weight decay, which have no trust ratio.
std::vector<AdamSums> adam_sums(const AdamCall& call, AdamRule rule);

struct FloatSpan {
    const void* data = nullptr;
    std::size_t size = 0;
    Dtype dtype = Dtype::fp32;
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

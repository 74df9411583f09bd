// Dispatch table of the AdamW kernels, one per CPU capability.
#pragma once

#include <cstddef>

#include "cpu/simd/bfloat16.h"

namespace fastbert {

// A contiguous range of one parameter with its coefficients, rounded as torch rounds them.
struct AdamRange {
    float* weight = nullptr;
    void* gradient = nullptr;        // fp32, or bf16 with a `narrow` weight
    BFloat16* narrow = nullptr;      // the weight rounded to bf16, if that is the parameter and `weight` its master
    float* exp_avg = nullptr;
    float* exp_avg_sq = nullptr;
    std::size_t count = 0;
    std::size_t tail = 0;  // the last of these, after the tensor's last whole group of eight
    float grad_scale = 1, decay = 1;
    float lerp = 0;              // 1 - beta1, or -beta1 from the gradient's side
    bool from_gradient = false;  // 1 - beta1 >= 1/2
    float beta2 = 0, square_share = 0, root_correction = 1, eps = 0, minus_step_size = 0;
    float inverse_correction = 1, weight_decay = 0;  // of the sums only: 1 / (1 - beta1^t), and the setting itself
    bool zero_grad = false;
};

// Sums over a range, fp64. StableAdamW: of g^2 / max(v, eps^2). LAMB: of the weight's squares and of the update's.
struct AdamSums {
    double first = 0, second = 0;
};

struct AdamKernels {
    void (*update)(const AdamRange& range);
    double (*squares)(const float* x, std::size_t count);
    double (*squares_bf16)(const BFloat16* x, std::size_t count);
    AdamSums (*stable_sums)(const AdamRange& range);
    AdamSums (*lamb_sums)(const AdamRange& range);
};

const AdamKernels& adam_kernels_portable();
const AdamKernels& adam_kernels_avx2();
const AdamKernels& adam_kernels_avx512();

}  // namespace fastbert

// Dispatch table of the AdamW kernels, one per CPU capability.
#pragma once

#include <cstddef>

namespace fastbert {

// A contiguous range of one parameter with its coefficients, rounded as torch rounds them.
struct AdamRange {
    float* weight = nullptr;
    float* gradient = nullptr;
    float* exp_avg = nullptr;
    float* exp_avg_sq = nullptr;
    std::size_t count = 0;
    std::size_t tail = 0;  // the last of these, after the tensor's last whole group of eight
    float grad_scale = 1, decay = 1;
    float lerp = 0;              // 1 - beta1, or -beta1 from the gradient's side
    bool from_gradient = false;  // 1 - beta1 >= 1/2
    float beta2 = 0, square_share = 0, root_correction = 1, eps = 0, minus_step_size = 0;
    bool zero_grad = false;
};

struct AdamKernels {
    void (*update)(const AdamRange& range);
    double (*squares)(const float* x, std::size_t count);
};

const AdamKernels& adam_kernels_portable();
const AdamKernels& adam_kernels_avx2();
const AdamKernels& adam_kernels_avx512();

}  // namespace fastbert

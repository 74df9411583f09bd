// The arithmetic peak of this processor: matmul instructions on random data in registers, of which `fastbert bench
// encoder` reports shares.
#pragma once

#include <cstddef>

#include "cpu/gemm/gemm.h"
#include "cpu/simd/target.h"

namespace fastbert {

// Operations per second (multiply and add count as two) of `threads` threads running for `seconds`, with the widest
// instructions that kernels use at the current CPU capability; those of fp32 if there are none for the element.
double cpu_peak(Element element, int threads, double seconds);

// One instruction repeated: `run` executes `rounds` rounds of independent instructions on 64 * kPeakVectors random
// bytes aligned to 64, and stores a result there.
struct PeakKernel {
    void (*run)(std::byte* data, std::size_t rounds);
    double operations;  // per round
    void (*enter)();
    void (*leave)();
};
inline constexpr std::size_t kPeakVectors = 64;

#if FASTBERT_X86
PeakKernel avx2_peak(Element element);
PeakKernel avx512_peak(Element element);
#endif

}  // namespace fastbert

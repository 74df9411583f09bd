// What this processor could do: the rate of its products on random data that stays in registers.
#pragma once

#include <cstddef>

#include "cpu/gemm/gemm.h"
#include "cpu/simd/target.h"

namespace fastbert {

// Operations (a product and a sum are two) a second of `threads` threads that multiply elements for `seconds`, by the
// widest instructions that kernels use at the level in force: fp32's, where there are none for the element.
double cpu_peak(Element element, int threads, double seconds);

// One instruction, again and again: `run` executes it `rounds` times in a row of independent ones, on 64 * kPeakVectors
// random bytes that begin at a multiple of 64, and leaves something of the result there.
struct PeakKernel {
    void (*run)(std::byte* data, std::size_t rounds);
    double operations;  // of a round
    void (*enter)();
    void (*leave)();
};
inline constexpr std::size_t kPeakVectors = 64;

#if FASTBERT_X86
PeakKernel avx2_peak(Element element);
PeakKernel avx512_peak(Element element);
#endif

}  // namespace fastbert

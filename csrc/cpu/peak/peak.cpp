#include "cpu/peak/peak.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cpu/simd/bfloat16.h"
#include "cpu/runtime/cpu_capability.h"
#include "cpu/runtime/parallel.h"

namespace fastbert {
namespace {

#include "cpu/peak/registers.h"
#include "cpu/simd/vector_portable.h"

struct Plain {
    using Vector = Portable::Float;
    static constexpr std::size_t kSums = 4;
    static constexpr double kOperations = 2.0 * Portable::kLanes;
    static FASTBERT_INLINE Vector load(const std::byte* p) { return Portable::load(reinterpret_cast<const float*>(p)); }
    static FASTBERT_INLINE void store(std::byte* p, Vector x) { Portable::store(reinterpret_cast<float*>(p), x); }
    static FASTBERT_INLINE Vector step(Vector sum, Vector x, Vector y) { return Portable::fma(x, y, sum); }
};

PeakKernel peak_kernel([[maybe_unused]] Element element) {
#if FASTBERT_X86
    if (cpu_capability() >= CpuCapability::avx512) return avx512_peak(element);
    if (cpu_capability() == CpuCapability::avx2) return avx2_peak(element);
#endif
    return peak_of<Plain>();
}

// Random values in [-1, 1] as floats, pairs of bf16, or bytes: zeros would draw less power and run at a higher
// frequency.
void fill_random(std::byte* data, Element element) {
    std::uint32_t state = 0x9E3779B9U;
    for (std::size_t i = 0; i < kPeakVectors * 16; ++i) {
        std::uint32_t bits[2];
        for (std::uint32_t& word : bits) word = state = state * 1664525U + 1013904223U;
        const auto number = [](std::uint32_t from) { return static_cast<float>(from >> 8) * 0x1p-23F - 1.0F; };
        std::uint32_t word = bits[0] ^ bits[1] >> 16;
        if (element == Element::fp32) word = std::bit_cast<std::uint32_t>(number(bits[0]));
        if (element == Element::bf16)
            word = to_bfloat16(number(bits[0])).bits | std::uint32_t{to_bfloat16(number(bits[1])).bits} << 16;
        std::memcpy(data + i * 4, &word, 4);
    }
}

// Operations per second of one thread.
double rate(const PeakKernel& kernel, Element element, double seconds) {
    using Clock = std::chrono::steady_clock;
    constexpr std::size_t kRounds = 4096;
    alignas(64) std::byte data[64 * kPeakVectors];
    fill_random(data, element);
    if (kernel.enter) kernel.enter();
    double passed = 0.0, rounds = 0.0;
    const Clock::time_point begin = Clock::now();
    do {
        kernel.run(data, kRounds);
        rounds += kRounds;
        passed = std::chrono::duration<double>(Clock::now() - begin).count();
    } while (passed < seconds);
    if (kernel.leave) kernel.leave();
    return rounds * kernel.operations / passed;
}

}  // namespace

double cpu_peak(Element element, int threads, double seconds) {
    const PeakKernel kernel = peak_kernel(element);
    // Without instructions for an element type, its peak is that of fp32.
    const bool floats = kernel.run == peak_kernel(Element::fp32).run;
    std::vector<double> rates(static_cast<std::size_t>(threads), 0.0);
    parallel(threads, [&](int thread, int) {
        rates[static_cast<std::size_t>(thread)] = rate(kernel, floats ? Element::fp32 : element, seconds);
    });
    double total = 0.0;
    for (const double thread_rate : rates) total += thread_rate;
    return total;
}

}  // namespace fastbert

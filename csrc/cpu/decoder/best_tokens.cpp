#include "cpu/decoder/best_tokens.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/runtime/cpu_capability.h"
#include "cpu/runtime/parallel.h"
#include "cpu/simd/target.h"

namespace fastbert {
namespace {

// Logits per part: rows are split at multiples of it, however many threads there are.
constexpr std::size_t kPart = 4096;
constexpr std::size_t kMinParts = 8;  // per thread: some microseconds

BestTokenKernel kernel_of(Dtype dtype) {
#if FASTBERT_X86
    if (cpu_capability() >= CpuCapability::avx512) return best_token_avx512(dtype);
    if (cpu_capability() >= CpuCapability::avx2) return best_token_avx2(dtype);
#endif
    return best_token_portable(dtype);
}

// Of two neighbouring parts; one with a NaN or an infinity has total NaN.
BestOfPart joined(const BestOfPart& a, const BestOfPart& b) {
    if (a.total != a.total) return a;
    if (b.total != b.total) return b;
    if (a.total == 0.0F || b.total == 0.0F) return a.total == 0.0F && b.total != 0.0F ? b : a;
    if (!(b.highest > a.highest)) return {a.index, a.highest, a.total + b.total * std::exp(b.highest - a.highest)};
    return {b.index, b.highest, b.total + a.total * std::exp(a.highest - b.highest)};
}

}  // namespace

void best_tokens(const BestTokensCall& call) {
    const BestTokenKernel kernel = kernel_of(call.dtype);
    const std::size_t parts = (call.vocab_size + kPart - 1) / kPart;
    std::vector<BestOfPart> best(call.rows * parts);
    parallel_ranges(best.size(), kMinParts, [&](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i) {
            const std::size_t begin = i % parts * kPart, end = std::min(call.vocab_size, begin + kPart);
            const auto* row = static_cast<const std::byte*>(call.logits) + i / parts * call.stride * size_of(call.dtype);
            best[i] = kernel(row, begin, end);
        }
    });
    for (std::size_t row = 0; row < call.rows; ++row) {
        BestOfPart whole = best[row * parts];
        for (std::size_t part = 1; part < parts; ++part) whole = joined(whole, best[row * parts + part]);
        call.tokens[row] = static_cast<std::int64_t>(whole.index);
        call.log_probabilities[row] =
            whole.total > 0.0F ? -std::log(whole.total) : std::numeric_limits<float>::quiet_NaN();
    }
}

}  // namespace fastbert

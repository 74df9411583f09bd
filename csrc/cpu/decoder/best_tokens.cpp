#include "cpu/decoder/best_tokens.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "cpu/runtime/cpu_capability.h"
#include "cpu/runtime/parallel.h"
#include "cpu/simd/target.h"

namespace fastbert {
namespace {

// Logits per part: rows are split at multiples of it, however many threads there are.
constexpr std::size_t kPart = 4096;
constexpr std::size_t kMinParts = 8;  // per thread: some microseconds

PartKernel kernel_of(Dtype dtype) {
#if FASTBERT_X86
    if (cpu_capability() >= CpuCapability::avx512) return part_of_row_avx512(dtype);
    if (cpu_capability() >= CpuCapability::avx2) return part_of_row_avx2(dtype);
#endif
    return part_of_row_portable(dtype);
}

struct BestOfRow {
    std::size_t part = 0;  // which holds the best logit
    float highest = 0.0F, total = 0.0F;
};

// The best of two neighbouring ranges of parts; the first with a NaN or an infinity is the best.
BestOfRow joined(const BestOfRow& a, const BestOfRow& b) {
    if (a.total != a.total) return a;
    if (b.total != b.total) return b;
    if (a.total == 0.0F || b.total == 0.0F) return a.total == 0.0F && b.total != 0.0F ? b : a;
    if (!(b.highest > a.highest)) return {a.part, a.highest, a.total + b.total * std::exp(b.highest - a.highest)};
    return {b.part, b.highest, b.total + a.total * std::exp(a.highest - b.highest)};
}

// The first NaN of logits first.. below last, if `best` says that there may be one, else the first of the highest.
template <class T>
std::size_t index_of(const T* logits, std::size_t first, std::size_t last, const BestOfRow& best) {
    const auto value = [&](std::size_t index) {
        if constexpr (std::is_same_v<T, float>) return logits[index];
        else return to_float(logits[index]);
    };
    if (best.total != best.total) {
        for (std::size_t index = first; index < last; ++index)
            if (value(index) != value(index)) return index;
    }
    for (std::size_t index = first; index < last; ++index)
        if (value(index) == best.highest) return index;
    return first;
}

}  // namespace

void best_tokens(const BestTokensCall& call) {
    const PartKernel kernel = kernel_of(call.dtype);
    const std::size_t parts = (call.vocab_size + kPart - 1) / kPart;
    const auto row_at = [&](std::size_t row) {
        return static_cast<const std::byte*>(call.logits) + row * call.stride * size_of(call.dtype);
    };
    std::vector<PartOfRow> sums(call.rows * parts);
    parallel_ranges(sums.size(), kMinParts, [&](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i) {
            const std::size_t begin = i % parts * kPart;
            sums[i] = kernel(row_at(i / parts), begin, std::min(call.vocab_size, begin + kPart));
        }
    });
    for (std::size_t row = 0; row < call.rows; ++row) {
        BestOfRow best;
        for (std::size_t part = 0; part < parts; ++part) {
            const auto [highest, total] = sums[row * parts + part];
            const BestOfRow next{part, highest, total};
            best = part ? joined(best, next) : next;
        }
        const std::size_t first = best.part * kPart, last = std::min(call.vocab_size, first + kPart);
        const std::size_t index = call.dtype == Dtype::fp32
                                      ? index_of(reinterpret_cast<const float*>(row_at(row)), first, last, best)
                                      : index_of(reinterpret_cast<const BFloat16*>(row_at(row)), first, last, best);
        call.tokens[row] = static_cast<std::int64_t>(index);
        call.log_probabilities[row] =
            best.total > 0.0F ? -std::log(best.total) : std::numeric_limits<float>::quiet_NaN();
    }
}

}  // namespace fastbert

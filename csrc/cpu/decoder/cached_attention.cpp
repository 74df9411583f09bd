#include "cpu/decoder/cached_attention.h"

#include <algorithm>

#include "cpu/runtime/cpu_capability.h"
#include "cpu/runtime/parallel.h"
#include "cpu/simd/target.h"

namespace fastbert {
namespace {

// Bytes of keys and values per thread below which one thread is faster: some microseconds of reading.
constexpr std::size_t kMinBytes = std::size_t{1} << 17;

CachedAttentionKernel kernel_of(Dtype dtype) {
#if FASTBERT_X86
    if (cpu_capability() >= CpuCapability::avx512) return cached_attention_avx512(dtype);
    if (cpu_capability() >= CpuCapability::avx2) return cached_attention_avx2(dtype);
#endif
    return cached_attention_portable(dtype);
}

}  // namespace

std::size_t cached_attention_scratch(std::size_t heads, std::size_t dim) {
    // Queries and sums, padded by a vector; scores; maxima and totals.
    return 2 * (heads * dim + 16) + heads * kCachedKeys + 2 * heads;
}

void cached_attention(const CachedAttentionCall& call, float* scratch, int threads) {
    const CachedAttentionKernel kernel = kernel_of(call.dtype);
    const std::size_t units = call.rows * call.heads, per_thread = cached_attention_scratch(call.heads, call.dim);
    std::size_t bytes = 0;
    for (std::size_t row = 0; row < call.rows; ++row)
        bytes += (call.end - static_cast<std::size_t>(call.starts[row])) * call.heads * call.dim * 2 *
                 size_of(call.dtype);
    // Units are heads of rows. A thread's heads of one row are computed together, since they are neighbours in memory.
    const auto run = [&](std::size_t first, std::size_t last, float* memory) {
        for (std::size_t row = first / call.heads; row * call.heads < last; ++row) {
            const std::size_t begin = std::max(first, row * call.heads) - row * call.heads;
            const std::size_t end = std::min(last, (row + 1) * call.heads) - row * call.heads;
            kernel(call, row, begin, end, memory);
        }
    };
    if (threads <= 1 || units < 2 || bytes < 2 * kMinBytes) return run(0, units, scratch);
    parallel(threads, [&](int thread, int running) {
        const auto index = static_cast<std::size_t>(thread), count = static_cast<std::size_t>(running);
        const std::size_t first = units * index / count, last = units * (index + 1) / count;
        if (first < last) run(first, last, scratch + index * per_thread);
    });
}

}  // namespace fastbert

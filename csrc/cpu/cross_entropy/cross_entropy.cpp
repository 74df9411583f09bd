#include "cpu/cross_entropy/cross_entropy.h"

#include <algorithm>

#include "cpu/runtime/cpu_capability.h"
#include "cpu/runtime/parallel.h"
#include "cpu/simd/target.h"

namespace fastbert {
namespace {

CrossEntropyKernel kernel_of(Dtype dtype) {
#if FASTBERT_X86
    if (cpu_capability() >= CpuCapability::avx512) return cross_entropy_avx512(dtype);
    if (cpu_capability() >= CpuCapability::avx2) return cross_entropy_avx2(dtype);
#endif
    return cross_entropy_portable(dtype);
}

}  // namespace

void cross_entropy(const CrossEntropyCall& call) {
    const CrossEntropyKernel kernel = kernel_of(call.dtype);
    const std::size_t grain = std::max<std::size_t>(1, 16384 / std::max<std::size_t>(1, call.vocab_size));
    parallel_ranges(call.rows, grain, [&](std::size_t first, std::size_t last) { kernel(call, first, last); });
}

}  // namespace fastbert

#include "cpu/gemm/quantize.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "cpu/runtime/cpu_capability.h"
#include "cpu/runtime/parallel.h"

namespace fastbert {
namespace {

#include "cpu/simd/vector_portable.h"

FASTBERT_INLINE void store_integers(std::int8_t* p, Portable::Float x) {
    float rounded[Portable::kLanes];
    Portable::store(rounded, Portable::round(x));
    for (std::size_t i = 0; i < Portable::kLanes; ++i) p[i] = static_cast<std::int8_t>(rounded[i]);
}

#include "cpu/gemm/quantize_rows.h"

constexpr std::size_t kGrain = std::size_t{1} << 15;  // minimum elements per thread

using Range = void (*)(const QuantizedRows&, std::size_t, std::size_t);

Range range_of_level() {
#if FASTBERT_X86
    if (cpu_capability() >= CpuCapability::avx512) return quantize_avx512;
    if (cpu_capability() >= CpuCapability::avx2) return quantize_avx2;
#endif
    return quantize_range<Portable>;
}

}  // namespace

void quantize(const QuantizedRows& rows) {
    const Range range = range_of_level();
    const std::size_t grain = kGrain / std::max<std::size_t>(1, rows.depth) + 1;
    parallel_ranges(rows.rows, grain, [&](std::size_t first, std::size_t last) { range(rows, first, last); });
}

void quantize_rows(const QuantizedRows& rows) { range_of_level()(rows, 0, rows.rows); }

}  // namespace fastbert

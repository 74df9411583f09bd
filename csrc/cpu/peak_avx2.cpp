#include "cpu/peak.h"

#if FASTBERT_X86
#include <immintrin.h>

namespace fastbert {
namespace {

FASTBERT_TARGET_BEGIN(FASTBERT_AVX2)

#include "cpu/peak_registers.h"

struct Fma {
    using Vector = __m256;
    static constexpr std::size_t kSums = 12;
    static constexpr double kOperations = 16;
    static FASTBERT_INLINE Vector load(const std::byte* p) { return _mm256_load_ps(reinterpret_cast<const float*>(p)); }
    static FASTBERT_INLINE void store(std::byte* p, Vector x) { _mm256_store_ps(reinterpret_cast<float*>(p), x); }
    static FASTBERT_INLINE Vector step(Vector sum, Vector x, Vector y) { return _mm256_fmadd_ps(x, y, sum); }
};

FASTBERT_TARGET_END

}  // namespace

PeakKernel avx2_peak() { return peak_of<Fma>(); }

}  // namespace fastbert
#endif

// AdamW kernels for AVX2.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/adamw/kernel_table.h"
#include "cpu/simd/bfloat16.h"
#include "cpu/simd/target.h"

#if FASTBERT_X86
#include <immintrin.h>

FASTBERT_TARGET_BEGIN(FASTBERT_AVX2)
namespace fastbert {
namespace {

#include "cpu/simd/vector_avx2.h"

struct Lanes : Avx2 {
    static FASTBERT_INLINE Float sqrt(Float x) { return _mm256_sqrt_ps(x); }
    struct Sums {
        __m256d lanes[4];
    };
    static FASTBERT_INLINE Sums no_sums() {
        return {{_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()}};
    }
    static FASTBERT_INLINE void add_squares(Sums& sums, const float* x) {
        for (std::size_t i = 0; i < 4; ++i) {
            const __m256d wide = _mm256_cvtps_pd(_mm_loadu_ps(x + 4 * i));
            sums.lanes[i] = _mm256_fmadd_pd(wide, wide, sums.lanes[i]);
        }
    }
    static FASTBERT_INLINE void store_sums(double* to, const Sums& sums) {
        for (std::size_t i = 0; i < 4; ++i) _mm256_storeu_pd(to + 4 * i, sums.lanes[i]);
    }
};

#include "cpu/adamw/kernels.h"

constexpr AdamKernels kKernels = adam_kernels_of<Lanes>();

}  // namespace
FASTBERT_TARGET_END

const AdamKernels& adam_kernels_avx2() { return kKernels; }

}  // namespace fastbert

#endif

#include "cpu/simd/target.h"

#if FASTBERT_X86

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/attention/attention.h"

namespace fastbert {

FASTBERT_TARGET_BEGIN(FASTBERT_AVX512_BF16)
namespace {

#include "cpu/simd/vector_avx512.h"
#include "cpu/simd/vector_math.h"
#include "cpu/attention/forward.h"
#include "cpu/simd/transpose_avx512.h"
#include "cpu/attention/forward_bf16.h"
#include "cpu/attention/forward_fp32.h"
#include "cpu/attention/backward.h"
#include "cpu/attention/backward_bf16.h"

// Register blocks of eight rows by up to two vectors. Padding rows are computed and ignored.
struct DotProducts {
    static constexpr std::size_t kRows = 8;

    template <std::size_t N, std::size_t STRIDE>
    static void multiply(const BFloat16* a, const BFloat16* b, std::size_t rows, std::size_t steps, std::size_t pitch,
                         float* c, std::size_t c_stride, bool add) {
        for (std::size_t r = 0; r < rows; r += kRows)
            block<N, STRIDE>(a + r * STRIDE, b, steps, pitch, c + r * c_stride, c_stride, add);
    }

    template <std::size_t N, std::size_t STRIDE>
    static void block(const BFloat16* a, const BFloat16* b, std::size_t steps, std::size_t pitch, float* c,
                      std::size_t c_stride, bool add) {
        __m512 sum[kRows][N];
        for (std::size_t r = 0; r < kRows; ++r)
            for (std::size_t n = 0; n < N; ++n)
                sum[r][n] = add ? _mm512_loadu_ps(c + r * c_stride + n * 16) : _mm512_setzero_ps();
        for (std::size_t pair = 0; pair < steps * 16; ++pair, a += 2, b += 32) {
            __m512i column[N];
            for (std::size_t n = 0; n < N; ++n) column[n] = _mm512_load_si512(b + n * pitch * kSquare);
            for (std::size_t r = 0; r < kRows; ++r) {
                int both;
                std::memcpy(&both, a + r * STRIDE, sizeof(both));
                const __m512i x = _mm512_set1_epi32(both);
                for (std::size_t n = 0; n < N; ++n)
                    sum[r][n] = _mm512_dpbf16_ps(sum[r][n], (__m512bh)x, (__m512bh)column[n]);
            }
        }
        for (std::size_t r = 0; r < kRows; ++r)
            for (std::size_t n = 0; n < N; ++n) _mm512_storeu_ps(c + r * c_stride + n * 16, sum[r][n]);
    }
};

AttentionKernel kernel() { return make_kernel<Bf16Products<DotProducts>, Bf16Backward<DotProducts>>(); }

}  // namespace
FASTBERT_TARGET_END

AttentionKernel attention_avx512_bf16() { return kernel(); }

}  // namespace fastbert

#endif

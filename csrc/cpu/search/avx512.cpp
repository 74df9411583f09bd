// Dot products in AVX-512.
#include "cpu/search/kernels.h"

#if FASTBERT_X86
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fastbert {
namespace {

struct Half {
    std::uint16_t bits;
};

FASTBERT_TARGET_BEGIN(FASTBERT_AVX512)

#include "cpu/search/float_dots.h"
#include "cpu/search/int8_dots.h"

struct Avx512Floats {
    using Lanes = __m512;
    static FASTBERT_INLINE Lanes zero() { return _mm512_setzero_ps(); }
    static FASTBERT_INLINE Lanes load(const float* p) { return _mm512_loadu_ps(p); }
    static FASTBERT_INLINE Lanes load(const Half* p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static FASTBERT_INLINE void add_product(Lanes& sum, Lanes a, Lanes b) {
        sum = _mm512_add_ps(sum, _mm512_mul_ps(a, b));
    }
    static FASTBERT_INLINE float total(Lanes sum) {
        const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
    }
};

struct Avx512Integers {
    static constexpr std::size_t kStep = 32;
    static constexpr std::int32_t kRowOffset = 0;
    using QueryElement = std::int16_t;
    using Integers = __m512i;

    static FASTBERT_INLINE Integers zero() { return _mm512_setzero_si512(); }
    static FASTBERT_INLINE Integers load_row(const std::int8_t* p) {
        return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static FASTBERT_INLINE Integers load_query(const std::byte* p) { return _mm512_load_si512(p); }
    static FASTBERT_INLINE Integers add_products(Integers sum, Integers x, Integers query) {
        return _mm512_add_epi32(sum, _mm512_madd_epi16(x, query));
    }
    static FASTBERT_INLINE std::int32_t total(Integers sum) { return _mm512_reduce_add_epi32(sum); }
};

FASTBERT_TARGET_END

}  // namespace

const DotKernel& avx512_dot_kernel(RowKind kind) {
    static constexpr DotKernel int8 = integer_kernel<Avx512Integers>();
    static constexpr DotKernel fp16 = float_kernel<Avx512Floats, Half>();
    static constexpr DotKernel fp32 = float_kernel<Avx512Floats, float>();
    return kind == RowKind::int8 ? int8 : kind == RowKind::fp16 ? fp16 : fp32;
}

}  // namespace fastbert
#endif

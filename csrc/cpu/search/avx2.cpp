// Dot products in AVX2; fp16 is widened by F16C.
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

FASTBERT_TARGET_BEGIN(FASTBERT_AVX2_F16C)

#include "cpu/search/float_dots.h"
#include "cpu/search/int8_dots.h"

struct Avx2Floats {
    struct Lanes {
        __m256 low, high;
    };
    static FASTBERT_INLINE Lanes zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    static FASTBERT_INLINE Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
    static FASTBERT_INLINE Lanes load(const Half* p) {
        return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
                _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
    }
    static FASTBERT_INLINE void add_product(Lanes& sum, const Lanes& a, const Lanes& b) {
        sum.low = _mm256_add_ps(sum.low, _mm256_mul_ps(a.low, b.low));
        sum.high = _mm256_add_ps(sum.high, _mm256_mul_ps(a.high, b.high));
    }
    static FASTBERT_INLINE float total(const Lanes& sum) {
        const __m256 eight = _mm256_add_ps(sum.low, sum.high);
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
    }
};

struct Avx2Integers {
    static constexpr std::size_t kStep = 16;
    static constexpr std::int32_t kRowOffset = 0;
    using QueryElement = std::int16_t;
    using Integers = __m256i;

    static FASTBERT_INLINE Integers zero() { return _mm256_setzero_si256(); }
    static FASTBERT_INLINE Integers load_row(const std::int8_t* p) {
        return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static FASTBERT_INLINE Integers load_query(const std::byte* p) {
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
    }
    static FASTBERT_INLINE Integers add_products(Integers sum, Integers x, Integers query) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(x, query));
    }
    static FASTBERT_INLINE std::int32_t total(Integers sum) {
        const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
        return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
    }
};

FASTBERT_TARGET_END

}  // namespace

const DotKernel& avx2_dot_kernel(RowKind kind) {
    static constexpr DotKernel int8 = integer_kernel<Avx2Integers>();
    static constexpr DotKernel fp16 = float_kernel<Avx2Floats, Half>();
    static constexpr DotKernel fp32 = float_kernel<Avx2Floats, float>();
    return kind == RowKind::int8 ? int8 : kind == RowKind::fp16 ? fp16 : fp32;
}

}  // namespace fastbert
#endif

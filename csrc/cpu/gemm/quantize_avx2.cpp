#include "cpu/gemm/quantize.h"

#if FASTBERT_X86
#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstring>

namespace fastbert {
namespace {

FASTBERT_TARGET_BEGIN(FASTBERT_AVX2)

#include "cpu/simd/vector_avx2.h"

FASTBERT_INLINE void store_integers(std::int8_t* p, Avx2::Float x) {
    const __m256i whole = _mm256_cvtps_epi32(x);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}

#include "cpu/gemm/quantize_rows.h"

FASTBERT_TARGET_END

}  // namespace

void quantize_avx2(const QuantizedRows& rows, std::size_t first, std::size_t last) {
    quantize_range<Avx2>(rows, first, last);
}

}  // namespace fastbert
#endif

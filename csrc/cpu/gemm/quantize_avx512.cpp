#include "cpu/gemm/quantize.h"

#if FASTBERT_X86
#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstring>

namespace fastbert {
namespace {

FASTBERT_TARGET_BEGIN(FASTBERT_AVX512)

#include "cpu/simd/vector_avx512.h"

FASTBERT_INLINE void store_integers(std::int8_t* p, Avx512::Float x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}

#include "cpu/gemm/quantize_rows.h"

FASTBERT_TARGET_END

}  // namespace

void quantize_avx512(const QuantizedRows& rows, std::size_t first, std::size_t last) {
    quantize_range<Avx512>(rows, first, last);
}

}  // namespace fastbert
#endif

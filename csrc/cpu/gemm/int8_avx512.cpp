// int8 blocks in AVX-512 without VNNI: six rows by 32 outputs, 24 vectors of sums in 32 registers.
#include "cpu/gemm/int8_kernels.h"

#if FASTBERT_X86
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cpu/simd/bfloat16.h"

namespace fastbert {
namespace {

FASTBERT_TARGET_BEGIN(FASTBERT_AVX512)

#include "cpu/simd/vector_avx512.h"
#include "cpu/simd/vector_math.h"
#include "cpu/rowwise/gelu_gradient.h"
#include "cpu/rowwise/activations.h"
#include "cpu/gemm/epilogue.h"
#include "cpu/gemm/int8_madd.h"

struct MaddLanes {
    static constexpr std::size_t kRows = 6, kVectors = 4, kColumns = 8;
    using Vector = Avx512;
    using Integers = __m512i;

    static FASTBERT_INLINE Integers zero() { return _mm512_setzero_si512(); }
    static FASTBERT_INLINE Integers load_weights(const std::byte* p) {
        return _mm512_cvtepi8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static FASTBERT_INLINE Integers load_row(const std::byte* p) {
        return _mm512_broadcastq_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    }
    static FASTBERT_INLINE Integers add_products(Integers sum, Integers x, Integers weight) {
        sum = _mm512_add_epi32(sum, _mm512_madd_epi16(x, weight));
        // Sequential: otherwise GCC computes all products first and runs out of registers.
        __asm__ volatile("" : "+v"(sum));
        return sum;
    }
    static FASTBERT_INLINE void store(std::int32_t* p, Integers a, Integers b) {
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
        _mm512_store_si512(p, _mm512_add_epi32(_mm512_permutex2var_epi32(a, even, b),
                                               _mm512_permutex2var_epi32(a, odd, b)));
    }
};

FASTBERT_TARGET_END

}  // namespace

const MicroKernel& avx512_int8_micro_kernel() {
    static constexpr MicroKernel kernel = kernel_of<MaddLanes>();
    return kernel;
}

}  // namespace fastbert
#endif

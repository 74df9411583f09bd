// int8 blocks in AVX2: six rows by eight outputs at a time, 12 vectors of sums in 16 registers.
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

FASTBERT_TARGET_BEGIN(FASTBERT_AVX2)

#include "cpu/simd/vector_avx2.h"
#include "cpu/simd/vector_math.h"
#include "cpu/rowwise/gelu_gradient.h"
#include "cpu/rowwise/activations.h"
#include "cpu/gemm/epilogue.h"
#include "cpu/gemm/int8_madd.h"

struct MaddLanes {
    static constexpr std::size_t kRows = 6, kVectors = 2, kColumns = 4;
    using Vector = Avx2;
    using Integers = __m256i;

    static FASTBERT_INLINE Integers zero() { return _mm256_setzero_si256(); }
    static FASTBERT_INLINE Integers load_weights(const std::byte* p) {
        return _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static FASTBERT_INLINE Integers load_row(const std::byte* p) {
        return _mm256_broadcastq_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    }
    static FASTBERT_INLINE Integers add_products(Integers sum, Integers x, Integers weight) {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(x, weight));
        // Sequential: otherwise GCC computes all products first and runs out of registers.
        __asm__ volatile("" : "+x"(sum));
        return sum;
    }
    static FASTBERT_INLINE void store(std::int32_t* p, Integers a, Integers b) {
        // Per half: two outputs of a, two of b.
        const __m256i sums = _mm256_permute4x64_epi64(_mm256_hadd_epi32(a, b), 0xD8);
        _mm256_store_si256(reinterpret_cast<__m256i*>(p), sums);
    }
};

FASTBERT_TARGET_END

}  // namespace

const MicroKernel& avx2_int8_micro_kernel() {
    static constexpr MicroKernel kernel = kernel_of<MaddLanes>();
    return kernel;
}

}  // namespace fastbert
#endif

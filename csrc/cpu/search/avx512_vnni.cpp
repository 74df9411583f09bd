// Dot products of int8 rows in AVX-512 VNNI, whose instruction multiplies unsigned by signed bytes: rows are read with an
// offset of 128, which flips their sign bit.
#include "cpu/search/kernels.h"

#if FASTBERT_X86
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fastbert {
namespace {

FASTBERT_TARGET_BEGIN(FASTBERT_AVX512_VNNI)

#include "cpu/search/int8_dots.h"

struct VnniIntegers {
    static constexpr std::size_t kStep = 64;
    static constexpr std::int32_t kRowOffset = 128;
    using QueryElement = std::int8_t;
    using Integers = __m512i;

    static FASTBERT_INLINE Integers zero() { return _mm512_setzero_si512(); }
    static FASTBERT_INLINE Integers load_row(const std::int8_t* p) {
        return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(static_cast<char>(0x80)));
    }
    static FASTBERT_INLINE Integers load_query(const std::byte* p) { return _mm512_load_si512(p); }
    static FASTBERT_INLINE Integers add_products(Integers sum, Integers x, Integers query) {
        return _mm512_dpbusd_epi32(sum, x, query);
    }
    static FASTBERT_INLINE std::int32_t total(Integers sum) { return _mm512_reduce_add_epi32(sum); }
};

FASTBERT_TARGET_END

}  // namespace

const DotKernel& avx512_vnni_dot_kernel() {
    static constexpr DotKernel kernel = integer_kernel<VnniIntegers>();
    return kernel;
}

}  // namespace fastbert
#endif

// Dropout masks for AVX-512.
#include <cstddef>
#include <cstdint>

#include "cpu/dropout/kernel_table.h"
#include "cpu/simd/target.h"

#if FASTBERT_X86
#include <immintrin.h>

FASTBERT_TARGET_BEGIN(FASTBERT_AVX512)
namespace fastbert {
namespace {

struct Wide {
    static constexpr std::uint32_t kBlocks = 8;
    using Word = __m512i;

    static FASTBERT_INLINE Word broadcast(std::uint32_t x) { return _mm512_set1_epi64(x); }
    // Counters of blocks, in the order that `arrange` expects.
    template <bool kAttention>
    static FASTBERT_INLINE Word blocks(std::uint32_t first) {
        const Word order = kAttention ? _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7)
                                      : _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
        // 32-bit addition: counters wrap around.
        return _mm512_add_epi32(order, broadcast(first));
    }
    static FASTBERT_INLINE Word product(Word a, Word b) { return _mm512_mul_epu32(a, b); }
    static FASTBERT_INLINE Word upper(Word x) { return _mm512_srli_epi64(x, 32); }
    static FASTBERT_INLINE Word exclusive_or(Word a, Word b, Word c) {
        return _mm512_ternarylogic_epi64(a, b, c, 0x96);
    }

    // The words of eight blocks as draws: block after block, or for attention four blocks' first words, their second
    // words, and so on.
    template <bool kAttention>
    static FASTBERT_INLINE void arrange(Word c0, Word c1, Word c2, Word c3, Word& first, Word& second) {
        const Word a = _mm512_mask_shuffle_epi32(c0, 0xAAAA, c1, _MM_PERM_CCAA);
        const Word b = _mm512_mask_shuffle_epi32(c2, 0xAAAA, c3, _MM_PERM_CCAA);
        if constexpr (kAttention) {
            const Word order = _mm512_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
            const Word x = _mm512_permutexvar_epi32(order, a), y = _mm512_permutexvar_epi32(order, b);
            first = _mm512_shuffle_i64x2(x, y, 0x44);
            second = _mm512_shuffle_i64x2(x, y, 0xEE);
        } else {
            first = _mm512_unpacklo_epi64(a, b);
            second = _mm512_unpackhi_epi64(a, b);
        }
    }

    static FASTBERT_INLINE __mmask32 keep_mask(Word draws, std::uint32_t threshold) {
        return _mm512_cmpge_epu16_mask(draws, _mm512_set1_epi16(static_cast<short>(threshold)));
    }
    static FASTBERT_INLINE void select(Word draws, std::uint32_t threshold, std::uint16_t keep, std::size_t count,
                                       std::uint16_t* out) {
        const Word values = _mm512_maskz_set1_epi16(keep_mask(draws, threshold), static_cast<short>(keep));
        if (count >= 32) return _mm512_storeu_si512(out, values);
        _mm512_mask_storeu_epi16(out, (std::uint32_t{1} << count) - 1, values);
    }
    static FASTBERT_INLINE void select(Word draws, std::uint32_t threshold, std::uint32_t keep, std::size_t count,
                                       std::uint32_t* out) {
        const __mmask32 mask = keep_mask(draws, threshold);
        const Word all = _mm512_set1_epi32(static_cast<int>(keep));
        const Word low = _mm512_maskz_mov_epi32(static_cast<__mmask16>(mask), all);
        const Word high = _mm512_maskz_mov_epi32(static_cast<__mmask16>(mask >> 16), all);
        if (count >= 32) {
            _mm512_storeu_si512(out, low);
            _mm512_storeu_si512(out + 16, high);
            return;
        }
        const std::uint32_t inside = (std::uint32_t{1} << count) - 1;
        _mm512_mask_storeu_epi32(out, static_cast<__mmask16>(inside), low);
        if (inside >> 16) _mm512_mask_storeu_epi32(out + 16, static_cast<__mmask16>(inside >> 16), high);
    }
};

#include "cpu/dropout/philox_vectors.h"

constexpr DropoutKernels kKernels = {fill<Wide, std::uint16_t>, fill<Wide, std::uint32_t>};

}  // namespace
FASTBERT_TARGET_END

const DropoutKernels& dropout_kernels_avx512() { return kKernels; }

}  // namespace fastbert

#endif

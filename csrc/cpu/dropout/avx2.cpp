// Dropout masks for AVX2.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/dropout/kernel_table.h"
#include "cpu/simd/target.h"

#if FASTBERT_X86
#include <immintrin.h>

FASTBERT_TARGET_BEGIN(FASTBERT_AVX2)
namespace fastbert {
namespace {

struct Wide {
    static constexpr std::uint32_t kBlocks = 4;
    using Word = __m256i;

    static FASTBERT_INLINE Word broadcast(std::uint32_t x) { return _mm256_set1_epi64x(x); }
    // Counters of blocks, in the order that `arrange` expects.
    template <bool kAttention>
    static FASTBERT_INLINE Word blocks(std::uint32_t first) {
        const Word order = kAttention ? _mm256_setr_epi64x(0, 1, 2, 3) : _mm256_setr_epi64x(0, 2, 1, 3);
        // 32-bit addition: counters wrap around.
        return _mm256_add_epi32(order, broadcast(first));
    }
    static FASTBERT_INLINE Word product(Word a, Word b) { return _mm256_mul_epu32(a, b); }
    static FASTBERT_INLINE Word upper(Word x) { return _mm256_srli_epi64(x, 32); }
    static FASTBERT_INLINE Word exclusive_or(Word a, Word b, Word c) {
        return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
    }

    // The words of four blocks as draws: block after block, or for attention their first words, their second words, and
    // so on.
    template <bool kAttention>
    static FASTBERT_INLINE void arrange(Word c0, Word c1, Word c2, Word c3, Word& first, Word& second) {
        const Word a = _mm256_blend_epi32(c0, _mm256_slli_epi64(c1, 32), 0xAA);
        const Word b = _mm256_blend_epi32(c2, _mm256_slli_epi64(c3, 32), 0xAA);
        if constexpr (kAttention) {
            const Word order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
            first = _mm256_permutevar8x32_epi32(a, order);
            second = _mm256_permutevar8x32_epi32(b, order);
        } else {
            first = _mm256_unpacklo_epi64(a, b);
            second = _mm256_unpackhi_epi64(a, b);
        }
    }

    // All ones where a draw is kept.
    static FASTBERT_INLINE Word keep_mask(Word draws, std::uint32_t threshold) {
        const Word least = _mm256_set1_epi16(static_cast<short>(threshold));
        return _mm256_cmpeq_epi16(_mm256_max_epu16(draws, least), draws);
    }
    static FASTBERT_INLINE void store(void* out, Word values) {
        _mm256_storeu_si256(static_cast<__m256i*>(out), values);
    }
    static FASTBERT_INLINE void select(Word draws, std::uint32_t threshold, std::uint16_t keep, std::size_t count,
                                       std::uint16_t* out) {
        const Word values = _mm256_and_si256(keep_mask(draws, threshold), _mm256_set1_epi16(static_cast<short>(keep)));
        if (count >= 16) return store(out, values);
        std::uint16_t whole[16];
        store(whole, values);
        std::memcpy(out, whole, count * sizeof(whole[0]));
    }
    static FASTBERT_INLINE void select(Word draws, std::uint32_t threshold, std::uint32_t keep, std::size_t count,
                                       std::uint32_t* out) {
        const Word mask = keep_mask(draws, threshold), all = _mm256_set1_epi32(static_cast<int>(keep));
        const Word low = _mm256_and_si256(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(mask)), all);
        const Word high = _mm256_and_si256(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(mask, 1)), all);
        if (count >= 16) {
            store(out, low);
            store(out + 8, high);
            return;
        }
        std::uint32_t whole[16];
        store(whole, low);
        store(whole + 8, high);
        std::memcpy(out, whole, count * sizeof(whole[0]));
    }
};

#include "cpu/dropout/philox_vectors.h"

constexpr DropoutKernels kKernels = {fill<Wide, std::uint16_t>, fill<Wide, std::uint32_t>};

}  // namespace
FASTBERT_TARGET_END

const DropoutKernels& dropout_kernels_avx2() { return kKernels; }

}  // namespace fastbert

#endif

// Dropout masks for AVX-512.
#include <cstddef>
#include <cstdint>
#include <cstring>

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
    static FASTBERT_INLINE Word load(const std::uint32_t* p) { return _mm512_load_si512(p); }
    static FASTBERT_INLINE Word product(Word a, Word b) { return _mm512_mul_epu32(a, b); }
    static FASTBERT_INLINE Word upper(Word x) { return _mm512_srli_epi64(x, 32); }
    static FASTBERT_INLINE Word exclusive_or(Word a, Word b, Word c) {
        return _mm512_ternarylogic_epi64(a, b, c, 0x96);
    }
    // The lower halves of `even` in the even 32-bit lanes, those of `odd` in the odd ones.
    static FASTBERT_INLINE Word join(Word even, Word odd) {
        return _mm512_mask_shuffle_epi32(even, 0xAAAA, odd, _MM_PERM_CCAA);
    }

    // Counters of a token's blocks, in the order that `arrange` expects.
    static FASTBERT_INLINE Word blocks(std::uint32_t first) {
        // 32-bit addition: counters wrap around.
        return _mm512_add_epi32(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), broadcast(first));
    }
    // The words of eight blocks as draws, block after block.
    static FASTBERT_INLINE void arrange(Word c0, Word c1, Word c2, Word c3, Word& first, Word& second) {
        const Word a = join(c0, c1), b = join(c2, c3);
        first = _mm512_unpacklo_epi64(a, b);
        second = _mm512_unpackhi_epi64(a, b);
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

    static FASTBERT_INLINE std::uint64_t reaches(Word draws, std::uint32_t threshold) {
        return _mm512_cmpge_epu8_mask(draws, _mm512_set1_epi8(static_cast<char>(threshold)));
    }
    // A query's blocks are one quarter of each word; the quarters of four words are its 64 draws.
    static FASTBERT_INLINE void row_bits(const Word (&words)[4][1], std::uint32_t threshold, std::uint8_t* bits,
                                         std::size_t stride) {
        const Word a = words[0][0], b = words[1][0], c = words[2][0], d = words[3][0];
        const Word low_ab = _mm512_shuffle_i32x4(a, b, 0x44), high_ab = _mm512_shuffle_i32x4(a, b, 0xEE);
        const Word low_cd = _mm512_shuffle_i32x4(c, d, 0x44), high_cd = _mm512_shuffle_i32x4(c, d, 0xEE);
        const Word rows[4] = {
            _mm512_shuffle_i32x4(low_ab, low_cd, 0x88), _mm512_shuffle_i32x4(low_ab, low_cd, 0xDD),
            _mm512_shuffle_i32x4(high_ab, high_cd, 0x88), _mm512_shuffle_i32x4(high_ab, high_cd, 0xDD)};
        // The lower halves of a word's four blocks are eight keys, the upper halves the next eight.
        const Word order =
            _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
        for (std::size_t i = 0; i < 4; ++i) {
            const std::uint64_t kept = reaches(_mm512_shuffle_epi8(rows[i], order), threshold);
            std::memcpy(bits + i * stride, &kept, sizeof(kept));
        }
    }
    static FASTBERT_INLINE void column_bits(const Word (&words)[4][1], std::uint32_t threshold, std::uint8_t* bits,
                                            std::size_t stride) {
        const Word bytes =
            _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        const Word quads = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        for (std::size_t w = 0; w < 4; ++w) {
            const Word draws = _mm512_permutexvar_epi32(quads, _mm512_shuffle_epi8(words[w][0], bytes));
            const std::uint64_t kept = reaches(draws, threshold);
            for (std::size_t k = 0; k < 4; ++k) {
                const auto column = static_cast<std::uint16_t>(kept >> 16 * k);
                std::memcpy(bits + (16 * w + 8 * (k / 2) + k % 2) * stride, &column, sizeof(column));
            }
        }
    }
};

#include "cpu/dropout/philox_vectors.h"
#include "cpu/dropout/attention_bits.h"

constexpr DropoutKernels kKernels = {fill<Wide, std::uint16_t>, fill<Wide, std::uint32_t>, row_bits<Wide>,
                                     column_bits<Wide>};

}  // namespace
FASTBERT_TARGET_END

const DropoutKernels& dropout_kernels_avx512() { return kKernels; }

}  // namespace fastbert

#endif

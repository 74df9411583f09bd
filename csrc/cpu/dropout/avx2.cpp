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
    static FASTBERT_INLINE Word load(const std::uint32_t* p) {
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
    }
    static FASTBERT_INLINE Word product(Word a, Word b) { return _mm256_mul_epu32(a, b); }
    static FASTBERT_INLINE Word upper(Word x) { return _mm256_srli_epi64(x, 32); }
    static FASTBERT_INLINE Word exclusive_or(Word a, Word b, Word c) {
        return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
    }
    // The lower halves of `even` in the even 32-bit lanes, those of `odd` in the odd ones.
    static FASTBERT_INLINE Word join(Word even, Word odd) {
        return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
    }

    // Counters of a token's blocks, in the order that `arrange` expects.
    static FASTBERT_INLINE Word blocks(std::uint32_t first) {
        // 32-bit addition: counters wrap around.
        return _mm256_add_epi32(_mm256_setr_epi64x(0, 2, 1, 3), broadcast(first));
    }
    // The words of four blocks as draws, block after block.
    static FASTBERT_INLINE void arrange(Word c0, Word c1, Word c2, Word c3, Word& first, Word& second) {
        const Word a = join(c0, c1), b = join(c2, c3);
        first = _mm256_unpacklo_epi64(a, b);
        second = _mm256_unpackhi_epi64(a, b);
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

    static FASTBERT_INLINE std::uint32_t reaches(Word draws, std::uint32_t threshold) {
        const Word least = _mm256_set1_epi8(static_cast<char>(threshold));
        const Word kept = _mm256_cmpeq_epi8(_mm256_max_epu8(draws, least), draws);
        return static_cast<std::uint32_t>(_mm256_movemask_epi8(kept));
    }
    // A query's blocks are one half of a vector of each word; the halves of two words are 32 draws.
    static FASTBERT_INLINE void row_bits(const Word (&words)[4][2], std::uint32_t threshold, std::uint8_t* bits,
                                         std::size_t stride) {
        // The lower halves of a word's four blocks are eight keys, the upper halves the next eight.
        const Word order =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
        for (std::size_t i = 0; i < 4; ++i) {
            for (std::size_t w = 0; w < 4; w += 2) {
                const Word a = words[w][i / 2], b = words[w + 1][i / 2];
                const Word first = _mm256_permute2x128_si256(a, b, 0x20);
                const Word second = _mm256_permute2x128_si256(a, b, 0x31);
                const Word draws = _mm256_shuffle_epi8(i % 2 ? second : first, order);
                const std::uint32_t kept = reaches(draws, threshold);
                std::memcpy(bits + i * stride + 2 * w, &kept, sizeof(kept));
            }
        }
    }
    static FASTBERT_INLINE void column_bits(const Word (&words)[4][2], std::uint32_t threshold, std::uint8_t* bits,
                                            std::size_t stride) {
        const Word bytes =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        const Word quads = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        for (std::size_t w = 0; w < 4; ++w) {
            for (std::size_t i = 0; i < 2; ++i) {
                const Word draws = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(words[w][i], bytes), quads);
                const std::uint32_t kept = reaches(draws, threshold);
                for (std::size_t k = 0; k < 4; ++k)
                    bits[(16 * w + 8 * (k / 2) + k % 2) * stride + i] = static_cast<std::uint8_t>(kept >> 8 * k);
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

const DropoutKernels& dropout_kernels_avx2() { return kKernels; }

}  // namespace fastbert

#endif

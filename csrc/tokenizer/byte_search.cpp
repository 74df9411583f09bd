#include "tokenizer/byte_search.h"

#include <bit>

#include "common/cpu_features.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastbert::tokenizer {
namespace {

std::size_t portable(const std::uint8_t* text, std::size_t from, std::size_t size, const ByteSet& first,
                     const ByteSet& second) {
    for (; from < size; ++from) {
        if (first.contains(text[from]) && (from + 1 == size || second.contains(text[from + 1]))) break;
    }
    return from;
}

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,bmi")))

// All bits of the bytes in a set.
TARGET inline __m256i is_in(__m256i bytes, __m256i low, __m256i high) {
    const __m256i half = _mm256_set1_epi8(0x0F);
    const __m256i bits = _mm256_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 1, 2, 4, 8, 16, 32, 64, -128,  //
                                          1, 2, 4, 8, 16, 32, 64, -128, 1, 2, 4, 8, 16, 32, 64, -128);
    const __m256i columns = _mm256_and_si256(bytes, half);
    const __m256i row = _mm256_shuffle_epi8(bits, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), half));
    // By the topmost bit of the byte.
    const __m256i sets = _mm256_blendv_epi8(_mm256_shuffle_epi8(low, columns), _mm256_shuffle_epi8(high, columns), bytes);
    return _mm256_cmpeq_epi8(_mm256_and_si256(sets, row), row);
}

TARGET std::size_t avx2(const std::uint8_t* text, std::size_t from, std::size_t size, const ByteSet& first,
                        const ByteSet& second) {
    const __m256i first_low = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(first.low.data())));
    const __m256i first_high = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(first.high.data())));
    const __m256i second_low = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(second.low.data())));
    const __m256i second_high = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(second.high.data())));
    for (; from + 33 <= size; from += 32) {
        const __m256i here = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(text + from));
        const __m256i next = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(text + from + 1));
        const __m256i both = _mm256_and_si256(is_in(here, first_low, first_high), is_in(next, second_low, second_high));
        const auto mask = static_cast<std::uint32_t>(_mm256_movemask_epi8(both));
        if (mask != 0) return from + static_cast<std::size_t>(std::countr_zero(mask));
    }
    return portable(text, from, size, first, second);
}
#endif

}  // namespace

FindPair fastest_find_pair() {
#if defined(__x86_64__)
    if (cpu_features().avx2) return avx2;
#endif
    return portable;
}

}  // namespace fastbert::tokenizer

// Bytes compared 64 at a time with AVX2, where a block of text is two registers; for scans.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

#define FASTBERT_SCAN_AVX2 __attribute__((target("avx2")))

namespace fastbert::tokenizer::avx2 {

// Bit i is the highest bit of byte i.
FASTBERT_SCAN_AVX2 inline std::uint64_t mask_of(__m256i low, __m256i high) {
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(low)) |
           std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_epi8(high))} << 32;
}

FASTBERT_SCAN_AVX2 inline __m256i is(__m256i bytes, int byte) {
    return _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(static_cast<char>(byte)));
}

// As signed bytes, continuation bytes are the lowest: 80 to BF.
FASTBERT_SCAN_AVX2 inline __m256i is_continuation(__m256i bytes) {
    return _mm256_cmpgt_epi8(_mm256_set1_epi8(static_cast<char>(0xC0)), bytes);
}

}  // namespace fastbert::tokenizer::avx2
#endif

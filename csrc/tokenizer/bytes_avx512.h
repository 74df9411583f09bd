// Bytes compared 64 at a time with AVX-512, where a block of text is one register; for scans.
#pragma once
#include "tokenizer/positions_avx512.h"

#if defined(__x86_64__)
#include <algorithm>

namespace fastbert::tokenizer::avx512 {

// Block i of the text; the last one is completed with spaces.
FASTBERT_SCAN_AVX512 inline __m512i block_at(const std::uint8_t* text, std::size_t size, std::size_t i) {
    const std::size_t left = std::min(size - i * kBlock, kBlock);
    const __mmask64 present = _bzhi_u64(~std::uint64_t{0}, static_cast<unsigned>(left));
    return _mm512_mask_loadu_epi8(_mm512_set1_epi8(' '), present, text + i * kBlock);
}

FASTBERT_SCAN_AVX512 inline std::uint64_t is(__m512i bytes, int byte) {
    return _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(static_cast<char>(byte)));
}

// As signed bytes, continuation bytes are the lowest: 80 to BF.
FASTBERT_SCAN_AVX512 inline std::uint64_t is_continuation(__m512i bytes) {
    return _mm512_cmplt_epi8_mask(bytes, _mm512_set1_epi8(static_cast<char>(0xC0)));
}

}  // namespace fastbert::tokenizer::avx512
#endif

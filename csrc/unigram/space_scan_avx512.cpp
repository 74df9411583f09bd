#include "tokenizer/positions_avx512.h"
#include "unigram/space_scan.h"

#if defined(__x86_64__)
#include <algorithm>

#define TARGET FASTBERT_SCAN_AVX512

namespace fastbert::unigram::scans {
namespace {

using tokenizer::kBlock;

TARGET inline std::uint64_t is(__m512i bytes, int byte) {
    return _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(static_cast<char>(byte)));
}

TARGET void classify(const std::uint8_t* text, std::size_t size, const SpaceBytes& spaces, std::uint8_t* copy,
                     SpaceMasks* blocks) {
    const __m512i padding = _mm512_set1_epi8(' ');
    for (std::size_t i = 0; i < tokenizer::block_count(size); ++i) {
        const std::size_t left = std::min(size - i * kBlock, kBlock);
        const __mmask64 present = _bzhi_u64(~std::uint64_t{0}, static_cast<unsigned>(left));
        const __m512i bytes = _mm512_mask_loadu_epi8(padding, present, text + i * kBlock);
        _mm512_storeu_si512(copy + i * kBlock, bytes);
        // As signed bytes, continuation bytes are the lowest: 80 to BF.
        blocks[i] = {is(bytes, spaces[0]) | is(bytes, spaces[1]) | is(bytes, spaces[2]),
                     is(bytes, tokenizer::kSeparator),
                     _mm512_cmplt_epi8_mask(bytes, _mm512_set1_epi8(static_cast<char>(0xC0)))};
    }
}

}  // namespace

const ClassifySpaces avx512 = classify;

}  // namespace fastbert::unigram::scans

#else
namespace fastbert::unigram::scans {
const ClassifySpaces avx512 = nullptr;
}
#endif

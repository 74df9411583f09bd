#include "bpe/split_scan.h"
#include "tokenizer/positions_avx512.h"

#if defined(__x86_64__)
#include <algorithm>

#define TARGET FASTBERT_SCAN_AVX512

namespace fastbert::bpe::scans {
namespace {

using tokenizer::kBlock;

TARGET inline std::uint64_t is(__m512i bytes, int byte) {
    return _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(static_cast<char>(byte)));
}

// From `first` on, fewer than `count` of them.
TARGET inline std::uint64_t in_range(__m512i bytes, int first, int count) {
    const __m512i offset = _mm512_sub_epi8(bytes, _mm512_set1_epi8(static_cast<char>(first)));
    return _mm512_cmplt_epu8_mask(offset, _mm512_set1_epi8(static_cast<char>(count)));
}

TARGET void classify(const std::uint8_t* text, std::size_t size, std::uint8_t* copy, ByteClasses* blocks) {
    const __m512i spaces = _mm512_set1_epi8(' ');
    for (std::size_t i = 0; i < tokenizer::block_count(size); ++i) {
        const std::size_t left = std::min(size - i * kBlock, kBlock);
        const __mmask64 present = _bzhi_u64(~std::uint64_t{0}, static_cast<unsigned>(left));
        const __m512i bytes = _mm512_mask_loadu_epi8(spaces, present, text + i * kBlock);
        _mm512_storeu_si512(copy + i * kBlock, bytes);
        ByteClasses& classes = blocks[i];
        classes.letter = in_range(_mm512_or_si512(bytes, spaces), 'a', 26);
        classes.number = in_range(bytes, '0', 10);
        classes.plain_space = is(bytes, ' ');
        classes.space = classes.plain_space | in_range(bytes, '\t', 5);
        classes.apostrophe = is(bytes, '\'');
        classes.separator = is(bytes, tokenizer::kSeparator);
        // As signed bytes, continuation bytes are the lowest: 80 to BF.
        classes.continuation = _mm512_cmplt_epi8_mask(bytes, _mm512_set1_epi8(static_cast<char>(0xC0)));
        classes.beyond = _mm512_movepi8_mask(bytes);
    }
}

}  // namespace

const Classify avx512 = classify;

}  // namespace fastbert::bpe::scans

#else
namespace fastbert::bpe::scans {
const Classify avx512 = nullptr;
}
#endif

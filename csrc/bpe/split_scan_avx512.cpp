#include "bpe/split_scan.h"
#include "tokenizer/bytes_avx512.h"

#if defined(__x86_64__)
#define TARGET FASTBERT_SCAN_AVX512

namespace fastbert::bpe::scans {
namespace {

using tokenizer::kBlock;
using tokenizer::avx512::is;

// From `first` on, fewer than `count` of them.
TARGET inline std::uint64_t in_range(__m512i bytes, int first, int count) {
    const __m512i offset = _mm512_sub_epi8(bytes, _mm512_set1_epi8(static_cast<char>(first)));
    return _mm512_cmplt_epu8_mask(offset, _mm512_set1_epi8(static_cast<char>(count)));
}

TARGET void classify(const std::uint8_t* text, std::size_t size, std::uint8_t* copy, ByteClasses* blocks) {
    const __m512i spaces = _mm512_set1_epi8(' ');
    for (std::size_t i = 0; i < tokenizer::block_count(size); ++i) {
        const __m512i bytes = tokenizer::avx512::block_at(text, size, i);
        _mm512_storeu_si512(copy + i * kBlock, bytes);
        ByteClasses& classes = blocks[i];
        classes.letter = in_range(_mm512_or_si512(bytes, spaces), 'a', 26);
        classes.number = in_range(bytes, '0', 10);
        classes.plain_space = is(bytes, ' ');
        classes.space = classes.plain_space | in_range(bytes, '\t', 5);
        classes.apostrophe = is(bytes, '\'');
        classes.separator = is(bytes, tokenizer::kSeparator);
        classes.continuation = tokenizer::avx512::is_continuation(bytes);
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

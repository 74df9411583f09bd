#include "bpe/split_scan.h"
#include "tokenizer/bytes_avx2.h"

#if defined(__x86_64__)
#define TARGET FASTBERT_SCAN_AVX2

namespace fastbert::bpe::scans {
namespace {

using tokenizer::kBlock;
using tokenizer::avx2::is;
using tokenizer::avx2::is_continuation;
using tokenizer::avx2::mask_of;

// From `first` on, fewer than `count` of them.
TARGET inline __m256i in_range(__m256i bytes, int first, int count) {
    const __m256i offset = _mm256_sub_epi8(bytes, _mm256_set1_epi8(static_cast<char>(first)));
    const __m256i last = _mm256_set1_epi8(static_cast<char>(count - 1));
    return _mm256_cmpeq_epi8(_mm256_min_epu8(offset, last), offset);
}

TARGET void classify(const std::uint8_t* text, std::size_t size, std::uint8_t* copy, ByteClasses* blocks) {
    std::uint8_t padded[kBlock];
    for (std::size_t i = 0; i < tokenizer::block_count(size); ++i) {
        const std::uint8_t* const from = tokenizer::block_at(text, size, i, padded);
        const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(copy + i * kBlock), a);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(copy + i * kBlock + 32), b);
        const __m256i lower = _mm256_set1_epi8(' ');
        ByteClasses& classes = blocks[i];
        classes.letter =
            mask_of(in_range(_mm256_or_si256(a, lower), 'a', 26), in_range(_mm256_or_si256(b, lower), 'a', 26));
        classes.number = mask_of(in_range(a, '0', 10), in_range(b, '0', 10));
        classes.plain_space = mask_of(is(a, ' '), is(b, ' '));
        classes.space = classes.plain_space | mask_of(in_range(a, '\t', 5), in_range(b, '\t', 5));
        classes.apostrophe = mask_of(is(a, '\''), is(b, '\''));
        classes.separator = mask_of(is(a, tokenizer::kSeparator), is(b, tokenizer::kSeparator));
        classes.continuation = mask_of(is_continuation(a), is_continuation(b));
        classes.beyond = mask_of(a, b);
    }
}

}  // namespace

const Classify avx2 = classify;

}  // namespace fastbert::bpe::scans

#else
namespace fastbert::bpe::scans {
const Classify avx2 = nullptr;
}
#endif

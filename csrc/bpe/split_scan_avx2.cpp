#include "bpe/split_scan.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx2")))

namespace fastbert::bpe::scans {
namespace {

using tokenizer::kBlock;

TARGET inline std::uint64_t mask_of(__m256i low, __m256i high) {
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(low)) |
           std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_epi8(high))} << 32;
}

TARGET inline __m256i is(__m256i bytes, int byte) { return _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(static_cast<char>(byte))); }

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
        const __m256i continuation = _mm256_set1_epi8(static_cast<char>(0xC0));
        ByteClasses& classes = blocks[i];
        classes.letter =
            mask_of(in_range(_mm256_or_si256(a, lower), 'a', 26), in_range(_mm256_or_si256(b, lower), 'a', 26));
        classes.number = mask_of(in_range(a, '0', 10), in_range(b, '0', 10));
        classes.plain_space = mask_of(is(a, ' '), is(b, ' '));
        classes.space = classes.plain_space | mask_of(in_range(a, '\t', 5), in_range(b, '\t', 5));
        classes.apostrophe = mask_of(is(a, '\''), is(b, '\''));
        classes.separator = mask_of(is(a, tokenizer::kSeparator), is(b, tokenizer::kSeparator));
        // As signed bytes, continuation bytes are the lowest: 80 to BF.
        classes.continuation = mask_of(_mm256_cmpgt_epi8(continuation, a), _mm256_cmpgt_epi8(continuation, b));
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

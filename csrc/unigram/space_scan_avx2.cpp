#include "tokenizer/bytes_avx2.h"
#include "unigram/space_scan.h"

#if defined(__x86_64__)
#define TARGET FASTBERT_SCAN_AVX2

namespace fastbert::unigram::scans {
namespace {

using tokenizer::kBlock;
using tokenizer::avx2::is;
using tokenizer::avx2::is_continuation;
using tokenizer::avx2::mask_of;

TARGET inline __m256i is_space(__m256i bytes, const SpaceBytes& spaces) {
    return _mm256_or_si256(_mm256_or_si256(is(bytes, spaces[0]), is(bytes, spaces[1])), is(bytes, spaces[2]));
}

TARGET void classify(const std::uint8_t* text, std::size_t size, const SpaceBytes& spaces, std::uint8_t* copy,
                     SpaceMasks* blocks) {
    std::uint8_t padded[kBlock];
    for (std::size_t i = 0; i < tokenizer::block_count(size); ++i) {
        const std::uint8_t* const from = tokenizer::block_at(text, size, i, padded);
        const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(copy + i * kBlock), a);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(copy + i * kBlock + 32), b);
        blocks[i] = {mask_of(is_space(a, spaces), is_space(b, spaces)),
                     mask_of(is(a, tokenizer::kSeparator), is(b, tokenizer::kSeparator)),
                     mask_of(is_continuation(a), is_continuation(b))};
    }
}

}  // namespace

const ClassifySpaces avx2 = classify;

}  // namespace fastbert::unigram::scans

#else
namespace fastbert::unigram::scans {
const ClassifySpaces avx2 = nullptr;
}
#endif

#include "tokenizer/bytes_avx512.h"
#include "unigram/space_scan.h"

#if defined(__x86_64__)
#define TARGET FASTBERT_SCAN_AVX512

namespace fastbert::unigram::scans {
namespace {

using tokenizer::kBlock;
using tokenizer::avx512::is;

TARGET void classify(const std::uint8_t* text, std::size_t size, const SpaceBytes& spaces, std::uint8_t* copy,
                     SpaceMasks* blocks) {
    for (std::size_t i = 0; i < tokenizer::block_count(size); ++i) {
        const __m512i bytes = tokenizer::avx512::block_at(text, size, i);
        _mm512_storeu_si512(copy + i * kBlock, bytes);
        blocks[i] = {is(bytes, spaces[0]) | is(bytes, spaces[1]) | is(bytes, spaces[2]),
                     is(bytes, tokenizer::kSeparator), tokenizer::avx512::is_continuation(bytes)};
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

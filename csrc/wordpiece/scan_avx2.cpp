// The scan with AVX2: a block is two registers.
#include "tokenizer/bytes_avx2.h"
#include "wordpiece/scan_blocks.h"

#if defined(__x86_64__)
#define TARGET FASTBERT_SCAN_AVX2

namespace fastbert::wordpiece::scans {
namespace {

struct HalfMasks {
    std::uint32_t inside, punctuation, continuation;
};

TARGET inline std::uint32_t mask_of(__m256i bytes) { return static_cast<std::uint32_t>(_mm256_movemask_epi8(bytes)); }

TARGET inline __m256i repeat(const std::array<std::uint8_t, 16>& table) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table.data())));
}

// Half a block.
TARGET inline HalfMasks classify(const std::uint8_t* from, bool lower_case, std::uint8_t* to) {
    __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i low = _mm256_shuffle_epi8(repeat(kLowHalf), bytes);
    const __m256i high = _mm256_shuffle_epi8(repeat(kHighHalf),
                                             _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(0x0F)));
    const __m256i bits = _mm256_and_si256(low, high), zero = _mm256_setzero_si256();
    const __m256i not_punctuation =
        _mm256_cmpeq_epi8(_mm256_and_si256(bits, _mm256_set1_epi8(kPunctuationBits)), zero);
    const __m256i continuation = tokenizer::avx2::is_continuation(bytes);
    if (lower_case) {
        const __m256i after_a = _mm256_cmpgt_epi8(bytes, _mm256_set1_epi8('A' - 1));
        const __m256i capital = _mm256_andnot_si256(_mm256_cmpgt_epi8(bytes, _mm256_set1_epi8('Z')), after_a);
        bytes = _mm256_add_epi8(bytes, _mm256_and_si256(capital, _mm256_set1_epi8(32)));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
    return {mask_of(_mm256_cmpeq_epi8(bits, zero)), ~mask_of(not_punctuation), mask_of(continuation)};
}

inline std::uint64_t join(std::uint32_t low, std::uint32_t high) { return std::uint64_t{high} << 32 | low; }

TARGET void scan(const std::uint8_t* text, std::size_t size, bool lower_case, Window& window) {
    const std::size_t count = block_count(size);
    std::uint8_t padded[kBlock];
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint8_t* const from = block_at(text, size, i, padded);
        std::uint8_t* const to = window.bytes.data() + i * kBlock;
        const HalfMasks a = classify(from, lower_case, to), b = classify(from + 32, lower_case, to + 32);
        window.masks[i] = {join(a.inside, b.inside), join(a.punctuation, b.punctuation),
                           join(a.continuation, b.continuation)};
    }
    collect_chunks(window, count);
}

}  // namespace

const Scan avx2 = scan;

}  // namespace fastbert::wordpiece::scans

#else
namespace fastbert::wordpiece::scans {
const Scan avx2 = nullptr;
}
#endif

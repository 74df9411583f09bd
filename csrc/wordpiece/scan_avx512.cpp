// The scan with AVX-512 (BW, VL, VBMI2): a block is one register, and chunk offsets are compressed out of a counter.
#include "tokenizer/bytes_avx512.h"
#include "wordpiece/scan_blocks.h"

#if defined(__x86_64__)
#define TARGET FASTBERT_SCAN_AVX512

namespace fastbert::wordpiece::scans {
namespace {

using tokenizer::positions::append;

TARGET inline BlockMasks classify(__m512i bytes, __m512i low_half, __m512i high_half, bool lower_case,
                                  std::uint8_t* to) {
    const __m512i low = _mm512_shuffle_epi8(low_half, bytes);
    const __m512i high =
        _mm512_shuffle_epi8(high_half, _mm512_and_si512(_mm512_srli_epi16(bytes, 4), _mm512_set1_epi8(0x0F)));
    const __m512i bits = _mm512_and_si512(low, high);
    if (lower_case) {
        const __mmask64 capital =
            _mm512_cmplt_epu8_mask(_mm512_sub_epi8(bytes, _mm512_set1_epi8('A')), _mm512_set1_epi8(26));
        bytes = _mm512_mask_add_epi8(bytes, capital, bytes, _mm512_set1_epi8(32));
    }
    _mm512_storeu_si512(to, bytes);
    return {_mm512_testn_epi8_mask(bits, bits), _mm512_test_epi8_mask(bits, _mm512_set1_epi8(kPunctuationBits)),
            tokenizer::avx512::is_continuation(bytes)};
}

TARGET void scan(const std::uint8_t* text, std::size_t size, bool lower_case, Window& window) {
    const __m512i low_half = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kLowHalf.data())));
    const __m512i high_half =
        _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kHighHalf.data())));
    const std::size_t count = block_count(size);
    for (std::size_t i = 0; i < count; ++i) {
        const __m512i bytes = tokenizer::avx512::block_at(text, size, i);
        window.masks[i] = classify(bytes, low_half, high_half, lower_case, window.bytes.data() + i * kBlock);
    }
    collect_chunks(window, count, append);
}

}  // namespace

const Scan avx512 = scan;

}  // namespace fastbert::wordpiece::scans

#else
namespace fastbert::wordpiece::scans {
const Scan avx512 = nullptr;
}
#endif

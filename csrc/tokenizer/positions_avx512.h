// Offsets compressed out of a counter, with AVX-512 (VBMI2).
#pragma once
#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// Registers that GCC's own header leaves undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "tokenizer/window.h"

#define FASTBERT_SCAN_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi2,bmi,bmi2,popcnt")))

namespace fastbert::tokenizer::positions {

// Write 64 offsets, those of the set bits first.
FASTBERT_SCAN_AVX512 inline std::uint16_t* append(std::uint64_t mask, std::size_t base, std::uint16_t* to) {
    alignas(64) static constexpr std::array<std::uint8_t, kBlock> kCounter = [] {
        std::array<std::uint8_t, kBlock> counter{};
        for (std::size_t i = 0; i < kBlock; ++i) counter[i] = static_cast<std::uint8_t>(i);
        return counter;
    }();
    const __m512i offsets = _mm512_maskz_compress_epi8(mask, _mm512_load_si512(kCounter.data()));
    const __m512i from = _mm512_set1_epi16(static_cast<short>(base));
    _mm512_storeu_si512(to, _mm512_add_epi16(_mm512_cvtepu8_epi16(_mm512_castsi512_si256(offsets)), from));
    const auto count = static_cast<unsigned>(_mm_popcnt_u64(mask));
    if (count > 32) {
        const __m256i upper = _mm512_extracti64x4_epi64(offsets, 1);
        _mm512_storeu_si512(to + 32, _mm512_add_epi16(_mm512_cvtepu8_epi16(upper), from));
    }
    return to + count;
}

}  // namespace fastbert::tokenizer::positions
#endif

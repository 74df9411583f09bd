// Pack kernels of weights for AVX-512: squares of sixteen 32-bit groups by sixteen columns.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "cpu/gemm/pack_kernel.h"
#include "cpu/simd/target.h"

#if FASTBERT_X86
#include <immintrin.h>

namespace fastbert {
namespace {
FASTBERT_TARGET_BEGIN(FASTBERT_AVX512)

#include "cpu/simd/vector_avx512.h"
// After a vector type.
#include "cpu/simd/transpose_avx512.h"

// Load up to sixteen of the `count` elements at p: as floats, or as bf16 in the lower halves.
FASTBERT_INLINE __m512 floats_at(const float* p, std::size_t count) {
    return count >= 16 ? _mm512_loadu_ps(p) : Avx512::load_part(p, count);
}
FASTBERT_INLINE __m512 floats_at(const BFloat16* p, std::size_t count) {
    return count >= 16 ? Avx512::load(p) : Avx512::load_part(p, count);
}
FASTBERT_INLINE __m256i halves_at(const float* p, std::size_t count) { return Avx512::narrow(floats_at(p, count)); }
FASTBERT_INLINE __m256i halves_at(const BFloat16* p, std::size_t count) {
    return count >= 16 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))
                       : _mm256_maskz_loadu_epi16(Avx512::first(count), p);
}

// Load sixteen 32-bit groups of a row.
template <Element kElement, typename From>
FASTBERT_INLINE __m512 dwords_at(const From* p, std::size_t count) {
    if constexpr (kElement == Element::fp32) return floats_at(p, count);
    const __m256i left = halves_at(p, count);
    const __m256i right = count > 16 ? halves_at(p + 16, count - 16) : _mm256_setzero_si256();
    return _mm512_castsi512_ps(_mm512_inserti64x4(_mm512_castsi256_si512(left), right, 1));
}

template <Element kElement, typename From>
void pack_columns(const PackSource& from, const PackTarget& to, std::size_t first) {
    constexpr std::size_t kWide = 16 * group_of(kElement);
    for (std::size_t row = 0; row < from.rows;) {
        // The rows within one panel.
        const std::size_t lane = (first + row) % kPanel, rows = std::min(kPanel - lane, from.rows - row);
        const auto lanes = static_cast<__mmask16>(((1U << rows) - 1U) << lane);
        const From* x = static_cast<const From*>(from.data) + row * from.stride;
        std::byte* out = to.bytes + (first + row) / kPanel * to.panel_bytes;
        for (std::size_t k = 0; k < from.width; k += kWide, out += 16 * kPanel * 4) {
            __m512 words[16];
            if (rows == kPanel) {
                for (std::size_t i = 0; i < 16; ++i)
                    words[i] = dwords_at<kElement>(x + i * from.stride + k, from.width - k);
                transpose_lanes(words);
                for (std::size_t i = 0; i < 16; ++i) _mm512_storeu_ps(out + i * kPanel * 4, words[i]);
            } else {
                for (std::size_t i = 0; i < 16; ++i) words[i] = _mm512_setzero_ps();
                for (std::size_t i = 0; i < rows; ++i)
                    words[lane + i] = dwords_at<kElement>(x + i * from.stride + k, from.width - k);
                transpose_lanes(words);
                for (std::size_t i = 0; i < 16; ++i) _mm512_mask_storeu_ps(out + i * kPanel * 4, lanes, words[i]);
            }
        }
        row += rows;
    }
}

// Rows packed panel by panel: few enough to keep a panel's stores together.
inline constexpr std::size_t kRows = 32;

template <typename From>
void pack_depth_fp32(const PackSource& from, const PackTarget& to, std::size_t first) {
    for (std::size_t begin = 0; begin < from.rows; begin += kRows) {
        const std::size_t rows = std::min(kRows, from.rows - begin);
        for (std::size_t column = 0; column < from.width; column += kPanel) {
            const From* x = static_cast<const From*>(from.data) + begin * from.stride + column;
            std::byte* out = to.bytes + column / kPanel * to.panel_bytes + (first + begin) * kPanel * 4;
            for (std::size_t row = 0; row < rows; ++row, x += from.stride, out += kPanel * 4)
                _mm512_storeu_ps(out, floats_at(x, from.width - column));
        }
    }
}

// Write 16 of the 32 halves: the other half of each pair belongs to another row.
template <typename From>
void pack_half_pairs(const From* x, std::size_t width, const PackTarget& to, std::size_t k) {
    const __mmask32 halves = k % 2 ? 0xAAAAAAAAU : 0x55555555U;
    for (std::size_t column = 0; column < width; column += kPanel) {
        std::byte* out = to.bytes + column / kPanel * to.panel_bytes + k / 2 * kPanel * 4;
        const __m512i half = _mm512_cvtepu16_epi32(halves_at(x + column, width - column));
        _mm512_mask_storeu_epi16(out, halves, k % 2 ? _mm512_slli_epi32(half, 16) : half);
    }
}

template <typename From>
void pack_depth_bf16(const PackSource& from, const PackTarget& to, std::size_t first) {
    const From* source = static_cast<const From*>(from.data);
    std::size_t row = 0;
    if (first % 2 && from.rows) {
        pack_half_pairs(source, from.width, to, first);
        row = 1;
    }
    for (; row + 1 < from.rows; row += kRows) {
        const std::size_t pairs = std::min(kRows, from.rows - row) / 2;
        for (std::size_t column = 0; column < from.width; column += kPanel) {
            const From* x = source + row * from.stride + column;
            std::byte* out = to.bytes + column / kPanel * to.panel_bytes + (first + row) / 2 * kPanel * 4;
            const std::size_t left = from.width - column;
            for (std::size_t pair = 0; pair < pairs; ++pair, x += 2 * from.stride, out += kPanel * 4) {
                const __m512i upper = _mm512_cvtepu16_epi32(halves_at(x + from.stride, left));
                const __m512i lower = _mm512_cvtepu16_epi32(halves_at(x, left));
                _mm512_storeu_si512(out, _mm512_or_si512(lower, _mm512_slli_epi32(upper, 16)));
            }
        }
    }
    if ((first + from.rows) % 2 && from.rows > first % 2)
        pack_half_pairs(source + (from.rows - 1) * from.stride, from.width, to, first + from.rows - 1);
}

template <Element kElement>
void columns_of(const PackSource& from, const PackTarget& to, std::size_t first) {
    from.dtype == Dtype::bf16 ? pack_columns<kElement, BFloat16>(from, to, first)
                              : pack_columns<kElement, float>(from, to, first);
}

void columns(const PackSource& from, const PackTarget& to, std::size_t first) {
    to.element == Element::bf16 ? columns_of<Element::bf16>(from, to, first)
                                : columns_of<Element::fp32>(from, to, first);
}

void depth(const PackSource& from, const PackTarget& to, std::size_t first) {
    if (to.element == Element::bf16)
        from.dtype == Dtype::bf16 ? pack_depth_bf16<BFloat16>(from, to, first)
                                  : pack_depth_bf16<float>(from, to, first);
    else
        from.dtype == Dtype::bf16 ? pack_depth_fp32<BFloat16>(from, to, first)
                                  : pack_depth_fp32<float>(from, to, first);
}

FASTBERT_TARGET_END
}  // namespace

const PackKernel& avx512_pack_kernel() {
    static constexpr PackKernel kernel{columns, depth};
    return kernel;
}

}  // namespace fastbert
#endif

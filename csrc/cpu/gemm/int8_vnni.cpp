// int8 micro-kernel of AVX-512 VNNI: 14 rows by 32 outputs, 28 vectors of sums in 32 registers. The instruction
// multiplies unsigned by signed bytes: rows are packed with an offset of 128, which flips their sign bit.
#include "cpu/gemm/int8_kernels.h"

#if FASTBERT_X86
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cpu/simd/bfloat16.h"

namespace fastbert {
namespace {

constexpr std::size_t kRows = 14;
constexpr std::size_t kPanelRows = 16;  // a group of all rows is one cache line
constexpr std::size_t kGroup = group_of(Element::int8);

FASTBERT_TARGET_BEGIN(FASTBERT_AVX512_VNNI)

#include "cpu/simd/vector_avx512.h"
#include "cpu/simd/vector_math.h"
#include "cpu/rowwise/gelu_gradient.h"
#include "cpu/rowwise/activations.h"
#include "cpu/gemm/epilogue.h"

std::size_t panel_bytes(std::size_t padded_depth) { return padded_depth * kPanelRows; }

// Load four groups of a row, with the offset of 128.
FASTBERT_INLINE __m128i load_groups(const std::byte* row, std::size_t first, std::size_t depth) {
    const __m128i added = _mm_set1_epi8(static_cast<char>(0x80));
    if (first + 16 <= depth)
        return _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + first)), added);
    const std::size_t count = first < depth ? depth - first : 0;
    const auto in_row = static_cast<__mmask16>((1U << count) - 1U);
    return _mm_xor_si128(_mm_maskz_loadu_epi8(in_row, row + first), added);
}

// Groups of rows, interleaved: [depth / 4][16][4].
void pack_rows(const void* x, std::size_t stride, std::size_t rows, std::size_t depth, std::size_t padded_depth,
               std::byte* panel) {
    for (std::size_t row = 0; row < kPanelRows; row += 4) {
        const std::byte* source[4];
        std::size_t depths[4];
        for (std::size_t i = 0; i < 4; ++i) {
            source[i] = static_cast<const std::byte*>(x) + (row + i < rows ? row + i : 0) * stride;
            depths[i] = row + i < rows ? depth : 0;
        }
        for (std::size_t first = 0; first < padded_depth; first += 4 * kGroup) {
            const __m128i a = load_groups(source[0], first, depths[0]), b = load_groups(source[1], first, depths[1]);
            const __m128i c = load_groups(source[2], first, depths[2]), d = load_groups(source[3], first, depths[3]);
            const __m128i ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
            const __m128i ab_upper = _mm_unpackhi_epi32(a, b), cd_upper = _mm_unpackhi_epi32(c, d);
            const __m128i groups[4] = {_mm_unpacklo_epi64(ab, cd), _mm_unpackhi_epi64(ab, cd),
                                       _mm_unpacklo_epi64(ab_upper, cd_upper), _mm_unpackhi_epi64(ab_upper, cd_upper)};
            for (std::size_t i = 0; i < 4; ++i)
                _mm_store_si128(
                    reinterpret_cast<__m128i*>(panel + ((first / kGroup + i) * kPanelRows + row) * kGroup), groups[i]);
        }
    }
}

template <std::size_t kCount>
void multiply_rows(const std::byte* panel, const std::byte* weights, std::size_t weight_panel_bytes,
                   std::size_t padded_depth, const Block& block) {
    if constexpr (kCount > 2) {
        if (block.rows <= kCount - 2)
            return multiply_rows<kCount - 2>(panel, weights, weight_panel_bytes, padded_depth, block);
    }
    // Unrolled explicitly: otherwise GCC keeps a copy of the sums in memory.
    __m512i left[kCount], right[kCount];
#pragma GCC unroll 16
    for (std::size_t row = 0; row < kCount; ++row) left[row] = right[row] = _mm512_setzero_si512();
    for (const std::byte* end = panel + panel_bytes(padded_depth); panel != end; panel += kPanelRows * kGroup) {
        const __m512i weight_left = _mm512_load_si512(weights);
        const __m512i weight_right = _mm512_load_si512(weights + weight_panel_bytes);
#pragma GCC unroll 16
        for (std::size_t row = 0; row < kCount; ++row) {
            const __m512i x = _mm512_set1_epi32(*reinterpret_cast<const std::int32_t*>(panel + row * kGroup));
            left[row] = _mm512_dpbusd_epi32(left[row], x, weight_left);
            right[row] = _mm512_dpbusd_epi32(right[row], x, weight_right);
        }
        weights += kPanel * kGroup;
    }
#pragma GCC unroll 16
    for (std::size_t row = 0; row < kCount; ++row) {
        _mm512_store_si512(block.sums + row * kColumns, left[row]);
        _mm512_store_si512(block.sums + row * kColumns + kPanel, right[row]);
    }
}

void multiply(const std::byte* panel, const std::byte* weights, std::size_t weight_panel_bytes,
              std::size_t padded_depth, const Block& block, const Block* previous, const Epilogue& epilogue) {
    if (previous) finish_rows<Avx512>(*previous, epilogue, 0, previous->rows);
    multiply_rows<kRows>(panel, weights, weight_panel_bytes, padded_depth, block);
}

void finish_block(const Block& block, const Epilogue& epilogue) { finish_rows<Avx512>(block, epilogue, 0, block.rows); }

FASTBERT_TARGET_END

}  // namespace

const MicroKernel& avx512_vnni_int8_micro_kernel() {
    static constexpr MicroKernel kernel{.rows = kRows,
                                        .panel_bytes = panel_bytes,
                                        .pack_rows = pack_rows,
                                        .multiply = multiply,
                                        .finish = finish_block,
                                        .unsigned_rows = true,
                                        .row_step = 2,
                                        .memory_rows = 2 * kRows};
    return kernel;
}

}  // namespace fastbert
#endif

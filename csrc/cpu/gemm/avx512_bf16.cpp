// Micro-kernels of AVX-512 BF16: the dot-product instruction multiplies and adds bf16 pairs and flushes denormals to
// zero.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "cpu/gemm/kernel_table.h"
#include "cpu/simd/target.h"

#if FASTBERT_X86
#include <immintrin.h>

namespace fastbert {
namespace {
FASTBERT_TARGET_BEGIN(FASTBERT_AVX512_BF16)

#include "cpu/simd/vector_avx512.h"
// After a vector type.
#include "cpu/simd/vector_math.h"
// After both.
#include "cpu/rowwise/gelu_gradient.h"
#include "cpu/rowwise/activations.h"
#include "cpu/gemm/epilogue.h"
#include "cpu/simd/transpose_avx512.h"
#include "cpu/gemm/pack_panel.h"

inline constexpr std::size_t kRows = 14;

// Compute sums[row][0..32] of kCount rows of a panel [depth / 2][kRows] of pairs.
template <std::size_t kCount>
void sum_pairs(const std::byte* panel, const std::byte* weights, std::size_t panel_bytes, std::size_t groups,
               float* sums) {
    __m512 total[kCount][2];
#pragma GCC unroll 16
    for (std::size_t row = 0; row < kCount; ++row) total[row][0] = total[row][1] = _mm512_setzero_ps();
    for (std::size_t group = 0; group < groups; ++group) {
        // Weights from memory: faster than relying on the hardware prefetcher.
        __builtin_prefetch(weights + 2048);
        __builtin_prefetch(weights + panel_bytes + 2048);
        const auto left = (__m512bh)_mm512_loadu_si512(weights);
        const auto right = (__m512bh)_mm512_loadu_si512(weights + panel_bytes);
#pragma GCC unroll 16
        for (std::size_t row = 0; row < kCount; ++row) {
            std::int32_t pair;
            std::memcpy(&pair, panel + row * 4, 4);
            const auto x = (__m512bh)_mm512_set1_epi32(pair);
            total[row][0] = _mm512_dpbf16_ps(total[row][0], x, left);
            total[row][1] = _mm512_dpbf16_ps(total[row][1], x, right);
        }
        panel += kRows * 4;
        weights += kPanel * 4;
    }
#pragma GCC unroll 16
    for (std::size_t row = 0; row < kCount; ++row) {
        _mm512_storeu_ps(sums + row * kColumns, total[row][0]);
        _mm512_storeu_ps(sums + row * kColumns + kPanel, total[row][1]);
    }
}

using Sum = void (*)(const std::byte*, const std::byte*, std::size_t, std::size_t, float*);

template <std::size_t... kCount>
Sum sum_of(std::size_t rows, std::index_sequence<kCount...>) {
    static constexpr Sum kSums[] = {&sum_pairs<kCount + 1>...};
    return kSums[rows - 1];
}

std::size_t panel_bytes(std::size_t padded_depth) { return (padded_depth * 2 * kRows + 127) / 64 * 64; }

void pack_rows(const void* x, std::size_t stride, std::size_t rows, std::size_t depth, std::size_t padded_depth,
               std::byte* panel) {
    pack_dwords<Avx512, kRows>(rows, padded_depth / 2, panel, [&](std::size_t row, std::size_t word) {
        const std::size_t left = depth - std::min(depth, word * 2);
        const auto mask = static_cast<__mmask32>(left >= 32 ? 0xFFFFFFFFU : (1U << left) - 1U);
        return _mm512_castsi512_ps(
            _mm512_maskz_loadu_epi16(mask, static_cast<const BFloat16*>(x) + row * stride + depth - left));
    });
}

// Pairs of tokens. Stores write sixteen lanes although only kRows are valid; the next store overwrites the excess.
void pack_columns(const void* x, std::size_t stride, std::size_t tokens, std::size_t columns, std::size_t first,
                  std::byte* panel, float* sums) {
    const BFloat16* from = static_cast<const BFloat16*>(x);
    const __mmask16 mask = Avx512::first(columns);
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000U));
    std::byte* to = panel + first / 2 * kRows * 4;
    __m512 total = _mm512_setzero_ps();
    for (std::size_t token = 0; token < tokens; token += 2, from += 2 * stride, to += kRows * 4) {
        const __m512i left = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
        const __mmask16 second = token + 1 < tokens ? mask : __mmask16{0};
        const __m512i right = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(second, from + (second ? stride : 0)));
        const __m512i pairs = _mm512_or_si512(left, _mm512_slli_epi32(right, 16));
        _mm512_storeu_si512(to, pairs);
        total = _mm512_add_ps(total, _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
        total = _mm512_add_ps(total, _mm512_castsi512_ps(_mm512_and_si512(pairs, upper)));
    }
    for (std::size_t pair = (tokens + 1) / 2; pair % 16; ++pair, to += kRows * 4)
        _mm512_storeu_si512(to, _mm512_setzero_si512());
    if (sums) Avx512::store_part(sums, _mm512_add_ps(Avx512::load_part(sums, columns), total), columns);
}

void finish_block(const Block& block, const Epilogue& epilogue) { finish_rows<Avx512>(block, epilogue, 0, block.rows); }

void multiply(const std::byte* panel, const std::byte* weights, std::size_t weight_bytes, std::size_t padded_depth,
              const Block& block, const Block* previous, const Epilogue& epilogue) {
    prefetch_operands(block, epilogue);
    if (previous) finish_block(*previous, epilogue);
    sum_of(block.rows, std::make_index_sequence<kRows>())(panel, weights, weight_bytes, padded_depth / 2, block.sums);
}

FASTBERT_TARGET_END
}  // namespace

const MicroKernel& avx512_bf16_micro_kernel() {
    static constexpr MicroKernel kernel{.rows = kRows,
                                        .panel_bytes = panel_bytes,
                                        .pack_rows = pack_rows,
                                        .pack_columns = pack_columns,
                                        .multiply = multiply,
                                        .finish = finish_block};
    return kernel;
}

}  // namespace fastbert
#endif

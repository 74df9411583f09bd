// Products and their rows of AVX-512.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cpu/product_kernels.h"
#include "cpu/target.h"

#if FASTBERT_X86
#include <immintrin.h>

namespace fastbert {
namespace {
FASTBERT_TARGET_BEGIN(FASTBERT_AVX512)

#include "cpu/vector_avx512.h"
// Behind a vector.
#include "cpu/vector_math.h"
// Behind both.
#include "cpu/gelu_gradient.h"
#include "cpu/product_epilogue.h"
// Behind all.
#include "cpu/product_blocks.h"
#include "cpu/transpose_avx512.h"
#include "cpu/product_panel.h"

// 28 of the 32 registers hold sums.
inline constexpr std::size_t kRows = 14;

template <typename Value>
void fill(const void* x, std::size_t stride, std::size_t rows, std::size_t depth, std::size_t padded_depth,
          std::byte* panel) {
    fill_words<kRows>(rows, padded_depth, panel, [&](std::size_t row, std::size_t k) {
        if (k >= depth) return _mm512_setzero_ps();
        return load_some<Avx512>(static_cast<const Value*>(x) + row * stride + k, depth - k);
    });
}

// Sixteen floats are stored where kRows of them belong, and the next token's store covers what is too much.
template <Element kElement, typename Value>
void fill_columns(const void* x, std::size_t stride, std::size_t tokens, std::size_t columns, std::size_t first,
                  std::byte* panel, float* sums) {
    const Value* from = static_cast<const Value*>(x);
    float* to = reinterpret_cast<float*>(panel) + first * kRows;
    __m512 total = _mm512_setzero_ps();
    for (std::size_t token = 0; token < tokens; ++token, from += stride, to += kRows) {
        const __m512 values = Avx512::load_part(from, columns);
        _mm512_storeu_ps(to, values);
        total = _mm512_add_ps(total, values);
    }
    for (std::size_t token = tokens; token % (kStep / bytes_of(kElement)); ++token, to += kRows)
        _mm512_storeu_ps(to, _mm512_setzero_ps());
    if (sums) Avx512::store_part(sums, _mm512_add_ps(Avx512::load_part(sums, columns), total), columns);
}

template <Element kElement>
constexpr BlockKernel kernel_of() {
    using Kernel = FmaKernel<Avx512, kElement, kRows, 2>;
    using Value = std::conditional_t<kElement == Element::fp32, float, BFloat16>;
    return {.rows = kRows,
            .panel_bytes = Kernel::panel_bytes,
            .fill = fill<Value>,
            .fill_columns = fill_columns<kElement, Value>,
            .multiply = Kernel::multiply,
            .finish = Kernel::finish_block,
            .chunk = 512,
            .fill_tokens = kStep / bytes_of(kElement)};
}

FASTBERT_TARGET_END
}  // namespace

const BlockKernel& avx512_kernel(Element element) {
    static constexpr BlockKernel bf16 = kernel_of<Element::bf16>(), fp32 = kernel_of<Element::fp32>();
    return element == Element::bf16 ? bf16 : fp32;
}

const RowKernel& avx512_rows() {
    static constexpr RowKernel rows{round_row<Avx512>, widen_row<Avx512>, norm_row<Avx512>};
    return rows;
}

}  // namespace fastbert
#endif

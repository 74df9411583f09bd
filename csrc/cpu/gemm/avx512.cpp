// Micro-kernels and row operations for AVX-512.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cpu/gemm/kernel_table.h"
#include "cpu/simd/target.h"

#if FASTBERT_X86
#include <immintrin.h>

namespace fastbert {
namespace {
FASTBERT_TARGET_BEGIN(FASTBERT_AVX512)

#include "cpu/simd/vector_avx512.h"
// After a vector type.
#include "cpu/simd/vector_math.h"
// After both.
#include "cpu/rowwise/gelu_gradient.h"
#include "cpu/rowwise/activations.h"
#include "cpu/gemm/epilogue.h"
// After all of them.
#include "cpu/gemm/fma_kernel.h"
#include "cpu/simd/transpose_avx512.h"
#include "cpu/gemm/pack_panel.h"

// 28 of the 32 registers hold sums.
inline constexpr std::size_t kRows = 14;

template <Element kElement>
constexpr MicroKernel kernel_of() {
    using Kernel = FmaKernel<Avx512, kElement, kRows, 2>;
    using Value = std::conditional_t<kElement == Element::fp32, float, BFloat16>;
    return {.rows = kRows,
            .panel_bytes = Kernel::panel_bytes,
            .pack_rows = pack_floats<Avx512, kRows, Value>,
            .pack_columns = Kernel::pack_columns,
            .multiply = Kernel::multiply,
            .finish = Kernel::finish_block,
            .chunk = 512,
            .pack_tokens = kStep / bytes_of(kElement)};
}

FASTBERT_TARGET_END
}  // namespace

const MicroKernel& avx512_micro_kernel(Element element) {
    static constexpr MicroKernel bf16 = kernel_of<Element::bf16>(), fp32 = kernel_of<Element::fp32>();
    return element == Element::bf16 ? bf16 : fp32;
}

const RowOperations& avx512_row_operations() {
    static constexpr RowOperations rows{round_row<Avx512>, widen_row<Avx512>, norm_row<Avx512>};
    return rows;
}

}  // namespace fastbert
#endif

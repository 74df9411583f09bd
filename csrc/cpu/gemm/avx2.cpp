// Micro-kernels and row operations for AVX2.
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
FASTBERT_TARGET_BEGIN(FASTBERT_AVX2)

#include "cpu/simd/vector_avx2.h"
// After a vector type.
#include "cpu/simd/vector_math.h"
// After both.
#include "cpu/rowwise/gelu_gradient.h"
#include "cpu/rowwise/activations.h"
#include "cpu/gemm/epilogue.h"
// After all of them.
#include "cpu/gemm/fma_kernel.h"
#include "cpu/simd/transpose_avx2.h"
#include "cpu/gemm/pack_panel.h"

// 12 of the 16 registers hold sums.
inline constexpr std::size_t kRows = 6;

template <Element kElement>
constexpr MicroKernel kernel_of() {
    using Kernel = FmaKernel<Avx2, kElement, kRows, 2>;
    using Value = std::conditional_t<kElement == Element::fp32, float, BFloat16>;
    return {.rows = kRows,
            .panel_bytes = Kernel::panel_bytes,
            .pack_rows = pack_floats<Avx2, kRows, Value>,
            .pack_columns = Kernel::pack_columns,
            .multiply = Kernel::multiply,
            .finish = Kernel::finish_block};
}

FASTBERT_TARGET_END
}  // namespace

const MicroKernel& avx2_micro_kernel(Element element) {
    static constexpr MicroKernel bf16 = kernel_of<Element::bf16>(), fp32 = kernel_of<Element::fp32>();
    return element == Element::bf16 ? bf16 : fp32;
}

const RowOperations& avx2_row_operations() {
    static constexpr RowOperations rows{round_row<Avx2>, widen_row<Avx2>, norm_row<Avx2>};
    return rows;
}

}  // namespace fastbert
#endif

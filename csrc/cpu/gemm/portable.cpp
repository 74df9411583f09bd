// Portable micro-kernels and row operations.
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

namespace fastbert {
namespace {

#include "cpu/simd/vector_portable.h"
// After a vector type.
#include "cpu/simd/vector_math.h"
// After both.
#include "cpu/rowwise/gelu_gradient.h"
#include "cpu/rowwise/activations.h"
#include "cpu/gemm/epilogue.h"
// After all of them.
#include "cpu/gemm/fma_kernel.h"

template <Element kElement>
constexpr MicroKernel kernel_of() {
    using Kernel = FmaKernel<Portable, kElement, 4, 1>;
    return {.rows = 4,
            .panel_bytes = Kernel::panel_bytes,
            .pack_rows = Kernel::pack_rows,
            .pack_columns = Kernel::pack_columns,
            .multiply = Kernel::multiply,
            .finish = Kernel::finish_block};
}

}  // namespace

const MicroKernel& portable_micro_kernel(Element element) {
    static constexpr MicroKernel bf16 = kernel_of<Element::bf16>(), fp32 = kernel_of<Element::fp32>();
    return element == Element::bf16 ? bf16 : fp32;
}

const RowOperations& portable_row_operations() {
    static constexpr RowOperations rows{round_row<Portable>, widen_row<Portable>, norm_row<Portable>};
    return rows;
}

}  // namespace fastbert

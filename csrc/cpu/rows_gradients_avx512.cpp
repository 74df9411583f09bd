// The gradients of row kernels for AVX-512.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "cpu/rows_gradient_table.h"
#include "cpu/target.h"

#if FASTBERT_X86
#include <immintrin.h>

FASTBERT_TARGET_BEGIN(FASTBERT_AVX512)
namespace fastbert {
namespace {

#include "cpu/vector_avx512.h"
#include "cpu/vector_math.h"
#include "cpu/gelu_gradient.h"
#include "cpu/rows_passes.h"
#include "cpu/rows_softmax.h"
#include "cpu/rows_gradient_kernels.h"

constexpr RowGradientKernels kKernels = row_gradient_kernels_of<Avx512>();

}  // namespace
FASTBERT_TARGET_END

const RowGradientKernels& row_gradient_kernels_avx512() { return kKernels; }

}  // namespace fastbert

#endif

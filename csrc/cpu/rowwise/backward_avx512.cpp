// Gradient kernels of the row-wise operations for AVX-512.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "cpu/rowwise/backward_table.h"
#include "cpu/simd/target.h"

#if FASTBERT_X86
#include <immintrin.h>

FASTBERT_TARGET_BEGIN(FASTBERT_AVX512)
namespace fastbert {
namespace {

#include "cpu/simd/vector_avx512.h"
#include "cpu/simd/vector_math.h"
#include "cpu/rowwise/gelu_gradient.h"
#include "cpu/rowwise/activations.h"
#include "cpu/rowwise/row_loops.h"
#include "cpu/rowwise/softmax_kernels.h"
#include "cpu/rowwise/backward_kernels.h"

constexpr RowGradientKernels kKernels = row_gradient_kernels_of<Avx512>();

}  // namespace
FASTBERT_TARGET_END

const RowGradientKernels& row_gradient_kernels_avx512() { return kKernels; }

}  // namespace fastbert

#endif

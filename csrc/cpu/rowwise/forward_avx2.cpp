// Row-wise kernels for AVX2.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "cpu/rowwise/forward_table.h"
#include "cpu/simd/target.h"

#if FASTBERT_X86
#include <immintrin.h>

FASTBERT_TARGET_BEGIN(FASTBERT_AVX2)
namespace fastbert {
namespace {

#include "cpu/simd/vector_avx2.h"
#include "cpu/simd/vector_math.h"
#include "cpu/rowwise/gelu_gradient.h"
#include "cpu/rowwise/activations.h"
#include "cpu/rowwise/row_loops.h"
#include "cpu/rowwise/softmax_kernels.h"
#include "cpu/rowwise/forward_kernels.h"

constexpr RowKernels kKernels = row_kernels_of<Avx2>();

}  // namespace
FASTBERT_TARGET_END

const RowKernels& row_kernels_avx2() { return kKernels; }

}  // namespace fastbert

#endif

// Portable gradient kernels of the row-wise operations.
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

namespace fastbert {
namespace {

#include "cpu/simd/vector_portable.h"
#include "cpu/simd/vector_math.h"
#include "cpu/rowwise/gelu_gradient.h"
#include "cpu/rowwise/activations.h"
#include "cpu/rowwise/row_loops.h"
#include "cpu/rowwise/softmax_kernels.h"
#include "cpu/rowwise/backward_kernels.h"

constexpr RowGradientKernels kKernels = row_gradient_kernels_of<Portable>();

}  // namespace

const RowGradientKernels& row_gradient_kernels_portable() { return kKernels; }

}  // namespace fastbert

// Portable row-wise kernels.
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

namespace fastbert {
namespace {

#include "cpu/simd/vector_portable.h"
#include "cpu/simd/vector_math.h"
#include "cpu/rowwise/gelu_gradient.h"
#include "cpu/rowwise/activations.h"
#include "cpu/rowwise/row_loops.h"
#include "cpu/rowwise/softmax_kernels.h"
#include "cpu/rowwise/forward_kernels.h"

constexpr RowKernels kKernels = row_kernels_of<Portable>();

}  // namespace

const RowKernels& row_kernels_portable() { return kKernels; }

}  // namespace fastbert

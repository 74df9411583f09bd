// Portable cross-entropy kernels.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/cross_entropy/cross_entropy.h"
#include "cpu/rowwise/forward_table.h"
#include "cpu/simd/target.h"

namespace fastbert {
namespace {

#include "cpu/simd/vector_portable.h"
#include "cpu/simd/vector_math.h"
#include "cpu/rowwise/row_loops.h"
#include "cpu/cross_entropy/kernels.h"

}  // namespace

CrossEntropyKernel cross_entropy_portable(Dtype dtype) { return cross_entropy_of<Portable>(dtype); }

}  // namespace fastbert

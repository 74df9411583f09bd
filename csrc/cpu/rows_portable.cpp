// The row kernels for no instruction set in particular.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "cpu/rows_table.h"
#include "cpu/target.h"

namespace fastbert {
namespace {

#include "cpu/vector_portable.h"
#include "cpu/vector_math.h"
#include "cpu/rows_passes.h"
#include "cpu/rows_softmax.h"
#include "cpu/rows_kernels.h"

constexpr RowKernels kKernels = row_kernels_of<Portable>();

}  // namespace

const RowKernels& row_kernels_portable() { return kKernels; }

}  // namespace fastbert

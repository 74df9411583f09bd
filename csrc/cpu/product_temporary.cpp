// Kernels that stand in for those of AMX and of integers.
#include <stdexcept>

#include "cpu/product_kernels.h"

namespace fastbert {

const BlockKernel& int8_kernel(Level) { throw std::logic_error("there is no product of integers"); }

#if defined(__x86_64__)
const BlockKernel& amx_bf16_kernel() { return avx512_bf16_kernel(); }
#endif

}  // namespace fastbert

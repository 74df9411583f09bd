// The kernels of AMX's tiles (product.h), for processors that have them.
#pragma once

#include "cpu/product.h"
#include "cpu/target.h"

namespace fastbert {

#if FASTBERT_X86
extern const BlockKernel kAmxBf16;
extern const BlockKernel kAmxInt8;
#endif

}  // namespace fastbert

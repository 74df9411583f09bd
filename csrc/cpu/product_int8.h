// int8 products below AMX (product.h). Their sums are exact, so that every level has the same ones.
#pragma once

#include "cpu/product.h"
#include "cpu/target.h"

namespace fastbert {

extern const BlockKernel kPortableInt8;
#if FASTBERT_X86
extern const BlockKernel kAvx2Int8;
extern const BlockKernel kAvx512Int8;
extern const BlockKernel kVnniInt8;
#endif

// The one of the level in force, AMX's included.
const BlockKernel& int8_block_kernel();

}  // namespace fastbert

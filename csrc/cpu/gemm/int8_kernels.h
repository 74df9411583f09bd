// int8 products (gemm.h). Their sums are exact: every level has the same ones.
#pragma once

#include "cpu/gemm/kernel_table.h"
#include "cpu/simd/target.h"

namespace fastbert {

// `int8_kernel` chooses among them.
const BlockKernel& portable_int8_kernel();
#if FASTBERT_X86
const BlockKernel& avx2_int8_kernel();
const BlockKernel& avx512_int8_kernel();
const BlockKernel& avx512_vnni_int8_kernel();
const BlockKernel& amx_int8_kernel();
#endif

}  // namespace fastbert

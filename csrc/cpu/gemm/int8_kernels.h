// int8 products (gemm.h). Their sums are exact: every level has the same ones.
#pragma once

#include "cpu/gemm/kernel_table.h"
#include "cpu/simd/target.h"

namespace fastbert {

// `int8_micro_kernel` chooses among them.
const MicroKernel& portable_int8_micro_kernel();
#if FASTBERT_X86
const MicroKernel& avx2_int8_micro_kernel();
const MicroKernel& avx512_int8_micro_kernel();
const MicroKernel& avx512_vnni_int8_micro_kernel();
const MicroKernel& amx_int8_micro_kernel();
#endif

}  // namespace fastbert

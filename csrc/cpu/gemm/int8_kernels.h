// int8 micro-kernels (gemm.h). Their sums are exact, so every CPU capability returns the same ones.
#pragma once

#include "cpu/gemm/kernel_table.h"
#include "cpu/simd/target.h"

namespace fastbert {

// `int8_micro_kernel` selects one.
const MicroKernel& portable_int8_micro_kernel();
#if FASTBERT_X86
const MicroKernel& avx2_int8_micro_kernel();
const MicroKernel& avx512_int8_micro_kernel();
const MicroKernel& avx512_vnni_int8_micro_kernel();
const MicroKernel& amx_int8_micro_kernel();
#endif

}  // namespace fastbert

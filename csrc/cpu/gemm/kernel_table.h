// The inner loops of products, by level. `micro_kernel` and `row_operations` choose among them.
#pragma once

#include "cpu/runtime/cpu_capability.h"
#include "cpu/gemm/gemm.h"
#include "cpu/simd/target.h"

namespace fastbert {

const MicroKernel& portable_micro_kernel(Element element);  // bf16 and fp32
const MicroKernel& int8_micro_kernel(CpuCapability level);
#if FASTBERT_X86
const MicroKernel& avx2_micro_kernel(Element element);
const MicroKernel& avx512_micro_kernel(Element element);
const MicroKernel& avx512_bf16_micro_kernel();
const MicroKernel& amx_bf16_micro_kernel();
#endif

// What products do with whole rows, beside the sums.
struct RowOperations {
    void (*round)(const float* from, std::size_t count, BFloat16* to);
    void (*widen)(const BFloat16* from, std::size_t count, float* to);
    // LayerNorm of a row of `count` elements into `out`. Up to the next multiple of kPanel the row's memory is written.
    void (*norm)(float* row, std::size_t count, const FusedNorm& norm, void* out, Dtype dtype);
};

const RowOperations& portable_row_operations();
#if FASTBERT_X86
const RowOperations& avx2_row_operations();
const RowOperations& avx512_row_operations();
#endif

// The one for the level in force.
const RowOperations& row_operations();

// Multiplications from which threads are worth waking: some ten microseconds of one. Where other processes want the same
// cores, a thread that is waited for may take milliseconds to come, so small products stay on one.
inline constexpr double kMinParallelWork = 1e6;

// At least `size` bytes of the calling thread, aligned to 64, valid until its next product. They are kept: pages
// touched for the first time cost more than the products that use them. Throws std::bad_alloc.
std::byte* gemm_scratch(std::size_t size);

}  // namespace fastbert

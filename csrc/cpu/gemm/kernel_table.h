// The inner loops of products, by level. `block_kernel` and `row_kernel` choose among them.
#pragma once

#include "cpu/runtime/cpu_capability.h"
#include "cpu/gemm/gemm.h"
#include "cpu/simd/target.h"

namespace fastbert {

const BlockKernel& portable_kernel(Element element);  // bf16 and fp32
const BlockKernel& int8_kernel(Level level);
#if FASTBERT_X86
const BlockKernel& avx2_kernel(Element element);
const BlockKernel& avx512_kernel(Element element);
const BlockKernel& avx512_bf16_kernel();
const BlockKernel& amx_bf16_kernel();
#endif

// What products do with whole rows, beside the sums.
struct RowKernel {
    void (*round)(const float* from, std::size_t count, BFloat16* to);
    void (*widen)(const BFloat16* from, std::size_t count, float* to);
    // LayerNorm of a row of `count` elements into `out`. Up to the next multiple of kPanel the row's memory is written.
    void (*norm)(float* row, std::size_t count, const Norm& norm, void* out, Dtype dtype);
};

const RowKernel& portable_rows();
#if FASTBERT_X86
const RowKernel& avx2_rows();
const RowKernel& avx512_rows();
#endif

// The one for the level in force.
const RowKernel& row_kernel();

// Multiplications from which threads are worth waking: some ten microseconds of one. Where other processes want the same
// cores, a thread that is waited for may take milliseconds to come, so small products stay on one.
inline constexpr double kWorthThreads = 1e6;

// At least `size` bytes of the calling thread, aligned to 64, valid until its next product. They are kept: pages
// touched for the first time cost more than the products that use them. Throws std::bad_alloc.
std::byte* product_scratch(std::size_t size);

}  // namespace fastbert

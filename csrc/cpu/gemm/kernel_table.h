// The micro-kernels by CPU capability; `micro_kernel` and `row_operations` select one.
#pragma once

#include "cpu/runtime/cpu_capability.h"
#include "cpu/gemm/gemm.h"
#include "cpu/simd/target.h"

namespace fastbert {

const MicroKernel& portable_micro_kernel(Element element);  // bf16 and fp32
const MicroKernel& int8_micro_kernel(CpuCapability capability);
#if FASTBERT_X86
const MicroKernel& avx2_micro_kernel(Element element);
const MicroKernel& avx512_micro_kernel(Element element);
const MicroKernel& avx512_bf16_micro_kernel();
const MicroKernel& amx_bf16_micro_kernel();
#endif

// Operations on whole rows around a matmul.
struct RowOperations {
    void (*round)(const float* from, std::size_t count, BFloat16* to);
    void (*widen)(const BFloat16* from, std::size_t count, float* to);
    // LayerNorm of a row of `count` elements into `out`. Overwrites the row's memory up to the next multiple of kPanel.
    void (*norm)(float* row, std::size_t count, const FusedNorm& norm, void* out, Dtype dtype);
};

const RowOperations& portable_row_operations();
#if FASTBERT_X86
const RowOperations& avx2_row_operations();
const RowOperations& avx512_row_operations();
#endif

// Those of the current CPU capability.
const RowOperations& row_operations();

// Convert rows of bf16 or fp32, `stride` elements apart, to a weight's element type, bf16 or fp32, in `copy` (rows, depth);
// return false, with nothing written, if they have it.
bool convert_rows(const void* x, Dtype dtype, std::size_t stride, std::size_t rows, std::size_t depth, Element element,
                  void* copy);

// Minimum multiplications to use several threads: some ten microseconds of one thread. If other processes compete for
// the cores, waiting for a thread may take milliseconds, so small matmuls stay on one.
inline constexpr double kMinParallelWork = 1e6;
// Minimum bytes of a weight in memory to use several threads: as long.
inline constexpr std::size_t kMinParallelBytes = std::size_t{1} << 18;

// Return at least `size` bytes of the calling thread, aligned to 64, valid until its next matmul. Kept between calls:
// faulting in fresh pages costs more than the matmuls that use them. Throws std::bad_alloc.
std::byte* gemm_scratch(std::size_t size);

}  // namespace fastbert

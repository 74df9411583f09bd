// Dynamic quantization of tokens to int8, one scale per row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/simd/bfloat16.h"
#include "cpu/simd/target.h"

namespace fastbert {

// Arguments: scale = max |x| / 127 over the row, integer = x * (127 / max |x|) rounded to nearest, ties to even. A zero
// row, and a row below 2^-100, has scale 0 and zero integers; a row with a NaN or an infinity has scale NaN and zero
// integers, so that everything computed from it is NaN. Rows are independent, and the CPU capability does not matter.
struct QuantizedRows {
    const void* x = nullptr;  // (rows, depth), `stride` elements apart
    Dtype dtype = Dtype::fp32;
    std::size_t stride = 0, rows = 0, depth = 0;
    std::int8_t* integers = nullptr;  // (rows, depth), contiguous
    float* scales = nullptr;          // (rows,)
};

// Quantize on all threads.
void quantize(const QuantizedRows& rows);

// Quantize on the calling thread.
void quantize_rows(const QuantizedRows& rows);

// Quantize rows first..last with one instruction set.
#if FASTBERT_X86
void quantize_avx2(const QuantizedRows& rows, std::size_t first, std::size_t last);
void quantize_avx512(const QuantizedRows& rows, std::size_t first, std::size_t last);
#endif

}  // namespace fastbert

// Tokens as int8, each row with a scale of its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/simd/bfloat16.h"
#include "cpu/simd/target.h"

namespace fastbert {

// Rows to be quantised: scale = max |x| / 127 over the row, integer = x * (127 / max |x|) to nearest, ties to even. A
// row of zeros, for which also rows below 2^-100 count, has scale 0 and zeros; a row with a NaN or an infinity has
// scale NaN and zeros, so that all that is computed of it is NaN. Nothing of a row depends on another one, nor on the
// level.
struct QuantizedRows {
    const void* x = nullptr;  // (rows, depth), `stride` elements apart
    Dtype dtype = Dtype::fp32;
    std::size_t stride = 0, rows = 0, depth = 0;
    std::int8_t* integers = nullptr;  // (rows, depth), without gaps
    float* scales = nullptr;          // (rows,)
};

// On all threads.
void quantize(const QuantizedRows& rows);

// Rows first..last at one level.
#if FASTBERT_X86
void quantize_avx2(const QuantizedRows& rows, std::size_t first, std::size_t last);
void quantize_avx512(const QuantizedRows& rows, std::size_t first, std::size_t last);
#endif

}  // namespace fastbert

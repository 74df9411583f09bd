// Matmuls of few rows for callers with threads of their own: each thread packs all rows for itself, which takes less time
// than to share the work and wait for each other, and multiplies them with outputs of its own.
#pragma once

#include <cstddef>

#include "cpu/gemm/gemm.h"

namespace fastbert {

// Rows packed by one thread. Every element has the bits that `gemm` computes.
class FewRows {
public:
    // Bytes of memory, aligned to 64, for `rows` rows of at most `depth` elements.
    static std::size_t bytes(Element element, std::size_t rows, std::size_t depth);

    FewRows(Element element, std::size_t rows, std::size_t depth, std::byte* memory);

    // Call before the first multiplication of the thread, and after the last.
    void enter() const;
    void leave() const;

    // Pack rows of `depth` elements; for int8 they are quantized.
    void pack(const void* x, Dtype dtype, std::size_t stride, std::size_t rows, std::size_t depth);

    // Multiply the packed rows with blocks first..last of kColumns outputs of a weight, and apply the epilogue, whose
    // scales are set here.
    void multiply(const PrepackedWeight& weight, Epilogue epilogue, std::size_t first, std::size_t last);

private:
    const MicroKernel& kernel_;
    Element element_;
    std::size_t rows_ = 0, depth_ = 0, padded_depth_ = 0, panel_bytes_ = 0;
    std::byte *panels_, *converted_;
    float *sums_[2], *scales_;
};

}  // namespace fastbert

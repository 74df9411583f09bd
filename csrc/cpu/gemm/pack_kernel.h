// Kernels that pack rows of a weight into its prepacked layout.
#pragma once

#include <cstddef>

#include "cpu/gemm/gemm.h"

namespace fastbert {

// Source rows of a matrix, bf16 or fp32.
struct PackSource {
    const void* data = nullptr;
    Dtype dtype = Dtype::bf16;
    std::size_t stride = 0;  // elements
    std::size_t rows = 0, width = 0;
};

// Destination memory in the layout of PrepackedWeight, bf16 or fp32.
struct PackTarget {
    std::byte* bytes = nullptr;
    std::size_t panel_bytes = 0;
    Element element = Element::bf16;
};

// Both round to nearest, write at most zeros to the padding and leave the elements of other rows untouched, even if
// those are written concurrently.
struct PackKernel {
    // Rows become columns first.. of the prepacked weight; their elements, the depth from 0 on.
    void (*columns)(const PackSource& from, const PackTarget& to, std::size_t first);
    // Rows become depth first..; their elements, the columns from 0 on.
    void (*depth)(const PackSource& from, const PackTarget& to, std::size_t first);
};

const PackKernel& portable_pack_kernel();
const PackKernel& avx512_pack_kernel();

// The kernel of the current CPU capability.
const PackKernel& pack_kernel();

}  // namespace fastbert

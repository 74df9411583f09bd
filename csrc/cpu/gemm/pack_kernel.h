// Writing a weight's elements to their places in a packed one.
#pragma once

#include <cstddef>

#include "cpu/gemm/gemm.h"

namespace fastbert {

// Rows of a matrix, bf16 or fp32, on their way.
struct PackSource {
    const void* data = nullptr;
    Dtype dtype = Dtype::bf16;
    std::size_t stride = 0;  // elements
    std::size_t rows = 0, width = 0;
};

// Memory laid out as PrepackedWeight has it, bf16 or fp32.
struct PackTarget {
    std::byte* bytes = nullptr;
    std::size_t panel_bytes = 0;
    Element element = Element::bf16;
};

// Both write the elements, rounded to nearest, and at most zeros to what pads them; elements of other rows stay as they
// are, whoever writes them at the same time.
struct PackKernel {
    // The rows become columns first.. of the packed weight; their elements, the depth from 0 on.
    void (*columns)(const PackSource& from, const PackTarget& to, std::size_t first);
    // The rows become depth first..; their elements, the columns from 0 on.
    void (*depth)(const PackSource& from, const PackTarget& to, std::size_t first);
};

const PackKernel& portable_pack_kernel();
const PackKernel& avx512_pack_kernel();

// The one for the level in force.
const PackKernel& pack_kernel();

}  // namespace fastbert

// Portable int8 micro-kernel.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cpu/simd/bfloat16.h"
#include "cpu/gemm/int8_kernels.h"

namespace fastbert {
namespace {

#include "cpu/simd/vector_portable.h"
#include "cpu/simd/vector_math.h"
#include "cpu/rowwise/gelu_gradient.h"
#include "cpu/rowwise/activations.h"
#include "cpu/gemm/epilogue.h"

constexpr std::size_t kRows = 4;
constexpr std::size_t kGroup = group_of(Element::int8);

std::size_t panel_bytes(std::size_t padded_depth) { return kRows * padded_depth; }

// Rows are stored unchanged, one after the other.
void pack_rows(const void* x, std::size_t stride, std::size_t rows, std::size_t depth, std::size_t padded_depth,
               std::byte* panel) {
    std::memset(panel, 0, panel_bytes(padded_depth));
    for (std::size_t row = 0; row < rows && depth; ++row)
        std::memcpy(panel + row * padded_depth, static_cast<const std::byte*>(x) + row * stride, depth);
}

void multiply(const std::byte* panel, const std::byte* weights, std::size_t weight_panel_bytes,
              std::size_t padded_depth, const Block& block, const Block* previous, const Epilogue& epilogue) {
    if (previous) finish_rows<Portable>(*previous, epilogue, 0, previous->rows);
    auto* sums = reinterpret_cast<std::int32_t*>(block.sums);
    for (std::size_t row = 0; row < block.rows; ++row) {
        for (std::size_t half = 0; half < kColumns / kPanel; ++half) {
            const auto* x = reinterpret_cast<const std::int8_t*>(panel + row * padded_depth);
            const auto* weight = reinterpret_cast<const std::int8_t*>(weights + half * weight_panel_bytes);
            std::int32_t sum[kPanel] = {};
            for (std::size_t i = 0; i < padded_depth; i += kGroup, weight += kPanel * kGroup) {
                for (std::size_t column = 0; column < kPanel; ++column) {
                    const std::int8_t* w = weight + column * kGroup;
                    sum[column] += x[i] * w[0] + x[i + 1] * w[1] + x[i + 2] * w[2] + x[i + 3] * w[3];
                }
            }
            std::memcpy(sums + row * kColumns + half * kPanel, sum, sizeof(sum));
        }
    }
}

void finish_block(const Block& block, const Epilogue& epilogue) {
    finish_rows<Portable>(block, epilogue, 0, block.rows);
}

}  // namespace

const MicroKernel& portable_int8_micro_kernel() {
    static constexpr MicroKernel kernel{.rows = kRows,
                                        .panel_bytes = panel_bytes,
                                        .pack_rows = pack_rows,
                                        .multiply = multiply,
                                        .finish = finish_block,
                                        .memory_rows = kRows};
    return kernel;
}

}  // namespace fastbert

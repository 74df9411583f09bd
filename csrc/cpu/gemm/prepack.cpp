// Prepacking of weights.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "cpu/runtime/parallel.h"
#include "cpu/gemm/gemm.h"
#include "cpu/gemm/pack_kernel.h"

namespace fastbert {
namespace {

constexpr std::size_t round_up(std::size_t x, std::size_t step) { return (x + step - 1) / step * step; }

float value(const float* row, std::size_t k) { return row[k]; }
float value(const BFloat16* row, std::size_t k) { return to_float(row[k]); }

template <typename Value>
float int8_scale(const Value* row, std::size_t depth) {
    float largest = 0.0F;
    bool finite = true;
    for (std::size_t k = 0; k < depth; ++k) {
        const float size = std::fabs(value(row, k));
        finite &= size <= std::numeric_limits<float>::max();
        largest = size > largest ? size : largest;
    }
    return finite ? largest / 127.0F : std::numeric_limits<float>::quiet_NaN();
}

// Quantize `count` weights with `scale`, at most 127 in magnitude, and return their sum.
template <typename Value>
std::int32_t to_integers(const Value* row, std::size_t count, float scale, std::int8_t* to) {
    std::int32_t sum = 0;
    for (std::size_t k = 0; k < count; ++k) {
        float x = value(row, k) / scale;
        x = x < 127.0F ? x : 127.0F;
        x = x > -127.0F ? x : -127.0F;
        // Adding 1.5 * 2^23 rounds to an integer, held by the lower bits.
        const std::int32_t integer = std::bit_cast<std::int32_t>(x + 12582912.0F) - 0x4B400000;
        to[k] = static_cast<std::int8_t>(integer);
        sum += integer;
    }
    return sum;
}

// Pack one int8 output and return the sum of its integers. A scale of zero or NaN stores zeros.
template <typename Value>
std::int32_t pack_integers(const Value* row, std::size_t depth, float scale, std::byte* to) {
    constexpr std::size_t kPart = 512;
    alignas(64) std::int8_t integers[kPart];
    std::int32_t sum = 0;
    for (std::size_t k = 0; k < depth; k += kPart) {
        const std::size_t count = std::min(kPart, depth - k);
        std::memset(integers + count / 4 * 4, 0, kPart - count / 4 * 4);
        if (scale > 0.0F)
            sum += to_integers(row + k, count, scale, integers);
        else
            std::memset(integers, 0, count);
        for (std::size_t i = 0; i < count; i += 4, to += kPanel * 4) std::memcpy(to, integers + i, 4);
    }
    return sum;
}

template <typename Value>
void pack_integer_rows(const Value* weight, std::size_t stride, PrepackedWeight& packed, std::size_t first,
                       std::size_t last) {
    for (std::size_t output = first; output < last; ++output) {
        std::size_t source = output;
        if (const std::size_t width = packed.gated_width) {
            source = output / kColumns * kPanel + output % kPanel;
            if (source >= width) continue;
            if (output % kColumns >= kPanel) source += width;
        }
        const Value* row = weight + source * stride;
        std::byte* to = packed.bytes.data() + output / kPanel * packed.panel_bytes() + output % kPanel * 4;
        const float scale = int8_scale(row, packed.depth);
        packed.scales[output] = scale;
        packed.sums[output] = pack_integers(row, packed.depth, scale, to);
    }
}

// Rows offset + first.. of a gated weight, in runs of neighbouring columns.
void pack_gated_rows(PrepackedWeight& packed, std::size_t offset, const void* weight, Dtype dtype, std::size_t stride,
                     std::size_t first, std::size_t last) {
    const PackTarget to{packed.bytes.data(), packed.panel_bytes(), packed.element};
    const std::size_t width = packed.gated_width;
    for (std::size_t row = first; row < last;) {
        const bool is_value = offset + row >= width;
        const std::size_t output = offset + row - (is_value ? width : 0), lane = output % kPanel;
        const std::size_t count = std::min({kPanel - lane, width - output, last - row});
        const PackSource rows{static_cast<const std::byte*>(weight) + row * stride * size_of(dtype), dtype, stride,
                              count, packed.depth};
        pack_kernel().columns(rows, to, output / kPanel * kColumns + (is_value ? kPanel : 0) + lane);
        row += count;
    }
}

void pack_rows(PrepackedWeight& packed, bool transposed, std::size_t offset, const void* weight, Dtype dtype,
               std::size_t stride, std::size_t first, std::size_t last) {
    if (packed.gated_width) return pack_gated_rows(packed, offset, weight, dtype, stride, first, last);
    const PackSource rows{static_cast<const std::byte*>(weight) + first * stride * size_of(dtype), dtype, stride,
                          last - first, transposed ? packed.columns : packed.depth};
    const PackTarget to{packed.bytes.data(), packed.panel_bytes(), packed.element};
    const PackKernel& kernel = pack_kernel();
    (transposed ? kernel.depth : kernel.columns)(rows, to, offset + first);
}

void clear_padding(PrepackedWeight& packed, std::size_t first, std::size_t last) {
    // The last outputs of a gated weight.
    const std::size_t partial = packed.gated_width / kPanel * 2;
    for (std::size_t panel = first; panel < last; ++panel) {
        if ((packed.gated_width && panel >= partial) || (panel + 1) * kPanel > packed.columns || packed.depth < packed.padded_depth)
            std::memset(packed.bytes.data() + panel * packed.panel_bytes(), 0, packed.panel_bytes());
    }
}

PrepackedWeight allocate(std::size_t columns, std::size_t depth, Element element, bool gated) {
    if (gated && columns % 2) throw std::invalid_argument("a gated weight has a gate per value: its rows are even");
    PrepackedWeight packed;
    packed.element = element;
    packed.gated_width = gated ? columns / 2 : 0;
    if (gated) columns = 2 * round_up(columns / 2, kPanel);
    packed.columns = columns;
    packed.depth = depth;
    packed.padded_columns = round_up(columns, kColumns);
    packed.padded_depth = round_up(depth, kStep / bytes_of(element));
    const std::size_t size = std::max(kStep, packed.padded_columns * packed.padded_depth * bytes_of(element));
    packed.bytes = AllocatorBlock(size, Pool::weights);
    return packed;
}

}  // namespace

PrepackedWeight allocate_prepacked(std::size_t columns, std::size_t depth, Element element, bool gated) {
    if (element == Element::int8) throw std::invalid_argument("int8 weights are packed as a whole");
    PrepackedWeight packed = allocate(columns, depth, element, gated);
    clear_padding(packed, 0, packed.padded_columns / kPanel);
    return packed;
}

PrepackedWeight prepack(const void* weight, Dtype dtype, std::size_t stride, std::size_t columns, std::size_t depth,
                        Element element, bool transposed, bool gated) {
    if (transposed && gated) throw std::invalid_argument("a transposed weight is not gated");
    PrepackedWeight packed = allocate(columns, depth, element, gated);
    if (element == Element::int8) {
        packed.scales = std::make_unique<float[]>(packed.padded_columns);
        packed.sums = std::make_unique<std::int32_t[]>(packed.padded_columns);
    }
    const auto clear = [&](std::size_t first, std::size_t last) { clear_padding(packed, first, last); };
    if (element == Element::int8) {
        parallel_ranges(packed.padded_columns / kPanel, 8, [&](std::size_t first, std::size_t last) {
            clear(first, last);
            const std::size_t begin = std::min(packed.columns, first * kPanel);
            const std::size_t end = std::min(packed.columns, last * kPanel);
            if (dtype == Dtype::bf16)
                pack_integer_rows(static_cast<const BFloat16*>(weight), stride, packed, begin, end);
            else
                pack_integer_rows(static_cast<const float*>(weight), stride, packed, begin, end);
        });
        return packed;
    }
    if (packed.padded_columns > columns || packed.padded_depth > depth)  // columns: of the source, also if gated
        parallel_ranges(packed.padded_columns / kPanel, 8, clear);
    // Each thread packs whole groups of rows, so that threads never write to the same group.
    const std::size_t rows = transposed ? depth : columns, groups = (rows + kColumns - 1) / kColumns;
    parallel_ranges(groups, 4, [&](std::size_t first, std::size_t last) {
        pack_rows(packed, transposed, 0, weight, dtype, stride, first * kColumns, std::min(rows, last * kColumns));
    });
    return packed;
}

void repack(PrepackedWeight& packed, bool transposed, std::size_t offset, const void* weight, Dtype dtype,
            std::size_t stride, std::size_t first, std::size_t last) {
    if (packed.element == Element::int8) throw std::invalid_argument("int8 weights are packed as a whole");
    const std::size_t rows = transposed ? packed.depth : packed.source_rows();
    if (transposed && packed.gated_width) throw std::invalid_argument("a transposed weight is not gated");
    if (offset > rows || first > last || last > rows - offset)
        throw std::invalid_argument("rows beyond the packed weight");
    pack_rows(packed, transposed, offset, weight, dtype, stride, first, last);
}

}  // namespace fastbert

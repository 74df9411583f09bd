#include "cpu/gemm/few_rows.h"

#include <algorithm>

#include "cpu/gemm/kernel_table.h"
#include "cpu/gemm/quantize.h"

namespace fastbert {
namespace {

constexpr std::size_t round_up(std::size_t x, std::size_t step) { return (x + step - 1) / step * step; }

std::size_t padded(Element element, std::size_t depth) {
    return round_up(depth * bytes_of(element), kStep) / bytes_of(element);
}

std::size_t panel_bytes(const MicroKernel& kernel, Element element, std::size_t depth) {
    return round_up(kernel.panel_bytes(padded(element, depth)), 64);
}

// Bytes of the parts of the memory.
struct Layout {
    std::size_t panels, converted, sums, scales;

    Layout(const MicroKernel& kernel, Element element, std::size_t rows, std::size_t depth)
        : panels((rows + kernel.rows - 1) / kernel.rows * panel_bytes(kernel, element, depth)),
          converted(round_up(rows * depth * bytes_of(element), 64)),
          sums(kernel.rows * kColumns * sizeof(float)),
          scales(round_up(rows * sizeof(float), 64)) {}

    std::size_t bytes() const { return panels + converted + 2 * sums + scales; }
};

}  // namespace

std::size_t FewRows::bytes(Element element, std::size_t rows, std::size_t depth) {
    return Layout(micro_kernel(element), element, rows, depth).bytes();
}

FewRows::FewRows(Element element, std::size_t rows, std::size_t depth, std::byte* memory)
    : kernel_(micro_kernel(element)), element_(element) {
    const Layout layout(kernel_, element, rows, depth);
    panels_ = memory;
    converted_ = panels_ + layout.panels;
    sums_[0] = reinterpret_cast<float*>(converted_ + layout.converted);
    sums_[1] = reinterpret_cast<float*>(converted_ + layout.converted + layout.sums);
    scales_ = reinterpret_cast<float*>(converted_ + layout.converted + 2 * layout.sums);
}

void FewRows::enter() const {
    if (kernel_.enter) kernel_.enter();
}

void FewRows::leave() const {
    if (kernel_.leave) kernel_.leave();
}

void FewRows::pack(const void* x, Dtype dtype, std::size_t stride, std::size_t rows, std::size_t depth) {
    rows_ = rows;
    depth_ = depth;
    padded_depth_ = padded(element_, depth);
    panel_bytes_ = panel_bytes(kernel_, element_, depth);
    const std::size_t element_bytes = bytes_of(element_);
    const auto* source = static_cast<const std::byte*>(x);
    std::size_t source_stride = stride;
    if (element_ == Element::int8) {
        quantize_rows({x, dtype, stride, rows, depth, reinterpret_cast<std::int8_t*>(converted_), scales_});
        source = converted_;
        source_stride = depth;
    } else if (convert_rows(x, dtype, stride, rows, depth, element_, converted_)) {
        source = converted_;
        source_stride = depth;
    }
    for (std::size_t row = 0, panel = 0; row < rows; row += kernel_.rows, ++panel) {
        kernel_.pack_rows(source + row * source_stride * element_bytes, source_stride,
                          std::min(kernel_.rows, rows - row), depth, padded_depth_, panels_ + panel * panel_bytes_);
    }
}

void FewRows::multiply(const PrepackedWeight& weight, Epilogue epilogue, std::size_t first, std::size_t last) {
    if (element_ == Element::int8) {
        epilogue.row_scales = scales_;
        epilogue.column_scales = weight.scales.get();
        epilogue.column_sums = kernel_.unsigned_rows ? weight.sums.get() : nullptr;
    }
    Block previous;
    std::size_t done = 0;
    // A block of the weight is read from memory for the first panel of rows, and is in a cache for the others.
    for (std::size_t column = first * kColumns; column < last * kColumns; column += kColumns) {
        for (std::size_t row = 0, panel = 0; row < rows_; row += kernel_.rows, ++panel, ++done) {
            const Block block{row, std::min(kernel_.rows, rows_ - row), column,
                              std::min(kColumns, weight.columns - column), sums_[done % 2]};
            kernel_.multiply(panels_ + panel * panel_bytes_, weight.panel(column / kPanel), weight.panel_bytes(),
                             padded_depth_, block, done ? &previous : nullptr, epilogue);
            previous = block;
        }
    }
    if (done) kernel_.finish(previous, epilogue);
}

}  // namespace fastbert

// Matrix products of packed tokens with a weight that was laid out once: y = epilogue(x weight^T).
//
// A product is made of blocks: at most `MicroKernel::rows` tokens by kColumns outputs over the whole depth, so that a
// block's sums stay in registers until they are done, and an output is the same sum, in the same order, in every batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cpu/simd/bfloat16.h"

namespace fastbert {

// What is multiplied: bf16 pairs or int8 quadruples, both summed into 32 bits, or floats.
enum class Element : int { bf16, int8, fp32 };

// Elements that lie together, 4 bytes: what a dot-product instruction takes at once.
constexpr std::size_t group_of(Element element) {
    return element == Element::bf16 ? 2 : element == Element::int8 ? 4 : 1;
}
constexpr std::size_t bytes_of(Element element) { return 4 / group_of(element); }

inline constexpr std::size_t kPanel = 16;    // outputs that lie side by side: lanes of a vector, columns of a tile
inline constexpr std::size_t kColumns = 32;  // outputs of a block: two panels
inline constexpr std::size_t kStep = 64;     // bytes of depth that a tile takes; the depth is padded to a multiple

// A weight (columns, depth) as products read it. Its outputs are cut into panels of 16; a panel holds its groups of
// inputs one after the other, and in each group its 16 outputs: [columns / 16][depth / group][16][group]. 64 bytes
// times 16 groups in a row are the operand of a tile instruction as it stands. Columns are filled up to a multiple of
// 32 and depth to a multiple of kStep bytes, with zeros. The memory begins at a multiple of 64 bytes.
struct PrepackedWeight {
    Element element = Element::bf16;
    std::size_t columns = 0, depth = 0;                // as given
    std::size_t padded_columns = 0, padded_depth = 0;  // as stored
    std::unique_ptr<std::byte[], void (*)(std::byte*)> bytes{nullptr, [](std::byte*) {}};
    // int8 only, one a padded output: what an integer stands for, and the sum of a row's integers.
    std::unique_ptr<float[]> scales;
    std::unique_ptr<std::int32_t[]> sums;

    std::size_t panel_bytes() const { return padded_depth * kPanel * bytes_of(element); }
    const std::byte* panel(std::size_t index) const { return bytes.get() + index * panel_bytes(); }
};

// What happens to a block's sums before they are stored; null pointers and zeros leave a part out. In this order:
// sums (for int8 times row_scales[row] * column_scales[column]) + bias, GELU or its gradient, + residual, rounding to
// `dtype`.
struct Epilogue {
    const float* bias = nullptr;  // (columns,)
    // With a gradient of GELU the sums are multiplied by its derivative at `before`, of which `recomputed` is GELU.
    enum class Activation : int { none, gelu, gelu_tanh, gelu_gradient, gelu_tanh_gradient };
    Activation activation = Activation::none;
    // (rows, columns) in `dtype`: GELU stores, rounded, what it is computed of then; gradients read it.
    void* pre_activation = nullptr;
    std::size_t pre_activation_stride = 0;  // elements
    void* recomputed = nullptr;             // (rows, columns) in `dtype`; of gradients only
    std::size_t recomputed_stride = 0;      // elements
    const void* residual = nullptr;  // (rows, columns) in `residual_dtype`
    std::size_t residual_stride = 0;  // elements
    Dtype residual_dtype = Dtype::fp32;
    const float* row_scales = nullptr;
    const float* column_scales = nullptr;
    const std::int32_t* column_sums = nullptr;  // where a kernel adds 128 to each of a row's integers
    void* out = nullptr;  // (rows, columns)
    std::size_t out_stride = 0;  // elements
    Dtype dtype = Dtype::bf16;
};

// A block of an output: rows first_row.. of the product, columns first_column.., with its sums, rows of kColumns floats
// (int32 for int8 products) in memory that begins at a multiple of 64 bytes.
struct Block {
    std::size_t first_row = 0, rows = 0, first_column = 0, columns = 0;
    float* sums = nullptr;
};

// The inner loop of one level for one element.
struct MicroKernel {
    // The most tokens of a block.
    std::size_t rows;
    // Bytes of a row panel: `rows` tokens of the padded depth, in whatever layout `multiply` wants.
    std::size_t (*panel_bytes)(std::size_t padded_depth);
    // Lay `rows` tokens out as a row panel, filled up with zeros. `x`: bf16 (Element::bf16), int8 (Element::int8) or
    // float rows, `stride` elements apart; nothing behind a row's `depth` elements is read.
    void (*pack_rows)(const void* x, std::size_t stride, std::size_t rows, std::size_t depth, std::size_t padded_depth,
                      std::byte* panel);
    // Lay out `columns` columns of x, of `tokens` rows, as a part of a row panel whose depth is the tokens: from token
    // `first` on, a multiple of `pack_tokens`, and filled up with zeros to a multiple of kStep bytes. x: bf16 or float, as the
    // element. Each column's sum is added to `sums`, if not null. Panels are filled in the order of tokens, and have no
    // more room behind them than `panel_bytes` gives. Null for int8.
    void (*pack_columns)(const void* x, std::size_t stride, std::size_t tokens, std::size_t columns, std::size_t first,
                         std::byte* panel, float* sums) = nullptr;
    // block.sums = panel x weights^T for two neighbouring panels of the weight, and beside it, where the processor has
    // room for both, finish `previous` (may be null). The sums of both live in different memory.
    void (*multiply)(const std::byte* panel, const std::byte* weights, std::size_t panel_bytes,
                     std::size_t padded_depth, const Block& block, const Block* previous, const Epilogue& epilogue);
    // Finish a block that no `multiply` took along.
    void (*finish)(const Block& block, const Epilogue& epilogue);
    // Called by each thread before its first block and behind its last one; null where there is nothing to do.
    void (*enter)() = nullptr;
    void (*leave)() = nullptr;
    // Whether the rows' integers are unsigned, 128 more than they stand for, so that `column_sums` are subtracted.
    bool unsigned_rows = false;
    // Rows that cost as much as one: panels that are not full are cut to multiples of it.
    std::size_t row_step = 1;
    // How many rows' sums take as long as reading the weights from memory: where fewer rows than these are left to a
    // thread, it takes fewer columns and more rows.
    std::size_t memory_rows = 16;
    // The most tokens whose products are summed before the sums are added to a gradient in memory: a multiple of 64.
    std::size_t chunk = 1024;
    // Tokens that are laid out for all panels of a block before the next ones, whole steps: where rows lie far apart
    // the first cache holds few of them, and a panel ends inside of a line.
    std::size_t pack_tokens = 64;
};

// The kernel for an element at the level in force (cpu_capability.h).
const MicroKernel& micro_kernel(Element element);

// Lay out a weight (columns, depth) with rows `stride` elements apart. bf16: rounded to nearest, ties to even. int8:
// scale max|row| / 127 an output; a row with a NaN or an infinity has the scale NaN, so its whole output is NaN.
// `transposed`: the weight is given as (depth, columns); not for int8.
PrepackedWeight prepack(const void* weight, Dtype dtype, std::size_t stride, std::size_t columns, std::size_t depth,
                        Element element, bool transposed = false);

// Memory for a weight of bf16 or fp32 whose rows `repack` then writes: only what is padding is written, zeros.
PrepackedWeight allocate_prepacked(std::size_t columns, std::size_t depth, Element element);

// Rows first..last of a weight (out, in) anew into a packed copy, of which the weight's row 0 is row `offset`: columns
// offset + first.. over the whole depth, or, where the copy is a transposed one, as much depth of all columns. On the
// calling thread; threads may repack ranges of one copy at once where each begins and ends at a multiple of 32 rows.
// Throws std::invalid_argument for int8 and for rows that the copy does not have.
void repack(PrepackedWeight& packed, bool transposed, std::size_t offset, const void* weight, Dtype dtype,
            std::size_t stride, std::size_t first, std::size_t last);

// Rows that a thread lays out at once, and columns of the weight that it uses for all of them before it goes on: these
// should stay in the second cache. Zeros leave the choice to the shape. No result depends on it.
struct Blocking {
    std::size_t rows = 0, columns = 0;
};

// LayerNorm of whole finished rows, before they are rounded; null for a product without, and for those with `before`.
struct FusedNorm {
    const float* weight = nullptr;  // (columns,)
    const float* bias = nullptr;    // (columns,), or null
    float eps = 0.0F;
};

// epilogue(x weight^T), and LayerNorm behind it. `x` (rows, depth): bf16 or fp32 in `x_dtype`, rounded or widened to
// the weight's element while it is laid out; for Element::int8 integers, and `x_dtype` is not read. The sums' scales of
// int8 products come from `epilogue.row_scales` and the weight.
struct GemmCall {
    const void* x = nullptr;
    std::size_t x_stride = 0;  // elements
    Dtype x_dtype = Dtype::bf16;
    std::size_t rows = 0;
    const PrepackedWeight* weight = nullptr;
    Epilogue epilogue;
    FusedNorm norm;
    Blocking blocking;
    // Only a slice of the depth: inputs first_input.. (a multiple of kSlice), `inputs` of them, or all where that is 0.
    std::size_t first_input = 0, inputs = 0;
};

// The deepest product that is one sum in registers. Deeper ones without an activation or a LayerNorm (a vocabulary's
// gradient is 30,522 deep) are summed up slice by slice, which stay in the second cache, in fp32 in memory.
inline constexpr std::size_t kMostDepth = 8192, kSlice = 2048;

// A row's result has the same bits whatever the other rows are, on any number of threads.
void gemm(const GemmCall& call);

}  // namespace fastbert

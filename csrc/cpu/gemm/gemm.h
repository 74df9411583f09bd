// Matmuls of packed tokens with a prepacked weight: y = epilogue(x weight^T).
//
// A matmul is split into blocks of at most `MicroKernel::rows` tokens by kColumns outputs over the whole depth, so that
// a block's sums stay in registers and each output is the same sum, in the same order, in every batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cpu/rowwise/activation.h"
#include "cpu/runtime/caching_allocator.h"
#include "cpu/simd/bfloat16.h"

namespace fastbert {

// Operand element types: bf16 pairs and int8 quadruples, both accumulated in 32 bits, or floats.
enum class Element : int { bf16, int8, fp32 };

// Elements per 4-byte group, the unit of a dot-product instruction.
constexpr std::size_t group_of(Element element) {
    return element == Element::bf16 ? 2 : element == Element::int8 ? 4 : 1;
}
constexpr std::size_t bytes_of(Element element) { return 4 / group_of(element); }

inline constexpr std::size_t kPanel = 16;    // outputs per panel: lanes of a vector, columns of a tile
inline constexpr std::size_t kColumns = 32;  // outputs per block: two panels
inline constexpr std::size_t kStep = 64;     // bytes of depth per tile; depth is padded to a multiple

// A prepacked weight (columns, depth), for bf16 and int8 in the VNNI layout: panels of 16 outputs, each panel a
// sequence of groups of inputs, each group 16 outputs side by side: [columns / 16][depth / group][16][group]. 16
// consecutive groups of 64 bytes are one AMX tile. Columns are zero-padded to a multiple of 32 and depth to a multiple
// of kStep bytes. The memory is aligned to 64 bytes.
//
// A gated weight, the rows of all gates and then of all values, is interleaved: each block of 32 columns holds the gates
// of 16 outputs and their values, so that an epilogue multiplies them; outputs are zero-padded to a multiple of 16.
struct PrepackedWeight {
    Element element = Element::bf16;
    std::size_t columns = 0, depth = 0;                // logical size
    std::size_t padded_columns = 0, padded_depth = 0;  // stored size
    std::size_t gated_width = 0;                       // outputs of a gated weight; 0 if it is not
    AllocatorBlock bytes;
    // int8 only, one per padded output: the quantization scale, and the sum of a row's integers.
    std::unique_ptr<float[]> scales;
    std::unique_ptr<std::int32_t[]> sums;

    // Rows of the weight that was packed, or for a transposed one its columns.
    std::size_t source_rows() const { return gated_width ? 2 * gated_width : columns; }
    std::size_t panel_bytes() const { return padded_depth * kPanel * bytes_of(element); }
    const std::byte* panel(std::size_t index) const { return bytes.data() + index * panel_bytes(); }
};

// The epilogue of a block; null pointers and zeros skip a step. In this order: sums (for int8 times row_scales[row] *
// column_scales[column]) + bias, GELU or its gradient, + residual, rounding to `dtype`.
struct Epilogue {
    const float* bias = nullptr;  // (columns,)
    // GELU gradients multiply the sums by GELU's derivative at `pre_activation` and store its GELU to `activation_out`.
    // `gated` multiplies the activation `gate` of a gated weight's gates with their values: `out` has gated_width columns,
    // bias and `pre_activation` twice as many, and there is no residual. `gated_gradient` is of a plain weight with
    // gated_width columns, whose sums are the gradient of that product: `out` receives those of gates and values, (rows, 2
    // * gated_width), and `activation_out` the product.
    enum class Activation : int {
        none, gelu, gelu_tanh, gelu_gradient, gelu_tanh_gradient, gated, gated_gradient
    };
    Activation activation = Activation::none;
    fastbert::Activation gate = fastbert::Activation::gelu;
    std::size_t gated_width = 0;
    // (rows, columns) in `dtype`: written by GELU, whose rounded input it is, and read by its gradients.
    void* pre_activation = nullptr;
    std::size_t pre_activation_stride = 0;  // elements
    void* activation_out = nullptr;             // (rows, columns) in `dtype`; gradients only
    std::size_t activation_out_stride = 0;      // elements
    const void* residual = nullptr;  // (rows, columns) in `residual_dtype`
    std::size_t residual_stride = 0;  // elements
    Dtype residual_dtype = Dtype::fp32;
    const float* row_scales = nullptr;
    const float* column_scales = nullptr;
    const std::int32_t* column_sums = nullptr;  // for kernels whose rows are offset by 128
    void* out = nullptr;  // (rows, columns)
    std::size_t out_stride = 0;  // elements
    Dtype dtype = Dtype::bf16;
};

// A block of an output: rows first_row.. and columns first_column.., with its sums: rows of kColumns floats (int32 for
// int8), aligned to 64 bytes.
struct Block {
    std::size_t first_row = 0, rows = 0, first_column = 0, columns = 0;
    float* sums = nullptr;
    // The part of a later block's weights, in bytes of either panel, that a kernel with `prefetch_rows` moves to
    // L2 meanwhile; null for none.
    const std::byte* next_weights = nullptr;
    std::size_t next_bytes = 0;
};

// The micro-kernel of one CPU capability for one element type.
struct MicroKernel {
    // The maximum number of tokens per block.
    std::size_t rows;
    // Bytes of a packed row panel: `rows` tokens of the padded depth, in the layout that `multiply` reads.
    std::size_t (*panel_bytes)(std::size_t padded_depth);
    // Pack `rows` tokens into a row panel, zero-padded. `x`: bf16 (Element::bf16), int8 (Element::int8) or float rows,
    // `stride` elements apart; nothing after a row's `depth` elements is read.
    void (*pack_rows)(const void* x, std::size_t stride, std::size_t rows, std::size_t depth, std::size_t padded_depth,
                      std::byte* panel);
    // Pack `columns` columns of x, of `tokens` rows, into a row panel whose depth is the tokens: from token `first` on,
    // a multiple of `pack_tokens`, zero-padded to a multiple of kStep bytes. x: bf16 or float, as the element type.
    // Each column's sum is added to `sums` unless it is null. Panels are packed in token order into exactly
    // `panel_bytes`. Null for int8.
    void (*pack_columns)(const void* x, std::size_t stride, std::size_t tokens, std::size_t columns, std::size_t first,
                         std::byte* panel, float* sums) = nullptr;
    // Compute block.sums = panel x weights^T for two neighbouring weight panels and, overlapped where possible, the
    // epilogue of `previous` (may be null). The two blocks use different buffers of sums.
    void (*multiply)(const std::byte* panel, const std::byte* weights, std::size_t panel_bytes,
                     std::size_t padded_depth, const Block& block, const Block* previous, const Epilogue& epilogue);
    // Apply the epilogue to the last block.
    void (*finish)(const Block& block, const Epilogue& epilogue);
    // Called on each thread before its first block and after its last one; may be null.
    void (*enter)() = nullptr;
    void (*leave)() = nullptr;
    // True if packed rows are unsigned, offset by 128, so that `column_sums` must be subtracted.
    bool unsigned_rows = false;
    // Granularity of rows: partially filled panels are rounded up to multiples of it.
    std::size_t row_step = 1;
    // The number of rows whose arithmetic takes as long as reading the weights from memory; with fewer rows per thread,
    // threads share rows rather than columns.
    std::size_t memory_rows = 16;
    // The maximum number of tokens accumulated before the sums are added to a gradient in memory: a multiple of 64.
    std::size_t chunk = 1024;
    // Tokens packed for all panels of a block before the next ones, in whole steps: if rows are strided far apart, L1
    // holds few of them, and a panel ends within a cache line.
    std::size_t pack_tokens = 64;
    // Of the L2 cache: bytes of a chunk of packed rows (at most two thirds more with their sums before a LayerNorm), and
    // of the columns of the weight used for all of them. The first 0: up to 256 rows whose elements as floats take 1 MB.
    std::size_t chunk_bytes = 0, column_bytes = std::size_t{1} << 19;
    // The maximum number of rows of such a chunk.
    std::size_t chunk_rows = 512;
    // The number of rows from which `multiply` receives `next_weights`; 0 for never.
    std::size_t prefetch_rows = 0;
};

// The micro-kernel for an element type at the current CPU capability (cpu_capability.h).
const MicroKernel& micro_kernel(Element element);

// Prepack a weight (columns, depth) with rows `stride` elements apart. bf16: round to nearest, ties to even. int8: one
// scale max|row| / 127 per output; a row with a NaN or an infinity has scale NaN, so its whole output is NaN.
// `transposed`: the weight is (depth, columns); not for int8. `gated`: half of the columns are gates, not if transposed.
PrepackedWeight prepack(const void* weight, Dtype dtype, std::size_t stride, std::size_t columns, std::size_t depth,
                        Element element, bool transposed = false, bool gated = false);

// Allocate a prepacked weight of bf16 or fp32 for `repack` to write: only the padding is initialised, to zero.
PrepackedWeight allocate_prepacked(std::size_t columns, std::size_t depth, Element element, bool gated = false);

// Rewrite rows first..last of a weight (out, in) in a prepacked copy, whose row `offset` is the weight's row 0: columns
// offset + first.. over the whole depth or, for a transposed copy, that range of depth for all columns. Runs on the
// calling thread; threads may repack disjoint ranges of one copy if each begins and ends at a multiple of 32 rows.
// Throws std::invalid_argument for int8 and for rows outside the copy.
void repack(PrepackedWeight& packed, bool transposed, std::size_t offset, const void* weight, Dtype dtype,
            std::size_t stride, std::size_t first, std::size_t last);

// Cache blocking: rows packed at a time, and columns of the weight used for all of them, which should stay in L2. Zeros
// select defaults by shape. Results do not depend on it.
struct Blocking {
    std::size_t rows = 0, columns = 0;
};

// LayerNorm of whole output rows before rounding; null for none, and not available with `pre_activation`.
struct FusedNorm {
    const float* weight = nullptr;  // (columns,)
    const float* bias = nullptr;    // (columns,), or null
    float eps = 0.0F;
};

// The arguments of a matmul: epilogue(x weight^T), optionally followed by LayerNorm. `x` (rows, depth): bf16 or fp32 in
// `x_dtype`, converted to the weight's element type during packing; integers for Element::int8, which ignores
// `x_dtype`. The scales of int8 sums are `epilogue.row_scales` and those of the weight.
struct GemmCall {
    const void* x = nullptr;
    std::size_t x_stride = 0;  // elements
    Dtype x_dtype = Dtype::bf16;
    std::size_t rows = 0;
    const PrepackedWeight* weight = nullptr;
    Epilogue epilogue;
    FusedNorm norm;
    Blocking blocking;
    // True if the weight was not used recently, so that it is read from memory: few rows then take longer than their
    // multiplications, and several threads are faster from kMinParallelBytes on.
    bool weight_in_memory = false;
    // Restricts the depth: inputs first_input.. (a multiple of kSlice), `inputs` of them, or all if 0.
    std::size_t first_input = 0, inputs = 0;
    // Restricts the outputs: `columns` of them from first_column (a multiple of kColumns) on, or all if 0; not with a
    // LayerNorm or a gated weight. Bias, scales and `out` are still those of all outputs.
    std::size_t first_column = 0, columns = 0;
};

// The maximum depth that is accumulated in registers. Deeper matmuls without activation or LayerNorm (the gradient of a
// vocabulary projection has a depth of 30,522) are accumulated in fp32 in memory, slice by slice (split-K), each slice
// staying in L2.
inline constexpr std::size_t kMostDepth = 8192, kSlice = 2048;

// Compute a matmul. Each row's bits are independent of the other rows and of the number of threads.
void gemm(const GemmCall& call);

}  // namespace fastbert

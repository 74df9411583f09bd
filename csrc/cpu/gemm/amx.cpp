// Blocks of 32 rows by 32 columns in AMX tiles: four of sums, two of rows and two of weights.
//
// A product of two tiles takes 16 cycles; loading a tile takes 8 cycles from L1 and about 20 from L2; a step makes four
// products of four tiles. A block is therefore compute-bound only if half of its tiles come from L1. The driver
// iterates over the column blocks of a weight in L2 with one row panel, so the row panel should stay in L1: 48 KB at a
// depth of 768 in bf16, 24 KB in int8, of an L1 of 48 KB. (Keeping a column block while row panels pass would need as
// much of L1 and as many bytes from L2, but all row panels packed before the first block, and no row would be complete
// before the last.)
//
// Streaming loads do not displace what L1 holds. Weights always use them, and so do row panels beyond the first
// kResidentSteps: a panel as large as L1, read in the same order for each block, would displace itself before every
// use. One core, weights in L2, without the epilogue: at a depth of 768, 1.5 TFLOP/s with ordinary loads, 2.0 with
// streamed weights, 2.4 with both; at 3,072, 1.9, 1.95 and 2.15.
#include "cpu/gemm/int8_kernels.h"

#if FASTBERT_X86
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cpu/simd/bfloat16.h"

namespace fastbert {
namespace {

constexpr std::size_t kTileRows = 16;
constexpr std::size_t kTileBytes = kTileRows * kStep;
constexpr std::size_t kRows = 2 * kTileRows;
constexpr std::size_t kResidentSteps = 14;  // 28 KB; 12 to 18 are equally fast
// Bytes ahead of which weights are prefetched for a single tile of rows: they then come from memory.
constexpr std::size_t kPrefetchBytes = 1024;

// Eight tiles of 16 rows of 64 bytes, in the instruction's layout.
struct TileConfiguration {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {kStep, kStep, kStep, kStep, kStep, kStep, kStep, kStep};
    std::uint8_t rows[16] = {kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows};
};
static_assert(sizeof(TileConfiguration) == 64);
alignas(64) constexpr TileConfiguration kTileConfiguration;

FASTBERT_TARGET_BEGIN(FASTBERT_AMX)

#include "cpu/simd/vector_avx512.h"
#include "cpu/simd/vector_math.h"
#include "cpu/rowwise/gelu_gradient.h"
#include "cpu/rowwise/activations.h"
#include "cpu/gemm/epilogue.h"
#include "cpu/gemm/epilogue_rows.h"
#include "cpu/simd/transpose_avx512.h"

constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x40;  // in MXCSR
thread_local unsigned saved_control = 0;

// Denormals are zero meanwhile, as in the products of tiles: an epilogue that produces them takes ten times as long.
void enter() {
    saved_control = _mm_getcsr();
    _mm_setcsr(saved_control | kFlushToZero | kDenormalsAreZero);
    _tile_loadconfig(&kTileConfiguration);
}

void leave() {
    _tile_release();
    _mm_setcsr(saved_control);
}

// The size of a full panel; blocks of at most 16 rows use the upper half of each step.
template <Element kElement>
std::size_t panel_bytes(std::size_t padded_depth) {
    return padded_depth * bytes_of(kElement) * kRows;
}

// Tiles in read order: [steps][2][16][64 bytes]. A tile's rows are consecutive cache lines, in different sets of L1 and
// in one page. The lower tile of a step is skipped if it has no rows.
template <Element kElement>
void pack_rows(const void* x, std::size_t stride, std::size_t rows, std::size_t depth, std::size_t padded_depth,
               std::byte* panel) {
    const std::byte* source = static_cast<const std::byte*>(x);
    const std::size_t row_bytes = depth * bytes_of(kElement), row_stride = stride * bytes_of(kElement);
    const std::size_t used = rows <= kTileRows ? kTileRows : kRows;
    const std::size_t steps = padded_depth * bytes_of(kElement) / kStep;
    for (std::size_t step = 0; step < steps; ++step) {
        std::byte* out = panel + step * kRows * kStep;
        const std::size_t first = step * kStep;
        const std::size_t count = first < row_bytes ? std::min(kStep, row_bytes - first) : 0;
        const __mmask64 in_row = count == kStep ? ~__mmask64{0} : (__mmask64{1} << count) - 1;
        for (std::size_t row = 0; row < rows; ++row)
            _mm512_store_si512(out + row * kStep, _mm512_maskz_loadu_epi8(in_row, source + row * row_stride + first));
        for (std::size_t row = rows; row < used; ++row) _mm512_store_si512(out + row * kStep, _mm512_setzero_si512());
    }
}

// Interleave token pairs of 32 columns and transpose: a tile's row is a column of x over 32 tokens.
void pack_columns(const void* x, std::size_t stride, std::size_t tokens, std::size_t columns, std::size_t first,
                  std::byte* panel, float* sums) {
    const BFloat16* source = static_cast<const BFloat16*>(x);
    const auto mask = static_cast<__mmask32>(columns >= kRows ? ~0U : (1U << columns) - 1U);
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000U));
    // Columns 0 to 3, 8 to 11, ..., and the remaining ones.
    __m512 total[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    const auto column_of = [](std::size_t lane, std::size_t half) { return lane / 4 * 8 + half * 4 + lane % 4; };
    for (std::size_t token = 0; token < tokens; token += 32) {
        __m512 pairs[2][16];
        for (std::size_t pair = 0; pair < 16; ++pair) {
            const std::size_t at = token + 2 * pair;
            const __mmask32 left = at < tokens ? mask : 0, right = at + 1 < tokens ? mask : 0;
            const __m512i even = _mm512_maskz_loadu_epi16(left, source + (left ? at * stride : 0));
            const __m512i odd = _mm512_maskz_loadu_epi16(right, source + (right ? (at + 1) * stride : 0));
            const __m512i halves[2] = {_mm512_unpacklo_epi16(even, odd), _mm512_unpackhi_epi16(even, odd)};
            for (std::size_t half = 0; half < 2; ++half) {
                pairs[half][pair] = _mm512_castsi512_ps(halves[half]);
                if (!sums) continue;
                total[half] = _mm512_add_ps(total[half], _mm512_castsi512_ps(_mm512_slli_epi32(halves[half], 16)));
                total[half] = _mm512_add_ps(total[half], _mm512_castsi512_ps(_mm512_and_si512(halves[half], upper)));
            }
        }
        std::byte* out = panel + (first + token) / 32 * kRows * kStep;
        for (std::size_t half = 0; half < 2; ++half) {
            transpose_lanes(pairs[half]);
            for (std::size_t lane = 0; lane < 16; ++lane)
                _mm512_store_ps(out + column_of(lane, half) * kStep, pairs[half][lane]);
        }
    }
    if (!sums) return;
    for (std::size_t half = 0; half < 2; ++half) {
        alignas(64) float lanes[16];
        _mm512_store_ps(lanes, total[half]);
        for (std::size_t lane = 0; lane < 16; ++lane) {
            if (column_of(lane, half) < columns) sums[column_of(lane, half)] += lanes[lane];
        }
    }
}

// sums[row / 16][panel] += rows[row / 16] x weights[panel]: tiles 0 to 3, 4 and 5, 6 and 7.
template <Element kElement>
struct TileProduct {
    static FASTBERT_INLINE void upper_left() {
        if constexpr (kElement == Element::int8) _tile_dpbssd(0, 4, 6);
        else _tile_dpbf16ps(0, 4, 6);
    }
    static FASTBERT_INLINE void upper_right() {
        if constexpr (kElement == Element::int8) _tile_dpbssd(1, 4, 7);
        else _tile_dpbf16ps(1, 4, 7);
    }
    static FASTBERT_INLINE void lower_left() {
        if constexpr (kElement == Element::int8) _tile_dpbssd(2, 5, 6);
        else _tile_dpbf16ps(2, 5, 6);
    }
    static FASTBERT_INLINE void lower_right() {
        if constexpr (kElement == Element::int8) _tile_dpbssd(3, 5, 7);
        else _tile_dpbf16ps(3, 5, 7);
    }
};

template <bool kResident>
FASTBERT_INLINE void load_upper_rows(const std::byte* tile) {
    if constexpr (kResident) _tile_loadd(4, tile, kStep);
    else _tile_stream_loadd(4, tile, kStep);
}

template <bool kResident>
FASTBERT_INLINE void load_lower_rows(const std::byte* tile) {
    if constexpr (kResident) _tile_loadd(5, tile, kStep);
    else _tile_stream_loadd(5, tile, kStep);
}

FASTBERT_INLINE void prefetch_tile(const std::byte* tile) {
    for (std::size_t line = 0; line < kTileBytes; line += 64) _mm_prefetch(reinterpret_cast<const char*>(tile + line), _MM_HINT_T0);
}

// The products of a block in 64 bytes of depth, and the loads of the next step's first tiles: software-pipelined, each
// tile is loaded one product early.
template <Element kElement, bool kTwo, bool kResident>
FASTBERT_INLINE void multiply_step(const std::byte* panel, const std::byte* next_panel, const std::byte* weights,
                                   const std::byte* next_weights, std::size_t weight_panel_bytes) {
    using P = TileProduct<kElement>;
    if constexpr (!kTwo) {
        prefetch_tile(weights + kPrefetchBytes);
        prefetch_tile(weights + weight_panel_bytes + kPrefetchBytes);
    }
    _tile_stream_loadd(7, weights + weight_panel_bytes, kStep);
    P::upper_left();
    if constexpr (kTwo) {
        load_lower_rows<kResident>(panel + kTileBytes);
        P::upper_right();
        load_upper_rows<kResident>(next_panel);
        P::lower_left();
        _tile_stream_loadd(6, next_weights, kStep);
        P::lower_right();
    } else {
        _tile_stream_loadd(6, next_weights, kStep);
        P::upper_right();
        load_upper_rows<kResident>(next_panel);
    }
}

// A single tile of rows unless kTwo; both variants sum each element in the same order. `previous` are the rows of the
// previous block that its epilogue has not finished.
template <Element kElement, bool kTwo, class Rows>
FASTBERT_INLINE void multiply_tiles(const std::byte* panel, const std::byte* weights, std::size_t weight_panel_bytes,
                                    std::size_t padded_depth, const Block& block, Rows previous,
                                    const Epilogue& epilogue) {
    const std::size_t steps = padded_depth * bytes_of(kElement) / kStep;
    const std::size_t previous_rows = previous.left;
    std::size_t share = 0;
    const std::byte* ahead = block.next_weights;
    std::size_t lines = block.next_bytes / 64;
    const std::size_t lines_per_step = (lines + steps - 1) / std::max<std::size_t>(1, steps);
    prefetch_operands(block, epilogue);
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kTwo) {
        _tile_zero(2);
        _tile_zero(3);
    }
    if (steps) {
        _tile_loadd(4, panel, kStep);
        _tile_stream_loadd(6, weights, kStep);
    }
    for (std::size_t step = 0; step < steps; ++step) {
        // The last step reloads its own tiles.
        const std::size_t next = step + 1 < steps ? 1 : 0;
        const std::byte* next_panel = panel + next * kRows * kStep;
        const std::byte* next_weights = weights + next * kTileBytes;
        if (step < kResidentSteps)
            multiply_step<kElement, kTwo, true>(panel, next_panel, weights, next_weights, weight_panel_bytes);
        else
            multiply_step<kElement, kTwo, false>(panel, next_panel, weights, next_weights, weight_panel_bytes);
        panel = next_panel;
        weights = next_weights;
        // The vector units are idle meanwhile: finish an even share of the previous block's rows per step.
        for (share += previous_rows; share >= steps; share -= steps) previous.next();
        // A few lines per step leave the fill buffers to the tiles.
        for (std::size_t i = std::min(lines, lines_per_step); i; --i, --lines, ahead += 64) {
            _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T1);
            _mm_prefetch(reinterpret_cast<const char*>(ahead + weight_panel_bytes), _MM_HINT_T1);
        }
    }
    constexpr std::size_t kStride = kColumns * sizeof(float);
    _tile_stored(0, block.sums, kStride);
    _tile_stored(1, block.sums + kPanel, kStride);
    if constexpr (kTwo) {
        _tile_stored(2, block.sums + kTileRows * kColumns, kStride);
        _tile_stored(3, block.sums + kTileRows * kColumns + kPanel, kStride);
    }
    while (previous.left) previous.next();
}

// Call body(rows) with the rows of a block that its epilogue has to finish; none for null. Gated rows are finished like
// partial ones.
template <Element kElement, class Body>
FASTBERT_INLINE void with_rows(const Block* block, const Epilogue& epilogue, const Body& body) {
    using enum Epilogue::Activation;
    const bool whole = epilogue.activation != gated && epilogue.activation != gated_gradient;
    if (block && (block->columns < kColumns || !whole)) return body(PartialRows(*block, epilogue));
    switch (epilogue.activation) {
        case none:
        case gated:
        case gated_gradient:
            return body(BlockRows<kElement, none>(block, epilogue));
        case gelu:
            return body(BlockRows<kElement, gelu>(block, epilogue));
        case gelu_tanh:
            return body(BlockRows<kElement, gelu_tanh>(block, epilogue));
        case gelu_gradient:
            return body(BlockRows<kElement, gelu_gradient>(block, epilogue));
        case gelu_tanh_gradient:
            return body(BlockRows<kElement, gelu_tanh_gradient>(block, epilogue));
    }
}

template <Element kElement>
void multiply(const std::byte* panel, const std::byte* weights, std::size_t weight_panel_bytes,
              std::size_t padded_depth, const Block& block, const Block* previous, const Epilogue& epilogue) {
    with_rows<kElement>(previous, epilogue, [&](const auto& rows) {
        if (block.rows > kTileRows)
            multiply_tiles<kElement, true>(panel, weights, weight_panel_bytes, padded_depth, block, rows, epilogue);
        else
            multiply_tiles<kElement, false>(panel, weights, weight_panel_bytes, padded_depth, block, rows, epilogue);
    });
}

template <Element kElement>
void finish_block(const Block& block, const Epilogue& epilogue) {
    with_rows<kElement>(&block, epilogue, [](auto rows) {
        while (rows.left) rows.next();
    });
}

FASTBERT_TARGET_END

// 1.7 TFLOP/s in bf16 on weights read at 12 GB/s; the same for int8, which is twice as fast on half the bytes.
constexpr std::size_t kMemoryRows = 128;
// Tokens whose row panel takes 48 KB.
constexpr std::size_t kChunk = 768;
// Fewer rows multiply a weight in less time than it takes to prefetch the next columns.
constexpr std::size_t kPrefetchRows = 3 * kRows + 1;
// Of an L2 cache of 2 MB. Taller chunks read weights less often, but leave less of it to the output.
constexpr std::size_t kBf16ChunkRows = 320, kInt8ChunkRows = 512;
constexpr std::size_t kChunkBytes = std::size_t{3} << 18, kColumnBytes = std::size_t{1} << 18;

template <Element kElement>
constexpr MicroKernel kernel_of() {
    return {.rows = kRows,
            .panel_bytes = panel_bytes<kElement>,
            .pack_rows = pack_rows<kElement>,
            .pack_columns = kElement == Element::bf16 ? pack_columns : nullptr,
            .multiply = multiply<kElement>,
            .finish = finish_block<kElement>,
            .enter = enter,
            .leave = leave,
            .row_step = kTileRows,
            .memory_rows = kMemoryRows,
            .chunk = kChunk,
            .chunk_bytes = kChunkBytes,
            .column_bytes = kColumnBytes,
            .chunk_rows = kElement == Element::bf16 ? kBf16ChunkRows : kInt8ChunkRows,
            .prefetch_rows = kPrefetchRows};
}

}  // namespace

const MicroKernel& amx_bf16_micro_kernel() {
    static constexpr MicroKernel kernel = kernel_of<Element::bf16>();
    return kernel;
}

const MicroKernel& amx_int8_micro_kernel() {
    static constexpr MicroKernel kernel = kernel_of<Element::int8>();
    return kernel;
}

}  // namespace fastbert
#endif

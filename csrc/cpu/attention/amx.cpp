#include "cpu/simd/target.h"

#if FASTBERT_X86

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/attention/attention.h"

namespace fastbert {

FASTBERT_TARGET_BEGIN(FASTBERT_AMX)
namespace {

#include "cpu/simd/vector_avx512.h"
#include "cpu/simd/vector_math.h"
#include "cpu/attention/forward.h"
#include "cpu/simd/transpose_avx512.h"
#include "cpu/attention/forward_bf16.h"
#include "cpu/attention/forward_fp32.h"
#include "cpu/attention/backward.h"
#include "cpu/attention/backward_bf16.h"

// Tiles 0 to 3 accumulate 32 rows by 32 columns; 4 and 5 hold rows, 6 and 7 columns. Tiles are always full: padding
// rows are computed and ignored.
struct Tiles {
    template <std::size_t N, std::size_t STRIDE>
    static void multiply(const BFloat16* a, const BFloat16* b, std::size_t rows, std::size_t steps, std::size_t pitch,
                         float* c, std::size_t c_stride, bool add) {
        constexpr std::size_t kRowBytes = STRIDE * sizeof(BFloat16);
        const std::size_t c_bytes = c_stride * sizeof(float);
        const BFloat16* second = b + pitch * kSquare;
        float* lower = c + 16 * c_stride;
        const bool both = rows > 16;
        // GCC does not model the memory reads of tile loads and could sink stores below them.
        asm volatile("" ::: "memory");
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        if (add) {
            _tile_loadd(0, c, c_bytes);
            if (N > 1) _tile_loadd(1, c + 16, c_bytes);
            if (both) _tile_loadd(2, lower, c_bytes);
            if (N > 1 && both) _tile_loadd(3, lower + 16, c_bytes);
        }
        for (std::size_t step = 0; step < steps; ++step, a += 32) {
            _tile_loadd(6, b + step * kSquare, 64);
            if (N > 1) _tile_loadd(7, second + step * kSquare, 64);
            _tile_loadd(4, a, kRowBytes);
            _tile_dpbf16ps(0, 4, 6);
            if (N > 1) _tile_dpbf16ps(1, 4, 7);
            if (!both) continue;
            _tile_loadd(5, a + 16 * STRIDE, kRowBytes);
            _tile_dpbf16ps(2, 5, 6);
            if (N > 1) _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, c, c_bytes);
        if (N > 1) _tile_stored(1, c + 16, c_bytes);
        if (both) _tile_stored(2, lower, c_bytes);
        if (N > 1 && both) _tile_stored(3, lower + 16, c_bytes);
    }
};

// Eight tiles of 16 rows of 64 bytes. A constant, since GCC assumes that the instruction reads only eight bytes of it.
struct alignas(64) Config {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(Config) == 64);
constexpr Config kConfig;

void enter() { _tile_loadconfig(&kConfig); }

void leave() { _tile_release(); }

AttentionKernel kernel() { return make_kernel<Bf16Products<Tiles>, Bf16Backward<Tiles>>(&enter, &leave); }

}  // namespace
FASTBERT_TARGET_END

AttentionKernel attention_amx() { return kernel(); }

}  // namespace fastbert

#endif

// Portable AdamW kernels.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/adamw/kernel_table.h"
#include "cpu/simd/bfloat16.h"
#include "cpu/simd/target.h"

namespace fastbert {
namespace {

#include "cpu/simd/vector_portable.h"

struct Lanes : Portable {
    // The product is exact in fp64, and double rounding of the sum differs from single rounding in a few of 2^29 cases.
    static FASTBERT_INLINE Float fma(Float a, Float b, Float c) {
        return {{fma_in_fp64(a.half[0], b.half[0], c.half[0]), fma_in_fp64(a.half[1], b.half[1], c.half[1])}};
    }
    static FASTBERT_INLINE Float sqrt(Float x) {
        float lanes[kLanes];
        store(lanes, x);
        for (float& lane : lanes) lane = std::sqrt(lane);
        return load(lanes);
    }
    struct Sums {
        double lane[16];
    };
    static FASTBERT_INLINE Sums no_sums() { return {}; }
    static FASTBERT_INLINE void add_squares(Sums& sums, const float* x) {
        for (std::size_t i = 0; i < 16; ++i) sums.lane[i] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    static FASTBERT_INLINE void store_sums(double* to, const Sums& sums) {
        std::memcpy(to, sums.lane, sizeof(sums.lane));
    }

  private:
    typedef double Wide __attribute__((vector_size(32)));

    static FASTBERT_INLINE Quad fma_in_fp64(Quad a, Quad b, Quad c) {
        const Wide x = __builtin_convertvector(a, Wide), y = __builtin_convertvector(b, Wide);
        return __builtin_convertvector(x * y + __builtin_convertvector(c, Wide), Quad);
    }
};

#include "cpu/adamw/kernels.h"

constexpr AdamKernels kKernels = adam_kernels_of<Lanes>();

}  // namespace

const AdamKernels& adam_kernels_portable() { return kKernels; }

}  // namespace fastbert

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/attention/attention.h"
#include "cpu/simd/target.h"

namespace fastbert {
namespace {

#include "cpu/simd/vector_portable.h"
#include "cpu/simd/vector_math.h"
#include "cpu/attention/forward.h"
#include "cpu/attention/forward_fp32.h"
#include "cpu/attention/backward.h"
#include "cpu/attention/backward_fp32.h"

struct Lanes : Portable {
    static constexpr std::size_t kRows = 2, kFewRows = 1;

    static FASTBERT_INLINE void transpose(Float (&rows)[kLanes]) {
        float square[kLanes][kLanes];
        for (std::size_t i = 0; i < kLanes; ++i) store(square[i], rows[i]);
        for (std::size_t i = 0; i < kLanes; ++i)
            for (std::size_t half = 0; half < 2; ++half) {
                const auto* column = square + 4 * half;
                rows[i].half[half] = Quad{column[0][i], column[1][i], column[2][i], column[3][i]};
            }
    }
};

}  // namespace

AttentionKernel attention_portable(Dtype dtype) { return fp32_kernel<Lanes>(dtype); }

}  // namespace fastbert

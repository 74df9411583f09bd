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

FASTBERT_TARGET_BEGIN(FASTBERT_AVX512)
namespace {

#include "cpu/simd/vector_avx512.h"
#include "cpu/simd/vector_math.h"
#include "cpu/attention/forward.h"
#include "cpu/attention/forward_fp32.h"
#include "cpu/attention/backward.h"
#include "cpu/attention/backward_fp32.h"
#include "cpu/simd/transpose_avx512.h"

struct Lanes : Avx512 {
    static constexpr std::size_t kRows = 12, kFewRows = 4;

    static FASTBERT_INLINE void transpose(Float (&rows)[kLanes]) { transpose_lanes(rows); }
};

struct GradientLanes : Lanes {
    static constexpr std::size_t kRows = 8;
};

AttentionKernel kernel(Dtype dtype) { return fp32_kernel<Lanes, GradientLanes>(dtype); }

}  // namespace
FASTBERT_TARGET_END

AttentionKernel attention_avx512(Dtype dtype) { return kernel(dtype); }

}  // namespace fastbert

#endif

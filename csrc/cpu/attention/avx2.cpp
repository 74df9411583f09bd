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

FASTBERT_TARGET_BEGIN(FASTBERT_AVX2)
namespace {

#include "cpu/simd/vector_avx2.h"
#include "cpu/simd/vector_math.h"
#include "cpu/simd/transpose_avx2.h"
#include "cpu/attention/forward.h"
#include "cpu/attention/forward_fp32.h"
#include "cpu/attention/backward.h"
#include "cpu/attention/backward_fp32.h"

struct Lanes : Avx2 {
    static constexpr std::size_t kRows = 6, kFewRows = 2;

    static FASTBERT_INLINE void transpose(Float (&rows)[kLanes]) { transpose_lanes(rows); }
};

AttentionKernel kernel(Dtype dtype) { return fp32_kernel<Lanes>(dtype); }

}  // namespace
FASTBERT_TARGET_END

AttentionKernel attention_avx2(Dtype dtype) { return kernel(dtype); }

}  // namespace fastbert

#endif

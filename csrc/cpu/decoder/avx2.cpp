// Cached attention and the choice of tokens for AVX2.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/decoder/best_tokens.h"
#include "cpu/decoder/cached_attention.h"
#include "cpu/simd/target.h"

#if FASTBERT_X86
#include <immintrin.h>

FASTBERT_TARGET_BEGIN(FASTBERT_AVX2)
namespace fastbert {
namespace {

#include "cpu/simd/vector_avx2.h"
#include "cpu/simd/vector_math.h"
#include "cpu/decoder/cached_attention_kernel.h"
#include "cpu/decoder/best_tokens_kernel.h"

CachedAttentionKernel attention_kernel(Dtype dtype) { return cached_attention_of<Avx2>(dtype); }
PartKernel part_kernel(Dtype dtype) { return part_kernel_of<Avx2>(dtype); }

}  // namespace
FASTBERT_TARGET_END

CachedAttentionKernel cached_attention_avx2(Dtype dtype) { return attention_kernel(dtype); }
PartKernel part_of_row_avx2(Dtype dtype) { return part_kernel(dtype); }

}  // namespace fastbert

#endif

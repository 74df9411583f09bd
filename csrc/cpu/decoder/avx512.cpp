// Cached attention and the choice of tokens for AVX-512.
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

FASTBERT_TARGET_BEGIN(FASTBERT_AVX512)
namespace fastbert {
namespace {

#include "cpu/simd/vector_avx512.h"
#include "cpu/simd/vector_math.h"
#include "cpu/decoder/cached_attention_kernel.h"
#include "cpu/decoder/best_tokens_kernel.h"

CachedAttentionKernel attention_kernel(Dtype dtype) { return cached_attention_of<Avx512>(dtype); }
PartKernel part_kernel(Dtype dtype) { return part_kernel_of<Avx512>(dtype); }

}  // namespace
FASTBERT_TARGET_END

CachedAttentionKernel cached_attention_avx512(Dtype dtype) { return attention_kernel(dtype); }
PartKernel part_of_row_avx512(Dtype dtype) { return part_kernel(dtype); }

}  // namespace fastbert

#endif

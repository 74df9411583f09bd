// Portable cached attention and choice of tokens.
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

namespace fastbert {
namespace {

#include "cpu/simd/vector_portable.h"
#include "cpu/simd/vector_math.h"
#include "cpu/decoder/cached_attention_kernel.h"
#include "cpu/decoder/best_tokens_kernel.h"

}  // namespace

CachedAttentionKernel cached_attention_portable(Dtype dtype) { return cached_attention_of<Portable>(dtype); }
PartKernel part_of_row_portable(Dtype dtype) { return part_kernel_of<Portable>(dtype); }

}  // namespace fastbert

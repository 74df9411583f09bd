// Attention of one query per row and head to keys and values in a cache.
//
// Keys and values are read in place, once, in the order of memory; scores exist for a block of keys at a time, and the
// running sums are rescaled to each block's maximum (online softmax). All sums are fp32. A row's result is the same sum
// in the same order whatever the other rows, the threads and the heads computed together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/simd/bfloat16.h"

namespace fastbert {

struct CachedAttentionCall {
    const void* q = nullptr;  // (rows, heads, dim), rows `q_stride` elements apart
    std::size_t q_stride = 0;
    const void* keys = nullptr;    // (rows, slots, heads, dim), contiguous
    const void* values = nullptr;  // the same
    Dtype dtype = Dtype::fp32;     // of q, keys, values and out
    std::size_t rows = 0, slots = 0, heads = 0, dim = 0;
    const std::int64_t* starts = nullptr;  // (rows,): the first visible slot, below `end`
    std::size_t end = 0;                   // the slot behind the last visible one
    float scale = 1.0F;
    void* out = nullptr;  // (rows, heads, dim), contiguous
};

// Floats of scratch memory per thread.
std::size_t cached_attention_scratch(std::size_t heads, std::size_t dim);

// Compute the call; `scratch` has room for `threads` threads, at least as many as parallel.h grants.
void cached_attention(const CachedAttentionCall& call, float* scratch, int threads);

// Heads first_head.. below last_head of one row, on the calling thread.
using CachedAttentionKernel = void (*)(const CachedAttentionCall& call, std::size_t row, std::size_t first_head,
                                       std::size_t last_head, float* scratch);

CachedAttentionKernel cached_attention_portable(Dtype dtype);
CachedAttentionKernel cached_attention_avx2(Dtype dtype);
CachedAttentionKernel cached_attention_avx512(Dtype dtype);

// Keys whose scores are held at a time, and keys and values that are read side by side.
inline constexpr std::size_t kCachedKeys = 64, kCachedStreams = 8;

}  // namespace fastbert

// Attention of packed sequences: out = softmax(q k^T * scale + bias) v for each sequence and head on its own.
//
// No score matrix exists: a tile of queries meets a block of keys, whose scores live in the first cache until they are
// probabilities and multiplied with the values; where a sequence has more keys than a block, the sums so far are
// brought to the new largest score (Milakov and Gimelshein 2018, section 3). A query's result is the same sum in the
// same order wherever it lies in the batch and whatever thread computes it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/simd/bfloat16.h"

namespace fastbert {

// (tokens, heads, dim), a head's elements side by side; strides count elements.
struct HeadRows {
    const void* data = nullptr;
    std::size_t token_stride = 0, head_stride = 0;
};

// Which probabilities are dropped, see cpu/dropout.h; the others are multiplied with `keep`.
struct AttentionDropout {
    const std::int64_t* keys = nullptr;  // (sequences,); null where nothing is dropped
    std::uint32_t site = 0, threshold = 0;
    float keep = 1;
};

struct AttentionCall {
    HeadRows q, k, v;
    Dtype dtype = Dtype::fp32;  // of q, k, v and out
    std::size_t heads = 0, dim = 0;  // dim: 1 to kMaxHeadDim
    // (sequences + 1,): where a sequence's tokens begin. Sequences may be empty on either side.
    const std::int32_t* cu_seqlens_q = nullptr;
    const std::int32_t* cu_seqlens_k = nullptr;
    std::size_t sequences = 0;
    // A query sees keys up to its own place, counted from the end of both.
    bool causal = false;
    float scale = 1;
    // (heads, bias_rows, bias_columns), keys side by side; null for none. Outside of it the bias is zero.
    const void* bias = nullptr;
    Dtype bias_dtype = Dtype::fp32;
    std::size_t bias_rows = 0, bias_columns = 0, bias_head_stride = 0, bias_row_stride = 0;
    AttentionDropout dropout;
    void* out = nullptr;   // (tokens_q, heads, dim) without gaps; a query that sees nothing gets zeros
    float* lse = nullptr;  // (heads, tokens_q): the natural logarithm of a query's sum of exponentials, or null
};

inline constexpr std::size_t kMaxHeadDim = 256;

// Throws std::bad_alloc. Everything else was checked by the caller.
void attention(const AttentionCall& call);

struct HeadGradients {
    void* data = nullptr;
    std::size_t token_stride = 0, head_stride = 0;
};

// The gradients of a call whose `lse` was computed; `out` is not read. The scores are computed again; sums over keys and
// over queries have one order, whatever the batch and the threads are.
struct AttentionGradientCall {
    AttentionCall forward;
    HeadRows grad;             // of out
    HeadGradients dq, dk, dv;  // in the call's dtype
    // (heads, bias_rows, bias_columns) without gaps, zeros before the call: summed over the sequences; null for none.
    float* dbias = nullptr;
};

// Throws as `attention` does.
void attention_gradient(const AttentionGradientCall& call);

// One head of queries first..last of a sequence.
struct AttentionItem {
    std::size_t query_token = 0, queries = 0;  // of the sequence: its first token, its length
    std::size_t key_token = 0, keys = 0;
    std::size_t sequence = 0, head = 0;
    std::size_t first = 0, last = 0;  // at most kAttentionChunk queries, from a multiple of kAttentionTiles on
};

inline constexpr std::size_t kAttentionChunk = 384;
inline constexpr std::size_t kAttentionTiles = 96;  // whole tiles at every level

// The queries that a backward pass takes at a time.
inline constexpr std::size_t kGradientBlock = 256;
// It computes them in tiles of so many queries by so many keys, which it keeps from its first pass over the keys to the
// second where there are no more than kKeptKeys.
inline constexpr std::size_t kGradientTile = 32;
inline constexpr std::size_t kKeptKeys = 4096;

// What a level runs for one dtype. Scratch memory begins at a multiple of 64 bytes and holds numbers that a kernel may
// have left there.
struct AttentionKernel {
    std::size_t (*scratch_bytes)(std::size_t dim);
    void (*run)(const AttentionCall& call, const AttentionItem& item, std::byte* scratch);
    // Backward takes whole sequences; `keys` is the longest of those with more queries than a block, `tiles` what is kept
    // of any block.
    std::size_t (*gradient_bytes)(std::size_t dim, std::size_t keys, std::size_t tiles);
    void (*gradient)(const AttentionGradientCall& call, const AttentionItem& item, std::byte* scratch);
    // Called by each thread before its first item and behind its last one; null where there is nothing to do.
    void (*enter)();
    void (*leave)();
};

AttentionKernel attention_portable(Dtype dtype);
AttentionKernel attention_avx2(Dtype dtype);
AttentionKernel attention_avx512(Dtype dtype);
// bf16 alone: the dot products of AVX-512 BF16, and tiles.
AttentionKernel attention_avx512_bf16();
AttentionKernel attention_amx();

}  // namespace fastbert

// Attention of packed sequences: out = softmax(q k^T * scale + bias) v, independently per sequence and head.
//
// The score matrix is never materialised: a tile of queries is multiplied by a block of keys, and the scores stay in L1
// until they are probabilities and multiplied by the values. If a sequence has more keys than a block, the running sums
// are rescaled to the new maximum (online softmax, Milakov and Gimelshein 2018, section 3). A query's result is the
// same sum in the same order for every batch and thread count.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/dropout/dropout.h"
#include "cpu/simd/bfloat16.h"

namespace fastbert {

// (tokens, heads, dim), contiguous within a head; strides count elements.
struct HeadRows {
    const void* data = nullptr;
    std::size_t token_stride = 0, head_stride = 0;
};

struct AttentionCall {
    HeadRows q, k, v;
    Dtype dtype = Dtype::fp32;  // of q, k, v and out
    std::size_t heads = 0, dim = 0;  // dim: 1 to kMaxHeadDim
    // (sequences + 1,): offset of each sequence's first token. Sequences may be empty on either side.
    const std::int32_t* cu_seqlens_q = nullptr;
    const std::int32_t* cu_seqlens_k = nullptr;
    std::size_t sequences = 0;
    // Causal mask, aligned to the ends of queries and keys.
    bool causal = false;
    float scale = 1;
    // (heads, bias_rows, bias_columns), contiguous along keys; null for none. Outside these bounds the bias is zero.
    const void* bias = nullptr;
    Dtype bias_dtype = Dtype::fp32;
    std::size_t bias_rows = 0, bias_columns = 0, bias_head_stride = 0, bias_row_stride = 0;
    AttentionDropout dropout;
    void* out = nullptr;   // (tokens_q, heads, dim), contiguous; zero for queries without visible keys
    float* lse = nullptr;  // (heads, tokens_q): natural logsumexp of the scores; may be null
};

inline constexpr std::size_t kMaxHeadDim = 256;

// Throws std::bad_alloc. All other arguments are validated by the caller.
void attention(const AttentionCall& call);

struct HeadGradients {
    void* data = nullptr;
    std::size_t token_stride = 0, head_stride = 0;
};

// Gradients of a call whose `lse` was computed; `out` is not read. Scores are recomputed; sums over keys and queries
// have a fixed order, independent of batch and threads.
struct AttentionBackwardCall {
    AttentionCall forward;
    HeadRows grad;             // of out
    HeadGradients dq, dk, dv;  // in the call's dtype
    // (heads, bias_rows, bias_columns), contiguous and zero before the call; accumulates over sequences. Null for none.
    float* dbias = nullptr;
};

// Throws like `attention`.
void attention_backward(const AttentionBackwardCall& call);

// A work item: queries first..last of one head of a sequence.
struct AttentionItem {
    std::size_t query_token = 0, queries = 0;  // the sequence's first token and length
    std::size_t key_token = 0, keys = 0;
    std::size_t sequence = 0, head = 0;
    std::size_t first = 0, last = 0;  // at most kAttentionChunk queries, from a multiple of kAttentionTiles on
};

inline constexpr std::size_t kAttentionChunk = 384;
inline constexpr std::size_t kAttentionTiles = 96;  // a multiple of the tile size of every CPU capability

// Queries per block of the backward pass.
inline constexpr std::size_t kGradientBlock = 256;
// Backward computes tiles of this many queries by this many keys. Tiles are kept from its first pass over the keys to
// the second if there are at most kKeptKeys keys.
inline constexpr std::size_t kGradientTile = 32;
inline constexpr std::size_t kKeptKeys = 4096;

// The kernel of one CPU capability for one dtype. Scratch memory is aligned to 64 bytes and may contain values of
// earlier calls.
struct AttentionKernel {
    std::size_t (*scratch_bytes)(std::size_t dim);
    void (*run)(const AttentionCall& call, const AttentionItem& item, std::byte* scratch);
    // Backward processes whole sequences: `keys` is the longest of those with more queries than a block, `tiles` the
    // maximum number of tiles kept per block.
    std::size_t (*gradient_bytes)(std::size_t dim, std::size_t keys, std::size_t tiles);
    void (*gradient)(const AttentionBackwardCall& call, const AttentionItem& item, std::byte* scratch);
    // Called on each thread before its first item and after its last one; may be null.
    void (*enter)();
    void (*leave)();
};

AttentionKernel attention_portable(Dtype dtype);
AttentionKernel attention_avx2(Dtype dtype);
AttentionKernel attention_avx512(Dtype dtype);
// bf16 only: AVX-512 BF16 dot products, and AMX tiles.
AttentionKernel attention_avx512_bf16();
AttentionKernel attention_amx();

}  // namespace fastbert

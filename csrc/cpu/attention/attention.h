// Attention of packed sequences: out = softmax(q k^T * scale + bias) v, independently per sequence and head.
//
// Positions: a window of keys around each query; rotary embeddings, applied as q and k are loaded; a bias by distance;
// and tables of relative positions, whose products with a tile of queries and a tile of keys are computed as the tile is
// (disentangled attention), so that memory is linear in length. The last query has the position of the last key.
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

// Rotary embeddings: `width` floats per position, the cosines and then the sines of its angles, by which the first
// `width` dims of q and k are turned. A token's position is its index in its sequence, or positions[token].
struct RotaryTable {
    const float* angles = nullptr;  // null for none
    std::size_t width = 0;
    const std::int64_t* positions = nullptr;
};

// Added to the scores: column key - query + length - 1 of (heads, 2 * length - 1).
struct DistanceBias {
    const float* values = nullptr;  // null for none
    std::size_t length = 0;

    std::size_t columns() const { return 2 * length - 1; }
};

// Keys and queries of relative positions (rows, heads, dim), in the call's dtype, and the row of each distance, indexed
// as DistanceBias. Either table may be absent.
struct RelativePositions {
    HeadRows keys, queries;
    const std::int32_t* buckets = nullptr;  // (2 * length - 1,)
    std::size_t length = 0;

    bool any() const { return keys.data || queries.data; }
};

// Derived from RelativePositions once per call. The rows that the longest sequence needs are the columns of products
// with a tile; they are ordered so that columns increase with the key, or with the query. A run tells how the columns
// of the next 16 distances follow: by one each, all the same, or otherwise.
struct PositionColumns {
    enum class Run : std::uint8_t { other, consecutive, constant };
    std::size_t count = 0;            // columns
    std::ptrdiff_t length = 0;
    bool monotone = false;            // columns never decrease
    // By key - query + length - 1 for the table of keys, by query - key + length - 1 for that of queries; readable
    // beyond both ends.
    const std::int32_t *of_keys = nullptr, *of_queries = nullptr;
    const Run *runs_of_keys = nullptr, *runs_of_queries = nullptr;
    // Packed tables, `packed_bytes` per head; for backward also as rows of kTableStride floats, `head_floats` per head.
    const std::byte *keys = nullptr, *queries = nullptr;
    std::size_t packed_bytes = 0;
    const float *key_rows = nullptr, *query_rows = nullptr;
    std::size_t head_floats = 0;
};

inline constexpr std::size_t kNoWindow = static_cast<std::size_t>(-1);

struct AttentionCall {
    HeadRows q, k, v;
    Dtype dtype = Dtype::fp32;  // of q, k, v and out
    std::size_t heads = 0, dim = 0;  // dim: 1 to kMaxHeadDim
    std::size_t group = 1;  // consecutive heads of q that share a head of k and v
    std::size_t window = kNoWindow;  // keys on each side of a query's position
    RotaryTable rotary;
    DistanceBias distance_bias;
    RelativePositions relative;
    PositionColumns columns;  // filled by `attention` and `attention_backward`
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

// For callers with threads of their own: items first..last of heads * sequences, those of a head side by side, on the
// calling thread; false if out of memory. Not for calls with tables of relative positions.
bool attention_items(const AttentionCall& call, std::size_t first, std::size_t last);

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
    float* ddistance_bias = nullptr;  // as its values; zero before the call, null for none
    // (rows, heads, dim), contiguous and zero before the call; null for none.
    float *dposition_keys = nullptr, *dposition_queries = nullptr;
    // Filled by `attention_backward`, with columns by query - key + length - 1: the bias by distance and its gradient;
    // and the gradients of the tables' columns, rows of dims padded to 16, as many per head as columns padded to 32.
    const float* reversed_bias = nullptr;
    float *reversed_gradient = nullptr, *key_columns = nullptr, *query_columns = nullptr;

    bool by_head() const { return dbias || ddistance_bias || dposition_keys || dposition_queries; }
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

// Whether backward sums the gradients of a sequence's keys over blocks of queries, rather than write those of each tile.
inline bool accumulates_keys(const AttentionCall& call, const AttentionItem& item) {
    return item.queries > kGradientBlock || (call.window != kNoWindow && item.queries != item.keys);
}

// The kernel of one CPU capability for one dtype. Scratch memory is aligned to 64 bytes and may contain values of
// earlier calls.
struct AttentionKernel {
    std::size_t (*scratch_bytes)(const AttentionCall& call);
    void (*run)(const AttentionCall& call, const AttentionItem& item, std::byte* scratch);
    // Backward processes whole sequences: `keys` is the longest of those whose keys accumulate, `tiles` the maximum
    // number of tiles kept per block.
    std::size_t (*gradient_bytes)(const AttentionCall& call, std::size_t keys, std::size_t tiles);
    void (*gradient)(const AttentionBackwardCall& call, const AttentionItem& item, std::byte* scratch);
    // Pack `count` rows of a head's table of relative positions, from `row` on or, if `reversed`, from there backwards.
    std::size_t (*table_bytes)(std::size_t dim, std::size_t count);
    void (*pack_table)(const AttentionCall& call, const HeadRows& table, std::size_t head, std::size_t row,
                       std::size_t count, bool reversed, std::byte* packed);
    // The same as rows of floats, kTableStride apart.
    void (*load_table)(const AttentionCall& call, const HeadRows& table, std::size_t head, std::size_t row,
                       std::size_t count, bool reversed, float* rows);
    // Called on each thread before its first item and after its last one; may be null.
    void (*enter)();
    void (*leave)();
};

inline constexpr std::size_t kTableStride = 272;

AttentionKernel attention_portable(Dtype dtype);
AttentionKernel attention_avx2(Dtype dtype);
AttentionKernel attention_avx512(Dtype dtype);
// bf16 only: AVX-512 BF16 dot products, and AMX tiles.
AttentionKernel attention_avx512_bf16();
AttentionKernel attention_amx();

}  // namespace fastbert

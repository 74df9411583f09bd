// One work item of attention, generic over the matmuls. Included inside a target region and an anonymous namespace,
// after a vector type and vector_math.h.
//
// Products provides the matmuls: it packs a block of keys and values once and loads each tile of queries. Weight is the
// element type of probabilities, kTile the rows per tile, kBlock the keys per block; kScoreStride and kWeightStride are
// the row strides of scores and probabilities.
#include "cpu/attention/positions.h"

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
alignas(64) inline constexpr float kLaneIndex[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Keep the first `count` lanes of x and set the rest to `other`.
template <class V>
FASTBERT_INLINE typename V::Float first_lanes(typename V::Float x, std::size_t count, float other) {
    return V::where_less(V::load(kLaneIndex), V::broadcast(static_cast<float>(count)), x, V::broadcast(other));
}

template <class V>
FASTBERT_INLINE float exp2_of_one(float x) {
    alignas(64) float lanes[V::kLanes];
    V::store(lanes, exp2_of<V>(V::broadcast(x)));
    return lanes[0];
}

// The online-softmax state of a query: running maximum and sum of exponentials, in units of 2^largest.
struct QueryState {
    float largest, total;
};

// Multiply the visible scores by `factor` and return the largest.
template <class V>
FASTBERT_INLINE float scale_scores(float* scores, std::size_t visible, float factor) {
    const auto by = V::broadcast(factor);
    auto top = V::broadcast(kMinusInfinity);
    std::size_t i = 0;
    for (; i + V::kLanes <= visible; i += V::kLanes) {
        const auto x = V::mul(V::load(scores + i), by);
        V::store(scores + i, x);
        top = V::max(top, x);
    }
    if (i < visible) {
        const auto x = V::mul(V::load(scores + i), by);
        V::store(scores + i, x);
        top = V::max(top, first_lanes<V>(x, visible - i, kMinusInfinity));
    }
    return V::largest(top);
}

// scores = scores * factor + bias * log2(e), the bias having `width` columns; return the largest.
template <class V, class B>
float scale_and_bias(float* scores, std::size_t visible, float factor, const B* bias, std::size_t width) {
    const auto by = V::broadcast(factor), unit = V::broadcast(kLog2E);
    for (std::size_t i = 0; i < std::min(visible, width); i += V::kLanes) {
        const std::size_t count = std::min(visible, width) - i;
        const auto b = count >= V::kLanes ? V::load(bias + i) : V::load_part(bias + i, count);
        V::store(scores + i, V::fma(V::load(scores + i), by, V::mul(b, unit)));
    }
    // The lanes after the bias in its last vector are already scaled.
    const std::size_t done = std::min(round_up(std::min(visible, width), V::kLanes), visible);
    const float biased = scale_scores<V>(scores, done, 1.0F);
    const float rest = done < visible ? scale_scores<V>(scores + done, visible - done, factor) : kMinusInfinity;
    return rest > biased ? rest : biased;
}

// Convert scores (base 2, with maximum `top`) to weights 2^(score - largest), zero-padded to `width`, and return the
// factor that rescales earlier sums. A query whose scores are all -inf keeps a total of zero; a NaN makes the total
// NaN. Weights whose `keep_bits` are not set are zeroed after summation.
template <class P>
FASTBERT_INLINE float exponentiate(const float* scores, const std::uint8_t* keep_bits, typename P::Weight* weights,
                                   std::size_t visible, std::size_t width, float top, QueryState& state) {
    using V = typename P::Vector;
    const float before = state.largest;
    const float largest = top > before ? top : before;
    const float base = largest > kMinusInfinity ? largest : 0.0F;
    const auto shift = V::broadcast(base);
    auto sum = V::zero();
    std::size_t i = 0;
    for (; i + V::kLanes <= visible; i += V::kLanes) {
        const auto x = exp2_of<V>(V::sub(V::load(scores + i), shift));
        sum = V::add(sum, x);
        P::store_weights(weights + i, keep_bits ? V::where_bits(keep_bits + i / 8, x, V::zero()) : x);
    }
    if (i < visible) {
        const auto x = first_lanes<V>(exp2_of<V>(V::sub(V::load(scores + i), shift)), visible - i, 0.0F);
        sum = V::add(sum, x);
        P::store_weights(weights + i, keep_bits ? V::where_bits(keep_bits + i / 8, x, V::zero()) : x);
        i += V::kLanes;
    }
    for (; i < width; i += V::kLanes) P::store_weights(weights + i, V::zero());
    const float shrink = before == largest ? 1.0F : before > kMinusInfinity ? exp2_of_one<V>(before - base) : 0.0F;
    state = {largest, state.total * shrink + V::sum(sum)};
    return shrink;
}

template <class P>
class AttentionForward {
    using V = typename P::Vector;
    using T = typename P::Element;
    using Weight = typename P::Weight;

  public:
    static std::size_t scratch_bytes(const AttentionCall& call) { return AttentionForward(call, {}, nullptr).used_; }

    static void run(const AttentionCall& call, const AttentionItem& item, std::byte* scratch) {
        AttentionForward(call, item, scratch).run_item();
    }

  private:
    static constexpr std::size_t kScoreBytes = P::kTile * P::kScoreStride * sizeof(float);
    // fp32 weights overwrite the scores in place.
    static constexpr bool kInPlace = std::is_same_v<Weight, float>;
    static constexpr std::size_t kWeightBytes = kInPlace ? 0 : P::kTile * P::kWeightStride * sizeof(Weight);
    static constexpr std::size_t kKeepBytes = KeepBits::row_bytes(P::kBlock);
    static constexpr std::size_t kTiles = kAttentionChunk / P::kTile;
    static_assert(P::kTile % KeepBits::kRowQueries == 0 && P::kBlock % KeepBits::kKeys == 0);
    static_assert(kAttentionChunk % P::kTile == 0);

    AttentionForward(const AttentionCall& call, const AttentionItem& item, std::byte* scratch)
        : call_(call), columns_(call.columns), item_(item), scratch_(scratch), sum_stride_(round_up(call.dim, 16)) {
        const std::size_t dim = call.dim;
        queries_ = take<Weight>(P::query_bytes(dim));
        keys_ = take<Weight>(P::key_bytes(dim));
        values_ = take<Weight>(P::value_bytes(dim));
        scores_ = take<float>(kScoreBytes);
        weights_ = kInPlace ? reinterpret_cast<Weight*>(scores_) : take<Weight>(kWeightBytes);
        sums_ = take<float>(kAttentionChunk * sum_stride_ * sizeof(float));
        states_ = take<QueryState>(kAttentionChunk * sizeof(QueryState));
        if (call.rotary.angles) {
            turned_queries_ = take<T>(P::kTile * sum_stride_ * sizeof(T));
            turned_keys_ = take<T>(P::kBlock * sum_stride_ * sizeof(T));
        }
        const std::size_t row_bytes = column_stride(columns_) * sizeof(float);
        if (columns_.keys) by_position_ = take<float>(P::kTile * row_bytes);
        if (columns_.queries) key_positions_ = take<float>((P::kBlock + P::kTile) * row_bytes);
    }

    template <class Type>
    Type* take(std::size_t bytes) {
        const std::size_t begin = used_;
        used_ += round_up(bytes, 64);
        return scratch_ ? reinterpret_cast<Type*>(scratch_ + begin) : nullptr;
    }

    // Address of a head at `token`.
    static const T* head(const HeadRows& rows, std::size_t token, std::size_t head) {
        return static_cast<const T*>(rows.data) + token * rows.token_stride + head * rows.head_stride;
    }

    // Rows of queries or keys, with their stride.
    struct Rows {
        const T* data;
        std::size_t stride;
    };

    // The head's rows index.. of the sequence that begins at `token`, turned by their positions into `turned`.
    Rows load(const HeadRows& rows, std::size_t token, std::size_t index, std::size_t count, std::size_t head_index,
              T* turned) const {
        const T* from = head(rows, token + index, head_index);
        const RotaryTable& rotary = call_.rotary;
        if (!rotary.angles) return {from, rows.token_stride};
        for (std::size_t i = 0; i < count; ++i)
            rotate_row<false, V>(from + i * rows.token_stride, angles_of(rotary, token + index + i, index + i),
                                 rotary.width, call_.dim, turned + i * sum_stride_);
        return {turned, sum_stride_};
    }

    struct Range {
        std::size_t begin, end;
    };

    // The keys visible to query `row` of the sequence.
    Range visible_keys(std::size_t row) const {
        Range visible{0, item_.keys};
        if (call_.causal) {
            const std::size_t end = row + 1 + item_.keys;
            visible.end = end > item_.queries ? std::min(end - item_.queries, item_.keys) : 0;
        }
        if (call_.window == kNoWindow) return visible;
        const auto keys = static_cast<std::ptrdiff_t>(item_.keys), window = static_cast<std::ptrdiff_t>(call_.window);
        const std::ptrdiff_t begin = std::clamp<std::ptrdiff_t>(position(row) - window, 0, keys);
        const std::ptrdiff_t end = std::clamp<std::ptrdiff_t>(position(row) + window + 1, begin, keys);
        return {static_cast<std::size_t>(begin),
                std::max(static_cast<std::size_t>(begin), std::min(static_cast<std::size_t>(end), visible.end))};
    }

    // The key at the position of query `row`.
    std::ptrdiff_t position(std::size_t row) const {
        return static_cast<std::ptrdiff_t>(row + item_.keys) - static_cast<std::ptrdiff_t>(item_.queries);
    }

    void run_item() {
        const std::size_t count = item_.last - item_.first;
        for (std::size_t i = 0; i < count; ++i) states_[i] = {kMinusInfinity, 0.0F};
        std::fill_n(started_, kTiles, false);
        const std::size_t start = visible_keys(item_.first).begin / KeepBits::kKeys * KeepBits::kKeys;
        const std::size_t visible = visible_keys(item_.last - 1).end;
        const std::size_t stored = call_.window == kNoWindow ? item_.keys : visible;
        const std::size_t key_head = item_.head / call_.group;
        for (std::size_t key = start; key < visible; key += P::kBlock) {
            const std::size_t keys = std::min(P::kBlock, stored - key);
            const Rows rows = load(call_.k, item_.key_token, key, keys, key_head, turned_keys_);
            P::pack_keys(rows.data, rows.stride, keys, call_.dim, keys_);
            P::pack_values(head(call_.v, item_.key_token + key, key_head), call_.v.token_stride, keys, call_.dim,
                           values_);
            if (columns_.queries) multiply_key_positions(rows, key, keys);
            for (std::size_t row = item_.first; row < item_.last; row += P::kTile)
                tile(row, std::min(P::kTile, item_.last - row), key, keys);
        }
        for (std::size_t i = 0; i < count; ++i) finish(i);
    }

    // The products of a block of keys with the queries of relative positions that the item's queries have to them.
    void multiply_key_positions(const Rows& rows, std::size_t key, std::size_t keys) {
        const auto* table = reinterpret_cast<const Weight*>(columns_.queries + item_.head * columns_.packed_bytes);
        const std::size_t stride = column_stride(columns_);
        for (std::size_t first = 0; first < keys; first += P::kTile) {
            const std::size_t count = std::min(P::kTile, keys - first);
            const std::ptrdiff_t last_key = static_cast<std::ptrdiff_t>(key + first + count) - 1;
            const ColumnRange range =
                columns_between(columns_, columns_.of_queries, position(item_.first) - last_key + columns_.length - 1,
                                position(item_.last - 1) - static_cast<std::ptrdiff_t>(key + first) + columns_.length - 1);
            P::load_queries(rows.data + first * rows.stride, rows.stride, count, call_.dim, queries_);
            P::scores(queries_, table, count, range.first, range.count, columns_.count, call_.dim,
                      key_positions_ + first * stride + range.first, stride);
        }
    }

    // Multiply queries row.. of the sequence by keys key.. of it.
    void tile(std::size_t row, std::size_t rows, std::size_t key, std::size_t keys) {
        const std::size_t end = visible_keys(row + rows - 1).end, begin = visible_keys(row).begin;
        if (end <= key || begin >= key + keys) return;
        // Columns of scores are the block's keys from `first` on.
        const std::size_t first = begin > key ? (begin - key) / 32 * 32 : 0, base = key + first;
        const std::size_t visible = std::min(end, key + keys) - base;
        const Rows queries = load(call_.q, item_.query_token, row, rows, item_.head, turned_queries_);
        P::load_queries(queries.data, queries.stride, rows, call_.dim, queries_);
        P::scores(queries_, keys_, rows, first, visible, keys, call_.dim, scores_, P::kScoreStride);
        if (columns_.keys) add_position_keys(row, rows, base, visible);
        if (columns_.queries) add_position_queries(row, rows, key, base, visible);
        const std::size_t local = row - item_.first;
        float* sums = sums_ + local * sum_stride_;
        bool& started = started_[local / P::kTile];
        std::uint8_t keep_bits[KeepBits::kRowQueries][kKeepBytes];
        const std::size_t unit = first % KeepBits::kKeys;  // bits are drawn in whole units of keys
        for (std::size_t i = 0; i < rows; ++i) {
            const Range row_visible = visible_keys(row + i);
            std::size_t block_visible = row_visible.end > base ? std::min(row_visible.end - base, visible) : 0;
            float* scores = scores_ + i * P::kScoreStride;
            if (row_visible.begin > base) {
                const std::size_t hidden = std::min(row_visible.begin - base, block_visible);
                std::fill_n(scores, hidden, kMinusInfinity);
                if (hidden == block_visible) block_visible = 0;
            }
            if (call_.dropout.keys && i % KeepBits::kRowQueries == 0)
                attention_row_bits(call_.dropout.of(item_.sequence, item_.head), row + i, base - unit, visible + unit,
                                   keep_bits[0], kKeepBytes);
            const std::uint8_t* row_bits =
                call_.dropout.keys ? keep_bits[i % KeepBits::kRowQueries] + unit / 8 : nullptr;
            const float top = prepare(scores, row + i, base, block_visible);
            const float shrink = exponentiate<P>(scores, row_bits, weights_ + i * P::kWeightStride, block_visible,
                                                 round_up(visible, P::kWeightStep), top, states_[local + i]);
            if (!started || shrink == 1.0F) continue;
            const auto by = V::broadcast(shrink);
            for (float* x = sums + i * sum_stride_, *last = x + sum_stride_; x < last; x += V::kLanes)
                V::store(x, V::mul(V::load(x), by));
        }
        P::accumulate(weights_, values_, rows, first, visible, keys, call_.dim, sums, sum_stride_, started);
        started = true;
    }

    // Add the products of the tile's queries with the keys of relative positions.
    void add_position_keys(std::size_t row, std::size_t rows, std::size_t base, std::size_t visible) {
        const auto* table = reinterpret_cast<const Weight*>(columns_.keys + item_.head * columns_.packed_bytes);
        const std::size_t stride = column_stride(columns_);
        const std::ptrdiff_t first_key = static_cast<std::ptrdiff_t>(base) + columns_.length - 1;
        const ColumnRange range =
            columns_between(columns_, columns_.of_keys, first_key - position(row + rows - 1),
                            first_key + static_cast<std::ptrdiff_t>(visible) - 1 - position(row));
        P::scores(queries_, table, rows, range.first, range.count, columns_.count, call_.dim,
                  by_position_ + range.first, stride);
        for (std::size_t i = 0; i < rows; ++i) {
            float* scores = scores_ + i * P::kScoreStride;
            std::ptrdiff_t at = first_key - position(row + i);
            for (std::size_t c = 0; c < visible; c += V::kLanes, at += static_cast<std::ptrdiff_t>(V::kLanes)) {
                const auto x = load_columns<V>(by_position_ + i * stride, columns_.of_keys, columns_.runs_of_keys, at);
                V::store(scores + c, V::add(V::load(scores + c), x));
            }
        }
    }

    // Add the products of the block's keys with the queries of relative positions, whose rows are keys: transposed.
    void add_position_queries(std::size_t row, std::size_t rows, std::size_t key, std::size_t base,
                              std::size_t visible) {
        const std::size_t stride = column_stride(columns_);
        for (std::size_t c = 0; c < visible; c += V::kLanes) {
            const float* line = key_positions_ + (base - key + c) * stride;
            for (std::size_t r = 0; r < rows; r += V::kLanes) {
                std::ptrdiff_t at =
                    position(row + r) - static_cast<std::ptrdiff_t>(base + c) + columns_.length - 1;
                typename V::Float lanes[V::kLanes];
                for (std::size_t i = 0; i < V::kLanes; ++i, --at)
                    lanes[i] = c + i < visible ? load_columns<V>(line + i * stride, columns_.of_queries,
                                                                 columns_.runs_of_queries, at)
                                               : V::zero();
                P::transpose(lanes);
                for (std::size_t i = 0; i < std::min(V::kLanes, rows - r); ++i) {
                    float* scores = scores_ + (r + i) * P::kScoreStride + c;
                    V::store(scores, V::add(V::load(scores), lanes[i]));
                }
            }
        }
    }

    // Scale a row of products to base-2 scores and return the largest visible one.
    float prepare(float* scores, std::size_t row, std::size_t key, std::size_t visible) const {
        float factor = call_.scale * kLog2E;
        float top = kMinusInfinity;
        bool scaled = false;
        if (call_.distance_bias.values) {
            const DistanceBias& bias = call_.distance_bias;
            const std::ptrdiff_t column =
                static_cast<std::ptrdiff_t>(key) - position(row) + static_cast<std::ptrdiff_t>(bias.length) - 1;
            top = scale_and_bias<V>(scores, visible, factor, bias.values + item_.head * bias.columns() + column, visible);
            factor = 1.0F;
            scaled = true;
        }
        if (!call_.bias || row >= call_.bias_rows || key >= call_.bias_columns)
            return scaled ? top : scale_scores<V>(scores, visible, factor);
        const std::size_t offset = item_.head * call_.bias_head_stride + row * call_.bias_row_stride + key;
        const std::size_t width = call_.bias_columns - key;
        return call_.bias_dtype == Dtype::fp32
                   ? scale_and_bias<V>(scores, visible, factor, static_cast<const float*>(call_.bias) + offset, width)
                   : scale_and_bias<V>(scores, visible, factor, static_cast<const BFloat16*>(call_.bias) + offset,
                                       width);
    }

    void finish(std::size_t i) {
        const std::size_t token = item_.query_token + item_.first + i;
        const QueryState state = states_[i];
        T* out = static_cast<T*>(call_.out) + (token * call_.heads + item_.head) * call_.dim;
        const float* sums = sums_ + i * sum_stride_;
        const bool empty = state.total == 0.0F;  // the sums may be uninitialised
        const auto by = V::broadcast(empty ? 0.0F : call_.dropout.keep / state.total);
        for (std::size_t d = 0; d < call_.dim; d += V::kLanes)
            store_up_to<V>(out + d, empty ? V::zero() : V::mul(V::load(sums + d), by), call_.dim - d);
        if (!call_.lse) return;
        const float base = state.largest > kMinusInfinity ? state.largest : 0.0F;
        const std::size_t tokens = static_cast<std::size_t>(call_.cu_seqlens_q[call_.sequences]);
        // Backward recomputes the probabilities from it, so it is rounded only once.
        const double logarithm = base * 0.693147180559945309 + static_cast<double>(std::log(state.total));
        call_.lse[item_.head * tokens + token] = empty ? kMinusInfinity : static_cast<float>(logarithm);
    }

    const AttentionCall& call_;
    const PositionColumns& columns_;
    const AttentionItem& item_;
    std::byte* scratch_;  // null to compute only the size
    std::size_t used_ = 0;
    std::size_t sum_stride_;
    Weight* queries_;
    Weight* keys_;
    Weight* values_;
    float* scores_;
    Weight* weights_;
    float* sums_;
    QueryState* states_;
    T *turned_queries_ = nullptr, *turned_keys_ = nullptr;
    float *by_position_ = nullptr, *key_positions_ = nullptr;  // products with relative positions
    bool started_[kTiles];  // whether a tile's sums are initialised
};

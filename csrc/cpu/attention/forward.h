// One work item of attention, generic over the matmuls. Included inside a target region and an anonymous namespace,
// after a vector type and vector_math.h.
//
// Products provides the matmuls: it packs a block of keys and values once and loads each tile of queries. Weight is the
// element type of probabilities, kTile the rows per tile, kBlock the keys per block; kScoreStride and kWeightStride are
// the row strides of scores and probabilities.

inline constexpr float kLog2E = 1.44269504F;
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
alignas(64) inline constexpr float kLaneIndex[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

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
    static std::size_t scratch_bytes(std::size_t dim) {
        return P::query_bytes(dim) + P::key_bytes(dim) + P::value_bytes(dim) + kScoreBytes + kWeightBytes +
               kAttentionChunk * (round_up(dim, 16) * sizeof(float) + sizeof(QueryState));
    }

    static void run(const AttentionCall& call, const AttentionItem& item, std::byte* scratch) {
        AttentionForward(call, item, scratch).run_item();
    }

  private:
    static constexpr std::size_t kScoreBytes = P::kTile * P::kScoreStride * sizeof(float);
    // fp32 weights overwrite the scores in place.
    static constexpr bool kInPlace = std::is_same_v<Weight, float>;
    static constexpr std::size_t kWeightBytes = kInPlace ? 0 : P::kTile * P::kWeightStride * sizeof(Weight);
    static constexpr std::size_t kKeepBytes = KeepBits::row_bytes(P::kBlock);
    static_assert(P::kTile % KeepBits::kRowQueries == 0 && P::kBlock % KeepBits::kKeys == 0);

    AttentionForward(const AttentionCall& call, const AttentionItem& item, std::byte* scratch)
        : call_(call), item_(item), sum_stride_(round_up(call.dim, 16)) {
        const auto take = [&](std::size_t bytes) {
            std::byte* begin = scratch;
            scratch += bytes;
            return begin;
        };
        queries_ = reinterpret_cast<Weight*>(take(P::query_bytes(call.dim)));
        keys_ = reinterpret_cast<Weight*>(take(P::key_bytes(call.dim)));
        values_ = reinterpret_cast<Weight*>(take(P::value_bytes(call.dim)));
        scores_ = reinterpret_cast<float*>(take(kScoreBytes));
        weights_ = kInPlace ? reinterpret_cast<Weight*>(scores_) : reinterpret_cast<Weight*>(take(kWeightBytes));
        sums_ = reinterpret_cast<float*>(take(kAttentionChunk * sum_stride_ * sizeof(float)));
        states_ = reinterpret_cast<QueryState*>(scratch);
    }

    // Address of the item's head at `token`.
    const T* head(const HeadRows& rows, std::size_t token) const {
        return static_cast<const T*>(rows.data) + token * rows.token_stride + item_.head * rows.head_stride;
    }

    // The number of keys visible to query `row` of the sequence.
    std::size_t visible_keys(std::size_t row) const {
        if (!call_.causal) return item_.keys;
        const std::size_t end = row + 1 + item_.keys;
        return end > item_.queries ? std::min(end - item_.queries, item_.keys) : 0;
    }

    void run_item() {
        const std::size_t count = item_.last - item_.first;
        for (std::size_t i = 0; i < count; ++i) states_[i] = {kMinusInfinity, 0.0F};
        const std::size_t visible = visible_keys(item_.last - 1);
        for (std::size_t key = 0; key < visible; key += P::kBlock) {
            const std::size_t keys = std::min(P::kBlock, item_.keys - key);
            P::pack_keys(head(call_.k, item_.key_token + key), call_.k.token_stride, keys, call_.dim, keys_);
            P::pack_values(head(call_.v, item_.key_token + key), call_.v.token_stride, keys, call_.dim, values_);
            for (std::size_t row = item_.first; row < item_.last; row += P::kTile)
                tile(row, std::min(P::kTile, item_.last - row), key, keys);
        }
        for (std::size_t i = 0; i < count; ++i) finish(i);
    }

    // Multiply queries row.. of the sequence by keys key.. of it.
    void tile(std::size_t row, std::size_t rows, std::size_t key, std::size_t keys) {
        const std::size_t end = visible_keys(row + rows - 1);
        if (end <= key) return;
        const std::size_t visible = std::min(end - key, keys);
        P::load_queries(head(call_.q, item_.query_token + row), call_.q.token_stride, rows, call_.dim, queries_);
        P::scores(queries_, keys_, rows, visible, keys, call_.dim, scores_);
        const std::size_t local = row - item_.first;
        float* sums = sums_ + local * sum_stride_;
        std::uint8_t keep_bits[KeepBits::kRowQueries][kKeepBytes];
        for (std::size_t i = 0; i < rows; ++i) {
            const std::size_t row_visible = visible_keys(row + i);
            const std::size_t block_visible = row_visible > key ? std::min(row_visible - key, visible) : 0;
            float* scores = scores_ + i * P::kScoreStride;
            if (call_.dropout.keys && i % KeepBits::kRowQueries == 0)
                attention_row_bits(call_.dropout.of(item_.sequence, item_.head), row + i, key, visible, keep_bits[0],
                                   kKeepBytes);
            const std::uint8_t* row_bits = call_.dropout.keys ? keep_bits[i % KeepBits::kRowQueries] : nullptr;
            const float top = prepare(scores, row + i, key, block_visible);
            const float shrink = exponentiate<P>(scores, row_bits, weights_ + i * P::kWeightStride, block_visible,
                                                 round_up(visible, P::kWeightStep), top, states_[local + i]);
            if (key == 0 || shrink == 1.0F) continue;
            const auto by = V::broadcast(shrink);
            for (float* x = sums + i * sum_stride_, *last = x + sum_stride_; x < last; x += V::kLanes)
                V::store(x, V::mul(V::load(x), by));
        }
        P::accumulate(weights_, values_, rows, visible, keys, call_.dim, sums, sum_stride_, key > 0);
    }

    // Scale a row of products to base-2 scores and return the largest visible one.
    float prepare(float* scores, std::size_t row, std::size_t key, std::size_t visible) const {
        const float factor = call_.scale * kLog2E;
        if (!call_.bias || row >= call_.bias_rows || key >= call_.bias_columns)
            return scale_scores<V>(scores, visible, factor);
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
        for (std::size_t d = 0; d < call_.dim; d += V::kLanes) {
            const auto x = empty ? V::zero() : V::mul(V::load(sums + d), by);
            if (d + V::kLanes <= call_.dim) {
                V::store(out + d, x);
            } else {
                V::store_part(out + d, x, call_.dim - d);
            }
        }
        if (!call_.lse) return;
        const float base = state.largest > kMinusInfinity ? state.largest : 0.0F;
        const std::size_t tokens = static_cast<std::size_t>(call_.cu_seqlens_q[call_.sequences]);
        // Backward recomputes the probabilities from it, so it is rounded only once.
        const double logarithm = base * 0.693147180559945309 + static_cast<double>(std::log(state.total));
        call_.lse[item_.head * tokens + token] = empty ? kMinusInfinity : static_cast<float>(logarithm);
    }

    const AttentionCall& call_;
    const AttentionItem& item_;
    std::size_t sum_stride_;
    Weight* queries_;
    Weight* keys_;
    Weight* values_;
    float* scores_;
    Weight* weights_;
    float* sums_;
    QueryState* states_;
};

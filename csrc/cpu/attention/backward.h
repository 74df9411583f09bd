// Backward of one sequence and head, generic over the matmuls. Included after forward.h. One file: one pass over a
// block's tiles shares its state.
//
// With E = 2^(scores - lse) and the dropout mask M, each query has two sums over its keys, t = sum(E) and
// D = sum(E * M * (dO V^T)) / t, and with P = E / t:
//   dV = (P * M)^T dO,   dS = P * (M * (dO V^T) - D),   dQ = scale dS K,   dK = scale dS^T Q.
// D equals rowsum(dO * O), but O was rounded to the call's dtype. Summed from the same terms as dS, it cancels exactly:
// a query that attends to a single key has dS = 0. t differs from 1 by the rounding of lse, which grows with the
// scores.
//
// A block of queries therefore passes over its keys twice, first for the sums and then for the gradients. E and M * (dO
// V^T) are kept in between for sequences of up to kKeptKeys keys and recomputed for longer ones.
//
// Tiles are transposed: one row for each of 32 keys and one column per query of a block, so that dV and dK are plain
// matmuls and per-query values (lse, t and D) lie along vectors. Tiles are computed one group of columns at a time,
// which stays in L1 between the two matmuls and the exponentials.
//
// Products packs a block of queries in two layouts, as the columns of K Q^T and as the rows of dS^T Q, and the upstream
// gradient likewise. dQ is accumulated per span of kSpan keys.
//
// Relative positions (positions.h): with A the products of queries and B those of keys with their tables, dA and dB sum
// dS by column, each in fp32, and
//   dQ += scale dA Kp,   dKp = scale dA^T Q,   dK += scale dB Qp,   dQp = scale dB^T K.

inline constexpr std::size_t kKeyTile = kGradientTile, kGroup = kGradientTile;
inline constexpr std::size_t kGroupStride = 32;
inline constexpr std::size_t kSlot = kKeyTile * kGroupStride;
inline constexpr std::size_t kKeepStride = kGradientBlock / 8;
static_assert(kGradientBlock % kGroup == 0);
static_assert(kGroup % KeepBits::kColumnQueries == 0 && KeepBits::kKeys % kKeyTile == 0);

// 2^x of a score minus lse: at most about one, larger only if the rounding of a large lse shows.
template <class V>
FASTBERT_INLINE typename V::Float exponential_of(typename V::Float x) {
    using F = typename V::Float;
    const F lowest = V::broadcast(-126.0F);
    // This operand order propagates NaN.
    const F clamped = V::max(lowest, V::min(V::broadcast(64.0F), x));
    const F whole = V::round(clamped);
    const F f = V::sub(clamped, whole);
    // As in vector_math.h, the degree-5 minimax polynomial of 2^f on [-0.5, 0.5].
    F r = V::broadcast(1.3276483e-3F);
    r = V::fma(r, f, V::broadcast(9.6755454e-3F));
    r = V::fma(r, f, V::broadcast(5.5507133e-2F));
    r = V::fma(r, f, V::broadcast(2.4022120e-1F));
    r = V::fma(r, f, V::broadcast(6.9314697e-1F));
    r = V::fma(r, f, V::broadcast(1.00000007F));
    return V::where_less(x, lowest, V::zero(), V::scale(r, whole));
}

// Zero the lanes of x before `count`.
template <class V>
FASTBERT_INLINE typename V::Float lanes_from(typename V::Float x, std::size_t count) {
    return V::where_less(V::load(kLaneIndex), V::broadcast(static_cast<float>(count)), V::zero(), x);
}

// Write a row of sums, multiplied by `factor`.
template <class V, class T>
FASTBERT_INLINE void write_row(const float* sums, std::size_t dim, float factor, T* out) {
    const auto by = V::broadcast(factor);
    for (std::size_t d = 0; d < dim; d += V::kLanes) {
        const auto x = V::mul(V::load(sums + d), by);
        if (d + V::kLanes <= dim) {
            V::store(out + d, x);
        } else {
            V::store_part(out + d, x, dim - d);
        }
    }
}

template <class P>
class AttentionBackward {
    using V = typename P::Vector;
    using T = typename P::Element;
    using Weight = typename P::Weight;

  public:
    static std::size_t scratch_bytes(const AttentionCall& call, std::size_t keys, std::size_t slots) {
        return AttentionBackward(call, keys, nullptr).used_ + slots * 2 * kSlot * sizeof(float);
    }

    static void run(const AttentionBackwardCall& call, const AttentionItem& item, std::byte* scratch) {
        const std::size_t keys = accumulates_keys(call.forward, item) ? item.keys : 0;
        AttentionBackward run(call.forward, keys, scratch);
        run.call_ = &call;
        run.item_ = &item;
        run.key_head_ = item.head / call.forward.group;
        run.run_item();
    }

  private:
    using Fp32 = typename P::Fp32;
    static constexpr std::size_t kRowStride = Fp32::kScoreStride;  // of rows in fp32
    static_assert(kTableStride == kRowStride);

    AttentionBackward(const AttentionCall& call, std::size_t keys, std::byte* scratch)
        : columns_(call.columns), scratch_(scratch), dim_(call.dim), sum_stride_(round_up(call.dim, 16)) {
        const std::size_t dim = call.dim;
        query_columns_ = take<Weight>(P::key_bytes(dim));
        grad_columns_ = take<Weight>(P::key_bytes(dim));
        query_rows_ = take<Weight>(P::value_bytes(dim));
        grad_rows_ = take<Weight>(P::value_bytes(dim));
        key_tile_ = take<Weight>(kKeyTile * P::kQueryStride * sizeof(Weight));
        value_tile_ = take<Weight>(kKeyTile * P::kQueryStride * sizeof(Weight));
        keep_bits_ = take<std::uint8_t>(KeepBits::kKeys * kKeepStride);
        biases_ = take<float>(kKeyTile * kGroup * sizeof(float));
        weights_ = take<Weight>(kKeyTile * P::kWeightStride * sizeof(Weight));
        score_gradients_ = take<Weight>(kKeyTile * P::kWeightStride * sizeof(Weight));
        shifts_ = take<float>(kGradientBlock * sizeof(float));
        totals_ = take<float>(kGradientBlock * sizeof(float));
        deltas_ = take<float>(kGradientBlock * sizeof(float));
        span_ = take<std::byte>(P::span_bytes(dim));
        query_sums_ = take<float>(P::query_sum_bytes(dim));
        const std::size_t rows = std::max(kKeyTile, round_up(keys, kKeyTile));
        key_sums_ = take<float>(rows * sum_stride_ * sizeof(float));
        value_sums_ = take<float>(rows * sum_stride_ * sizeof(float));
        if (call.rotary.angles) turned_ = take<T>(kGradientBlock * sum_stride_ * sizeof(T));
        column_stride_ = column_stride(columns_);
        const std::size_t row_bytes = column_stride_ * sizeof(float);
        if (columns_.keys) {
            by_position_ = take<float>((kGradientBlock + P::kTile) * row_bytes);
            query_columns_sum_ = take<float>(kGradientBlock * row_bytes);
            query_floats_ = take<float>(kGradientBlock * kRowStride * sizeof(float));
            query_extra_ = take<float>(kGradientBlock * sum_stride_ * sizeof(float));
        }
        if (columns_.queries) {
            key_positions_ = take<float>(2 * kKeyTile * row_bytes);
            key_columns_sum_ = take<float>(kKeyTile * row_bytes);
            key_floats_ = take<float>(kKeyTile * kRowStride * sizeof(float));
        }
        if (columns_.count) window_ = take<float>(kGradientBlock * kRowStride * sizeof(float));
        slots_ = take<float>(0);  // last, since their number is a parameter
    }

    template <class Type>
    Type* take(std::size_t bytes) {
        const std::size_t begin = used_;
        used_ += round_up(bytes, 64);
        return scratch_ ? reinterpret_cast<Type*>(scratch_ + begin) : nullptr;
    }

    const T* head(const HeadRows& rows, std::size_t token) const {
        return static_cast<const T*>(rows.data) + token * rows.token_stride + item_->head * rows.head_stride;
    }
    // Keys and values may have fewer heads than queries.
    const T* key_head(const HeadRows& rows, std::size_t token) const {
        return static_cast<const T*>(rows.data) + token * rows.token_stride + key_head_ * rows.head_stride;
    }
    T* head(const HeadGradients& rows, std::size_t token) const {
        return static_cast<T*>(rows.data) + token * rows.token_stride + item_->head * rows.head_stride;
    }

    // Rows of queries or keys, with their stride.
    struct Rows {
        const T* data;
        std::size_t stride;
    };

    // Rows index.. of the sequence that begins at `token`, turned by their positions.
    Rows turn(const T* rows, std::size_t stride, std::size_t token, std::size_t index, std::size_t count) const {
        const RotaryTable& rotary = call_->forward.rotary;
        if (!rotary.angles) return {rows, stride};
        for (std::size_t i = 0; i < count; ++i)
            rotate_row<false, V>(rows + i * stride, angles_of(rotary, token + index + i, index + i), rotary.width, dim_,
                                 turned_ + i * sum_stride_);
        return {turned_, sum_stride_};
    }
    Rows keys_from(std::size_t key, std::size_t count) const {
        const HeadRows& k = call_->forward.k;
        return turn(key_head(k, item_->key_token + key), k.token_stride, item_->key_token, key, count);
    }

    // Turn the gradients of rows index.. back.
    void turn_back(T* rows, std::size_t stride, std::size_t token, std::size_t index, std::size_t count) const {
        const RotaryTable& rotary = call_->forward.rotary;
        for (std::size_t i = 0; rotary.angles && i < count; ++i)
            rotate_row<true, V>(rows + i * stride, angles_of(rotary, token + index + i, index + i), rotary.width, dim_,
                                rows + i * stride);
    }

    // E of a tile's keys and a group's queries, followed by M * (dO V^T).
    float* slot(std::size_t tile, std::size_t query) const {
        return slots_ + (tile * groups_ + query / kGroup) * 2 * kSlot;
    }

    // The key at the position of a query.
    std::ptrdiff_t position(std::size_t query) const {
        return static_cast<std::ptrdiff_t>(query + item_->keys) - static_cast<std::ptrdiff_t>(item_->queries);
    }

    struct Range {
        std::size_t begin, end;
    };

    // The `count` queries from `first` on that attend to a key, relative to `first`.
    Range visible_queries(std::size_t key, std::size_t first, std::size_t count) const {
        const AttentionCall& call = call_->forward;
        Range visible{0, count};
        const std::size_t query = key + item_->queries;
        if (call.causal && query > first + item_->keys) visible.begin = query - first - item_->keys;
        if (call.window == kNoWindow) return visible;
        const auto window = static_cast<std::ptrdiff_t>(call.window), most = static_cast<std::ptrdiff_t>(count);
        const std::ptrdiff_t middle = static_cast<std::ptrdiff_t>(key) - position(first);
        const auto begin = static_cast<std::size_t>(std::max<std::ptrdiff_t>(middle - window, 0));
        const auto end = static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(middle + window + 1, 0, most));
        return {std::max(visible.begin, begin), end};
    }

    // The queries that attend to any of a tile's keys, in whole groups; none if it ends where it begins.
    Range tile_queries(std::size_t key, std::size_t keys, std::size_t first, std::size_t count) const {
        const std::size_t begin = visible_queries(key, first, count).begin / kGroup * kGroup;
        const std::size_t end = round_up(visible_queries(key + keys - 1, first, count).end, kGroup);
        return begin < std::min(end, count) ? Range{begin, std::min(end, count)} : Range{0, 0};
    }

    // The keys that the block's queries attend to, from the beginning of a unit of dropout bits on and in whole tiles,
    // whose rows behind the last key are sums of stale data.
    Range block_keys(std::size_t first, std::size_t count) const {
        const AttentionCall& call = call_->forward;
        if (call.window == kNoWindow) return {0, item_->keys};
        const auto keys = static_cast<std::ptrdiff_t>(item_->keys), window = static_cast<std::ptrdiff_t>(call.window);
        const std::ptrdiff_t begin = std::clamp<std::ptrdiff_t>(position(first) - window, 0, keys);
        const std::ptrdiff_t end = std::clamp<std::ptrdiff_t>(position(first + count - 1) + window + 1, begin, keys);
        return {static_cast<std::size_t>(begin) / KeepBits::kKeys * KeepBits::kKeys,
                std::min(round_up(static_cast<std::size_t>(end), kKeyTile), item_->keys)};
    }

    // Zero the lanes of x, those of queries c.., which do not attend to a key.
    static FASTBERT_INLINE typename V::Float visible_lanes(typename V::Float x, std::size_t c, const Range& visible) {
        if (c < visible.begin) x = lanes_from<V>(x, visible.begin - c);
        if (c + V::kLanes > visible.end) x = first_lanes<V>(x, visible.end > c ? visible.end - c : 0, 0.0F);
        return x;
    }

    // The rows of a head are strided too far for the hardware prefetcher.
    template <class Heads>
    void prefetch(const Heads& rows, std::size_t token, std::size_t count) const {
        if (count) prefetch_rows(head(rows, token), rows.token_stride, count);  // else the memory may not exist
    }
    void prefetch_keys(const HeadRows& rows, std::size_t token, std::size_t count) const {
        if (count) prefetch_rows(key_head(rows, token), rows.token_stride, count);
    }
    void prefetch_rows(const T* rows, std::size_t stride, std::size_t count) const {
        const auto* row = reinterpret_cast<const std::byte*>(rows);
        for (std::size_t i = 0; i < count; ++i, row += stride * sizeof(T))
            for (std::size_t byte = 0; byte < dim_ * sizeof(T); byte += 64) __builtin_prefetch(row + byte);
    }

    void run_item() {
        const std::size_t queries = item_->queries, keys = item_->keys;
        // Sums over queries accumulate from block to block if there is more than one block.
        const bool accumulates = accumulates_keys(call_->forward, *item_);
        if (accumulates || queries == 0) {
            std::fill_n(key_sums_, (accumulates ? keys : std::min(keys, kKeyTile)) * sum_stride_, 0.0F);
            std::fill_n(value_sums_, (accumulates ? keys : std::min(keys, kKeyTile)) * sum_stride_, 0.0F);
        }
        for (std::size_t first = 0; first < queries; first += kGradientBlock)
            block(first, std::min(kGradientBlock, queries - first), accumulates);
        for (std::size_t key = 0; key < keys && (accumulates || queries == 0); key += kKeyTile)
            finish_keys(key, std::min(kKeyTile, keys - key), accumulates ? key : 0);
    }

    void block(std::size_t first, std::size_t count, bool accumulates) {
        const AttentionCall& call = call_->forward;
        const std::size_t token = item_->query_token + first;
        const T* grad = head(call_->grad, token);
        const Range keys = block_keys(first, count);
        prefetch(call_->grad, token, std::min<std::size_t>(count, 64));
        prefetch_keys(call.k, item_->key_token + keys.begin, std::min<std::size_t>(keys.end - keys.begin, kKeyTile));
        prefetch_keys(call.v, item_->key_token + keys.begin, std::min<std::size_t>(keys.end - keys.begin, kKeyTile));
        const Rows queries = turn(head(call.q, token), call.q.token_stride, item_->query_token, first, count);
        P::pack_keys(queries.data, queries.stride, count, dim_, query_columns_);
        P::pack_keys(grad, call_->grad.token_stride, count, dim_, grad_columns_);
        P::pack_values(queries.data, queries.stride, count, dim_, query_rows_);
        P::pack_values(grad, call_->grad.token_stride, count, dim_, grad_rows_);
        if (columns_.keys) load_positions(queries, first, count, keys);
        load_shifts(token, count);
        groups_ = (count + kGroup - 1) / kGroup;
        first_key_ = keys.begin;
        const bool stored = keys.end - keys.begin <= kKeptKeys;
        const auto tile_keys = [&](std::size_t key) { return std::min(kKeyTile, keys.end - key); };
        const auto begins_behind = [&](std::size_t key) { return visible_queries(key, first, count).begin >= count; };
        for (std::size_t key = keys.begin; key < keys.end && !begins_behind(key); key += kKeyTile)
            compute_exponentials<true>(first, count, key, tile_keys(key), stored ? (key - first_key_) / kKeyTile : 0);
        finish_sums(count);
        prefetch(call_->dq, token, std::min<std::size_t>(count, 64));
        P::clear_queries(query_sums_, count, dim_);
        for (std::size_t begin = keys.begin; begin < keys.end; begin += P::kSpan) {
            const std::size_t span = std::min(P::kSpan, keys.end - begin);
            const std::size_t start = visible_queries(begin, first, count).begin / kGroup * kGroup;
            if (start >= count) break;
            if (P::kSpan > kKeyTile) {
                const Rows rows = keys_from(begin, span);
                P::load_span(rows.data, rows.stride, span, dim_, span_);
            }
            std::size_t done = 0, end = 0;
            for (; done < span && !begins_behind(begin + done); done += kKeyTile) {
                const std::size_t here = std::min(kKeyTile, span - done);
                const Range visible = tile_queries(begin + done, here, first, count);
                tile(first, count, begin + done, here, accumulates, stored, visible);
                P::store_score_gradients(score_gradients_, here, done, start, visible.begin, visible.end, count, dim_,
                                         span_);
                end = std::max(end, visible.end);
            }
            if (start < end)
                P::accumulate_over_keys(score_gradients_, key_tile_, span_, std::min(done, span), start, end, dim_,
                                        query_sums_);
        }
        if (columns_.keys) finish_positions(count);
        T* dq = head(call_->dq, token);
        P::finish_queries(query_sums_, count, dim_, call.scale, dq, call_->dq.token_stride);
        turn_back(dq, call_->dq.token_stride, item_->query_token, first, count);
    }

    // A of the block's queries, and the queries as rows of floats; dA is cleared.
    void load_positions(const Rows& queries, std::size_t first, std::size_t count, const Range& keys) {
        const auto* table = reinterpret_cast<const Weight*>(columns_.keys + item_->head * columns_.packed_bytes);
        const std::ptrdiff_t low_key = static_cast<std::ptrdiff_t>(keys.begin) + columns_.length - 1;
        const std::ptrdiff_t high_key = static_cast<std::ptrdiff_t>(keys.end) - 1 + columns_.length - 1;
        for (std::size_t row = 0; row < count; row += kKeyTile) {
            const std::size_t rows = std::min(kKeyTile, count - row);
            const ColumnRange range = columns_between(columns_, columns_.of_keys, low_key - position(first + row + rows - 1),
                                                      high_key - position(first + row));
            P::load_tile(queries.data + row * queries.stride, queries.stride, rows, dim_, key_tile_);
            P::scores(key_tile_, table, rows, range.first, range.count, columns_.count, dim_,
                      by_position_ + row * column_stride_ + range.first, column_stride_);
        }
        query_range_ = columns_between(columns_, columns_.of_keys, low_key - position(first + count - 1),
                                       high_key - position(first));
        clear_columns(query_columns_sum_, count, query_range_);
        load_floats(queries, count, query_floats_);
        std::fill_n(query_extra_, count * sum_stride_, 0.0F);
    }

    void load_floats(const Rows& rows, std::size_t count, float* to) const {
        for (std::size_t i = 0; i < count; ++i)
            for (std::size_t d = 0; d < dim_; d += V::kLanes)
                V::store(to + i * kRowStride + d, load_up_to<V>(rows.data + i * rows.stride + d, dim_ - d));
    }

    // Also the lanes of a vector behind the last column.
    void clear_columns(float* sums, std::size_t rows, const ColumnRange& range) const {
        for (std::size_t i = 0; i < rows; ++i)
            std::fill_n(sums + i * column_stride_ + range.first, round_up(range.count, 32) + 16, 0.0F);
    }

    // rows += sums by column times the table's rows, and the columns' gradients += sums by column, transposed, times
    // `floats`, for `count` rows of sums.
    void multiply_columns(const float* sums, std::size_t count, const ColumnRange& range, const float* table,
                          const float* floats, float* rows, float* gradients) {
        const std::size_t end = std::min(round_up(range.first + range.count, 32), round_up(columns_.count, 32));
        for (std::size_t first = range.first; first < end; first += kGradientBlock) {
            const std::size_t width = std::min(kGradientBlock, end - first);
            for (std::size_t i = 0; i < count; ++i)
                std::copy_n(sums + i * column_stride_ + first, width, window_ + i * kRowStride);
            const float* table_rows = table + first * kTableStride;
            float* columns = gradients ? gradients + first * sum_stride_ : nullptr;
            for (std::size_t n = 0; n < dim_; n += Fp32::kPanel) {
                const bool wide = dim_ - n > V::kLanes;
                const auto multiply = [&]<std::size_t N>() {
                    Fp32::template multiply_panel<N, kRowStride, 1, kTableStride>(window_, table_rows + n, count, width,
                                                                                  rows + n, sum_stride_, true);
                    if (columns)
                        Fp32::template multiply_panel<N, 1, kRowStride, kRowStride>(window_, floats + n, width, count,
                                                                                    columns + n, sum_stride_, true);
                };
                wide ? multiply.template operator()<2>() : multiply.template operator()<1>();
            }
        }
    }

    float* column_gradients(float* gradients) const {
        return gradients ? gradients + item_->head * (round_up(columns_.count, 32) * sum_stride_) : nullptr;
    }

    // What the block's dA adds to dQ and to the gradients of the table of keys.
    void finish_positions(std::size_t count) {
        multiply_columns(query_columns_sum_, count, query_range_,
                         columns_.key_rows + item_->head * columns_.head_floats, query_floats_, query_extra_,
                         column_gradients(call_->key_columns));
        P::add_queries(query_sums_, query_extra_, sum_stride_, count, dim_);
    }

    // -lse of each query, base 2. Padding queries attend to nothing.
    void load_shifts(std::size_t token, std::size_t count) {
        const AttentionCall& call = call_->forward;
        const std::size_t tokens = static_cast<std::size_t>(call.cu_seqlens_q[call.sequences]);
        const float* lse = call.lse + item_->head * tokens + token;
        for (std::size_t i = 0; i < count; ++i) {
            // A query without visible keys has lse = -infinity and zero probabilities.
            const bool empty = lse[i] == kMinusInfinity;
            shifts_[i] =
                empty ? kMinusInfinity : static_cast<float>(-1.44269504088896341 * static_cast<double>(lse[i]));
        }
        std::fill(shifts_ + count, shifts_ + round_up(count, kGroup), kMinusInfinity);
        std::fill_n(totals_, round_up(count, kGroup), 0.0F);
        std::fill_n(deltas_, round_up(count, kGroup), 0.0F);
    }

    // Turn the sums over keys into 1 / t and D; zero for queries without visible keys and for padding.
    void finish_sums(std::size_t count) {
        for (std::size_t i = 0; i < round_up(count, kGroup); ++i) {
            const bool empty = i >= count || totals_[i] == 0.0F;
            deltas_[i] = empty ? 0.0F : deltas_[i] / totals_[i];
            totals_[i] = empty ? 0.0F : 1.0F / totals_[i];
        }
    }

    // Compute E and M * (dO V^T) of keys key.. and the block's queries into the slots of `tile_index`, and their sums
    // if SUMS.
    template <bool SUMS>
    void compute_exponentials(std::size_t first, std::size_t count, std::size_t key, std::size_t keys,
                              std::size_t tile_index) {
        const AttentionCall& call = call_->forward;
        load_keys(key, keys);
        P::load_tile(key_head(call.v, item_->key_token + key), call.v.token_stride, keys, dim_, value_tile_);
        const std::size_t next = std::min(kKeyTile, item_->keys - key - keys);
        prefetch_keys(call.k, item_->key_token + key + keys, next);
        prefetch_keys(call.v, item_->key_token + key + keys, next);
        const Range visible = tile_queries(key, keys, first, count);
        if (call.dropout.keys && key % KeepBits::kKeys == 0) {
            // The bits of the next tile's queries too, which begin here or later.
            const std::size_t both = std::min(2 * kKeyTile, item_->keys - key);
            const Range queries = tile_queries(key, both, first, count);
            attention_column_bits(call.dropout.of(item_->sequence, item_->head), first + queries.begin,
                                  queries.end - queries.begin, key, keep_bits_ + queries.begin / 8, kKeepStride);
        }
        if (columns_.queries) multiply_key_positions(key, keys, first, visible);
        for (std::size_t query = visible.begin; query < visible.end; query += kGroup) {
            float *exponentials = slot(tile_index, query), *products = exponentials + kSlot;
            P::group(key_tile_, query_columns_, query, count, keys, dim_, exponentials);
            P::group(value_tile_, grad_columns_, query, count, keys, dim_, products);
            const std::size_t queries = std::min(kGroup, count - query);
            const bool dense = has_bias(first + query, key);
            if (dense) {
                if (call.bias_dtype == Dtype::fp32) load_biases<float>(first + query, queries, key, keys);
                if (call.bias_dtype == Dtype::bf16) load_biases<BFloat16>(first + query, queries, key, keys);
            }
            const bool biased = dense || columns_.count || call.distance_bias.values;
            if (biased && !dense) std::fill_n(biases_, kKeyTile * kGroup, 0.0F);
            if (columns_.count || call.distance_bias.values) add_position_scores(first, query, queries, key, keys);
            if (call.dropout.keys) {
                biased ? exponentiate<SUMS, true, true>(first, query, queries, key, keys, exponentials, products)
                       : exponentiate<SUMS, true, false>(first, query, queries, key, keys, exponentials, products);
            } else {
                biased ? exponentiate<SUMS, false, true>(first, query, queries, key, keys, exponentials, products)
                       : exponentiate<SUMS, false, false>(first, query, queries, key, keys, exponentials, products);
            }
        }
    }

    // A tile's keys as the left operand, and as rows of floats where their gradients need them.
    void load_keys(std::size_t key, std::size_t keys) {
        const Rows rows = keys_from(key, keys);
        P::load_tile(rows.data, rows.stride, keys, dim_, key_tile_);
        if (columns_.queries) load_floats(rows, keys, key_floats_);
    }

    // B of a tile's keys, for its queries.
    void multiply_key_positions(std::size_t key, std::size_t keys, std::size_t first, const Range& queries) {
        if (queries.begin == queries.end) return;
        const auto* table = reinterpret_cast<const Weight*>(columns_.queries + item_->head * columns_.packed_bytes);
        const std::ptrdiff_t last_key = static_cast<std::ptrdiff_t>(key + keys) - 1;
        const ColumnRange range = key_range(key, last_key, first, queries);
        P::scores(key_tile_, table, keys, range.first, range.count, columns_.count, dim_, key_positions_ + range.first,
                  column_stride_);
    }

    ColumnRange key_range(std::size_t key, std::ptrdiff_t last_key, std::size_t first, const Range& queries) const {
        return columns_between(columns_, columns_.of_queries, position(first + queries.begin) - last_key + columns_.length - 1,
                               position(first + queries.end - 1) - static_cast<std::ptrdiff_t>(key) + columns_.length - 1);
    }

    // The distance query - key as an index, of the first of a group's queries and a tile's key.
    std::ptrdiff_t distance(std::size_t query, std::size_t key, std::size_t length) const {
        return position(query) - static_cast<std::ptrdiff_t>(key) + static_cast<std::ptrdiff_t>(length) - 1;
    }

    // Add the bias by distance and the products with relative positions to the group's biases, base 2.
    void add_position_scores(std::size_t first, std::size_t query, std::size_t queries, std::size_t key,
                             std::size_t keys) {
        const AttentionCall& call = call_->forward;
        const auto unit = V::broadcast(kLog2E), factor = V::broadcast(call.scale * kLog2E);
        const DistanceBias& bias = call.distance_bias;
        for (std::size_t r = 0; r < keys; ++r) {
            for (std::size_t c = 0; c < queries; c += V::kLanes) {
                float* at = biases_ + r * kGroup + c;
                auto x = V::load(at);
                if (bias.values) {
                    const float* values = call_->reversed_bias + item_->head * bias.columns() +
                                          distance(first + query + c, key + r, bias.length);
                    x = V::fma(load_up_to<V>(values, queries - c), unit, x);
                }
                if (columns_.queries)
                    x = V::fma(load_columns<V>(key_positions_ + r * column_stride_, columns_.of_queries,
                                               columns_.runs_of_queries,
                                               position(first + query + c) - static_cast<std::ptrdiff_t>(key + r) +
                                                   columns_.length - 1),
                               factor, x);
                V::store(at, x);
            }
        }
        for (std::size_t r = 0; columns_.keys && r < keys; r += V::kLanes) {
            for (std::size_t c = 0; c < queries; c += V::kLanes) {
                typename V::Float rows[V::kLanes];
                std::ptrdiff_t at = static_cast<std::ptrdiff_t>(key + r) - position(first + query + c) + columns_.length - 1;
                for (std::size_t i = 0; i < V::kLanes; ++i, --at)
                    rows[i] = c + i < queries ? load_columns<V>(by_position_ + (query + c + i) * column_stride_,
                                                                columns_.of_keys, columns_.runs_of_keys, at)
                                              : V::zero();
                P::transpose(rows);
                for (std::size_t i = 0; i < V::kLanes; ++i) {
                    float* to = biases_ + (r + i) * kGroup + c;
                    V::store(to, V::fma(rows[i], factor, V::load(to)));
                }
            }
        }
    }

    // Add a group's dS to the gradient of the bias by distance, to dA and to dB.
    void add_position_gradients(std::size_t first, std::size_t query, std::size_t queries, std::size_t key,
                                std::size_t keys, const float* score_gradients) {
        const DistanceBias& bias = call_->forward.distance_bias;
        for (std::size_t r = 0; r < keys; ++r) {
            for (std::size_t c = 0; c < queries; c += V::kLanes) {
                const auto x = first_lanes<V>(V::load(score_gradients + r * kGroupStride + c), queries - c, 0.0F);
                if (call_->ddistance_bias) {
                    float* to = call_->reversed_gradient + item_->head * bias.columns() +
                                distance(first + query + c, key + r, bias.length);
                    store_up_to<V>(to, V::add(load_up_to<V>(to, queries - c), x), queries - c);
                }
                if (columns_.queries)
                    add_columns<V>(key_columns_sum_ + r * column_stride_, columns_.of_queries, columns_.runs_of_queries,
                                   position(first + query + c) - static_cast<std::ptrdiff_t>(key + r) +
                                       columns_.length - 1,
                                   x);
            }
        }
        for (std::size_t r = 0; columns_.keys && r < keys; r += V::kLanes) {
            for (std::size_t c = 0; c < queries; c += V::kLanes) {
                typename V::Float rows[V::kLanes];
                for (std::size_t i = 0; i < V::kLanes; ++i)
                    rows[i] = r + i < keys ? V::load(score_gradients + (r + i) * kGroupStride + c) : V::zero();
                P::transpose(rows);
                std::ptrdiff_t at = static_cast<std::ptrdiff_t>(key + r) - position(first + query + c) + columns_.length - 1;
                for (std::size_t i = 0; i < std::min(V::kLanes, queries - c); ++i, --at)
                    add_columns<V>(query_columns_sum_ + (query + c + i) * column_stride_, columns_.of_keys,
                                   columns_.runs_of_keys, at, rows[i]);
            }
        }
    }

    bool has_bias(std::size_t query, std::size_t key) const {
        const AttentionCall& call = call_->forward;
        return call.bias && key < call.bias_columns && query < call.bias_rows;
    }

    // Turn a group's scores into E, negated where dropout drops them, and mask its products.
    template <bool SUMS, bool DROPS, bool BIASED>
    void exponentiate(std::size_t first, std::size_t query, std::size_t queries, std::size_t key, std::size_t keys,
                      float* exponentials, float* products) {
        const auto factor = V::broadcast(call_->forward.scale * kLog2E);
        const auto keep = V::broadcast(call_->forward.dropout.keep);
        const std::uint8_t* keep_bits = keep_bits_ + key % KeepBits::kKeys * kKeepStride + query / 8;
        const float* biases = biases_;
        const bool masks = call_->forward.causal || call_->forward.window != kNoWindow;
        for (std::size_t c = 0; c < queries; c += V::kLanes) {
            const auto shift = V::load(shifts_ + query + c);
            auto total = V::zero(), dot = V::zero();
            for (std::size_t r = 0; r < keys; ++r) {
                const std::size_t at = r * kGroupStride + c;
                auto x = V::fma(V::load(exponentials + at), factor, shift);
                if constexpr (BIASED) x = V::add(x, V::load(biases + r * kGroup + c));
                auto weight = exponential_of<V>(x);
                auto product = V::load(products + at);
                const std::uint8_t* bits = keep_bits + r * kKeepStride + c / 8;
                if constexpr (DROPS) product = V::where_bits(bits, V::mul(product, keep), V::zero());
                if (masks) {
                    const Range visible = visible_queries(key + r, first + query, kGroup);
                    weight = visible_lanes(weight, c, visible);
                    product = visible_lanes(product, c, visible);
                }
                if constexpr (SUMS) {
                    total = V::add(total, weight);
                    dot = V::fma(weight, product, dot);
                }
                if constexpr (DROPS) {
                    weight = V::where_bits(bits, weight, V::sub(V::zero(), weight));
                    V::store(products + at, product);
                }
                V::store(exponentials + at, weight);
            }
            if constexpr (SUMS) {
                V::store(totals_ + query + c, V::add(V::load(totals_ + query + c), total));
                V::store(deltas_ + query + c, V::add(V::load(deltas_ + query + c), dot));
            }
        }
    }

    // Compute the block's contribution to the gradients of keys key.. of the sequence.
    void tile(std::size_t first, std::size_t count, std::size_t key, std::size_t keys, bool accumulates, bool stored,
              const Range& visible) {
        const AttentionCall& call = call_->forward;
        const std::size_t tile_index = stored ? (key - first_key_) / kKeyTile : 0;
        if (stored) {
            load_keys(key, keys);
        } else {
            compute_exponentials<false>(first, count, key, keys, tile_index);
        }
        if (!accumulates) {
            prefetch(call_->dk, item_->key_token + key, keys);
            prefetch(call_->dv, item_->key_token + key, keys);
        }
        const ColumnRange range = columns_.queries && visible.begin < visible.end
                                      ? key_range(key, static_cast<std::ptrdiff_t>(key + keys) - 1, first, visible)
                                      : ColumnRange{0, 0};
        if (columns_.queries) clear_columns(key_columns_sum_, keys, range);
        const bool adds_positions = columns_.count || call_->ddistance_bias;
        for (std::size_t query = visible.begin; query < visible.end; query += kGroup) {
            const std::size_t queries = std::min(kGroup, count - query);
            float* exponentials = slot(tile_index, query);
            const bool adds_dense = call_->dbias && has_bias(first + query, key), adds = adds_dense || adds_positions;
            if (call.dropout.keys) {
                adds ? score_gradient<true, true>(first, query, queries, key, keys, exponentials)
                     : score_gradient<true, false>(first, query, queries, key, keys, exponentials);
            } else {
                adds ? score_gradient<false, true>(first, query, queries, key, keys, exponentials)
                     : score_gradient<false, false>(first, query, queries, key, keys, exponentials);
            }
            if (adds_dense) add_biases(first + query, queries, key, keys, exponentials);
            if (adds_positions) add_position_gradients(first, query, queries, key, keys, exponentials);
        }
        const std::size_t row = accumulates ? key : 0;
        P::accumulate_over_queries(weights_, grad_rows_, keys, visible.begin, visible.end, count, dim_,
                                   value_sums_ + row * sum_stride_, sum_stride_, accumulates);
        P::accumulate_over_queries(score_gradients_, query_rows_, keys, visible.begin, visible.end, count, dim_,
                                   key_sums_ + row * sum_stride_, sum_stride_, accumulates);
        if (columns_.queries)
            multiply_columns(key_columns_sum_, keys, range, columns_.query_rows + item_->head * columns_.head_floats,
                             key_floats_, key_sums_ + row * sum_stride_, column_gradients(call_->query_columns));
        if (!accumulates) finish_keys(key, keys, 0);
    }

    // Compute a group's P * M and dS; dS is also stored to the slot in fp32 if the bias needs it (KEEPS).
    template <bool DROPS, bool KEEPS>
    void score_gradient(std::size_t first, std::size_t query, std::size_t queries, std::size_t key, std::size_t keys,
                        float* exponentials) {
        const float* products = exponentials + kSlot;
        Weight *weights = weights_ + query, *score_gradients = score_gradients_ + query;
        const std::size_t width = round_up(queries, P::kWeightStep);
        const bool masks = call_->forward.causal || call_->forward.window != kNoWindow;
        for (std::size_t c = 0; c < width; c += V::kLanes) {
            const auto share = V::load(totals_ + query + c), delta = V::load(deltas_ + query + c);
            const auto kept_share = V::mul(share, V::broadcast(call_->forward.dropout.keep));
            for (std::size_t r = 0; r < keys; ++r) {
                const std::size_t at = r * kGroupStride + c;
                const auto x = V::load(exponentials + at);
                // This operand order propagates NaN.
                auto weight = DROPS ? V::mul(V::max(V::zero(), x), kept_share) : V::mul(x, share);
                auto score_gradient =
                    V::mul(DROPS ? V::mul(V::abs(x), share) : weight, V::sub(V::load(products + at), delta));
                if (masks) {
                    const Range visible = visible_queries(key + r, first + query, kGroup);
                    weight = visible_lanes(weight, c, visible);
                    score_gradient = visible_lanes(score_gradient, c, visible);
                }
                if (c + V::kLanes > queries) {
                    const std::size_t left = c < queries ? queries - c : 0;
                    weight = first_lanes<V>(weight, left, 0.0F);
                    score_gradient = first_lanes<V>(score_gradient, left, 0.0F);
                }
                P::store_weights(weights + r * P::kWeightStride + c, weight);
                P::store_weights(score_gradients + r * P::kWeightStride + c, score_gradient);
                if constexpr (KEEPS) V::store(exponentials + at, score_gradient);
            }
        }
    }

    // The transposed bias of a group, base 2; zero outside its bounds.
    template <class B>
    void load_biases(std::size_t query, std::size_t queries, std::size_t key, std::size_t keys) {
        const AttentionCall& call = call_->forward;
        const B* bias = static_cast<const B*>(call.bias) + item_->head * call.bias_head_stride + key;
        const std::size_t columns = std::min(keys, call.bias_columns - key);
        const auto unit = V::broadcast(kLog2E);
        for (std::size_t q = 0; q < queries; q += V::kLanes) {
            for (std::size_t c = 0; c < keys; c += V::kLanes) {
                typename V::Float rows[V::kLanes];
                for (std::size_t i = 0; i < V::kLanes; ++i) {
                    const std::size_t row = query + q + i;
                    if (q + i >= queries || row >= call.bias_rows || c >= columns) {
                        rows[i] = V::zero();
                        continue;
                    }
                    const B* from = bias + row * call.bias_row_stride + c;
                    const std::size_t left = columns - c;
                    rows[i] = V::mul(left < V::kLanes ? V::load_part(from, left) : V::load(from), unit);
                }
                P::transpose(rows);
                for (std::size_t i = 0; i < V::kLanes; ++i) V::store(biases_ + (c + i) * kGroup + q, rows[i]);
            }
        }
    }

    void add_biases(std::size_t query, std::size_t queries, std::size_t key, std::size_t keys,
                    const float* score_gradients) {
        const AttentionCall& call = call_->forward;
        const std::size_t columns = std::min(keys, call.bias_columns - key);
        const std::size_t end = std::min(queries, call.bias_rows - query);
        float* sums = call_->dbias + (item_->head * call.bias_rows + query) * call.bias_columns + key;
        for (std::size_t q = 0; q < end; q += V::kLanes) {
            for (std::size_t c = 0; c < columns; c += V::kLanes) {
                typename V::Float rows[V::kLanes];
                for (std::size_t i = 0; i < V::kLanes; ++i)
                    rows[i] = V::load(score_gradients + (c + i) * kGroupStride + q);
                P::transpose(rows);
                const std::size_t left = std::min(columns - c, V::kLanes);
                for (std::size_t i = 0; i < std::min(V::kLanes, end - q); ++i) {
                    float* to = sums + (q + i) * call.bias_columns + c;
                    V::store_part(to, V::add(V::load_part(to, left), rows[i]), left);
                }
            }
        }
    }

    void finish_keys(std::size_t key, std::size_t keys, std::size_t row) {
        T* dk = head(call_->dk, item_->key_token + key);
        T* dv = head(call_->dv, item_->key_token + key);
        for (std::size_t i = 0; i < keys; ++i) {
            const std::size_t offset = item_->queries ? (row + i) * sum_stride_ : 0;
            write_row<V>(key_sums_ + offset, dim_, call_->forward.scale, dk + i * call_->dk.token_stride);
            write_row<V>(value_sums_ + offset, dim_, 1.0F, dv + i * call_->dv.token_stride);
        }
        turn_back(dk, call_->dk.token_stride, item_->key_token, key, keys);
    }

    const AttentionBackwardCall* call_ = nullptr;
    const AttentionItem* item_ = nullptr;
    const PositionColumns& columns_;
    std::byte* scratch_;  // null to compute only the size
    std::size_t used_ = 0;
    std::size_t dim_, sum_stride_;
    Weight *query_columns_, *grad_columns_, *query_rows_, *grad_rows_, *key_tile_, *value_tile_;
    std::uint8_t* keep_bits_;  // of 64 keys and the block's queries
    float* biases_;
    Weight *weights_, *score_gradients_;
    float *shifts_, *totals_, *deltas_;  // per query: -lse, t and D
    std::byte* span_;
    float *query_sums_, *key_sums_, *value_sums_, *slots_;
    std::size_t groups_ = 0;     // groups of the block's queries
    std::size_t first_key_ = 0;  // of the block's tiles
    std::size_t key_head_ = 0, column_stride_ = 0;
    T* turned_ = nullptr;  // rows turned by their positions
    // A and B, dA and dB, rows in fp32, what dA adds to dQ, and a range of columns.
    float *by_position_ = nullptr, *key_positions_ = nullptr, *query_columns_sum_ = nullptr, *key_columns_sum_ = nullptr;
    float *query_floats_ = nullptr, *key_floats_ = nullptr, *query_extra_ = nullptr, *window_ = nullptr;
    ColumnRange query_range_{0, 0};
};

template <class P, class G>
constexpr AttentionKernel make_kernel(void (*enter)() = nullptr, void (*leave)() = nullptr) {
    return {&AttentionForward<P>::scratch_bytes,
            &AttentionForward<P>::run,
            &AttentionBackward<G>::scratch_bytes,
            &AttentionBackward<G>::run,
            &position_table_bytes<P>,
            &pack_position_table<P>,
            &load_position_table<P>,
            enter,
            leave};
}

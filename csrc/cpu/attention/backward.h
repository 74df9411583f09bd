// Backward of one sequence and head, generic over the matmuls. Included after forward.h. Longer than 400 lines: one
// pass over a block's tiles shares its state.
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
    static std::size_t scratch_bytes(std::size_t dim, std::size_t keys, std::size_t slots) {
        return AttentionBackward(dim, keys, nullptr).used_ + slots * 2 * kSlot * sizeof(float);
    }

    static void run(const AttentionBackwardCall& call, const AttentionItem& item, std::byte* scratch) {
        const std::size_t keys = item.queries > kGradientBlock ? item.keys : 0;
        AttentionBackward run(call.forward.dim, keys, scratch);
        run.call_ = &call;
        run.item_ = &item;
        run.run_item();
    }

  private:
    AttentionBackward(std::size_t dim, std::size_t keys, std::byte* scratch)
        : scratch_(scratch), dim_(dim), sum_stride_(round_up(dim, 16)) {
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
    T* head(const HeadGradients& rows, std::size_t token) const {
        return static_cast<T*>(rows.data) + token * rows.token_stride + item_->head * rows.head_stride;
    }

    // E of a tile's keys and a group's queries, followed by M * (dO V^T).
    float* slot(std::size_t tile, std::size_t query) const {
        return slots_ + (tile * groups_ + query / kGroup) * 2 * kSlot;
    }

    // The first query from `first` on that attends to a key, relative to `first`.
    std::size_t first_visible_query(std::size_t key, std::size_t first) const {
        if (!call_->forward.causal) return 0;
        const std::size_t query = key + item_->queries;
        return query > first + item_->keys ? query - first - item_->keys : 0;
    }

    // The rows of a head are strided too far for the hardware prefetcher.
    template <class Rows>
    void prefetch(const Rows& rows, std::size_t token, std::size_t count) const {
        if (count == 0) return;  // the memory may not exist
        const auto* row = reinterpret_cast<const std::byte*>(head(rows, token));
        for (std::size_t i = 0; i < count; ++i, row += rows.token_stride * sizeof(T))
            for (std::size_t byte = 0; byte < dim_ * sizeof(T); byte += 64) __builtin_prefetch(row + byte);
    }

    void run_item() {
        const std::size_t queries = item_->queries, keys = item_->keys;
        // Sums over queries accumulate from block to block if there is more than one block.
        const bool accumulates = queries > kGradientBlock;
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
        const T* queries = head(call.q, token);
        const T* grad = head(call_->grad, token);
        prefetch(call_->grad, token, std::min<std::size_t>(count, 64));
        prefetch(call.k, item_->key_token, std::min<std::size_t>(item_->keys, kKeyTile));
        prefetch(call.v, item_->key_token, std::min<std::size_t>(item_->keys, kKeyTile));
        P::pack_keys(queries, call.q.token_stride, count, dim_, query_columns_);
        P::pack_keys(grad, call_->grad.token_stride, count, dim_, grad_columns_);
        P::pack_values(queries, call.q.token_stride, count, dim_, query_rows_);
        P::pack_values(grad, call_->grad.token_stride, count, dim_, grad_rows_);
        load_shifts(token, count);
        groups_ = (count + kGroup - 1) / kGroup;
        const bool stored = item_->keys <= kKeptKeys;
        for (std::size_t key = 0; key < item_->keys && first_visible_query(key, first) < count; key += kKeyTile)
            compute_exponentials<true>(first, count, key, std::min(kKeyTile, item_->keys - key),
                                       stored ? key / kKeyTile : 0);
        finish_sums(count);
        prefetch(call_->dq, token, std::min<std::size_t>(count, 64));
        P::clear_queries(query_sums_, count, dim_);
        for (std::size_t begin = 0; begin < item_->keys; begin += P::kSpan) {
            const std::size_t keys = std::min(P::kSpan, item_->keys - begin);
            const std::size_t start = first_visible_query(begin, first) / kGroup * kGroup;
            if (start >= count) break;
            P::load_span(head(call.k, item_->key_token + begin), call.k.token_stride, keys, dim_, span_);
            std::size_t done = 0;
            for (; done < keys && first_visible_query(begin + done, first) < count; done += kKeyTile) {
                const std::size_t here = std::min(kKeyTile, keys - done);
                tile(first, count, begin + done, here, accumulates, stored);
                P::store_score_gradients(score_gradients_, here, done, start,
                                         first_visible_query(begin + done, first) / kGroup * kGroup, count, dim_,
                                         span_);
            }
            P::accumulate_over_keys(score_gradients_, key_tile_, span_, std::min(done, keys), start, count, dim_,
                                    query_sums_);
        }
        P::finish_queries(query_sums_, count, dim_, call.scale, head(call_->dq, token), call_->dq.token_stride);
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
        P::load_tile(head(call.k, item_->key_token + key), call.k.token_stride, keys, dim_, key_tile_);
        P::load_tile(head(call.v, item_->key_token + key), call.v.token_stride, keys, dim_, value_tile_);
        const std::size_t next = std::min(kKeyTile, item_->keys - key - keys);
        prefetch(call.k, item_->key_token + key + keys, next);
        prefetch(call.v, item_->key_token + key + keys, next);
        const std::size_t begin = first_visible_query(key, first) / kGroup * kGroup;
        // Tiles are computed in the order of their keys, and a later one's queries are among those of an earlier one.
        if (call.dropout.keys && key % KeepBits::kKeys == 0)
            attention_column_bits(call.dropout.of(item_->sequence, item_->head), first + begin, count - begin, key,
                                  keep_bits_ + begin / 8, kKeepStride);
        for (std::size_t query = begin; query < count; query += kGroup) {
            float *exponentials = slot(tile_index, query), *products = exponentials + kSlot;
            P::group(key_tile_, query_columns_, query, count, keys, dim_, exponentials);
            P::group(value_tile_, grad_columns_, query, count, keys, dim_, products);
            const std::size_t queries = std::min(kGroup, count - query);
            const bool biased = has_bias(first + query, key);
            if (biased) {
                if (call.bias_dtype == Dtype::fp32) load_biases<float>(first + query, queries, key, keys);
                if (call.bias_dtype == Dtype::bf16) load_biases<BFloat16>(first + query, queries, key, keys);
            }
            if (call.dropout.keys) {
                biased ? exponentiate<SUMS, true, true>(first, query, queries, key, keys, exponentials, products)
                       : exponentiate<SUMS, true, false>(first, query, queries, key, keys, exponentials, products);
            } else {
                biased ? exponentiate<SUMS, false, true>(first, query, queries, key, keys, exponentials, products)
                       : exponentiate<SUMS, false, false>(first, query, queries, key, keys, exponentials, products);
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
                const std::size_t first_visible = first_visible_query(key + r, first + query);
                if (c < first_visible) {
                    weight = lanes_from<V>(weight, first_visible - c);
                    product = lanes_from<V>(product, first_visible - c);
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
    void tile(std::size_t first, std::size_t count, std::size_t key, std::size_t keys, bool accumulates, bool stored) {
        const AttentionCall& call = call_->forward;
        const std::size_t tile_index = stored ? key / kKeyTile : 0;
        if (stored) {
            P::load_tile(head(call.k, item_->key_token + key), call.k.token_stride, keys, dim_, key_tile_);
        } else {
            compute_exponentials<false>(first, count, key, keys, tile_index);
        }
        if (!accumulates) {
            prefetch(call_->dk, item_->key_token + key, keys);
            prefetch(call_->dv, item_->key_token + key, keys);
        }
        const std::size_t begin = first_visible_query(key, first) / kGroup * kGroup;
        for (std::size_t query = begin; query < count; query += kGroup) {
            const std::size_t queries = std::min(kGroup, count - query);
            float* exponentials = slot(tile_index, query);
            const bool adds = call_->dbias && has_bias(first + query, key);
            if (call.dropout.keys) {
                adds ? score_gradient<true, true>(first, query, queries, key, keys, exponentials)
                     : score_gradient<true, false>(first, query, queries, key, keys, exponentials);
            } else {
                adds ? score_gradient<false, true>(first, query, queries, key, keys, exponentials)
                     : score_gradient<false, false>(first, query, queries, key, keys, exponentials);
            }
            if (adds) add_biases(first + query, queries, key, keys, exponentials);
        }
        const std::size_t row = accumulates ? key : 0;
        P::accumulate_over_queries(weights_, grad_rows_, keys, begin, count, count, dim_,
                                   value_sums_ + row * sum_stride_, sum_stride_, accumulates);
        P::accumulate_over_queries(score_gradients_, query_rows_, keys, begin, count, count, dim_,
                                   key_sums_ + row * sum_stride_, sum_stride_, accumulates);
        if (!accumulates) finish_keys(key, keys, 0);
    }

    // Compute a group's P * M and dS; dS is also stored to the slot in fp32 if the bias needs it (KEEPS).
    template <bool DROPS, bool KEEPS>
    void score_gradient(std::size_t first, std::size_t query, std::size_t queries, std::size_t key, std::size_t keys,
                        float* exponentials) {
        const float* products = exponentials + kSlot;
        Weight *weights = weights_ + query, *score_gradients = score_gradients_ + query;
        const std::size_t width = round_up(queries, P::kWeightStep);
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
                const std::size_t first_visible = first_visible_query(key + r, first + query);
                if (c < first_visible) {
                    weight = lanes_from<V>(weight, first_visible - c);
                    score_gradient = lanes_from<V>(score_gradient, first_visible - c);
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
    }

    const AttentionBackwardCall* call_ = nullptr;
    const AttentionItem* item_ = nullptr;
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
    std::size_t groups_ = 0;  // groups of the block's queries
};

template <class P, class G>
constexpr AttentionKernel make_kernel(void (*enter)() = nullptr, void (*leave)() = nullptr) {
    return {&AttentionForward<P>::scratch_bytes,
            &AttentionForward<P>::run,
            &AttentionBackward<G>::scratch_bytes,
            &AttentionBackward<G>::run,
            enter,
            leave};
}

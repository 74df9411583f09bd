// Backward of one sequence and head, for any way to multiply. Included like attention_tile.h, behind it.
//
// With P = 2^(scores - lse) and D = rowsum(dO * O), masks of dropout M:
//   dV = (P * M)^T dO,   dS = P * (M * (dO V^T) - D),   dQ = scale dS K,   dK = scale dS^T Q.
// Everything stands on its side: a tile has a row for each of 32 keys and a column for each query of a block, so that
// dV and dK are whole products, and what belongs to a query (lse and D) lies along vectors. Tiles are computed a group
// of columns at a time, which stays in the first cache between the two products and the exponentials.
//
// Products lays out a block of queries once, twice over: as the columns of K Q^T, and as the rows of dS^T Q, and the
// same of the upstream gradient. Slopes are dS; a span of kSpan keys is what meets the queries at a time for dQ.

inline constexpr std::size_t kKeyTile = 32, kGroup = 32;
inline constexpr std::size_t kGroupStride = 48;  // an odd number of cache lines
static_assert(kGradientBlock % kGroup == 0);

// 2^x of what is a probability: one at most, however lse was rounded.
template <class V>
FASTBERT_INLINE typename V::Float probability_of(typename V::Float x) {
    using F = typename V::Float;
    const F lowest = V::broadcast(-126.0F);
    // In this order of operands a NaN stays one.
    const F clamped = V::max(lowest, V::min(V::zero(), x));
    const F whole = V::round(clamped);
    const F f = V::sub(clamped, whole);
    // As in vector_math.h, the polynomial of degree 5 that is nearest to 2^f from -0.5 to 0.5.
    F r = V::broadcast(1.3276483e-3F);
    r = V::fma(r, f, V::broadcast(9.6755454e-3F));
    r = V::fma(r, f, V::broadcast(5.5507133e-2F));
    r = V::fma(r, f, V::broadcast(2.4022120e-1F));
    r = V::fma(r, f, V::broadcast(6.9314697e-1F));
    r = V::fma(r, f, V::broadcast(1.00000007F));
    return V::where_less(x, lowest, V::zero(), V::scale(r, whole));
}

// The lanes of x from `count` on, zeros before them.
template <class V>
FASTBERT_INLINE typename V::Float lanes_from(typename V::Float x, std::size_t count) {
    return V::where_less(V::load(kLaneIndex), V::broadcast(static_cast<float>(count)), V::zero(), x);
}

// A row of sums times `factor` to where it belongs.
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
class AttentionGradientRun {
    using V = typename P::Vector;
    using T = typename P::Element;
    using Weight = typename P::Weight;

  public:
    static std::size_t scratch_bytes(std::size_t dim, std::size_t keys) {
        return AttentionGradientRun(dim, keys, nullptr).used_;
    }

    static void run(const AttentionGradientCall& call, const AttentionItem& item, std::byte* scratch) {
        const std::size_t keys = item.queries > kGradientBlock ? item.keys : 0;
        AttentionGradientRun run(call.of.dim, keys, scratch);
        run.call_ = &call;
        run.item_ = &item;
        run.all();
    }

  private:
    AttentionGradientRun(std::size_t dim, std::size_t keys, std::byte* scratch)
        : scratch_(scratch), dim_(dim), sum_stride_(round_up(dim, 16)) {
        query_columns_ = take<Weight>(P::key_bytes(dim));
        grad_columns_ = take<Weight>(P::key_bytes(dim));
        query_rows_ = take<Weight>(P::value_bytes(dim));
        grad_rows_ = take<Weight>(P::value_bytes(dim));
        key_tile_ = take<Weight>(kKeyTile * P::kQueryStride * sizeof(Weight));
        value_tile_ = take<Weight>(kKeyTile * P::kQueryStride * sizeof(Weight));
        scores_ = take<float>(kKeyTile * kGroupStride * sizeof(float));
        products_ = take<float>(kKeyTile * kGroupStride * sizeof(float));
        factors_ = take<float>(kKeyTile * kGroup * sizeof(float));
        biases_ = take<float>(kKeyTile * kGroup * sizeof(float));
        weights_ = take<Weight>(kKeyTile * P::kWeightStride * sizeof(Weight));
        slopes_ = take<Weight>(kKeyTile * P::kWeightStride * sizeof(Weight));
        shifts_ = take<float>(kGradientBlock * sizeof(float));
        deltas_ = take<float>(kGradientBlock * sizeof(float));
        span_ = take<std::byte>(P::span_bytes(dim));
        query_sums_ = take<float>(P::query_sum_bytes(dim));
        const std::size_t rows = std::max(kKeyTile, round_up(keys, kKeyTile));
        key_sums_ = take<float>(rows * sum_stride_ * sizeof(float));
        value_sums_ = take<float>(rows * sum_stride_ * sizeof(float));
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

    // The first of the queries from `first` on that sees a key, counted from there.
    std::size_t first_seeing(std::size_t key, std::size_t first) const {
        if (!call_->of.causal) return 0;
        const std::size_t query = key + item_->queries;
        return query > first + item_->keys ? query - first - item_->keys : 0;
    }

    // A head's rows lie far apart, where the processor does not foresee them.
    template <class Rows>
    void ask_for(const Rows& rows, std::size_t token, std::size_t count) const {
        if (count == 0) return;  // nor need there be memory
        const auto* row = reinterpret_cast<const std::byte*>(head(rows, token));
        for (std::size_t i = 0; i < count; ++i, row += rows.token_stride * sizeof(T))
            for (std::size_t byte = 0; byte < dim_ * sizeof(T); byte += 64) __builtin_prefetch(row + byte);
    }

    void all() {
        const std::size_t queries = item_->queries, keys = item_->keys;
        // The sums over queries are kept from block to block where there are more than one.
        const bool kept = queries > kGradientBlock;
        if (kept || queries == 0) {
            std::fill_n(key_sums_, (kept ? keys : std::min(keys, kKeyTile)) * sum_stride_, 0.0F);
            std::fill_n(value_sums_, (kept ? keys : std::min(keys, kKeyTile)) * sum_stride_, 0.0F);
        }
        for (std::size_t first = 0; first < queries; first += kGradientBlock)
            block(first, std::min(kGradientBlock, queries - first), kept);
        for (std::size_t key = 0; key < keys && (kept || queries == 0); key += kKeyTile)
            finish_keys(key, std::min(kKeyTile, keys - key), kept ? key : 0);
    }

    void block(std::size_t first, std::size_t count, bool kept) {
        const AttentionCall& call = call_->of;
        const std::size_t token = item_->query_token + first;
        const T* queries = head(call.q, token);
        const T* grad = head(call_->grad, token);
        const HeadRows out{call.out, call.heads * dim_, dim_};
        ask_for(call_->grad, token, std::min<std::size_t>(count, 64));
        ask_for(out, token, std::min<std::size_t>(count, 64));
        ask_for(call.k, item_->key_token, std::min<std::size_t>(item_->keys, kKeyTile));
        ask_for(call.v, item_->key_token, std::min<std::size_t>(item_->keys, kKeyTile));
        P::pack_keys(queries, call.q.token_stride, count, dim_, query_columns_);
        P::pack_keys(grad, call_->grad.token_stride, count, dim_, grad_columns_);
        P::pack_values(queries, call.q.token_stride, count, dim_, query_rows_);
        P::pack_values(grad, call_->grad.token_stride, count, dim_, grad_rows_);
        load_sums(token, grad, count);
        ask_for(call_->dq, token, std::min<std::size_t>(count, 64));
        P::clear_queries(query_sums_, count, dim_);
        for (std::size_t begin = 0; begin < item_->keys; begin += P::kSpan) {
            const std::size_t keys = std::min(P::kSpan, item_->keys - begin);
            const std::size_t start = first_seeing(begin, first) / kGroup * kGroup;
            if (start >= count) break;
            P::load_span(head(call.k, item_->key_token + begin), call.k.token_stride, keys, dim_, span_);
            std::size_t done = 0;
            for (; done < keys && first_seeing(begin + done, first) < count; done += kKeyTile) {
                const std::size_t here = std::min(kKeyTile, keys - done);
                tile(first, count, begin + done, here, kept);
                P::keep_slopes(slopes_, here, done, start, first_seeing(begin + done, first) / kGroup * kGroup, count,
                               dim_, span_);
            }
            P::over_keys(slopes_, key_tile_, span_, std::min(done, keys), start, count, dim_, query_sums_);
        }
        P::finish_queries(query_sums_, count, dim_, call.scale, head(call_->dq, token), call_->dq.token_stride);
    }

    // Of each query, what stands in for its softmax: -lse in powers of two, and D. Those behind the last see nothing.
    void load_sums(std::size_t token, const T* grad, std::size_t count) {
        const AttentionCall& call = call_->of;
        const std::size_t tokens = static_cast<std::size_t>(call.cu_seqlens_q[call.sequences]);
        const float* lse = call.lse + item_->head * tokens + token;
        const T* out = static_cast<const T*>(call.out) + (token * call.heads + item_->head) * dim_;
        for (std::size_t i = 0; i < count; ++i) {
            // A query that sees nothing has an lse of -infinity, and probabilities of zero.
            const bool empty = lse[i] == kNothing;
            shifts_[i] = empty ? kNothing : static_cast<float>(-1.44269504088896341 * static_cast<double>(lse[i]));
            deltas_[i] = dot(out, grad);
            out += call.heads * dim_;
            grad += call_->grad.token_stride;
        }
        for (std::size_t i = count; i < round_up(count, kGroup); ++i) {
            shifts_[i] = kNothing;
            deltas_[i] = 0.0F;
        }
    }

    float dot(const T* a, const T* b) const {
        auto sum = V::zero();
        std::size_t d = 0;
        for (; d + V::kLanes <= dim_; d += V::kLanes) sum = V::fma(V::load(a + d), V::load(b + d), sum);
        if (d < dim_) sum = V::fma(V::load_part(a + d, dim_ - d), V::load_part(b + d, dim_ - d), sum);
        return V::sum(sum);
    }

    // Keys key.. of the sequence meet the block's queries.
    void tile(std::size_t first, std::size_t count, std::size_t key, std::size_t keys, bool kept) {
        const AttentionCall& call = call_->of;
        P::load_tile(head(call.k, item_->key_token + key), call.k.token_stride, keys, dim_, key_tile_);
        P::load_tile(head(call.v, item_->key_token + key), call.v.token_stride, keys, dim_, value_tile_);
        const std::size_t next = std::min(kKeyTile, item_->keys - key - keys);
        ask_for(call.k, item_->key_token + key + keys, next);
        ask_for(call.v, item_->key_token + key + keys, next);
        if (!kept) {
            ask_for(call_->dk, item_->key_token + key, keys);
            ask_for(call_->dv, item_->key_token + key, keys);
        }
        const std::size_t begin = first_seeing(key, first) / kGroup * kGroup;
        const bool biased = call.bias && key < call.bias_columns;
        for (std::size_t query = begin; query < count; query += kGroup) {
            P::group(key_tile_, query_columns_, query, count, keys, dim_, scores_);
            P::group(value_tile_, grad_columns_, query, count, keys, dim_, products_);
            const std::size_t queries = std::min(kGroup, count - query);
            if (call.dropout.keys) {
                const HeadDropout dropout(call, *item_);
                for (std::size_t i = 0; i < queries; i += 16)
                    dropout.of_columns<typename P::Words>(first + query + i, key, factors_ + i, kGroup);
            }
            const bool here = biased && first + query < call.bias_rows;
            if (here) {
                if (call.bias_dtype == Dtype::fp32) load_biases<float>(first + query, queries, key, keys);
                if (call.bias_dtype == Dtype::bf16) load_biases<BFloat16>(first + query, queries, key, keys);
            }
            weigh(first, query, queries, key, keys, here);
            if (here && call_->dbias) add_biases(first + query, queries, key, keys);
        }
        const std::size_t row = kept ? key : 0;
        P::over_queries(weights_, grad_rows_, keys, begin, count, count, dim_, value_sums_ + row * sum_stride_,
                        sum_stride_, kept);
        P::over_queries(slopes_, query_rows_, keys, begin, count, count, dim_, key_sums_ + row * sum_stride_,
                        sum_stride_, kept);
        if (!kept) finish_keys(key, keys, 0);
    }

    void weigh(std::size_t first, std::size_t query, std::size_t queries, std::size_t key, std::size_t keys,
               bool biased) {
        if (call_->of.dropout.keys) {
            biased ? weigh_rows<true, true>(first, query, queries, key, keys)
                   : weigh_rows<true, false>(first, query, queries, key, keys);
        } else {
            biased ? weigh_rows<false, true>(first, query, queries, key, keys)
                   : weigh_rows<false, false>(first, query, queries, key, keys);
        }
    }

    // A group's scores and products become probabilities and slopes; these stay behind in fp32 where a bias wants them.
    template <bool DROPS, bool BIASED>
    void weigh_rows(std::size_t first, std::size_t query, std::size_t queries, std::size_t key, std::size_t keys) {
        const auto factor = V::broadcast(call_->of.scale * kLog2E);
        const std::size_t width = round_up(queries, P::kWeightStep);
        for (std::size_t r = 0; r < keys; ++r) {
            float* scores = scores_ + r * kGroupStride;
            const float* products = products_ + r * kGroupStride;
            const std::size_t seeing = first_seeing(key + r, first + query);
            for (std::size_t c = 0; c < width; c += V::kLanes) {
                auto x = V::fma(V::load(scores + c), factor, V::load(shifts_ + query + c));
                if constexpr (BIASED) x = V::add(x, V::load(biases_ + r * kGroup + c));
                auto weight = probability_of<V>(x);
                auto product = V::load(products + c);
                if constexpr (DROPS) product = V::mul(product, V::load(factors_ + r * kGroup + c));
                auto slope = V::mul(weight, V::sub(product, V::load(deltas_ + query + c)));
                if constexpr (DROPS) weight = V::mul(weight, V::load(factors_ + r * kGroup + c));
                if (c < seeing) {
                    weight = lanes_from<V>(weight, seeing - c);
                    slope = lanes_from<V>(slope, seeing - c);
                }
                if (c + V::kLanes > queries) {
                    const std::size_t left = c < queries ? queries - c : 0;
                    weight = first_lanes<V>(weight, left, 0.0F);
                    slope = first_lanes<V>(slope, left, 0.0F);
                }
                P::store_weights(weights_ + r * P::kWeightStride + query + c, weight);
                P::store_weights(slopes_ + r * P::kWeightStride + query + c, slope);
                if constexpr (BIASED) V::store(scores + c, slope);
            }
        }
    }

    // The bias of a group, turned round, in powers of two; zeros outside of it.
    template <class B>
    void load_biases(std::size_t query, std::size_t queries, std::size_t key, std::size_t keys) {
        const AttentionCall& call = call_->of;
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

    void add_biases(std::size_t query, std::size_t queries, std::size_t key, std::size_t keys) {
        const AttentionCall& call = call_->of;
        const std::size_t columns = std::min(keys, call.bias_columns - key);
        const std::size_t end = std::min(queries, call.bias_rows - query);
        float* sums = call_->dbias + (item_->head * call.bias_rows + query) * call.bias_columns + key;
        for (std::size_t q = 0; q < end; q += V::kLanes) {
            for (std::size_t c = 0; c < columns; c += V::kLanes) {
                typename V::Float rows[V::kLanes];
                for (std::size_t i = 0; i < V::kLanes; ++i) rows[i] = V::load(scores_ + (c + i) * kGroupStride + q);
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
            const std::size_t place = item_->queries ? (row + i) * sum_stride_ : 0;
            write_row<V>(key_sums_ + place, dim_, call_->of.scale, dk + i * call_->dk.token_stride);
            write_row<V>(value_sums_ + place, dim_, 1.0F, dv + i * call_->dv.token_stride);
        }
    }

    const AttentionGradientCall* call_ = nullptr;
    const AttentionItem* item_ = nullptr;
    std::byte* scratch_;  // null where only the size is wanted
    std::size_t used_ = 0;
    std::size_t dim_, sum_stride_;
    Weight *query_columns_, *grad_columns_, *query_rows_, *grad_rows_, *key_tile_, *value_tile_;
    float *scores_, *products_, *factors_, *biases_;
    Weight *weights_, *slopes_;
    float *shifts_, *deltas_;
    std::byte* span_;
    float *query_sums_, *key_sums_, *value_sums_;
};

template <class P, class G>
constexpr AttentionKernel kernel_with(void (*enter)() = nullptr, void (*leave)() = nullptr) {
    return {&AttentionRun<P>::scratch_bytes, &AttentionRun<P>::run, &AttentionGradientRun<G>::scratch_bytes,
            &AttentionGradientRun<G>::run, enter, leave};
}

// The kernel of cached attention, generic over the vector type. Included inside a target region, after vector_math.h.

FASTBERT_INLINE float value_of(float x) { return x; }
FASTBERT_INLINE float value_of(BFloat16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

// The inner product of a query and a key.
template <class V, class T>
FASTBERT_INLINE float product_of(const float* q, const T* key, std::size_t dim) {
    constexpr std::size_t n = V::kLanes;
    typename V::Float first = V::zero(), second = V::zero();
    std::size_t i = 0;
    for (; i + 2 * n <= dim; i += 2 * n) {
        first = V::fma(V::load(q + i), V::load(key + i), first);
        second = V::fma(V::load(q + i + n), V::load(key + i + n), second);
    }
    if (i + n <= dim) {
        first = V::fma(V::load(q + i), V::load(key + i), first);
        i += n;
    }
    if (i < dim) second = V::fma(V::load_part(q + i, dim - i), V::load_part(key + i, dim - i), second);
    return V::sum(V::add(first, second));
}

// sums += the sum over kCount values, `stride` elements apart, times their weights.
template <class V, std::size_t kCount, class T>
FASTBERT_INLINE void add_values(const float* weights, const T* values, std::size_t stride, std::size_t dim,
                                float* sums) {
    constexpr std::size_t n = V::kLanes;
    typename V::Float weight[kCount];
#pragma GCC unroll 8
    for (std::size_t key = 0; key < kCount; ++key) weight[key] = V::broadcast(weights[key]);
    std::size_t i = 0;
    for (; i + n <= dim; i += n) {
        typename V::Float sum = V::load(sums + i);
#pragma GCC unroll 8
        for (std::size_t key = 0; key < kCount; ++key) sum = V::fma(weight[key], V::load(values + key * stride + i), sum);
        V::store(sums + i, sum);
    }
    if (i == dim) return;
    typename V::Float sum = V::load_part(sums + i, dim - i);
#pragma GCC unroll 8
    for (std::size_t key = 0; key < kCount; ++key)
        sum = V::fma(weight[key], V::load_part(values + key * stride + i, dim - i), sum);
    V::store_part(sums + i, sum, dim - i);
}

// x *= factor, of `count` floats in padded memory.
template <class V>
FASTBERT_INLINE void scale_floats(float* x, std::size_t count, float factor) {
    for (std::size_t i = 0; i < count; i += V::kLanes) {
        const std::size_t left = count - i;
        const typename V::Float scaled =
            V::mul(left >= V::kLanes ? V::load(x + i) : V::load_part(x + i, left), V::broadcast(factor));
        left >= V::kLanes ? V::store(x + i, scaled) : V::store_part(x + i, scaled, left);
    }
}

// Turn a block's scores, which are to the base 2, into probabilities relative to the running maximum, and rescale what
// was summed before.
template <class V>
FASTBERT_INLINE void normalize_block(float* scores, std::size_t keys, float& highest, float& total, float* sums,
                                     std::size_t dim) {
    constexpr std::size_t n = V::kLanes;
    // Lanes behind the last key never win, and add nothing.
    for (std::size_t key = keys; key < kCachedKeys; ++key) scores[key] = -std::numeric_limits<float>::infinity();
    const std::size_t padded = (keys + n - 1) / n * n;
    typename V::Float top = V::load(scores);
    for (std::size_t i = n; i < padded; i += n) top = V::max(V::load(scores + i), top);
    const float block = V::largest(top), now = block > highest ? block : highest;
    if (now != highest && total != 0.0F) {
        const float factor = std::exp2(highest - now);
        total *= factor;
        scale_floats<V>(sums, dim, factor);
    }
    highest = now;
    // Scores that are all -infinity have weight 0, not NaN: a later block may have others.
    const typename V::Float shift = V::broadcast(now == -std::numeric_limits<float>::infinity() ? 0.0F : now);
    typename V::Float sum = V::zero();
    for (std::size_t i = 0; i < padded; i += n) {
        const typename V::Float p = exp2_of<V>(V::sub(V::load(scores + i), shift));
        V::store(scores + i, p);
        sum = V::add(sum, p);
    }
    total += V::sum(sum);
}

template <class V, class T>
FASTBERT_INLINE void store_rounded(const float* from, std::size_t count, float factor, T* to) {
    for (std::size_t i = 0; i < count; i += V::kLanes) {
        const std::size_t left = count - i;
        if (left >= V::kLanes)
            V::store(to + i, V::mul(V::load(from + i), V::broadcast(factor)));
        else
            V::store_part(to + i, V::mul(V::load_part(from + i, left), V::broadcast(factor)), left);
    }
}

template <class V, class T>
void attend_heads(const CachedAttentionCall& call, std::size_t row, std::size_t first_head, std::size_t last_head,
                  float* scratch) {
    const std::size_t heads = last_head - first_head, dim = call.dim, width = heads * dim;
    const std::size_t stride = call.heads * dim;  // of a slot
    float* q = scratch;
    float* sums = q + width + 16;
    float* scores = sums + width + 16;  // (heads, kCachedKeys)
    float* highest = scores + heads * kCachedKeys;
    float* totals = highest + heads;
    const T* query = static_cast<const T*>(call.q) + row * call.q_stride + first_head * dim;
    const float scale = call.scale * 1.44269504F;  // scores to the base 2
    for (std::size_t i = 0; i < width; ++i) q[i] = value_of(query[i]) * scale;
    std::fill(sums, sums + width, 0.0F);
    std::fill(totals, totals + heads, 0.0F);
    std::fill(highest, highest + heads, -std::numeric_limits<float>::infinity());

    const std::size_t offset = row * call.slots * stride + first_head * dim;
    const T* keys = static_cast<const T*>(call.keys) + offset;
    const T* values = static_cast<const T*>(call.values) + offset;
    for (std::size_t slot = static_cast<std::size_t>(call.starts[row]); slot < call.end; slot += kCachedKeys) {
        const std::size_t count = std::min(kCachedKeys, call.end - slot);
        const T* block = keys + slot * stride;
        for (std::size_t key = 0; key < count; ++key, block += stride)
            for (std::size_t head = 0; head < heads; ++head)
                scores[head * kCachedKeys + key] = product_of<V>(q + head * dim, block + head * dim, dim);
        for (std::size_t head = 0; head < heads; ++head)
            normalize_block<V>(scores + head * kCachedKeys, count, highest[head], totals[head], sums + head * dim, dim);
        block = values + slot * stride;
        std::size_t key = 0;
        for (; key + kCachedStreams <= count; key += kCachedStreams, block += kCachedStreams * stride)
            for (std::size_t head = 0; head < heads; ++head)
                add_values<V, kCachedStreams>(scores + head * kCachedKeys + key, block + head * dim, stride, dim,
                                              sums + head * dim);
        for (; key < count; ++key, block += stride)
            for (std::size_t head = 0; head < heads; ++head)
                add_values<V, 1>(scores + head * kCachedKeys + key, block + head * dim, stride, dim, sums + head * dim);
    }
    T* out = static_cast<T*>(call.out) + row * stride + first_head * dim;
    for (std::size_t head = 0; head < heads; ++head)
        store_rounded<V>(sums + head * dim, dim, 1.0F / totals[head], out + head * dim);
}

template <class V>
CachedAttentionKernel cached_attention_of(Dtype dtype) {
    return dtype == Dtype::fp32 ? &attend_heads<V, float> : &attend_heads<V, BFloat16>;
}

// Loops over rows and the LayerNorm of one row, generic over the vector type. Included inside a target region, after a
// vector type.

// Loads and stores of a loop over a row: full vectors, or the partial one at its end.
template <class V>
struct FullVector {
    using Vector = V;
    using F = typename V::Float;
    template <class T>
    FASTBERT_INLINE F load(const T* p) const {
        return V::load(p);
    }
    template <class T>
    FASTBERT_INLINE void store(T* p, F x) const {
        V::store(p, x);
    }
    FASTBERT_INLINE F keep(F x) const { return x; }
};

template <class V>
struct PartialVector {
    using Vector = V;
    using F = typename V::Float;
    std::size_t count;

    template <class T>
    FASTBERT_INLINE F load(const T* p) const {
        return V::load_part(p, count);
    }
    template <class T>
    FASTBERT_INLINE void store(T* p, F x) const {
        V::store_part(p, x, count);
    }
    // Zeros the lanes past the row's end.
    FASTBERT_INLINE F keep(F x) const {
        float lanes[V::kLanes];
        V::store(lanes, x);
        return V::load_part(lanes, count);
    }
};

template <class V>
constexpr bool kInOneRegister = !requires(typename V::Float x) { x.half; };

// Call body(offset, slot, part) for every vector of a row; slots cycle through 0 to 3 for four independent sums. Loops
// over the portable vector, a pair of registers, have one body and one sum.
template <class V, class Body>
FASTBERT_INLINE void for_each_vector(std::size_t width, const Body& body) {
    constexpr std::size_t n = V::kLanes;
    const FullVector<V> whole;
    std::size_t i = 0;
    for (; kInOneRegister<V> && i + 4 * n <= width; i += 4 * n) {
        body(i, 0, whole);
        body(i + n, 1, whole);
        body(i + 2 * n, 2, whole);
        body(i + 3 * n, 3, whole);
    }
    for (; i + n <= width; i += n) body(i, 0, whole);
    if (i < width) body(i, 0, PartialVector<V>{width - i});
}

// Four independent partial sums.
template <class V>
struct Sums {
    typename V::Float partial[4];

    // User-provided: GCC compiles implicit constructors without the target's instructions.
    FASTBERT_INLINE Sums() { clear(); }
    FASTBERT_INLINE void clear() { partial[0] = partial[1] = partial[2] = partial[3] = V::zero(); }
    FASTBERT_INLINE float total() const {
        return V::sum(V::add(V::add(partial[0], partial[1]), V::add(partial[2], partial[3])));
    }
};

// A pair of vectors, to overlap the dependent steps of two exponentials: one vector's steps fill the reorder buffer
// before the next one's enter it.
template <class V>
struct VectorPair {
    static constexpr std::size_t kLanes = 2 * V::kLanes;
    using One = typename V::Float;
    struct Float {
        One a, b;
    };

    template <class T>
    static FASTBERT_INLINE Float load(const T* p) {
        return {V::load(p), V::load(p + V::kLanes)};
    }
    template <class T>
    static FASTBERT_INLINE void store(T* p, Float x) {
        V::store(p, x.a);
        V::store(p + V::kLanes, x.b);
    }
    static FASTBERT_INLINE Float broadcast(float x) { return {V::broadcast(x), V::broadcast(x)}; }
    static FASTBERT_INLINE Float zero() { return {V::zero(), V::zero()}; }
    static FASTBERT_INLINE Float add(Float x, Float y) { return {V::add(x.a, y.a), V::add(x.b, y.b)}; }
    static FASTBERT_INLINE Float sub(Float x, Float y) { return {V::sub(x.a, y.a), V::sub(x.b, y.b)}; }
    static FASTBERT_INLINE Float mul(Float x, Float y) { return {V::mul(x.a, y.a), V::mul(x.b, y.b)}; }
    static FASTBERT_INLINE Float div(Float x, Float y) { return {V::div(x.a, y.a), V::div(x.b, y.b)}; }
    static FASTBERT_INLINE Float max(Float x, Float y) { return {V::max(x.a, y.a), V::max(x.b, y.b)}; }
    static FASTBERT_INLINE Float min(Float x, Float y) { return {V::min(x.a, y.a), V::min(x.b, y.b)}; }
    static FASTBERT_INLINE Float fma(Float x, Float y, Float z) {
        return {V::fma(x.a, y.a, z.a), V::fma(x.b, y.b, z.b)};
    }
    static FASTBERT_INLINE Float abs(Float x) { return {V::abs(x.a), V::abs(x.b)}; }
    static FASTBERT_INLINE Float round(Float x) { return {V::round(x.a), V::round(x.b)}; }
    static FASTBERT_INLINE Float scale(Float x, Float n) { return {V::scale(x.a, n.a), V::scale(x.b, n.b)}; }
    static FASTBERT_INLINE Float where_less(Float x, Float y, Float yes, Float no) {
        return {V::where_less(x.a, y.a, yes.a, no.a), V::where_less(x.b, y.b, yes.b, no.b)};
    }
};

template <class V>
FASTBERT_INLINE void add_to(Sums<V>& sums, typename V::Float x) {
    sums.partial[0] = V::add(sums.partial[0], x);
}
template <class V>
FASTBERT_INLINE void add_to(Sums<V>& sums, typename VectorPair<V>::Float x) {
    sums.partial[0] = V::add(sums.partial[0], x.a);
    sums.partial[1] = V::add(sums.partial[1], x.b);
}

// Call body(offset, part) for every pair of vectors of a row, then for single ones; `part` names the vector type.
template <class V, class Body>
FASTBERT_INLINE void for_each_vector_pair(std::size_t width, const Body& body) {
    std::size_t i = 0;
    if constexpr (kInOneRegister<V>)
        for (; i + 2 * V::kLanes <= width; i += 2 * V::kLanes) body(i, FullVector<VectorPair<V>>{});
    for (; i + V::kLanes <= width; i += V::kLanes) body(i, FullVector<V>{});
    if (i < width) body(i, PartialVector<V>{width - i});
}

struct Statistics {
    float mean, rstd;
};

// The final step of every norm: y from a row and its sum, multiplied by a dropout mask unless null. The mean is rounded;
// the sum of the deviations corrects it, so that rows far from zero lose no accuracy. RMSNorm is that of mean 0.
template <class V, class In, class Out>
FASTBERT_INLINE Statistics norm_row(const In* row, float sum, std::size_t width, const RowNorm& norm, Out* y,
                                    const float* mask = nullptr) {
    using F = typename V::Float;
    const auto count = static_cast<float>(width);
    if (norm.rms) sum = 0.0F;
    const F mean = V::broadcast(sum / count);
    Sums<V> deviations, squares;
    for_each_vector<V>(width, [&](std::size_t i, std::size_t slot, auto part) FASTBERT_INLINE_BODY {
        const F d = part.keep(V::sub(part.load(row + i), mean));
        deviations.partial[slot] = V::add(deviations.partial[slot], d);
        squares.partial[slot] = V::fma(d, d, squares.partial[slot]);
    });
    const float off = norm.rms ? 0.0F : deviations.total() / count;
    float variance = squares.total() / count - off * off;
    if (variance < 0.0F) variance = 0.0F;
    const float rstd = 1.0F / std::sqrt(variance + norm.eps);
    const F factor = V::broadcast(rstd), shift = V::broadcast(-off * rstd);
    const auto* weight = static_cast<const float*>(norm.weight.data);
    const auto* bias = static_cast<const float*>(norm.bias.data);
    for_each_vector<V>(width, [&](std::size_t i, std::size_t, auto part) FASTBERT_INLINE_BODY {
        const F normed = V::fma(V::sub(part.load(row + i), mean), factor, shift);
        F value = bias ? V::fma(normed, part.load(weight + i), part.load(bias + i))
                       : V::mul(normed, part.load(weight + i));
        if (mask) value = V::mul(value, part.load(mask + i));
        part.store(y + i, value);
    });
    return {sum / count + off, rstd};
}

template <class T>
FASTBERT_INLINE const T* row_of(const RowsView& view, std::size_t row) {
    return static_cast<const T*>(view.data) + static_cast<std::ptrdiff_t>(row) * view.stride;
}

// Store a row's statistics unless null.
FASTBERT_INLINE void store_statistics(const Statistics& statistics, std::size_t row, float* mean, float* rstd) {
    if (mean) mean[row] = statistics.mean;
    if (rstd) rstd[row] = statistics.rstd;
}

// The ids were validated, but another thread may have modified them since: clamp to a row of the table.
template <class T>
FASTBERT_INLINE const T* embedding(const Table& table, std::size_t token) {
    const std::int64_t id = table.ids[token];
    const bool row = static_cast<std::uint64_t>(id) < static_cast<std::uint64_t>(table.rows);
    return static_cast<const T*>(table.data) + static_cast<std::ptrdiff_t>(row ? id : 0) * table.stride;
}

// Prefetch the embeddings of a later token: a cache miss takes about as long as the work of two tokens.
template <class T>
FASTBERT_INLINE void prefetch_rows(std::span<const Table> tables, std::size_t width, std::size_t token) {
    constexpr std::size_t kLine = 64 / sizeof(T);
    constexpr std::size_t kCachedTableBytes = std::size_t{1} << 18;  // tables up to this size stay in cache
    for (const Table& table : tables) {
        if (static_cast<std::size_t>(table.rows) * width * sizeof(T) <= kCachedTableBytes) continue;
        const T* row = embedding<T>(table, token);
        for (std::size_t i = 0; i < width; i += kLine) __builtin_prefetch(row + i);
    }
}

// sum = the sum of a token's embeddings; `sums` accumulates its elements.
template <class V, class In>
FASTBERT_INLINE void add_embeddings(std::span<const Table> tables, std::size_t token, std::size_t width, float* sum,
                                    Sums<V>& sums) {
    using F = typename V::Float;
    // Up to three tables, as in BERT, are added in registers.
    const std::size_t count = tables.size();
    const In* a = embedding<In>(tables[0], token);
    const In* b = count > 1 ? embedding<In>(tables[1], token) : nullptr;
    const In* c = count > 2 ? embedding<In>(tables[2], token) : nullptr;
    for_each_vector<V>(width, [&](std::size_t i, std::size_t slot, auto part) FASTBERT_INLINE_BODY {
        F value = part.load(a + i);
        if (b) value = V::add(value, part.load(b + i));
        if (c) value = V::add(value, part.load(c + i));
        part.store(sum + i, value);
        sums.partial[slot] = V::add(sums.partial[slot], value);
    });
    for (std::size_t more = 3; more < count; ++more) {
        const In* d = embedding<In>(tables[more], token);
        sums.clear();
        for_each_vector<V>(width, [&](std::size_t i, std::size_t slot, auto part) FASTBERT_INLINE_BODY {
            const F value = V::add(part.load(static_cast<const float*>(sum) + i), part.load(d + i));
            part.store(sum + i, value);
            sums.partial[slot] = V::add(sums.partial[slot], value);
        });
    }
}

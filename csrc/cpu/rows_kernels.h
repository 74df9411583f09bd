// The kernels of rows.h for any of the vectors. Included inside a region, behind a vector and vector_math.h.

// How a pass over a row loads and stores: whole vectors, or what is left at its end.
template <class V>
struct Whole {
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
struct Rest {
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
    // Zeros behind the row's end.
    FASTBERT_INLINE F keep(F x) const {
        float lanes[V::kLanes];
        V::store(lanes, x);
        return V::load_part(lanes, count);
    }
};

// A pass is a loop only once its body is part of it.
#define FASTBERT_INLINE_BODY __attribute__((always_inline))

template <class V>
constexpr bool kInRegisters = !requires(typename V::Float x) { x.lane; };

// body(place, slot, part) for every vector of a row; slots 0 to 3 in turn, so that four sums can grow side by side. The
// portable vector is an array, which compilers unroll anyway, and would take half a minute to unroll four times more.
template <class V, class Body>
FASTBERT_INLINE void pass(std::size_t width, const Body& body) {
    constexpr std::size_t n = V::kLanes;
    const Whole<V> whole;
    std::size_t i = 0;
    for (; kInRegisters<V> && i + 4 * n <= width; i += 4 * n) {
        body(i, 0, whole);
        body(i + n, 1, whole);
        body(i + 2 * n, 2, whole);
        body(i + 3 * n, 3, whole);
    }
    for (; i + n <= width; i += n) body(i, 0, whole);
    if (i < width) body(i, 0, Rest<V>{width - i});
}

// Four sums that grow side by side.
template <class V>
struct Sums {
    typename V::Float of[4];

    // Written out: GCC compiles the constructors that it makes itself for no instruction set.
    FASTBERT_INLINE Sums() { clear(); }
    FASTBERT_INLINE void clear() { of[0] = of[1] = of[2] = of[3] = V::zero(); }
    FASTBERT_INLINE float total() const { return V::sum(V::add(V::add(of[0], of[1]), V::add(of[2], of[3]))); }
};

// Two vectors side by side. The steps of an exponential wait for each other: one vector's fill the processor's queue
// before the next one's come into it, so two are written in turn.
template <class V>
struct Twice {
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
    sums.of[0] = V::add(sums.of[0], x);
}
template <class V>
FASTBERT_INLINE void add_to(Sums<V>& sums, typename Twice<V>::Float x) {
    sums.of[0] = V::add(sums.of[0], x.a);
    sums.of[1] = V::add(sums.of[1], x.b);
}

// body(place, part) for every two vectors of a row, and then one by one; `part` names the vector.
template <class V, class Body>
FASTBERT_INLINE void pass_by_two(std::size_t width, const Body& body) {
    std::size_t i = 0;
    if constexpr (kInRegisters<V>)
        for (; i + 2 * V::kLanes <= width; i += 2 * V::kLanes) body(i, Whole<Twice<V>>{});
    for (; i + V::kLanes <= width; i += V::kLanes) body(i, Whole<V>{});
    if (i < width) body(i, Rest<V>{width - i});
}

// The end of every LayerNorm: y from a row and its sum. Deviations are taken from a mean that is rounded, or a little
// off; their own sum corrects it, so that rows far from zero lose nothing.
template <class V, class In, class Out>
FASTBERT_INLINE void norm_row(const In* row, float sum, std::size_t width, const RowNorm& norm, Out* y) {
    using F = typename V::Float;
    const auto count = static_cast<float>(width);
    const F mean = V::broadcast(sum / count);
    Sums<V> deviations, squares;
    pass<V>(width, [&](std::size_t i, std::size_t slot, auto part) FASTBERT_INLINE_BODY {
        const F d = part.keep(V::sub(part.load(row + i), mean));
        deviations.of[slot] = V::add(deviations.of[slot], d);
        squares.of[slot] = V::fma(d, d, squares.of[slot]);
    });
    const float off = deviations.total() / count;
    float variance = squares.total() / count - off * off;
    if (variance < 0.0F) variance = 0.0F;
    const float rstd = 1.0F / std::sqrt(variance + norm.eps);
    const F factor = V::broadcast(rstd), shift = V::broadcast(-off * rstd);
    const auto* weight = static_cast<const float*>(norm.weight.data);
    const auto* bias = static_cast<const float*>(norm.bias.data);
    pass<V>(width, [&](std::size_t i, std::size_t, auto part) FASTBERT_INLINE_BODY {
        const F normed = V::fma(V::sub(part.load(row + i), mean), factor, shift);
        part.store(y + i, V::fma(normed, part.load(weight + i), part.load(bias + i)));
    });
}

template <class T>
FASTBERT_INLINE const T* row_of(const RowsView& view, std::size_t row) {
    return static_cast<const T*>(view.data) + static_cast<std::ptrdiff_t>(row) * view.stride;
}

template <class V, class T>
void layer_norm_rows(const LayerNormCall& call, std::size_t first, std::size_t last, float*) {
    for (std::size_t row = first; row < last; ++row) {
        const T* x = row_of<T>(call.x, row);
        Sums<V> sums;
        pass<V>(call.width, [&](std::size_t i, std::size_t slot, auto part) FASTBERT_INLINE_BODY {
            sums.of[slot] = V::add(sums.of[slot], part.load(x + i));
        });
        norm_row<V>(x, sums.total(), call.width, call.norm, static_cast<T*>(call.y) + row * call.width);
    }
}

// What is normed is the rounded sum: it waits in `total`, or where that is not wanted in y.
template <class V, class T>
void sum_layer_norm_rows(const SumNormCall& call, std::size_t first, std::size_t last, float*) {
    using F = typename V::Float;
    const auto* x_bias = static_cast<const float*>(call.x_bias.data);
    for (std::size_t row = first; row < last; ++row) {
        const T *x = row_of<T>(call.x, row), *residual = row_of<T>(call.residual, row);
        T* y = static_cast<T*>(call.y) + row * call.width;
        T* total = call.total ? static_cast<T*>(call.total) + row * call.width : y;
        Sums<V> sums;
        pass<V>(call.width, [&](std::size_t i, std::size_t slot, auto part) FASTBERT_INLINE_BODY {
            F value = part.load(x + i);
            if (x_bias) value = V::add(value, part.load(x_bias + i));
            value = V::add(value, part.load(residual + i));
            part.store(total + i, value);
            sums.of[slot] = V::add(sums.of[slot], value);
        });
        norm_row<V>(static_cast<const T*>(total), sums.total(), call.width, call.norm, y);
    }
}

template <class V, Gelu kForm>
FASTBERT_INLINE typename V::Float gelu_by(typename V::Float x) {
    if constexpr (kForm == Gelu::erf) return gelu_of<V>(x);
    return gelu_tanh_of<V>(x);
}

// out = GELU(x + bias) of one row; after(value) sees each vector, or two, of it.
template <class V, Gelu kForm, class In, class Out, class After>
FASTBERT_INLINE void gelu_row(const In* x, const float* bias, std::size_t width, Out* out, const After& after) {
    pass_by_two<V>(width, [&](std::size_t i, auto part) FASTBERT_INLINE_BODY {
        using U = typename decltype(part)::Vector;
        typename U::Float value = part.load(x + i);
        if (bias) value = U::add(value, part.load(bias + i));
        value = gelu_by<U, kForm>(value);
        part.store(out + i, value);
        after(part.keep(value));
    });
}

template <class V, class T, Gelu kForm>
FASTBERT_INLINE void bias_gelu_by(const GeluCall& call, std::size_t first, std::size_t last) {
    const auto* bias = static_cast<const float*>(call.bias.data);
    for (std::size_t row = first; row < last; ++row) {
        T* y = static_cast<T*>(call.y) + row * call.width;
        const auto nothing = [](const auto&) FASTBERT_INLINE_BODY {};
        gelu_row<V, kForm>(row_of<T>(call.x, row), bias, call.width, y, nothing);
    }
}

template <class V, class T>
void bias_gelu_rows(const GeluCall& call, std::size_t first, std::size_t last, float*) {
    if (call.form == Gelu::erf) return bias_gelu_by<V, T, Gelu::erf>(call, first, last);
    bias_gelu_by<V, T, Gelu::tanh>(call, first, last);
}

template <class V, class T, Gelu kForm>
FASTBERT_INLINE void gelu_layer_norm_by(const GeluNormCall& call, std::size_t first, std::size_t last,
                                        float* scratch) {
    const GeluCall& gelu = call.gelu;
    const auto* bias = static_cast<const float*>(gelu.bias.data);
    for (std::size_t row = first; row < last; ++row) {
        Sums<V> sums;
        const auto add = [&](const auto& value) FASTBERT_INLINE_BODY { add_to(sums, value); };
        gelu_row<V, kForm>(row_of<T>(gelu.x, row), bias, gelu.width, scratch, add);
        norm_row<V>(static_cast<const float*>(scratch), sums.total(), gelu.width, call.norm,
                    static_cast<T*>(gelu.y) + row * gelu.width);
    }
}

template <class V, class T>
void gelu_layer_norm_rows(const GeluNormCall& call, std::size_t first, std::size_t last, float* scratch) {
    if (call.gelu.form == Gelu::erf) return gelu_layer_norm_by<V, T, Gelu::erf>(call, first, last, scratch);
    gelu_layer_norm_by<V, T, Gelu::tanh>(call, first, last, scratch);
}

// The ids were looked at, but another thread may have written to them since: whatever they are now, a row of the table.
template <class T>
FASTBERT_INLINE const T* embedding(const Table& table, std::size_t token) {
    const std::int64_t id = table.id(token);
    const bool row = static_cast<std::uint64_t>(id) < static_cast<std::uint64_t>(table.rows);
    return static_cast<const T*>(table.data) + static_cast<std::ptrdiff_t>(row ? id : 0) * table.stride;
}

// Ask for the rows of a token to come: a row that no cache holds takes about as long as two tokens' work.
template <class T>
FASTBERT_INLINE void prefetch_rows(const EmbeddingCall& call, std::size_t token) {
    constexpr std::size_t kLine = 64 / sizeof(T);
    constexpr std::size_t kNear = std::size_t{1} << 18;  // bytes of a table that is in a near cache anyway
    for (const Table& table : call.tables) {
        if (static_cast<std::size_t>(table.rows) * call.width * sizeof(T) <= kNear) continue;
        const T* row = embedding<T>(table, token);
        for (std::size_t i = 0; i < call.width; i += kLine) __builtin_prefetch(row + i);
    }
}

template <class V, class In, class Out>
void embedding_layer_norm_rows(const EmbeddingCall& call, std::size_t first, std::size_t last, float* scratch) {
    using F = typename V::Float;
    constexpr std::size_t kAhead = 2;
    for (std::size_t token = first; token < last; ++token) {
        if (token + kAhead < last) prefetch_rows<In>(call, token + kAhead);
        // Up to three tables, those of BERT, are added up in registers.
        const std::size_t count = call.tables.size();
        const In* a = embedding<In>(call.tables[0], token);
        const In* b = count > 1 ? embedding<In>(call.tables[1], token) : nullptr;
        const In* c = count > 2 ? embedding<In>(call.tables[2], token) : nullptr;
        Sums<V> sums;
        pass<V>(call.width, [&](std::size_t i, std::size_t slot, auto part) FASTBERT_INLINE_BODY {
            F value = part.load(a + i);
            if (b) value = V::add(value, part.load(b + i));
            if (c) value = V::add(value, part.load(c + i));
            part.store(scratch + i, value);
            sums.of[slot] = V::add(sums.of[slot], value);
        });
        for (std::size_t more = 3; more < count; ++more) {
            const In* d = embedding<In>(call.tables[more], token);
            sums.clear();
            pass<V>(call.width, [&](std::size_t i, std::size_t slot, auto part) FASTBERT_INLINE_BODY {
                const F value = V::add(part.load(static_cast<const float*>(scratch) + i), part.load(d + i));
                part.store(scratch + i, value);
                sums.of[slot] = V::add(sums.of[slot], value);
            });
        }
        norm_row<V>(static_cast<const float*>(scratch), sums.total(), call.width, call.norm,
                    static_cast<Out*>(call.y) + token * call.width);
    }
}

// scratch = scale * scores of a row, -infinity where they are masked.
template <class V, class T>
FASTBERT_INLINE void scaled_scores(const T* scores, const std::uint8_t* mask, std::ptrdiff_t mask_stride,
                                   std::size_t keys, float scale, float* scratch) {
    const typename V::Float factor = V::broadcast(scale);
    pass<V>(keys, [&](std::size_t i, std::size_t, auto part) FASTBERT_INLINE_BODY {
        part.store(scratch + i, V::mul(part.load(scores + i), factor));
    });
    constexpr float kUnseen = -std::numeric_limits<float>::infinity();
    if (!mask) return;
    if (mask_stride == 1) {
        for (std::size_t i = 0; i < keys; ++i) scratch[i] = mask[i] ? scratch[i] : kUnseen;
    } else {
        for (std::size_t i = 0; i < keys; ++i)
            if (!mask[static_cast<std::ptrdiff_t>(i) * mask_stride]) scratch[i] = kUnseen;
    }
}

template <class V, class T>
FASTBERT_INLINE void softmax_row(float* scratch, std::size_t keys, T* out) {
    using F = typename V::Float;
    constexpr float kUnseen = -std::numeric_limits<float>::infinity();
    const float* scores = scratch;
    F highest = V::broadcast(kUnseen);
    pass<V>(keys, [&](std::size_t i, std::size_t, auto part) FASTBERT_INLINE_BODY {
        // Behind the row's end are zeros, which may exceed every score: a short end is looked at one by one below.
        if constexpr (std::is_same_v<decltype(part), Whole<V>>) highest = V::max(highest, part.load(scores + i));
    });
    float most = V::largest(highest);
    for (std::size_t i = keys - keys % V::kLanes; i < keys; ++i) most = scores[i] > most ? scores[i] : most;
    // exp(-infinity - 0) is 0 as it should be, and a NaN among such scores stays one.
    const float shift = most == kUnseen ? 0.0F : most;
    Sums<V> sums;
    pass_by_two<V>(keys, [&](std::size_t i, auto part) FASTBERT_INLINE_BODY {
        using U = typename decltype(part)::Vector;
        const typename U::Float term = exp_of<U>(U::sub(part.load(scores + i), U::broadcast(shift)));
        part.store(scratch + i, term);
        add_to(sums, part.keep(term));
    });
    const float total = sums.total();
    const F factor = V::broadcast(total == 0.0F ? 0.0F : 1.0F / total);
    pass<V>(keys, [&](std::size_t i, std::size_t, auto part) FASTBERT_INLINE_BODY {
        part.store(out + i, V::mul(part.load(scores + i), factor));
    });
}

template <class V, class T>
void softmax_rows(const SoftmaxCall& call, std::size_t first, std::size_t last, float* scratch) {
    const std::size_t keys = call.sizes[3];
    for (std::size_t row = first; row < last; ++row) {
        const std::size_t place[3] = {row / call.sizes[2] / call.sizes[1], row / call.sizes[2] % call.sizes[1],
                                      row % call.sizes[2]};
        std::ptrdiff_t at = 0, mask_at = 0;
        for (std::size_t axis = 0; axis < 3; ++axis) {
            at += static_cast<std::ptrdiff_t>(place[axis]) * call.strides[axis];
            mask_at += static_cast<std::ptrdiff_t>(place[axis]) * call.mask_strides[axis];
        }
        const std::uint8_t* mask = call.mask ? call.mask + mask_at : nullptr;
        scaled_scores<V>(static_cast<const T*>(call.scores) + at, mask, call.mask_strides[3], keys, call.scale,
                         scratch);
        softmax_row<V>(scratch, keys, static_cast<T*>(call.out) + row * keys);
    }
}

template <class V>
constexpr RowKernels row_kernels_of() {
    using B = BFloat16;
    return {
        {layer_norm_rows<V, float>, layer_norm_rows<V, B>},
        {sum_layer_norm_rows<V, float>, sum_layer_norm_rows<V, B>},
        {bias_gelu_rows<V, float>, bias_gelu_rows<V, B>},
        {gelu_layer_norm_rows<V, float>, gelu_layer_norm_rows<V, B>},
        {{embedding_layer_norm_rows<V, float, float>, embedding_layer_norm_rows<V, float, B>},
         {embedding_layer_norm_rows<V, B, float>, embedding_layer_norm_rows<V, B, B>}},
        {softmax_rows<V, float>, softmax_rows<V, B>},
    };
}

#undef FASTBERT_INLINE_BODY

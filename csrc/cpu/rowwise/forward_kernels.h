// The kernels of rowwise.h, generic over the vector type. Included inside a target region, after a vector type,
// vector_math.h, gelu_gradient.h, activations.h, row_loops.h and softmax_kernels.h.

template <class V, class T>
void layer_norm_rows(const LayerNormCall& call, std::size_t first, std::size_t last, float*) {
    for (std::size_t row = first; row < last; ++row) {
        const T* x = row_of<T>(call.x, row);
        Sums<V> sums;
        if (!call.norm.rms)
            for_each_vector<V>(call.width, [&](std::size_t i, std::size_t slot, auto part) FASTBERT_INLINE_BODY {
                sums.partial[slot] = V::add(sums.partial[slot], part.load(x + i));
            });
        const Statistics statistics =
            norm_row<V>(x, sums.total(), call.width, call.norm, static_cast<T*>(call.y) + row * call.width);
        store_statistics(statistics, row, call.mean, call.rstd);
    }
}

// LayerNorm reads the rounded sum, stored in `total`, or in y if `total` is null.
template <class V, class T>
void dropout_add_layer_norm_rows(const DropoutAddNormCall& call, std::size_t first, std::size_t last, float* scratch) {
    using F = typename V::Float;
    const auto* x_bias = static_cast<const float*>(call.x_bias.data);
    const float* mask = call.dropout.keys ? scratch : nullptr;
    for (std::size_t row = first; row < last; ++row) {
        const T* x = row_of<T>(call.x, row);
        const T* residual = call.residual.data ? row_of<T>(call.residual, row) : nullptr;
        if (mask) call.dropout.mask(row, call.width, scratch);
        T* y = static_cast<T*>(call.y) + row * call.width;
        T* total = call.total ? static_cast<T*>(call.total) + row * call.width : y;
        Sums<V> sums;
        for_each_vector<V>(call.width, [&](std::size_t i, std::size_t slot, auto part) FASTBERT_INLINE_BODY {
            F value = part.load(x + i);
            if (x_bias) value = V::add(value, part.load(x_bias + i));
            if (mask) value = V::mul(value, part.load(mask + i));
            if (residual) value = V::add(value, part.load(residual + i));
            part.store(total + i, value);
            // Sum the rounded values, so that y has the same bits as LayerNorm of `total`.
            if constexpr (!std::is_same_v<T, float>) value = part.load(static_cast<const T*>(total) + i);
            sums.partial[slot] = V::add(sums.partial[slot], value);
        });
        const Statistics statistics = norm_row<V>(static_cast<const T*>(total), sums.total(), call.width, call.norm, y);
        store_statistics(statistics, row, call.mean, call.rstd);
    }
}

template <class V, Gelu kForm>
FASTBERT_INLINE typename V::Float gelu_by(typename V::Float x) {
    if constexpr (kForm == Gelu::erf) return gelu_of<V>(x);
    return gelu_tanh_of<V>(x);
}

// out = GELU(x + bias) of one row; after(value) is called for each vector, or pair of vectors.
template <class V, Gelu kForm, class In, class Out, class After>
FASTBERT_INLINE void gelu_row(const In* x, const float* bias, std::size_t width, Out* out, const After& after) {
    for_each_vector_pair<V>(width, [&](std::size_t i, auto part) FASTBERT_INLINE_BODY {
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

template <class V, class T, Activation kForm>
void gated_rows_by(const GatedCall& call, std::size_t first, std::size_t last) {
    const auto* bias = static_cast<const float*>(call.bias.data);
    for (std::size_t row = first; row < last; ++row) {
        const T *gates = row_of<T>(call.x, row), *values = gates + call.width;
        T* y = static_cast<T*>(call.y) + row * call.width;
        for_each_vector_pair<V>(call.width, [&](std::size_t i, auto part) FASTBERT_INLINE_BODY {
            using U = typename decltype(part)::Vector;
            typename U::Float gate = part.load(gates + i), value = part.load(values + i);
            if (bias) {
                gate = U::add(gate, part.load(bias + i));
                value = U::add(value, part.load(bias + call.width + i));
            }
            part.store(y + i, U::mul(activation_of<U, kForm>(gate), value));
        });
    }
}

template <class V, class T>
void gated_rows(const GatedCall& call, std::size_t first, std::size_t last, float*) {
    switch (call.form) {
        case Activation::gelu:
            return gated_rows_by<V, T, Activation::gelu>(call, first, last);
        case Activation::gelu_tanh:
            return gated_rows_by<V, T, Activation::gelu_tanh>(call, first, last);
        case Activation::relu:
            return gated_rows_by<V, T, Activation::relu>(call, first, last);
        case Activation::silu:
            return gated_rows_by<V, T, Activation::silu>(call, first, last);
    }
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
        const Statistics statistics = norm_row<V>(static_cast<const float*>(scratch), sums.total(), gelu.width,
                                                  call.norm, static_cast<T*>(gelu.y) + row * gelu.width);
        store_statistics(statistics, row, call.mean, call.rstd);
    }
}

template <class V, class T>
void gelu_layer_norm_rows(const GeluNormCall& call, std::size_t first, std::size_t last, float* scratch) {
    if (call.gelu.form == Gelu::erf) return gelu_layer_norm_by<V, T, Gelu::erf>(call, first, last, scratch);
    gelu_layer_norm_by<V, T, Gelu::tanh>(call, first, last, scratch);
}

template <class V, class In, class Out>
void embedding_layer_norm_rows(const EmbeddingCall& call, std::size_t first, std::size_t last, float* scratch) {
    constexpr std::size_t kPrefetchDistance = 2;
    float* mask = call.dropout.keys ? scratch + call.width : nullptr;
    for (std::size_t token = first; token < last; ++token) {
        if (token + kPrefetchDistance < last) prefetch_rows<In>(call.tables, call.width, token + kPrefetchDistance);
        if (mask) call.dropout.mask(token, call.width, mask);
        Sums<V> sums;
        add_embeddings<V, In>(call.tables, token, call.width, scratch, sums);
        const Statistics statistics = norm_row<V>(static_cast<const float*>(scratch), sums.total(), call.width,
                                                  call.norm, static_cast<Out*>(call.y) + token * call.width, mask);
        store_statistics(statistics, token, call.mean, call.rstd);
    }
}

template <class V, class T>
void drop_rows(const DropoutCall& call, std::size_t first, std::size_t last, float* scratch) {
    for (std::size_t row = first; row < last; ++row) {
        const T* x = row_of<T>(call.x, row);
        T* y = static_cast<T*>(call.y) + row * call.width;
        call.dropout.mask(row, call.width, scratch);
        for_each_vector<V>(call.width, [&](std::size_t i, std::size_t, auto part) FASTBERT_INLINE_BODY {
            part.store(y + i, V::mul(part.load(x + i), part.load(static_cast<const float*>(scratch) + i)));
        });
    }
}

template <class V>
constexpr RowKernels row_kernels_of() {
    using B = BFloat16;
    return {
        {layer_norm_rows<V, float>, layer_norm_rows<V, B>},
        {dropout_add_layer_norm_rows<V, float>, dropout_add_layer_norm_rows<V, B>},
        {bias_gelu_rows<V, float>, bias_gelu_rows<V, B>},
        {gated_rows<V, float>, gated_rows<V, B>},
        {gelu_layer_norm_rows<V, float>, gelu_layer_norm_rows<V, B>},
        {{embedding_layer_norm_rows<V, float, float>, embedding_layer_norm_rows<V, float, B>},
         {embedding_layer_norm_rows<V, B, float>, embedding_layer_norm_rows<V, B, B>}},
        {softmax_rows<V, float>, softmax_rows<V, B>},
        {drop_rows<V, float>, drop_rows<V, B>},
    };
}

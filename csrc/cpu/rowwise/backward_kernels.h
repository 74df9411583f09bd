// The kernels of backward.h, generic over the vector type. Included inside a target region, after a vector type,
// vector_math.h, gelu_gradient.h, activations.h, row_loops.h and softmax_kernels.h.

// sum[i..] += x.
template <class Part, class F>
FASTBERT_INLINE void add_at(const Part& part, float* sum, F x) {
    using U = typename Part::Vector;
    part.store(sum, U::add(part.load(static_cast<const float*>(sum)), x));
}

// The projection that a norm's backward subtracts: rstd * (g - mean - normalized * slope), with g = grad * weight. RMSNorm
// is a norm whose means are 0.
struct NormProjection {
    float mean, slope;
};

// Compute a row's projection, its normalized values being (value(i) - mean) * rstd and its upstream gradient grad(i),
// and accumulate dweight and, unless null, dbias.
template <class V, class Value, class Grad>
FASTBERT_INLINE NormProjection norm_projection(std::size_t width, float mean, float rstd, const float* weight,
                                               float* dweight, float* dbias, const Value& value, const Grad& grad) {
    using F = typename V::Float;
    const F middle = V::broadcast(mean), factor = V::broadcast(rstd);
    Sums<V> means, slopes;
    for_each_vector<V>(width, [&](std::size_t i, std::size_t slot, auto part) FASTBERT_INLINE_BODY {
        const F g = grad(i, part), normalized = V::mul(V::sub(value(i, part), middle), factor);
        if (dbias) add_at(part, dbias + i, g);
        part.store(dweight + i, V::fma(g, normalized, part.load(static_cast<const float*>(dweight) + i)));
        const F weighted = V::mul(g, part.load(weight + i));
        means.partial[slot] = V::add(means.partial[slot], weighted);
        // Padding lanes have zero gradient, but the normalized value of a row without variance may be NaN there.
        slopes.partial[slot] = V::fma(weighted, part.keep(normalized), slopes.partial[slot]);
    });
    const auto count = static_cast<float>(width);
    return {means.total() / count, slopes.total() / count};
}

// After norm_projection: call to(i, part, gradient of value) for every vector of the row.
template <class V, class Value, class Grad, class To>
FASTBERT_INLINE void norm_gradient(std::size_t width, float mean, float rstd, const float* weight,
                                   NormProjection projection, const Value& value, const Grad& grad, const To& to) {
    using F = typename V::Float;
    const F middle = V::broadcast(mean), factor = V::broadcast(rstd);
    const F less = V::broadcast(projection.mean), slope = V::broadcast(-projection.slope);
    for_each_vector<V>(width, [&](std::size_t i, std::size_t, auto part) FASTBERT_INLINE_BODY {
        const F normalized = V::mul(V::sub(value(i, part), middle), factor);
        const F weighted = V::mul(grad(i, part), part.load(weight + i));
        to(i, part, V::mul(V::fma(normalized, slope, V::sub(weighted, less)), factor));
    });
}

template <class V, class T>
void layer_norm_backward_rows(const LayerNormBackwardCall& call, std::size_t first, std::size_t last, float* scratch,
                              float* sums) {
    using F = typename V::Float;
    const std::size_t width = call.width;
    const auto* weight = static_cast<const float*>(call.weight.data);
    float *dweight = sums, *dbias = call.bias ? sums + width : nullptr;
    float* dx_bias = call.x_bias ? sums + (call.bias ? 2 : 1) * width : nullptr;
    const float* mask = call.dropout.keys ? scratch : nullptr;
    for (std::size_t row = first; row < last; ++row) {
        const T *total = row_of<T>(call.total, row), *upstream = row_of<T>(call.grad, row);
        const T* total_gradient = call.grad_total.data ? row_of<T>(call.grad_total, row) : nullptr;
        T* dx = static_cast<T*>(call.dx) + row * width;
        T* dresidual = call.dresidual ? static_cast<T*>(call.dresidual) + row * width : nullptr;
        const float mean = call.mean ? call.mean[row] : 0.0F, rstd = call.rstd[row];
        const auto value = [&](std::size_t i, auto part) FASTBERT_INLINE_BODY { return part.load(total + i); };
        const auto grad = [&](std::size_t i, auto part) FASTBERT_INLINE_BODY { return part.load(upstream + i); };
        NormProjection projection = norm_projection<V>(width, mean, rstd, weight, dweight, dbias, value, grad);
        if (!call.mean) projection.mean = 0.0F;
        if (mask) call.dropout.mask(row, width, scratch);
        const auto to = [&](std::size_t i, auto part, F gradient) FASTBERT_INLINE_BODY {
            if (total_gradient) gradient = V::add(gradient, part.load(total_gradient + i));
            if (dresidual) part.store(dresidual + i, gradient);
            if (mask) gradient = V::mul(gradient, part.load(mask + i));
            if (dx_bias) add_at(part, dx_bias + i, gradient);
            part.store(dx + i, gradient);
        };
        norm_gradient<V>(width, mean, rstd, weight, projection, value, grad, to);
    }
}

template <class V, Gelu kForm>
FASTBERT_INLINE typename V::Float gelu_by(typename V::Float x) {
    if constexpr (kForm == Gelu::erf) return gelu_of<V>(x);
    return gelu_tanh_of<V>(x);
}

template <class V, Gelu kForm>
FASTBERT_INLINE typename V::Float gelu_slope_by(typename V::Float x) {
    if constexpr (kForm == Gelu::erf) return gelu_gradient_of<V>(x);
    return gelu_tanh_gradient_of<V>(x);
}

// Call to(i, part, x + bias) for every vector, or pair of vectors, of a row.
template <class V, class T, class To>
FASTBERT_INLINE void biased_row(const T* x, const float* bias, std::size_t width, const To& to) {
    for_each_vector_pair<V>(width, [&](std::size_t i, auto part) FASTBERT_INLINE_BODY {
        using U = typename decltype(part)::Vector;
        typename U::Float value = part.load(x + i);
        if (bias) value = U::add(value, part.load(bias + i));
        to(i, part, value);
    });
}

template <class V, class T, Gelu kForm>
FASTBERT_INLINE void bias_gelu_backward_by(const GeluBackwardCall& call, std::size_t first, std::size_t last,
                                           float* sums) {
    const GeluCall& forward = call.forward;
    const auto* bias = static_cast<const float*>(forward.bias.data);
    for (std::size_t row = first; row < last; ++row) {
        const T* grad = row_of<T>(call.grad, row);
        T* dx = static_cast<T*>(call.dx) + row * forward.width;
        T* y = forward.y ? static_cast<T*>(forward.y) + row * forward.width : nullptr;
        const auto to = [&](std::size_t i, auto part, auto value) FASTBERT_INLINE_BODY {
            using U = typename decltype(part)::Vector;
            const auto gradient = U::mul(part.load(grad + i), gelu_slope_by<U, kForm>(value));
            if (y) part.store(y + i, gelu_by<U, kForm>(value));
            if (sums) add_at(part, sums + i, gradient);
            part.store(dx + i, gradient);
        };
        biased_row<V>(row_of<T>(forward.x, row), bias, forward.width, to);
    }
}

template <class V, class T>
void bias_gelu_backward_rows(const GeluBackwardCall& call, std::size_t first, std::size_t last, float*, float* sums) {
    if (!call.sums) sums = nullptr;
    if (call.forward.form == Gelu::erf) return bias_gelu_backward_by<V, T, Gelu::erf>(call, first, last, sums);
    bias_gelu_backward_by<V, T, Gelu::tanh>(call, first, last, sums);
}

template <class V, class T, Activation kForm>
void gated_backward_rows_by(const GatedBackwardCall& call, std::size_t first, std::size_t last, float* sums) {
    const GatedCall& forward = call.forward;
    const std::size_t width = forward.width;
    const auto* bias = static_cast<const float*>(forward.bias.data);
    for (std::size_t row = first; row < last; ++row) {
        const T *gates = row_of<T>(forward.x, row), *values = gates + width, *grad = row_of<T>(call.grad, row);
        T *dgates = static_cast<T*>(call.dx) + row * 2 * width, *dvalues = dgates + width;
        for_each_vector_pair<V>(width, [&](std::size_t i, auto part) FASTBERT_INLINE_BODY {
            using U = typename decltype(part)::Vector;
            typename U::Float gate = part.load(gates + i), value = part.load(values + i);
            if (bias) {
                gate = U::add(gate, part.load(bias + i));
                value = U::add(value, part.load(bias + width + i));
            }
            const auto g = part.load(grad + i);
            const auto dgate = U::mul(U::mul(g, value), activation_gradient_of<U, kForm>(gate));
            const auto dvalue = U::mul(g, activation_of<U, kForm>(gate));
            if (sums) {
                add_at(part, sums + i, dgate);
                add_at(part, sums + width + i, dvalue);
            }
            part.store(dgates + i, dgate);
            part.store(dvalues + i, dvalue);
        });
    }
}

template <class V, class T>
void gated_backward_rows(const GatedBackwardCall& call, std::size_t first, std::size_t last, float*, float* sums) {
    if (!call.sums) sums = nullptr;
    switch (call.forward.form) {
        case Activation::gelu:
            return gated_backward_rows_by<V, T, Activation::gelu>(call, first, last, sums);
        case Activation::gelu_tanh:
            return gated_backward_rows_by<V, T, Activation::gelu_tanh>(call, first, last, sums);
        case Activation::relu:
            return gated_backward_rows_by<V, T, Activation::relu>(call, first, last, sums);
        case Activation::silu:
            return gated_backward_rows_by<V, T, Activation::silu>(call, first, last, sums);
    }
}

// The two scratch rows hold the GELU of a row and its derivative.
template <class V, class T, Gelu kForm>
FASTBERT_INLINE void gelu_norm_gradient_by(const GeluNormBackwardCall& call, std::size_t first, std::size_t last,
                                           float* scratch, float* sums) {
    using F = typename V::Float;
    const std::size_t width = call.gelu.width;
    const auto* bias = static_cast<const float*>(call.gelu.bias.data);
    const auto* weight = static_cast<const float*>(call.weight.data);
    float *gelus = scratch, *slopes = scratch + width;
    float *dweight = sums, *dbias = call.norm_bias ? sums + width : nullptr;
    float* dx_bias = bias ? sums + (call.norm_bias ? 2 : 1) * width : nullptr;
    for (std::size_t row = first; row < last; ++row) {
        const T* upstream = row_of<T>(call.grad, row);
        T* dx = static_cast<T*>(call.dx) + row * width;
        const float mean = call.mean[row], rstd = call.rstd[row];
        const auto store_gelu = [&](std::size_t i, auto part, auto value) FASTBERT_INLINE_BODY {
            using U = typename decltype(part)::Vector;
            part.store(gelus + i, gelu_by<U, kForm>(value));
            part.store(slopes + i, gelu_slope_by<U, kForm>(value));
        };
        biased_row<V>(row_of<T>(call.gelu.x, row), bias, width, store_gelu);
        const auto value = [&](std::size_t i, auto part) FASTBERT_INLINE_BODY {
            return part.load(static_cast<const float*>(gelus) + i);
        };
        const auto grad = [&](std::size_t i, auto part) FASTBERT_INLINE_BODY { return part.load(upstream + i); };
        const NormProjection projection = norm_projection<V>(width, mean, rstd, weight, dweight, dbias, value, grad);
        const auto to = [&](std::size_t i, auto part, F gradient) FASTBERT_INLINE_BODY {
            gradient = V::mul(gradient, part.load(static_cast<const float*>(slopes) + i));
            if (dx_bias) add_at(part, dx_bias + i, gradient);
            part.store(dx + i, gradient);
        };
        norm_gradient<V>(width, mean, rstd, weight, projection, value, grad, to);
    }
}

template <class V, class T>
void gelu_layer_norm_backward_rows(const GeluNormBackwardCall& call, std::size_t first, std::size_t last,
                                   float* scratch, float* sums) {
    if (call.gelu.form == Gelu::erf) return gelu_norm_gradient_by<V, T, Gelu::erf>(call, first, last, scratch, sums);
    gelu_norm_gradient_by<V, T, Gelu::tanh>(call, first, last, scratch, sums);
}

// The first scratch row holds the sum of a token's embeddings, the second its dropout mask.
template <class V, class In, class Out>
void embedding_layer_norm_backward_rows(const EmbeddingNormBackwardCall& call, std::size_t first, std::size_t last,
                                        float* scratch, float* sums) {
    using F = typename V::Float;
    constexpr std::size_t kPrefetchDistance = 2;
    const std::size_t width = call.width;
    const auto* weight = static_cast<const float*>(call.weight.data);
    float* sum = scratch;
    const float* mask = call.dropout.keys ? scratch + width : nullptr;
    for (std::size_t token = first; token < last; ++token) {
        if (token + kPrefetchDistance < last) prefetch_rows<In>(call.tables, width, token + kPrefetchDistance);
        const Out* upstream = row_of<Out>(call.grad, token);
        float* dsum = call.dsum + token * width;
        Sums<V> unused;
        add_embeddings<V, In>(call.tables, token, width, sum, unused);
        if (mask) call.dropout.mask(token, width, scratch + width);
        const float mean = call.mean[token], rstd = call.rstd[token];
        const auto value = [&](std::size_t i, auto part) FASTBERT_INLINE_BODY {
            return part.load(static_cast<const float*>(sum) + i);
        };
        const auto grad = [&](std::size_t i, auto part) FASTBERT_INLINE_BODY {
            F g = part.load(upstream + i);
            if (mask) g = V::mul(g, part.load(mask + i));
            return g;
        };
        const NormProjection projection =
            norm_projection<V>(width, mean, rstd, weight, sums, sums + width, value, grad);
        const auto to = [&](std::size_t i, auto part, F gradient) FASTBERT_INLINE_BODY {
            part.store(dsum + i, gradient);
        };
        norm_gradient<V>(width, mean, rstd, weight, projection, value, grad, to);
    }
}

// dscores = scale * p * (dp - sum of p dp), where dp is the gradient of the kept probabilities.
template <class V, class T>
void softmax_backward_rows(const SoftmaxBackwardCall& call, std::size_t first, std::size_t last, float* scratch) {
    using F = typename V::Float;
    const SoftmaxCall& forward = call.forward;
    const std::size_t keys = forward.sizes[3];
    float *p = scratch, *dp = scratch + keys;
    auto* bits = reinterpret_cast<std::uint8_t*>(scratch + 2 * keys);
    const F keep = V::broadcast(forward.dropout.keep);
    for (std::size_t row = first; row < last; ++row) {
        const ScoreOffsets offsets(forward, row);
        const std::uint8_t* keep_bits = row_keep_bits(forward, offsets, row == first, bits);
        const F factor = V::broadcast(row_exponentials<V, T>(forward, offsets, p));
        const T* grad = static_cast<const T*>(call.grad) + row * keys;
        Sums<V> sums;
        for_each_vector<V>(keys, [&](std::size_t i, std::size_t slot, auto part) FASTBERT_INLINE_BODY {
            const F probability = V::mul(part.load(static_cast<const float*>(p) + i), factor);
            F slope = part.load(grad + i);
            if (keep_bits) slope = V::where_bits(keep_bits + i / 8, V::mul(slope, keep), V::zero());
            part.store(p + i, probability);
            part.store(dp + i, slope);
            sums.partial[slot] = V::fma(probability, slope, sums.partial[slot]);
        });
        const F mean = V::broadcast(sums.total()), scale = V::broadcast(forward.scale);
        T* dscores = static_cast<T*>(forward.out) + row * keys;
        for_each_vector<V>(keys, [&](std::size_t i, std::size_t, auto part) FASTBERT_INLINE_BODY {
            const F slope = V::sub(part.load(static_cast<const float*>(dp) + i), mean);
            part.store(dscores + i, V::mul(V::mul(part.load(static_cast<const float*>(p) + i), slope), scale));
        });
    }
}

template <class V>
constexpr RowGradientKernels row_gradient_kernels_of() {
    using B = BFloat16;
    return {
        {layer_norm_backward_rows<V, float>, layer_norm_backward_rows<V, B>},
        {bias_gelu_backward_rows<V, float>, bias_gelu_backward_rows<V, B>},
        {gated_backward_rows<V, float>, gated_backward_rows<V, B>},
        {gelu_layer_norm_backward_rows<V, float>, gelu_layer_norm_backward_rows<V, B>},
        {{embedding_layer_norm_backward_rows<V, float, float>, embedding_layer_norm_backward_rows<V, float, B>},
         {embedding_layer_norm_backward_rows<V, B, float>, embedding_layer_norm_backward_rows<V, B, B>}},
        {softmax_backward_rows<V, float>, softmax_backward_rows<V, B>},
    };
}

// The inner loops of adamw.h, generic over the vector type. Included inside the anonymous namespace of each CPU
// capability.

// The second moment with a single final rounding, as torch's compiler fuses it: c g g + (beta2 v), but beta2 v + (c g
// g) in the tail after a tensor's last whole group of eight elements.
template <class V>
FASTBERT_INLINE typename V::Float second_moment(typename V::Float v, typename V::Float g, const AdamRange& range,
                                                bool tail) {
    const auto beta2 = V::broadcast(range.beta2), scaled = V::mul(V::broadcast(range.square_share), g);
    return tail ? V::fma(v, beta2, V::mul(scaled, g)) : V::fma(scaled, g, V::mul(v, beta2));
}

struct AdamPointers {
    float *weight, *gradient, *exp_avg, *exp_avg_sq;
};

template <class V, class Load, class Store>
FASTBERT_INLINE void adam_vector(const AdamRange& range, const AdamPointers& at, bool tail, const Load& load,
                                 const Store& store) {
    using Float = typename V::Float;
    const Float g = V::mul(load(at.gradient), V::broadcast(range.grad_scale));
    const Float old = load(at.exp_avg);
    // As torch.lerp: interpolate from the nearer end.
    const Float m = V::fma(V::broadcast(range.lerp), V::sub(g, old), range.from_gradient ? g : old);
    const Float v = second_moment<V>(load(at.exp_avg_sq), g, range, tail);
    store(at.exp_avg, m);
    store(at.exp_avg_sq, v);
    const Float root = V::div(V::sqrt(v), V::broadcast(range.root_correction));
    const Float update = V::div(V::mul(V::broadcast(range.minus_step_size), m), V::add(root, V::broadcast(range.eps)));
    store(at.weight, V::add(V::mul(load(at.weight), V::broadcast(range.decay)), update));
    if (range.zero_grad) store(at.gradient, V::zero());
}

template <class V>
void adam_update(const AdamRange& range) {
    const auto at = [&](std::size_t i) {
        return AdamPointers{range.weight + i, range.gradient + i, range.exp_avg + i, range.exp_avg_sq + i};
    };
    const auto part = [&](std::size_t i, std::size_t count, bool tail) {
        adam_vector<V>(
            range, at(i), tail, [&](const float* p) { return V::load_part(p, count); },
            [&](float* p, typename V::Float x) { V::store_part(p, x, count); });
    };
    const std::size_t body = range.count - range.tail;
    std::size_t i = 0;
    for (; i + V::kLanes <= body; i += V::kLanes) {
        adam_vector<V>(
            range, at(i), false, [](const float* p) { return V::load(p); },
            [](float* p, typename V::Float x) { V::store(p, x); });
    }
    if (i < body) part(i, body - i, false);
    if (range.tail) part(body, range.tail, true);
}

// Squares of fp32 numbers are exact in fp64, and the order of the sixteen partial sums is fixed: every CPU capability
// returns the same bits.
inline constexpr std::size_t kSums = 16;

template <class V>
double squares(const float* x, std::size_t count) {
    typename V::Sums sums = V::no_sums();
    std::size_t i = 0;
    for (; i + kSums <= count; i += kSums) V::add_squares(sums, x + i);
    if (i < count) {
        float rest[kSums] = {};
        std::memcpy(rest, x + i, (count - i) * sizeof(float));
        V::add_squares(sums, rest);
    }
    double each[kSums];
    V::store_sums(each, sums);
    for (std::size_t half = kSums / 2; half; half /= 2)
        for (std::size_t lane = 0; lane < half; ++lane) each[lane] += each[lane + half];
    return each[0];
}

template <class V>
constexpr AdamKernels adam_kernels_of() {
    return {adam_update<V>, squares<V>};
}

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

// As torch.lerp: interpolate from the nearer end.
template <class V>
FASTBERT_INLINE typename V::Float first_moment(typename V::Float m, typename V::Float g, const AdamRange& range) {
    return V::fma(V::broadcast(range.lerp), V::sub(g, m), range.from_gradient ? g : m);
}

// sqrt(v / (1 - beta2^t)).
template <class V>
FASTBERT_INLINE typename V::Float corrected_root(typename V::Float v, const AdamRange& range) {
    return V::div(V::sqrt(v), V::broadcast(range.root_correction));
}

// The pointers of a range, moved by i elements; gradients, and the parameter beside its master, are of one type.
template <class Narrow>
struct AdamPointers {
    float *weight, *exp_avg, *exp_avg_sq;
    Narrow* gradient;
    BFloat16* narrow;

    FASTBERT_INLINE AdamPointers(const AdamRange& range, std::size_t i)
        : weight(range.weight + i),
          exp_avg(range.exp_avg + i),
          exp_avg_sq(range.exp_avg_sq + i),
          gradient(static_cast<Narrow*>(range.gradient) + i),
          narrow(range.narrow + i) {}
};

template <class V, class Narrow, class Load, class Store>
FASTBERT_INLINE void adam_vector(const AdamRange& range, const AdamPointers<Narrow>& at, bool tail, const Load& load,
                                 const Store& store) {
    using Float = typename V::Float;
    const Float g = V::mul(load(at.gradient), V::broadcast(range.grad_scale));
    const Float m = first_moment<V>(load(at.exp_avg), g, range);
    const Float v = second_moment<V>(load(at.exp_avg_sq), g, range, tail);
    store(at.exp_avg, m);
    store(at.exp_avg_sq, v);
    const Float divisor = V::add(corrected_root<V>(v, range), V::broadcast(range.eps));
    const Float update = V::div(V::mul(V::broadcast(range.minus_step_size), m), divisor);
    const Float weight = V::add(V::mul(load(at.weight), V::broadcast(range.decay)), update);
    store(at.weight, weight);
    if constexpr (std::is_same_v<Narrow, BFloat16>) store(at.narrow, weight);
    if (range.zero_grad) store(at.gradient, V::zero());
}

template <class V, class Narrow>
void adam_update_of(const AdamRange& range) {
    const auto part = [&](std::size_t i, std::size_t count, bool tail) {
        adam_vector<V>(
            range, AdamPointers<Narrow>(range, i), tail, [&](const auto* p) { return V::load_part(p, count); },
            [&](auto* p, typename V::Float x) { V::store_part(p, x, count); });
    };
    const std::size_t body = range.count - range.tail;
    std::size_t i = 0;
    for (; i + V::kLanes <= body; i += V::kLanes) {
        adam_vector<V>(
            range, AdamPointers<Narrow>(range, i), false, [](const auto* p) { return V::load(p); },
            [](auto* p, typename V::Float x) { V::store(p, x); });
    }
    if (i < body) part(i, body - i, false);
    if (range.tail) part(body, range.tail, true);
}

template <class V>
void adam_update(const AdamRange& range) {
    range.narrow ? adam_update_of<V, BFloat16>(range) : adam_update_of<V, float>(range);
}

// Squares of fp32 numbers are exact in fp64, and the order of the sixteen partial sums is fixed: every CPU capability
// returns the same bits.
inline constexpr std::size_t kSums = 16;

template <class V>
double total(const typename V::Sums& sums) {
    double each[kSums];
    V::store_sums(each, sums);
    for (std::size_t half = kSums / 2; half; half /= 2)
        for (std::size_t lane = 0; lane < half; ++lane) each[lane] += each[lane + half];
    return each[0];
}

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
    return total<V>(sums);
}

// Call block(i, size, load) for each sixteen elements, the last block having fewer; load(p, part) loads a vector whose
// first `part` elements are in the range, and zeros behind them.
template <class V, class Block>
FASTBERT_INLINE void each_sixteen(std::size_t count, const Block& block) {
    std::size_t i = 0;
    for (; i + kSums <= count; i += kSums) block(i, kSums, [](const auto* p, std::size_t) { return V::load(p); });
    if (i < count) block(i, count - i, [](const auto* p, std::size_t part) { return V::load_part(p, part); });
}

// Add the squares of `count` values, at most sixteen, given by values(lane, part): the vector from `lane` on, of which
// the first `part` elements count.
template <class V, class Values>
FASTBERT_INLINE void add_squares_of(typename V::Sums& sums, std::size_t count, const Values& values) {
    alignas(64) float each[kSums] = {};
    for (std::size_t lane = 0; lane < count; lane += V::kLanes) {
        const std::size_t part = std::min(V::kLanes, count - lane);
        const typename V::Float x = values(lane, part);
        if (part == V::kLanes) V::store(each + lane, x);
        else V::store_part(each + lane, x, part);
    }
    V::add_squares(sums, each);
}

template <class V>
double squares_bf16(const BFloat16* x, std::size_t count) {
    typename V::Sums sums = V::no_sums();
    each_sixteen<V>(count, [&](std::size_t i, std::size_t size, const auto& load) {
        add_squares_of<V>(sums, size, [&](std::size_t lane, std::size_t part) { return load(x + i + lane, part); });
    });
    return total<V>(sums);
}

// The squares of g / max(sqrt(v), eps), where v is the corrected second moment after this step: no overflow that the
// update would not have.
template <class V, class Narrow>
AdamSums stable_sums_of(const AdamRange& range) {
    typename V::Sums sums = V::no_sums();
    each_sixteen<V>(range.count, [&](std::size_t i, std::size_t size, const auto& load) {
        add_squares_of<V>(sums, size, [&](std::size_t lane, std::size_t part) {
            const AdamPointers<Narrow> at(range, i + lane);
            const auto g = V::mul(load(at.gradient, part), V::broadcast(range.grad_scale));
            const auto v = second_moment<V>(load(at.exp_avg_sq, part), g, range, false);
            return V::div(g, V::max(corrected_root<V>(v, range), V::broadcast(range.eps)));
        });
    });
    return {total<V>(sums), 0};
}

// The squares of the weight, and of m / (sqrt(v) + eps) + decay * weight with the corrected moments after this step.
template <class V, class Narrow>
AdamSums lamb_sums_of(const AdamRange& range) {
    typename V::Sums weights = V::no_sums(), updates = V::no_sums();
    each_sixteen<V>(range.count, [&](std::size_t i, std::size_t size, const auto& load) {
        add_squares_of<V>(weights, size, [&](std::size_t lane, std::size_t part) {
            return load(range.weight + i + lane, part);
        });
        add_squares_of<V>(updates, size, [&](std::size_t lane, std::size_t part) {
            const AdamPointers<Narrow> at(range, i + lane);
            const auto g = V::mul(load(at.gradient, part), V::broadcast(range.grad_scale));
            const auto m = first_moment<V>(load(at.exp_avg, part), g, range);
            const auto v = second_moment<V>(load(at.exp_avg_sq, part), g, range, false);
            const auto step = V::div(V::mul(V::broadcast(range.inverse_correction), m),
                                     V::add(corrected_root<V>(v, range), V::broadcast(range.eps)));
            return V::fma(V::broadcast(range.weight_decay), load(at.weight, part), step);
        });
    });
    return {total<V>(weights), total<V>(updates)};
}

template <class V>
AdamSums stable_sums(const AdamRange& range) {
    return range.narrow ? stable_sums_of<V, BFloat16>(range) : stable_sums_of<V, float>(range);
}

template <class V>
AdamSums lamb_sums(const AdamRange& range) {
    return range.narrow ? lamb_sums_of<V, BFloat16>(range) : lamb_sums_of<V, float>(range);
}

template <class V>
constexpr AdamKernels adam_kernels_of() {
    return {adam_update<V>, squares<V>, squares_bf16<V>, stable_sums<V>, lamb_sums<V>};
}

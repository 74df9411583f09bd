// The best of a part of a row of logits, generic over the vector type. Included inside a target region, after
// vector_math.h and cached_attention_kernel.h.

template <class V, class T>
BestOfPart best_of_part(const void* row, std::size_t first, std::size_t last) {
    constexpr std::size_t n = V::kLanes;
    const T* logits = static_cast<const T*>(row);
    typename V::Float tops[2] = {V::broadcast(-std::numeric_limits<float>::infinity()),
                                 V::broadcast(-std::numeric_limits<float>::infinity())};
    std::size_t i = first;
    for (; i + 2 * n <= last; i += 2 * n) {
        tops[0] = V::max(V::load(logits + i), tops[0]);
        tops[1] = V::max(V::load(logits + i + n), tops[1]);
    }
    float highest = V::largest(V::max(tops[0], tops[1]));
    for (; i < last; ++i) highest = value_of(logits[i]) > highest ? value_of(logits[i]) : highest;

    typename V::Float sums[2] = {V::zero(), V::zero()};
    // A part of nothing but -infinity has total 0, not NaN: other parts may have higher logits.
    const float reference = highest == -std::numeric_limits<float>::infinity() ? 0.0F : highest;
    const typename V::Float shift = V::broadcast(reference);
    for (i = first; i + 2 * n <= last; i += 2 * n) {
        sums[0] = V::add(sums[0], exp_of<V>(V::sub(V::load(logits + i), shift)));
        sums[1] = V::add(sums[1], exp_of<V>(V::sub(V::load(logits + i + n), shift)));
    }
    float total = V::sum(V::add(sums[0], sums[1]));
    for (; i < last; ++i) total += std::exp(value_of(logits[i]) - reference);

    const auto first_where = [&](auto&& holds) {
        std::size_t index = first;
        while (index < last && !holds(value_of(logits[index]))) ++index;
        return index;
    };
    std::size_t index = last;
    if (total != total) index = first_where([](float x) { return x != x; });
    if (index == last) index = first_where([&](float x) { return x == highest; });
    return {index, highest, total};
}

template <class V>
BestTokenKernel best_token_of(Dtype dtype) {
    return dtype == Dtype::fp32 ? &best_of_part<V, float> : &best_of_part<V, BFloat16>;
}

// The highest logit and the sum of exponentials of a part of a row, generic over the vector type. Included inside a
// target region, after vector_math.h and cached_attention_kernel.h.

template <class V, class T>
PartOfRow part_of_row(const void* row, std::size_t first, std::size_t last) {
    constexpr std::size_t n = V::kLanes, step = 4 * n;
    const T* logits = static_cast<const T*>(row);
    typename V::Float tops[4];
    for (auto& top : tops) top = V::broadcast(-std::numeric_limits<float>::infinity());
    std::size_t i = first;
    for (; i + step <= last; i += step)
        for (std::size_t slot = 0; slot < 4; ++slot) tops[slot] = V::max(V::load(logits + i + slot * n), tops[slot]);
    float highest = V::largest(V::max(V::max(tops[0], tops[1]), V::max(tops[2], tops[3])));
    for (; i < last; ++i) highest = value_of(logits[i]) > highest ? value_of(logits[i]) : highest;

    // A part of nothing but -infinity has total 0, not NaN: other parts may have higher logits.
    const float reference = highest == -std::numeric_limits<float>::infinity() ? 0.0F : highest;
    const typename V::Float shift = V::broadcast(reference);
    typename V::Float sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    for (i = first; i + step <= last; i += step)
        for (std::size_t slot = 0; slot < 4; ++slot)
            sums[slot] = V::add(sums[slot], exp_of<V>(V::sub(V::load(logits + i + slot * n), shift)));
    float total = V::sum(V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3])));
    for (; i < last; ++i) total += std::exp(value_of(logits[i]) - reference);
    return {highest, total};
}

template <class V>
PartKernel part_kernel_of(Dtype dtype) {
    return dtype == Dtype::fp32 ? &part_of_row<V, float> : &part_of_row<V, BFloat16>;
}

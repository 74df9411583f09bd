// Cross-entropy kernels, generic over the vector type. Included inside a target region, after row_loops.h.

FASTBERT_INLINE float value_of(float x) { return x; }
FASTBERT_INLINE float value_of(BFloat16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

template <class V, class T>
FASTBERT_INLINE float highest_of(const T* logits, std::size_t count) {
    typename V::Float top = V::broadcast(-std::numeric_limits<float>::infinity());
    std::size_t i = 0;
    for (; i + V::kLanes <= count; i += V::kLanes) top = V::max(top, V::load(logits + i));
    float highest = V::largest(top);
    for (; i < count; ++i) {
        const float x = value_of(logits[i]);
        highest = x > highest ? x : highest;
    }
    return highest;
}

// Return true if `label` is the first index of the highest logit.
template <class T>
bool is_first(const T* logits, std::size_t label, float highest) {
    if (!(value_of(logits[label]) == highest)) return false;
    for (std::size_t i = 0; i < label; ++i)
        if (value_of(logits[i]) == highest) return false;
    return true;
}

template <class V, class T>
void cross_entropy_row(const CrossEntropyCall& call, T* logits, std::size_t label, float& loss, std::uint8_t& correct) {
    const std::size_t count = call.vocab_size;
    const float highest = highest_of<V>(logits, count), uniform = call.label_smoothing / static_cast<float>(count);
    Sums<V> exponentials, differences;
    for_each_vector_pair<V>(count, [&](std::size_t i, auto part) FASTBERT_INLINE_BODY {
        using U = typename decltype(part)::Vector;
        const typename U::Float d = U::sub(part.load(logits + i), U::broadcast(highest));
        add_to(exponentials, part.keep(exp_of<U>(d)));
        if (uniform != 0.0F) add_to(differences, part.keep(d));
    });
    const float total = exponentials.total(), target = 1.0F - call.label_smoothing;
    const float label_logit = value_of(logits[label]) - highest, log_total = std::log(total), lse = highest + log_total;
    loss = log_total - target * label_logit - (uniform != 0.0F ? uniform * differences.total() : 0.0F);
    if (call.z_loss != 0.0F) loss += call.z_loss * lse * lse;
    correct = total == total && is_first(logits, label, highest) ? 1 : 0;
    if (!call.gradients) return;
    const float slope = call.z_loss != 0.0F ? 1.0F + 2.0F * call.z_loss * lse : 1.0F, factor = slope / total;
    for_each_vector_pair<V>(count, [&](std::size_t i, auto part) FASTBERT_INLINE_BODY {
        using U = typename decltype(part)::Vector;
        const typename U::Float p = exp_of<U>(U::sub(part.load(logits + i), U::broadcast(highest)));
        part.store(logits + i, U::fma(p, U::broadcast(factor), U::broadcast(-uniform)));
    });
    // Recompute the label's exponential as above, so that the difference is rounded once.
    const typename V::Float p = exp_of<V>(V::broadcast(label_logit));
    V::store_part(logits + label, V::fma(p, V::broadcast(factor), V::broadcast(-uniform - target)), 1);
}

template <class V, class T>
void cross_entropy_rows(const CrossEntropyCall& call, std::size_t first, std::size_t last) {
    for (std::size_t row = first; row < last; ++row) {
        T* logits = static_cast<T*>(call.logits) + row * call.stride;
        if (call.labels[row] == call.ignore_index) {
            call.losses[row] = 0.0F;
            call.correct[row] = 0;
            if (call.gradients) std::memset(logits, 0, call.vocab_size * sizeof(T));
            continue;
        }
        // Another thread may have changed the label since it was validated: stay inside the row.
        const auto label = static_cast<std::size_t>(call.labels[row]);
        cross_entropy_row<V>(call, logits, label < call.vocab_size ? label : 0, call.losses[row], call.correct[row]);
    }
}

template <class V>
CrossEntropyKernel cross_entropy_of(Dtype dtype) {
    return dtype == Dtype::fp32 ? &cross_entropy_rows<V, float> : &cross_entropy_rows<V, BFloat16>;
}

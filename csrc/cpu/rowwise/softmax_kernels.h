// Softmax of rows, generic over the vector type. Included inside a target region, after a vector type, vector_math.h
// and row_loops.h.

// scratch = scale * scores of a row, -infinity where masked.
template <class V, class T>
FASTBERT_INLINE void scaled_scores(const T* scores, const std::uint8_t* mask, std::ptrdiff_t mask_stride,
                                   std::size_t keys, float scale, float* scratch) {
    const typename V::Float factor = V::broadcast(scale);
    for_each_vector<V>(keys, [&](std::size_t i, std::size_t, auto part) FASTBERT_INLINE_BODY {
        part.store(scratch + i, V::mul(part.load(scores + i), factor));
    });
    constexpr float kMasked = -std::numeric_limits<float>::infinity();
    if (!mask) return;
    if (mask_stride == 1) {
        for (std::size_t i = 0; i < keys; ++i) scratch[i] = mask[i] ? scratch[i] : kMasked;
    } else {
        for (std::size_t i = 0; i < keys; ++i)
            if (!mask[static_cast<std::ptrdiff_t>(i) * mask_stride]) scratch[i] = kMasked;
    }
}

// Compute the exponentials of a row of scores in place and return the normalisation factor: 0 if no score is above
// -infinity.
template <class V>
FASTBERT_INLINE float exponentials(float* scratch, std::size_t keys) {
    using F = typename V::Float;
    constexpr float kMasked = -std::numeric_limits<float>::infinity();
    const float* scores = scratch;
    F highest = V::broadcast(kMasked);
    for_each_vector<V>(keys, [&](std::size_t i, std::size_t, auto part) FASTBERT_INLINE_BODY {
        // Padding lanes are zero, which may exceed every score: the partial vector is reduced element by element below.
        if constexpr (std::is_same_v<decltype(part), FullVector<V>>) highest = V::max(highest, part.load(scores + i));
    });
    float most = V::largest(highest);
    for (std::size_t i = keys - keys % V::kLanes; i < keys; ++i) most = scores[i] > most ? scores[i] : most;
    // exp(-infinity - 0) is 0 as required, and NaN propagates.
    const float shift = most == kMasked ? 0.0F : most;
    Sums<V> sums;
    for_each_vector_pair<V>(keys, [&](std::size_t i, auto part) FASTBERT_INLINE_BODY {
        using U = typename decltype(part)::Vector;
        const typename U::Float term = exp_of<U>(U::sub(part.load(scores + i), U::broadcast(shift)));
        part.store(scratch + i, term);
        add_to(sums, part.keep(term));
    });
    const float total = sums.total();
    return total == 0.0F ? 0.0F : 1.0F / total;
}

// The indices (sequence, head, query) and memory offsets of a row of scores.
struct ScoreOffsets {
    std::size_t index[3];
    std::ptrdiff_t scores = 0, mask = 0;

    FASTBERT_INLINE ScoreOffsets(const SoftmaxCall& call, std::size_t row)
        : index{row / call.sizes[2] / call.sizes[1], row / call.sizes[2] % call.sizes[1], row % call.sizes[2]} {
        for (std::size_t axis = 0; axis < 3; ++axis) {
            scores += static_cast<std::ptrdiff_t>(index[axis]) * call.strides[axis];
            mask += static_cast<std::ptrdiff_t>(index[axis]) * call.mask_strides[axis];
        }
    }
};

// As `exponentials`, for the scaled and masked scores of a row.
template <class V, class T>
FASTBERT_INLINE float row_exponentials(const SoftmaxCall& call, const ScoreOffsets& offsets, float* scratch) {
    const std::uint8_t* mask = call.mask ? call.mask + offsets.mask : nullptr;
    const T* scores = static_cast<const T*>(call.scores) + offsets.scores;
    scaled_scores<V>(scores, mask, call.mask_strides[3], call.sizes[3], call.scale, scratch);
    return exponentials<V>(scratch, call.sizes[3]);
}

// Return the keep bits of a row, null without dropout. Those of four queries are drawn at once, into `bits`, when the
// first of them is reached: the thread's first row, or one whose query is a multiple of four.
inline const std::uint8_t* row_keep_bits(const SoftmaxCall& call, const ScoreOffsets& offsets, bool first_row,
                                         std::uint8_t* bits) {
    if (!call.dropout.keys) return nullptr;
    const std::size_t keys = call.sizes[3], stride = KeepBits::row_bytes(keys);
    const std::size_t local = offsets.index[2] % KeepBits::kRowQueries;
    if (first_row || local == 0)
        attention_row_bits(call.dropout.of(offsets.index[0], offsets.index[1]), offsets.index[2] - local, 0, keys, bits,
                           stride);
    return bits + local * stride;
}

template <class V, class T>
void softmax_rows(const SoftmaxCall& call, std::size_t first, std::size_t last, float* scratch) {
    const std::size_t keys = call.sizes[3];
    auto* bits = reinterpret_cast<std::uint8_t*>(scratch + keys);
    for (std::size_t row = first; row < last; ++row) {
        const ScoreOffsets offsets(call, row);
        const std::uint8_t* keep_bits = row_keep_bits(call, offsets, row == first, bits);
        const typename V::Float factor =
            V::broadcast(row_exponentials<V, T>(call, offsets, scratch) * call.dropout.keep);
        T* out = static_cast<T*>(call.out) + row * keys;
        for_each_vector<V>(keys, [&](std::size_t i, std::size_t, auto part) FASTBERT_INLINE_BODY {
            const auto value = V::mul(part.load(static_cast<const float*>(scratch) + i), factor);
            part.store(out + i, keep_bits ? V::where_bits(keep_bits + i / 8, value, V::zero()) : value);
        });
    }
}

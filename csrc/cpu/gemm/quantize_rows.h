// Quantization, generic over the vector type. Included inside a target region, after a vector type and
// `store_integers`, which rounds a vector of floats to nearest and stores bytes.

template <class V, typename Value>
FASTBERT_INLINE void quantize_row(const Value* x, std::size_t depth, std::int8_t* integers, float* scale) {
    using F = typename V::Float;
    constexpr std::size_t kLanes = V::kLanes;
    const std::size_t whole = depth / kLanes * kLanes, rest = depth - whole;
    F largest = V::zero(), poison = V::zero();
    // 0 * x is NaN if x is a NaN or an infinity; the comparisons would lose a NaN.
    for (std::size_t i = 0; i < whole; i += kLanes) {
        const F values = V::load(x + i);
        largest = V::max(largest, V::abs(values));
        poison = V::fma(values, V::zero(), poison);
    }
    if (rest) {
        const F values = V::load_part(x + whole, rest);
        largest = V::max(largest, V::abs(values));
        poison = V::fma(values, V::zero(), poison);
    }
    const float poisoned = V::sum(poison);
    const float peak = V::largest(largest);
    if (poisoned != poisoned || !(peak >= 0x1p-100F)) {
        *scale = poisoned != poisoned ? poisoned : 0.0F;
        if (depth) std::memset(integers, 0, depth);
        return;
    }
    *scale = peak / 127.0F;
    const F factor = V::broadcast(127.0F / peak);
    for (std::size_t i = 0; i < whole; i += kLanes) store_integers(integers + i, V::mul(V::load(x + i), factor));
    if (rest) {
        std::int8_t last[kLanes];
        store_integers(last, V::mul(V::load_part(x + whole, rest), factor));
        std::memcpy(integers + whole, last, rest);
    }
}

template <class V>
void quantize_range(const QuantizedRows& rows, std::size_t first, std::size_t last) {
    for (std::size_t row = first; row < last; ++row) {
        std::int8_t* integers = rows.integers + row * rows.depth;
        const std::size_t start = row * rows.stride;
        if (rows.dtype == Dtype::bf16)
            quantize_row<V>(static_cast<const BFloat16*>(rows.x) + start, rows.depth, integers, rows.scales + row);
        else
            quantize_row<V>(static_cast<const float*>(rows.x) + start, rows.depth, integers, rows.scales + row);
    }
}
